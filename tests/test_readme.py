"""Every command of the README is run, in the README's order, on real parts, and must print what the README says.

A `console` block holds commands (`$ ...`) and their output. A `yaml` or `json` block is a file: the line before it ends
with the file's name. `text` blocks are drawings. There are no other blocks, so no command goes without a test.

What differs from run to run is compared as its kind: a moment with a fraction of a second (no data here have one) as
`<time>`, a port of this machine as `<port>`, a count of seconds as `<seconds>`, the checkout as `~/hindcast`.

    .venv/bin/python tests/test_readme.py     writes into the README what its commands print now
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hindcast.local import ports
from hindcast.settings import settings

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BASH = ("/usr/bin/env", "bash", "-c")
FILES = ("yaml", "json")
"""Languages of the blocks that are files."""
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


class Command(NamedTuple):
    """What a reader types, and what the README says that it prints."""

    line: str
    printed: str


class File(NamedTuple):
    """What a reader writes."""

    name: str
    text: str


class Done(NamedTuple):
    """What a command printed."""

    code: int
    out: str
    err: str


def blocks() -> list[Block]:
    text = README.read_text(encoding="utf-8")
    found = re.finditer(r"([^\n]*)\n+```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(match[2], match[1], match[3].splitlines()) for match in found]


def named(before: str) -> str:
    match = re.search(r"`([^`]+)`:$", before)
    assert match, f"no file is named before the block: {before!r}"
    return match[1]


def steps() -> Iterator[Command | File]:
    """What a reader of the README does, in order."""
    for block in blocks():
        if block.language in FILES:
            yield File(named(block.before), "\n".join(block.lines) + "\n")
        if block.language == "console":
            for typed in re.split(r"^\$ ", "\n".join(block.lines), flags=re.MULTILINE)[1:]:
                line, _, printed = typed.partition("\n")
                yield Command(line, printed)


def commands() -> list[Command]:
    return [step for step in steps() if isinstance(step, Command)]


def follow(checkout: Path, chosen: dict[str, str]) -> list[Done]:
    """Do what the README says, in one shell, with these settings; it ends at the first command that fails."""
    for name in ("Makefile", "jobs", "scripts", "dags", ".venv"):
        (checkout / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "schemas", checkout / "schemas")
    told = checkout / "told"
    told.mkdir()
    script = []
    for step in steps():
        if isinstance(step, File):
            staged = told / Path(step.name).name
            staged.write_text(step.text, encoding="utf-8")
            script.append(f"cp {staged} {step.name}")
        else:
            to = told / str(sum(line.startswith("{") for line in script))
            script.append(f"{{ {step.line}\n}} >{to}.out 2>{to}.err; c=$?; echo $c >{to}.code; [ $c = 0 ] || exit")
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


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Done]]]:
    checkout = tmp_path_factory.mktemp("hindcast")
    yield checkout, follow(checkout, _free_ports())
    shutil.rmtree(checkout / "var", ignore_errors=True)


@pytest.mark.long
@pytest.mark.parametrize("n", range(len(commands())), ids=[command.line for command in commands()])
def test_a_command_prints_what_the_readme_says(n: int, followed: tuple[Path, list[Done]]) -> None:
    checkout, done = followed
    assert n < len(done), "an earlier command failed"
    quiet = [line for line in done[n].err.splitlines() if line not in QUIET]
    assert (done[n].code, "\n".join(quiet)) == (0, "")
    assert comparable(done[n].out, checkout) == comparable(commands()[n].printed, checkout)


def test_every_block_is_run_or_is_a_file_or_a_drawing() -> None:
    assert {block.language for block in blocks()} == {"console", *FILES, "text"}
    assert all(block.lines[0].startswith("$ ") for block in blocks() if block.language == "console")
    assert README.read_text(encoding="utf-8").count("```") == 2 * len(blocks())


def test_the_example_makes_files_that_are_not_there() -> None:
    assert not [step.name for step in steps() if isinstance(step, File) and (ROOT / step.name).exists()]


def comparable(text: str, checkout: Path) -> str:
    """Text without what differs from run to run, and without spaces that end a line or follow from widths."""
    text = text.replace(str(checkout), "~/hindcast")
    for pattern, kind in VARYING:
        text = re.sub(pattern, kind, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def write(checkout: Path) -> None:
    """The README with what its commands print now, as a reader sees it: in a place and on ports of one's own."""
    chosen = _free_ports()
    done = iter(follow(checkout, chosen))
    lines: list[str] = []
    language = ""
    for line in README.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            language = line.removeprefix("```")
        if language != "console" or line.startswith(("$ ", "```")):
            lines.append(line)
        if language == "console" and line.startswith("$ "):
            one = next(done, Done(1, "", "an earlier command failed"))
            lines += [text.rstrip() for text in _as_a_readers(one.out, checkout, chosen).rstrip().splitlines()]
            if one.code:
                sys.exit(f"{line}\n{one.err}")
    README.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _environment(checkout: Path) -> dict[str, str]:
    """A reader's: nothing of the tests' own but the place."""
    ours = ("AIRFLOW", "HINDCAST", "JAVA_HOME", "MAKE", "MFLAGS", "PY", "SPARK", "TZ", "VIRTUAL_ENV")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**inherited, "HINDCAST_VAR": str(checkout / "var"), "HINDCAST_SCHEMAS": str(checkout / "schemas")}


def _free_ports() -> dict[str, str]:
    """Ports that nobody has, nor those 100 above, which the demo takes."""
    names = ("HINDCAST_KAFKA_PORT", "HINDCAST_AIRFLOW_PORT", "HINDCAST_SPARK_PORT")
    free = (p for p in iter(ports.free, 0) if p < 65000 and not ports.listens(p + 100))
    return {name: str(port) for name, port in zip(names, free, strict=False)}


def _as_a_readers(text: str, checkout: Path, chosen: dict[str, str]) -> str:
    usual = settings({}).environment
    for name, port in chosen.items():
        for above in (0, 100):
            text = text.replace(f":{int(port) + above}", f":{int(usual[name]) + above}")
    return text.replace(str(checkout), "~/hindcast")


def _done(told: Path, n: int) -> Done:
    code, out, err = ((told / f"{n}.{part}").read_text(encoding="utf-8") for part in ("code", "out", "err"))
    return Done(int(code), out, err)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
