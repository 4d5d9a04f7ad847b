"""Create a project: a folder with a contract, its tests, a file for Airflow's dags folder, and a CI file.

The files are the templates in `project/`, in which <pipeline> stands for the pipeline's name, which is the folder's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hindcast.common.errors import ContractError, PlatformError, show_briefly
from hindcast.common.settings import is_checkout
from hindcast.contract import load

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
    exists. Raise PlatformError also for a file that cannot be written.
    """
    pipeline = folder.absolute().resolve().name
    contents = {
        path.replace("<pipeline>", pipeline): _fill_template(name, pipeline) for path, name in _TEMPLATES.items()
    }
    _refuse_name(folder, pipeline, contents)
    try:
        if existing := [path for path in contents if (folder / path).is_symlink() or (folder / path).exists()]:
            found = f"there is already {', '.join(existing)}; nothing was written"
            fix = "choose an empty folder: hindcast init FOLDER"
            raise PlatformError(found, where=str(folder), fix=fix)
        for path, text in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with (folder / path).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        found = f"cannot be written: {error.strerror}"
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


def _fill_template(name: str, pipeline: str) -> str:
    text = files("hindcast.ops").joinpath("project", f"{name}.template").read_text(encoding="utf-8")
    return text.replace("<pipeline>", pipeline)


def _refuse_name(folder: Path, pipeline: str, contents: Mapping[str, str]) -> None:
    """Raise ContractError if a contract cannot have this name."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "contract.yaml"
        path.write_bytes(contents[f"schemas/{pipeline}.yaml"].encode(errors="surrogateescape"))
        try:
            load(path)
        except ContractError as error:
            found = f"its name cannot be a pipeline's: {show_briefly(error.found)}; nothing was written"
            other = folder.with_name(_suggest_name(pipeline)) if folder.name else Path(_suggest_name(pipeline))
            fix = f"choose another folder: hindcast init {shlex.quote(str(other))}"
            raise ContractError(found, where=str(folder), fix=fix) from None


def _suggest_name(name: str) -> str:
    """Return a name like this one that a pipeline can have."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return plain if re.match("[a-z]", plain) and plain != name else f"my_{plain}".rstrip("_")
