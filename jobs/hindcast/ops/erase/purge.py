"""Purge a table: make its past unreadable, so that no file says what its rows no longer do.

A removed row is still in the files that Delta keeps for reading older versions, and the least and greatest value of a
file are in log and checkpoints. So files with deletion vectors are rewritten, all files that no longer belong to
the table are deleted, the table gets a new checkpoint, older ones are deleted, and statistics of files that are gone
are removed from the log. Commits stay in it: who wrote when, with which note and transaction identifier. Older versions
can be listed but no longer read.

Nobody else may write to the table meanwhile: what is being written belongs to no version yet, and is deleted. A run is
alone with the tables of its pipeline, and a run that forgets has waited for those who rewrite files beside runs. It
checks before each deletion that they still wait for it (`notices.refuse_lost_notice`), and deletes only files that were
there before the version was read that no longer has them. A purge can be repeated, and finishes what was begun.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from hindcast.common.errors import TableError
from hindcast.plan import notices
from hindcast.store import delta_log, own_files, own_tables, tables
from hindcast.store.folder import LOG_FOLDER, WarehouseFolder

_COMMIT = re.compile(r"[0-9]{20}\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint.*")


def purge_table(
    spark: SparkSession, folder: WarehouseFolder, name: str, path: str, scrub: Callable[[str], str]
) -> None:
    """Purge one table: `name` under `folder`, at `path`.

    `scrub` gets the notes and conditions of commits, and returns what may stay of each. Raise RunError if others may
    write by now, TableError for a table of others, and one whose folder a link leads out of, also if it comes later.
    """
    place = None if "://" in path else Path(path)
    real = place.resolve() if place is not None else None
    if place is not None:
        own_files.refuse_links(place)
    if tables.DELETION_VECTORS in open_own(folder, name, path).metadata().configuration:
        notices.refuse_lost_notice()
        own_tables.run_upkeep(spark, path, f"REORG TABLE delta.`{path}` APPLY (PURGE)")
    # VACUUM takes seconds for each table, for the sake of readers that there are not here.
    checksums = {file.path for file in folder.list_table_files(name) if _is_checksum(file.path)}

    def refuse_effect(file_path: str) -> None:
        """Raise what the caller does if this file must not be removed or written any more."""
        notices.refuse_lost_notice()
        parent = Path(unquote(file_path.removeprefix(f"{name}/"))).parent
        if place is not None and real is not None and (place / parent).resolve() != real / parent:
            found = "leads out of the table's folder, through a link that was made meanwhile"
            raise TableError(found, where=str(place / parent), fix="remove the link, then forget again")

    def without_checksum(path: str) -> str:
        """Remove Hadoop's checksum of a file on a disk, which would not match a new file; return the path."""
        place, _, last = path.rpartition("/")
        if (checksum := f"{place}/.{last}.crc") in checksums:
            checksums.remove(checksum)
            folder.remove(checksum)
        return path

    def remove(path: str) -> None:
        refuse_effect(path)
        folder.remove(without_checksum(path))

    # Listed first: what others write or commit from here on is not in the list, or in the version.
    listed = list_data_files(folder, name)
    delta_table = open_own(folder, name, path)
    live, latest = list_live_files(delta_table), delta_table.version()
    for file_path in sorted({*listed} - {f"{name}/{file}" for file in live}):
        remove(file_path)
    refuse_effect(f"{name}/{LOG_FOLDER}/_last_checkpoint")
    needed = _write_checkpoint(
        delta_table, [_file_name(file.path) for file in folder.list_files(f"{name}/{LOG_FOLDER}")], path
    )
    files = folder.list_files(f"{name}/{LOG_FOLDER}")
    # The hint goes before the checkpoint that it names: no reader opens a table with a hint to none.
    for file in sorted(files, key=lambda file: _file_name(file.path) != "_last_checkpoint"):
        last = _file_name(file.path)
        checkpoint = _CHECKPOINT.fullmatch(last)
        if _COMMIT.fullmatch(last):
            commit = folder.read(file.path).decode() if int(last[:20]) <= latest else ""
            if commit and (scrubbed := scrub_commit(commit, live, scrub)) != commit:
                refuse_effect(file.path)
                folder.write(without_checksum(file.path), scrubbed.encode())
        elif _is_checksum(file.path):
            continue
        elif (
            # what a killed writer did not finish, and Delta's checksums of a version, which hold statistics too
            last.endswith((".tmp", ".crc", ".compacted.json"))
            or (checkpoint and int(checkpoint[1]) < needed)
            or (last == "_last_checkpoint" and needed > latest)
        ):
            remove(file.path)


