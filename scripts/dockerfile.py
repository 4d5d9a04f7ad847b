"""Read a Dockerfile and its .dockerignore: stages, their steps, and which files of a folder may be copied.

Only what our Dockerfile uses is known (`STEPS`, and COPY with --from and --chown); anything else is refused, so that
nothing is silently left out. Standard library only.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

STEPS = ("COPY", "CMD", "ENTRYPOINT", "ENV", "RUN", "USER", "WORKDIR")
COPY_OPTIONS = ("from", "chown")


class DockerfileError(Exception):
    """What was found in a file, on which line, and what to do about it."""


class Step(NamedTuple):
    """An instruction of a stage: its line, its name, and what follows it (without --options, which are apart)."""

    line: int
    name: str
    text: str
    options: dict[str, str]

    @property
    def words(self) -> list[str]:
        """What follows the name, as words: a JSON list, or what a shell makes of it."""
        listed = parse_list(self.text)
        return shlex.split(self.text) if listed is None else listed


class Stage(NamedTuple):
    """A FROM and the steps after it. `base` is an image or the name of an earlier stage."""

    name: str
    base: str
    steps: list[Step]


def parse_stages(text: str) -> list[Stage]:
    """Return the stages of a Dockerfile; raise DockerfileError for what is not known here."""
    stages: list[Stage] = []
    for line, instruction in list_instructions(text):
        name, _, rest = instruction.partition(" ")
        name, rest = name.upper(), rest.strip()
        if name == "FROM":
            found = re.fullmatch(r"(\S+)(?:\s+[Aa][Ss]\s+(\S+))?", rest)
            if found is None:
                raise DockerfileError(f"line {line}: FROM {rest}: write FROM image or FROM image AS name")
            stages.append(Stage(found[2] or str(len(stages)), found[1], []))
            continue
        if name not in STEPS:
            raise DockerfileError(f"line {line}: {name} is not one of {', '.join(STEPS)}; teach scripts/dockerfile.py")
        if not stages:
            raise DockerfileError(f"line {line}: {name} before the first FROM; move it below")
        stages[-1].steps.append(parse_step(line, name, rest, [stage.name for stage in stages[:-1]]))
    if not stages:
        raise DockerfileError("no FROM; a Dockerfile begins with one")
    return stages


def list_instructions(text: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction with the number of its first line; continued lines are joined, comments are left out."""
    first, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first = first if parts else number
        if line.rstrip().endswith("\\"):
            parts.append(line.rstrip()[:-1])
            continue
        yield first, "".join([*parts, line]).strip()
        parts = []
    if parts:
        raise DockerfileError(f"line {first}: the file ends in a continued line; remove its last backslash")


def parse_step(line: int, name: str, rest: str, earlier: list[str]) -> Step:
    """Return a step; raise DockerfileError for an option that is not known, or a stage that is not there."""
    options: dict[str, str] = {}
    while found := re.match(r"--([a-z-]+)(?:=(\S*))?\s+", rest):
        options[found[1]], rest = found[2] or "", rest[found.end() :]
    known = COPY_OPTIONS if name == "COPY" else ()
    for option in options:
        if option not in known:
            raise DockerfileError(f"line {line}: {name} --{option} is not known here; teach scripts/dockerfile.py")
    if options.get("from", "") not in {"", *earlier}:
        found_stages = ", ".join(earlier) or "none"
        raise DockerfileError(f"line {line}: --from={options['from']} is no earlier stage ({found_stages}); add it")
    if name == "RUN" and (rest.startswith("<<") or parse_list(rest) is not None):
        raise DockerfileError(f"line {line}: RUN with a here-document or a list is not known here; write a shell line")
    if name == "COPY" and len(shlex.split(rest)) < 2:
        raise DockerfileError(f"line {line}: COPY {rest}: name what is copied, and where to")
    return Step(line, name, rest, options)


def parse_list(text: str) -> list[str] | None:
    """Return a JSON list of texts (the form of CMD and ENTRYPOINT without a shell); None for anything else."""
    try:
        listed = json.loads(text)
    except ValueError:
        return None
    return listed if isinstance(listed, list) and all(isinstance(it, str) for it in listed) else None


def expand_variables(text: str, environ: Mapping[str, str]) -> str:
    """Return a text with $NAME and ${NAME} replaced; a variable that is not set is empty, as Docker has it."""
    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda found: environ.get(found[1] or found[2], ""), text)


def parse_environment(step: Step, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an ENV sets. All of its values are expanded with those of before."""
    pairs = [word.partition("=") for word in shlex.split(step.text)]
    if not all(equals for _, equals, _ in pairs):
        raise DockerfileError(f"line {step.line}: ENV {step.text}: write NAME=value")
    return {name: expand_variables(value, environ) for name, _, value in pairs}


class Ignored:
    """The patterns of a .dockerignore: the last one that fits a path decides, and one with `!` lets it in again."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self.rules = [
            (not line.startswith("!"), _compile_pattern(line.lstrip("!").strip("/")))
            for line in lines
            if line and not line.startswith("#")
        ]

    def has(self, path: str) -> bool:
        """Return whether a path, relative to the folder that is built, stays out of the image."""
        ignored = False
        for leaves_out, pattern in self.rules:
            if pattern.fullmatch(path):
                ignored = leaves_out
        return ignored

    def list_files(self, root: Path, source: str) -> list[Path]:
        """Return the files under a source, a file or folder of `root`, that may be copied."""
        start = root / source
        paths = [start] if start.is_file() else sorted(path for path in start.rglob("*") if path.is_file())
        return [path for path in paths if not self.has(path.relative_to(root).as_posix())]


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return an expression for a path that the pattern, or one of its folders, fits."""
    out, rest = "", pattern
    while rest:
        if rest.startswith("**/"):
            out, rest = f"{out}(?:.*/)?", rest[3:]
        elif rest.startswith("**"):
            out, rest = f"{out}.*", rest[2:]
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(rest[0], re.escape(rest[0]))
            rest = rest[1:]
    return re.compile(f"{out}(?:/.*)?")
