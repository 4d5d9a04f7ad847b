"""The files under a folder of the warehouse, on a disk or in an object store, as Delta's library reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileType, PyFileSystem

LOG = "_delta_log"
"""The folder of a table's own log."""


class File(NamedTuple):
    """A file by its path under the folder, and its size in bytes."""

    path: str
    size: int


class Folder:
    """A folder that is there; its paths are relative."""

    def __init__(self, uri: str) -> None:
        self._handler = DeltaStorageHandler(uri)
        self._files = PyFileSystem(self._handler)

    def files(self, under: str = "") -> Iterator[File]:
        """All files, those whose names begin with _ or . too."""
        found = self._files.get_file_info(FileSelector(under, recursive=True, allow_not_found=True))
        return (File(it.path, it.size or 0) for it in found if it.type == FileType.File)

    @cached_property
    def tables(self) -> list[str]:
        """The paths of the Delta tables in it, as they were when it was first asked."""
        return sorted({file.path.split(f"/{LOG}/")[0] for file in self.files() if f"/{LOG}/" in file.path})

    def of(self, table: str) -> Iterator[File]:
        """The files of one of its tables, without those of tables that lie within its folder."""
        within = tuple(f"{it}/" for it in self.tables if it.startswith(f"{table}/"))
        return (file for file in self.files(table) if not file.path.startswith(within))

    def read(self, path: str) -> bytes:
        """The bytes of a file."""
        with self._files.open_input_stream(path) as stream:
            return bytes(stream.read())

    def write(self, path: str, content: bytes) -> None:
        """Puts bytes in the place of a file, all or nothing."""
        # Arrow's own stream hands over buffers, which this version of the library does not take.
        stream = self._handler._handler.open_output_stream(path)  # noqa: SLF001
        stream.write(content)
        stream.close()  # type: ignore[attr-defined]  # it has one

    def remove(self, path: str) -> None:
        """Deletes a file."""
        self._files.delete_file(path)