def open_own(folder: WarehouseFolder, name: str, path: str) -> DeltaTable:
    """Return the table `name` under the folder of a pipeline, at `path`; raise TableError if it is another's."""
    delta_table = own_tables.open_whole(path)
    if delta_table.metadata().name != f"{folder.name}.{name}":
        fix = "move it, or the link to it, out of the pipeline's folder, then forget again"
        raise TableError(f"is not the table {folder.name}.{name}, and is not purged", where=path, fix=fix)
    return delta_table


def scrub_commit(commit: str, live: frozenset[str], scrub: Callable[[str], str]) -> str:
    """Return the text of a commit without the statistics of files that no longer belong to the table.

    `live`: the paths of the files that do (`list_live_files`).
    """
    lines = []
    for line in filter(None, commit.split("\n")):  # other ends of lines are parts of texts
        action = json.loads(line)
        before = json.dumps(action)
        for what in ("add", "remove"):
            if (
                what in action
                and "stats" in action[what]
                and (what == "remove" or unquote(action[what]["path"]) not in live)
            ):
                rows = json.loads(action[what]["stats"] or "{}").get("numRecords")
                action[what]["stats"] = json.dumps({"numRecords": rows})
        info = action.get("commitInfo", {})
        if "userMetadata" in info:
            info["userMetadata"] = scrub(info["userMetadata"])
        parameters = info.get("operationParameters", {})
        parameters.update({name: scrub(text) for name, text in parameters.items() if isinstance(text, str)})
        lines.append(line if json.dumps(action) == before else json.dumps(action, separators=(",", ":")))
    return "\n".join(lines) + "\n"


def list_live_files(delta_table: DeltaTable) -> frozenset[str]:
    """Return the paths of a table's files."""
    return frozenset(delta_log.list_paths(delta_table))


def _write_checkpoint(delta_table: DeltaTable, log: list[str], path: str) -> int:
    """Write a checkpoint if the log has any; return the version before which checkpoints are no longer needed.

    delta-rs writes none for a table whose types were widened: then all commits must be there, or TableError is raised.
    """
    latest = delta_table.version()
    if any(_CHECKPOINT.fullmatch(last) for last in log):
        try:
            delta_table.create_checkpoint()
        except DeltaError as error:
            if not {f"{version:020}.json" for version in range(latest + 1)} <= {*log}:
                fix = "rewrite the table (OPTIMIZE ... FULL), let Spark write a checkpoint, and repeat"
                raise TableError(f"no checkpoint can be written: {error}", where=path, fix=fix) from None
            return latest + 1
    return latest


def list_data_files(folder: WarehouseFolder, name: str) -> list[str]:
    """Return the paths of all files of a table outside its log, with deletion vectors.

    The checksums that Hadoop keeps on a disk (`.name.crc`) are not included.
    """
    files = (file.path for file in folder.list_table_files(name))
    return [path for path in files if not path.startswith(f"{name}/{LOG_FOLDER}/") and not _is_checksum(path)]


def _is_checksum(path: str) -> bool:
    last = _file_name(path)
    return last.startswith(".") and last.endswith(".crc")


def _file_name(path: str) -> str:
    return unquote(path.rpartition("/")[2])
