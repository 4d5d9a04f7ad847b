"""Create a project: a folder with a contract, its tests, a file for Airflow's dags folder, and a CI file.

The files are the templates in `project/`, in which <pipeline> stands for the pipeline's name, which is the folder's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path, PurePath
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from hindcast.common.errors import ContractError, PlatformError, escape_controls, show_briefly
from hindcast.common.settings import is_checkout
from hindcast.contract import load_text
from hindcast.contract.types import Name

_TEMPLATES = {
    "schemas/<pipeline>.yaml": "contract.yaml",
    "schemas/tests/<pipeline>.yaml": "contract_tests.yaml",
    "dags/our_pipelines.py": "our_pipelines.py",
    "tests/test_contracts.py": "test_contracts.py",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    ".github/workflows/contracts.yaml": "contracts_ci.yaml",
}
"""The files of a project, by their path in it, each with its template."""


class Project(NamedTuple):
    """A project that was created: its folder as the user named it, its pipeline, and the paths of its files in it."""

    folder: Path
    pipeline: str
    paths: tuple[str, ...]


def create_project(folder: Path) -> Project:
    """Create the files of a project in a folder, and the folder if it does not exist; return the project.

    Write nothing and raise ContractError if the folder's name cannot be a pipeline's, PlatformError if one of the files
    exists, or if a folder for them is a link, which may lead out of the project. Raise PlatformError also for a file
    that cannot be written, and remove the others.
    """
    pipeline = _find_target(folder).name
    contents = {
        path.replace("<pipeline>", pipeline): _fill_template(name, pipeline) for path, name in _TEMPLATES.items()
    }
    made: list[Path] = []
    try:
        _refuse_name(folder, pipeline, contents)
        _refuse_existing(folder, [*contents])
        _write_files(folder, contents, made)
    except OSError as error:
        left = ", ".join(str(path) for path in made if path.exists())
        state = f"remove {left}" if left else "nothing was left" if made else "nothing was written"
        found = f"cannot be written: {error.strerror}; {state}"
        raise PlatformError(found, where=str(error.filename or folder), fix="choose another folder") from None
    return Project(folder, pipeline, tuple(contents))


def format_next_steps(project: Project) -> str:
    """Return what was created and three lines on what to do next, as text."""
    enter = "" if project.folder == Path() else f"cd {shlex.quote(str(project.folder))} && "
    if is_checkout():  # its own folders would be meant without this variable
        enter += "export HINDCAST_ROOT=$PWD && "
    pipeline = project.pipeline
    lines = [
        f"created {', '.join(project.paths)}",
        f"  {enter}hindcast check && hindcast test",
        f"  write your topics and views into schemas/{pipeline}.yaml, and records into schemas/tests/{pipeline}.yaml",
        f"  HINDCAST_KAFKA=host:9092 hindcast run {pipeline}; README.md says how Airflow runs it every day",
    ]
    return "\n".join(lines)


def _find_target(folder: Path) -> Path:
    """Return where a folder is, without links and `..`; raise PlatformError if it leads nowhere."""
    try:
        target = folder.absolute().resolve()
    except (OSError, RuntimeError):  # which one depends on the version of Python
        found = "a link in this path leads back to itself; nothing was written"
        raise PlatformError(found, where=str(folder), fix="remove the link, or choose another folder") from None
    for number, part in enumerate(folder.parts):
        before = Path(*folder.parts[:number])
        if part == ".." and not before.exists():
            found = f"{before} does not exist, so there is nothing above it; nothing was written"
            raise PlatformError(
                found, where=str(folder), fix=f"name it without ..: hindcast init {shlex.quote(str(target))}"
            )
    return target


def _fill_template(name: str, pipeline: str) -> str:
    text = files("hindcast.ops").joinpath("project", f"{name}.template").read_text(encoding="utf-8")
    return text.replace("<pipeline>", pipeline)


def _refuse_existing(folder: Path, paths: Sequence[str]) -> None:
    """Raise PlatformError if one of the files exists, or a folder for them is a link or something else."""
    parents = dict.fromkeys(parent for path in paths for parent in [*PurePath(path).parents][-2::-1])
    fix = "choose an empty folder: hindcast init FOLDER"
    for parent in parents:
        if (folder / parent).is_symlink():
            raise PlatformError(f"{parent} is a link; nothing was written", where=str(folder), fix=fix)
        if (folder / parent).exists() and not (folder / parent).is_dir():
            raise PlatformError(f"{parent} is no folder; nothing was written", where=str(folder), fix=fix)
    if existing := [path for path in paths if (folder / path).is_symlink() or (folder / path).exists()]:
        found = f"there is already {', '.join(existing)}; nothing was written"
        raise PlatformError(found, where=str(folder), fix=fix)


def _write_files(folder: Path, contents: Mapping[str, str], made: list[Path]) -> None:
    """Write files, and the folders that lack, and add them to `made`; remove all again if one cannot be written."""
    try:
        for path in (folder / name for name in contents):
            for parent in [it for it in (path.parent, *path.parent.parents) if not it.exists()][::-1]:
                parent.mkdir()
                made.append(parent)
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(contents[str(path.relative_to(folder))])
    except BaseException:
        for path in reversed(made):
            with suppress(OSError):  # a folder in which there is something else by now
                path.rmdir() if path.is_dir() else path.unlink()
        raise


def _refuse_name(folder: Path, pipeline: str, contents: Mapping[str, str]) -> None:
    """Raise ContractError if a contract cannot have this name, or does not when it is written into one as it is."""
    if (found := _find_problem(pipeline, contents)) is not None:
        other = folder.with_name(_suggest_name(pipeline)) if folder.name else Path(_suggest_name(pipeline))
        fix = f"choose another folder: hindcast init {shlex.quote(str(other))}"
        found = f"its name cannot be a pipeline's: {show_briefly(found)}; nothing was written"
        raise ContractError(found, where=str(folder), fix=fix)


def _find_problem(pipeline: str, contents: Mapping[str, str]) -> str | None:
    try:
        TypeAdapter(Name).validate_python(escape_controls(pipeline))  # a name with half a character is none either
    except ValidationError as error:
        return error.errors()[0]["msg"].removeprefix("Value error, ")
    try:
        read = load_text(contents[f"schemas/{pipeline}.yaml"]).pipeline
    except ContractError as error:
        return error.found
    return f"it is read as '{read}'" if read != pipeline else None


def _suggest_name(name: str) -> str:
    """Return a name like this one that a pipeline can have."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return plain if re.match("[a-z]", plain) and plain != name else f"my_{plain}".rstrip("_")
