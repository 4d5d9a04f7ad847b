"""What must be in a table's folder by itself: files, and no link or path that leads out of it.

Whoever may write to one table must not have the files of another read, or removed, by a process that may.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NoReturn

from hindcast.common.errors import TableError, show_briefly
from hindcast.store import log_limits, own_paths, table_cache


def refuse_odd_log(folder: Path) -> None:
    """Raise TableError if a table's log has what is no file, or what takes many times the memory of its size."""
    log = folder / "_delta_log"
    if not folder.is_dir():
        return  # whoever opens it says so
    try:
        if log.is_symlink():
            _refuse_file(str(log))
        refuse_odd_files(log)
        log_limits.refuse_odd_content(log)
    except (FileNotFoundError, NotADirectoryError):
        return


def refuse_foreign_files(folder: Path, paths: Iterable[str]) -> None:
    """Raise TableError if one of the paths of a table's data files may lead out of its folder.

    By its name, or because something in the folder is no file. One that is missing is left to whoever reads it.
    """
    for path in paths:
        if own_paths.leads_out(path):
            found = "its log names a file out of its folder"
            raise TableError(found, where=f"{folder}, {path}", fix="put back the table from a backup")
    refuse_odd_files(folder)


def refuse_repeated_files(place: str, paths: Collection[str]) -> None:
    """Raise TableError if one of the paths of a table's data files, unescaped, is there twice or may be another one's.

    The rows of such a file would count twice.
    """
    if (odd := own_paths.find_odd_path(paths)) is not None:
        found = "its log names a file twice, or in a way that no writer of Delta names it"
        raise TableError(found, where=f"{place}, {show_briefly(odd)}", fix="put back the table from a backup")


def refuse_odd_files(folder: Path) -> None:
    """Raise TableError if there is anything but files and folders in a table's folder, at any depth, or if it has more
    folders than any table.

    The folder itself may be a link: to another disk. A folder within is listed again only after something in it was
    created, removed or renamed; that counts as opening a table (`table_cache.watch_opening`).
    """
    waiting, count = [str(folder)], 0
    while waiting:
        found = _list_folders(waiting.pop())
        waiting += found
        if (count := count + len(found)) > MAX_FOLDERS:
            excess = f"has more than {MAX_FOLDERS:,} folders: no table has so many"
            fix = "remove those that Hindcast did not make, or put back the table from a backup"
            raise TableError(excess, where=str(folder), fix=fix)


MAX_FOLDERS = 10_000
"""The most folders in a table's folder. Ours have one for each belief or bucket; random prefixes of files are 3,844."""


def _list_folders(place: str) -> tuple[str, ...]:
    """Return the folders in a folder, which has only files else, at most one more than `MAX_FOLDERS`; none if it is not
    there.
    """
    try:
        with _explain_depth(place):
            status = os.stat(place)  # noqa: PTH116  # of half the cost
            state = (status.st_dev, status.st_ino, status.st_ctime_ns)
            if (listed := _LISTED.get(place)) is not None and listed[0] == state:
                return listed[1]
            with table_cache.count_opening(place), os.scandir(place) as entries:
                folders = tuple(islice((entry.path for entry in entries if _is_folder(entry)), MAX_FOLDERS + 1))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    if time.time_ns() - status.st_ctime_ns > _SETTLED and len(folders) <= MAX_FOLDERS:
        if len(_LISTED) >= _MAX_LISTED:
            _LISTED.clear()
        _LISTED[place] = state, folders
    return folders


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder; raise TableError if it is no file either.

    It is neither if it was removed since it was listed, where listings do not tell kinds.
    """
    if entry.is_dir(follow_symlinks=False):
        return True
    if not entry.is_file(follow_symlinks=False):
        with suppress(FileNotFoundError):
            mode = os.lstat(entry.path).st_mode
            if not stat.S_ISREG(mode):
                _refuse_file(entry.path)
    return False


def _refuse_file(path: str) -> NoReturn:
    raise TableError("is no file, but a link or a pipe", where=path, fix=log_limits.FIX)


@contextmanager
def _explain_depth(place: str | Path) -> Iterator[None]:
    """Raise TableError where the block finds folders that are nested deeper than a path can name."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        found = "has folders that are nested deeper than a path can name"
        raise TableError(found, where=show_briefly(str(place)), fix=log_limits.FIX) from None


_LISTED: dict[str, tuple[tuple[int, int, int], tuple[str, ...]]] = {}
"""The folders in those that were listed, with their states: nobody can set the time of the last change (ctime)."""
_MAX_LISTED = 100_000
_SETTLED = 3_000_000_000
"""The nanoseconds after a change in which another one may have the same time: file systems count in up to 2 s."""


def refuse_other_content(folder: Path) -> None:
    """Raise TableError where no Delta table can be created: in a file, or in a folder with other content."""
    places = (folder, *folder.parents)
    if (link := next((path for path in places if path.is_symlink() and not path.exists()), None)) is not None:
        raise TableError("is a link to a place that does not exist", where=str(link), fix=ELSEWHERE_FIX)
    place = next(path for path in places if path.exists())
    if not place.is_dir():
        raise TableError("is not a folder, so it cannot contain a table", where=str(place), fix=ELSEWHERE_FIX)
    inside = {path.name for path in folder.iterdir()} if place == folder else set()
    log = {path.name for path in (folder / "_delta_log").iterdir()} if "_delta_log" in inside else set()
    if inside - {"_delta_log"} or any(map(_COMMIT_FILE.fullmatch, log)):
        raise TableError("is not a Delta table", where=str(folder), fix=ELSEWHERE_FIX)


_COMMIT_FILE = re.compile(r"[0-9]{20}\.json|.*checkpoint.*")
"""Files in Delta's log that a commit has left. One that is being written has another name."""


def refuse_links(folder: Path) -> None:
    """Raise TableError if there is a link in a table's folder: what removes old files would follow it."""
    with _explain_depth(folder):
        for link in find_links(folder):
            raise TableError(f"is a link to {link.resolve()}", where=str(link), fix="remove it")


def find_links(folder: Path) -> Iterator[Path]:
    """Yield the symbolic links in a folder, which are not followed."""
    for place, folders, files in os.walk(folder):
        yield from (link for name in (*folders, *files) if (link := Path(place, name)).is_symlink())


ELSEWHERE_FIX = "set HINDCAST_WAREHOUSE to another folder, or move what is there; nothing was written"
