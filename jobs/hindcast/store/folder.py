"""The files under a folder of the warehouse, on a disk or in an object store, as Delta's library reaches them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from hindcast.store import own_files

LOG_FOLDER = "_delta_log"
"""The folder of a table's Delta log."""


class StoredFile(NamedTuple):
    """A file by its path under the folder, and its size in bytes."""

    path: str
    size: int


class WarehouseFolder:
    """An existing folder; its paths are relative."""

    def __init__(self, uri: str) -> None:
        self.name = uri.rstrip("/").rpartition("/")[2]
        self._local = None if "://" in uri else Path(uri)
        self._handler = DeltaStorageHandler(uri)
        self._files = PyFileSystem(self._handler)

    def list_files(self, under: str = "") -> Iterator[StoredFile]:
        """Return all files, including those whose names begin with _ or . (recursively)."""
        entries = self._files.get_file_info(FileSelector(under, recursive=True, allow_not_found=True))
        return (StoredFile(entry.path, entry.size or 0) for entry in entries if entry.type == FileType.File)

    @cached_property
    def tables(self) -> list[str]:
        """The paths of the Delta tables in the folder, as of the first use."""
        return sorted(
            {file.path.split(f"/{LOG_FOLDER}/")[0] for file in self.list_files() if f"/{LOG_FOLDER}/" in file.path}
        )

    def find_links_to(self, place: str) -> dict[str, str]:
        """Return the symbolic links, here or in here, that lead out of this folder to what is below `place`, a folder;
        those within a table wherever they lead.

        By their paths ("." for this folder itself), with what they lead to. None in an object store.
        """
        if self._local is None:
            return {}
        own, others = self._local.parent.resolve() / self._local.name, Path(place).resolve()
        found = [*([self._local] if self._local.is_symlink() else []), *own_files.find_links(self._local)]
        led = {str(link.relative_to(self._local)): link.resolve() for link in found}
        return {
            link: str(target)
            for link, target in led.items()
            if not target.is_relative_to(own) and (target.is_relative_to(others) or self._is_in_table(link))
        }

    def _is_in_table(self, path: str) -> bool:
        return any((Path(self._local or "") / parent / LOG_FOLDER).is_dir() for parent in Path(path).parents)

    def list_table_files(self, table: str) -> Iterator[StoredFile]:
        """Return the files of one of its tables, without those of tables within its folder."""
        within = tuple(f"{path}/" for path in self.tables if path.startswith(f"{table}/"))
        return (file for file in self.list_files(table) if not file.path.startswith(within))

    def read(self, path: str) -> bytes:
        """Return the bytes of a file."""
        with self._files.open_input_stream(path) as stream:
            return bytes(stream.read())

    def write(self, path: str, content: bytes) -> None:
        """Write bytes to a file, replacing it atomically."""
        # Arrow's own stream passes buffers, which this version of deltalake does not take.
        stream = self._handler._handler.open_output_stream(path)  # noqa: SLF001
        stream.write(content)
        stream.close()  # type: ignore[attr-defined]  # it has one

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._files.delete_file(path)

    def remove_unfinished_files(self, refuse: Callable[[], object] = lambda: None) -> None:
        """Delete what killed writers of delta-rs left on a disk; it lists no such file itself.

        `refuse` is called before each deletion and raises if others may write by now: what they write is unfinished.
        Notices (plan/notices.py) are left alone: others may write them.
        """
        for path in self._local.rglob("*#*") if self._local else ():
            if _UNFINISHED.search(path.name) and path.parent.name != "_notices":
                refuse()
                path.unlink(missing_ok=True)


_UNFINISHED = re.compile(r"#[0-9]+$")
"""The end of the name under which delta-rs writes a file on a disk, until it renames it."""
