"""Pages that a reader follows, followed: their commands are run in order, on real parts, in a checkout of its own.

A `console` block holds commands (`$ ...`) and their output. A block of another language is a file where the line before
it ends with the file's name: "`rates.jsonl`:". All other blocks are to be looked at. A command whose output says
`hindcast: ...`, as errors do, fails, and is meant to.

What differs from run to run is compared as its kind: a moment with a fraction of a second (no data here have one) as
`<time>`, a port of this machine as `<port>`, a count of seconds as `<seconds>`, the checkout as `~/hindcast`.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hindcast.common.settings import read_settings
from hindcast_local import ports

ROOT = Path(__file__).resolve().parent.parent
BASH = ("/usr/bin/env", "bash", "-c")
SECONDS = 1800
QUIET = ("WARNING: Using incubator modules: jdk.incubator.vector",)
"""Lines on stderr that no reader is told of: the JVM's own, about what Spark asks it for."""

VARYING = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d+(\+00:00)?", "<time>"),
    (r"(127\.0\.0\.1):\d+", r"\1:<port>"),
    (r" *\b\d+(\.\d+)? s\b", " <seconds>"),
)


class Block(NamedTuple):
    """A fenced block: its language, the line of text before it, its lines."""

    language: str
    before: str
    lines: list[str]

    @property
    def file(self) -> str | None:
        """The name of the file that it is; None if it is none."""
        named = re.search(r"`([^`]+)`:$", self.before)
        return named[1] if named and self.language not in ("console", "text") else None


class Command(NamedTuple):
    """What a reader types, and what the page says that it prints."""

    page: str
    line: str
    printed: str

    @property
    def fails(self) -> bool:
        """Whether the page says that it does."""
        return re.search(r"^hindcast: ", self.printed, re.MULTILINE) is not None


class File(NamedTuple):
    """What a reader writes."""

    name: str
    text: str


class Done(NamedTuple):
    """What a command printed."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> str:
        """All that a reader sees of it."""
        quiet = "\n".join(line for line in self.err.splitlines() if line not in QUIET)
        return "\n".join(filter(None, (self.out.rstrip(), quiet)))


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"([^\n]*)\n+```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(match[2], match[1], match[3].splitlines()) for match in found]


def steps(pages: Sequence[Path]) -> Iterator[Command | File]:
    """What a reader of these pages does, in order."""
    for page in pages:
        for block in blocks(page):
            if block.file:
                yield File(block.file, "\n".join(block.lines) + "\n")
            if block.language == "console":
                for typed in re.split(r"^\$ ", "\n".join(block.lines), flags=re.MULTILINE)[1:]:
                    line, _, printed = typed.partition("\n")
                    yield Command(page.stem, line, printed)


def commands(pages: Sequence[Path]) -> list[Command]:
    """The commands of these pages, in order."""
    return [step for step in steps(pages) if isinstance(step, Command)]


def follow(pages: Sequence[Path], checkout: Path, chosen: dict[str, str]) -> list[Done]:
    """Do what the pages say, in one shell, with these settings; it ends at the first command that does otherwise."""
    for name in ("Makefile", "jobs", "scripts", "dags", ".venv"):
        (checkout / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "schemas", checkout / "schemas")
    told = checkout / "told"
    told.mkdir()
    script: list[str] = []
    number = 0
    for step in steps(pages):
        if isinstance(step, File):
            staged = told / f"{len(script)}-{Path(step.name).name}"
            staged.write_text(step.text, encoding="utf-8")
            script.append(f"cp {staged} {step.name}")
        else:
            to, fine = told / str(number), "!=" if step.fails else "="
            script.append(f"{{ {step.line}\n}} >{to}.out 2>{to}.err; c=$?; echo $c >{to}.code; [ $c {fine} 0 ] || exit")
            number += 1
    environment = _environment(checkout) | chosen
    subprocess.run([*BASH, "make setup"], cwd=checkout, env=environment, capture_output=True, check=True)
    shell = subprocess.Popen([*BASH, "\n".join(script)], cwd=checkout, env=environment, start_new_session=True)
    try:
        shell.wait(SECONDS)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGINT)
            shell.wait(60)
        subprocess.run([*BASH, "make down"], cwd=checkout, env=environment, capture_output=True, check=False)
    return [_done(told, n) for n in range(len(list(told.glob("*.code"))))]


def check(pages: Sequence[Path], n: int, checkout: Path, done: list[Done]) -> None:
    """AssertionError unless the n-th command did what its page says."""
    assert n < len(done), "an earlier command failed"
    command = commands(pages)[n]
    assert (done[n].code != 0) == command.fails, done[n].told
    expected, printed = (comparable(text, checkout).splitlines() for text in (command.printed, done[n].told))
    assert printed == expected, "\n".join(difflib.unified_diff(expected, printed, "the page", "what it printed"))


def comparable(text: str, checkout: Path) -> str:
    """Text without what differs from run to run, and without spaces that end a line or follow from widths."""
    text = text.replace(str(checkout), "~/hindcast")
    for pattern, kind in VARYING:
        text = re.sub(pattern, kind, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def write(*pages: Path) -> None:
    """Puts into the pages what their commands print now, as a reader sees it: in a place and on ports of one's own."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = free_ports()
        told = commands(pages)
        done = [_as_a_readers(one.told, Path(folder), chosen) for one in follow(pages, Path(folder), chosen)]
        printed = iter([*done, *("an earlier command failed" for _ in told[len(done) :])])
    for page in pages:
        lines: list[str] = []
        language = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("```"):
                language = line.removeprefix("```")
            if language != "console" or line.startswith(("$ ", "```")):
                lines.append(line)
            if language == "console" and line.startswith("$ "):
                lines += [text.rstrip() for text in next(printed).rstrip().splitlines()]
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if len(done) < len(told):
        sys.exit(f"{told[len(done) - 1].page}: {told[len(done) - 1].line}\n{done[-1]}")


def free_ports() -> dict[str, str]:
    """Ports that nobody has, nor those 100 above, which the demo takes."""
    names = ("HINDCAST_KAFKA_PORT", "HINDCAST_AIRFLOW_PORT", "HINDCAST_SPARK_PORT")
    free = (port for port in iter(ports.find_free_port, 0) if not ports.is_listening(port + 100))
    return {name: str(port) for name, port in zip(names, free, strict=False)}


def _environment(checkout: Path) -> dict[str, str]:
    """A reader's: nothing of the tests' own but the place."""
    ours = ("AIRFLOW", "HINDCAST", "JAVA_HOME", "MAKE", "MFLAGS", "PY", "SPARK", "TZ", "VIRTUAL_ENV")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**inherited, "HINDCAST_VAR": str(checkout / "var"), "HINDCAST_SCHEMAS": str(checkout / "schemas")}


def _as_a_readers(text: str, checkout: Path, chosen: dict[str, str]) -> str:
    usual = read_settings({}).environment
    for name, port in chosen.items():
        for above in (0, 100):
            text = text.replace(f":{int(port) + above}", f":{int(usual[name]) + above}")
    return text.replace(str(checkout), "~/hindcast")


def _done(told: Path, n: int) -> Done:
    code, out, err = ((told / f"{n}.{part}").read_text(encoding="utf-8") for part in ("code", "out", "err"))
    return Done(int(code), out, err)
