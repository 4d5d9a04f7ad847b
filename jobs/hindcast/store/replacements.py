"""Replacements that are under way: a pipeline takes the place of another, and nobody else may read or run either.

    <warehouse>/_replacements/fares.json              fares is replaced
    <warehouse>/_replacements/fares_by_arrival.json   by this one; the same content

A mark says what is to be done, so the same command finishes what a killed one began (ops/replacement.py). Runs, upkeep
and questions look for it and are refused. A run that looked before there was a mark fails to commit its plan, since a
commit to the journal follows each new mark; then it looks again. Folders of an object store cannot be renamed, so
there is no mark.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex

from hindcast.common.errors import BusyError, TableError

FOLDER = "_replacements"
"""The folder of the marks, in the warehouse: no pipeline can be called so."""


@dataclass(frozen=True)
class Replacement:
    """That the pipeline `by` takes the place of `pipeline`, which is then called `archive`.

    `contracts`: the texts that files of contracts get, None for a file that is removed. `hashes`: the new hash of each
    contract that is renamed, by its old one. `is_checked`: nothing prevents it any more, and the first change may have
    been made.
    """

    pipeline: str
    by: str
    archive: str
    contracts: Mapping[str, str | None] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    is_checked: bool = False

    @property
    def sentence(self) -> str:
        """What is under way."""
        return f"{self.by} is taking the place of {self.pipeline}"

    @property
    def fix(self) -> str:
        """What whoever finds it can do."""
        return f"wait until that has ended; if it was killed: {self.command}"

    @property
    def command(self) -> str:
        """The command that makes it, or finishes it."""
        return f"hindcast rehearse {self.pipeline} --replace {self.by}"


def find_replacement(warehouse: str, pipeline: str) -> Replacement | None:
    """Return the replacement that a pipeline is part of; None if there is none. TableError for a broken mark."""
    if (folder := find_folder(warehouse)) is None:
        return None
    path = folder / FOLDER / f"{pipeline}.json"
    if not os.path.lexists(path):  # false, and no error, for what cannot be a name
        return None
    try:
        return Replacement(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, TypeError, ValueError) as error:
        found = f"cannot be read: {type(error).__name__}: {error}"
        fix = "give the permission to read it, or restore it from a backup"
        raise TableError(found, where=str(path), fix=fix) from None


def refuse_replacing(warehouse: str, pipeline: str) -> None:
    """Raise BusyError if the pipeline is being replaced, or replaces another; not within `allow_replacing`."""
    if not _IS_ALLOWED.get() and (replacement := find_replacement(warehouse, pipeline)) is not None:
        raise BusyError(replacement.sentence, where=pipeline, fix=replacement.fix)


@contextmanager
def allow_replacing() -> Iterator[None]:
    """Let the block read and change pipelines that are being replaced."""
    token = _IS_ALLOWED.set(True)
    try:
        yield
    finally:
        _IS_ALLOWED.reset(token)


_IS_ALLOWED: ContextVar[bool] = ContextVar("is allowed", default=False)


@contextmanager
def lock_replacements(warehouse: Path) -> Iterator[None]:
    """Let no other process replace a pipeline of a warehouse during the block; raise BusyError if one does."""
    folder = warehouse / FOLDER
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        found = "another process replaces a pipeline of this warehouse"
        raise BusyError(found, where=str(warehouse), fix="repeat it when that process has ended") from None
    finally:
        os.close(lock)


def mark_replacement(warehouse: Path, replacement: Replacement) -> None:
    """Write the marks of a replacement, that of the pipeline that is replaced first: the same command looks for it."""
    text = json.dumps(asdict(replacement), indent=2)
    for path in _list_marks(warehouse, replacement):
        temporary = path.with_name(f".{path.name}.{token_hex(4)}")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def remove_marks(warehouse: Path, replacement: Replacement) -> None:
    """Remove the marks of a replacement, that of the pipeline that is replaced last."""
    for path in reversed(_list_marks(warehouse, replacement)):
        path.unlink(missing_ok=True)


def find_folder(warehouse: str) -> Path | None:
    """Return the folder of a warehouse; None if it is in an object store."""
    local = warehouse.removeprefix("file://")
    return None if "://" in local else Path(local)


def _list_marks(warehouse: Path, replacement: Replacement) -> list[Path]:
    return [warehouse / FOLDER / f"{name}.json" for name in (replacement.pipeline, replacement.by)]
