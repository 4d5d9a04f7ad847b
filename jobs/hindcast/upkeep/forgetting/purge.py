"""Making a table's past unreadable: what its rows are not any more, no file says.

A row that was removed still stands in the files that Delta keeps for reading older versions, and the least and largest
value of a file in its log and checkpoints. So files whose rows are only marked (deletion vectors) are written anew, all
that no longer belong to the table are deleted, the table gets a new checkpoint, older ones are deleted, and statistics
of files that are gone are taken out of the log. Commits stay in it: who wrote when, with which note and transaction
identifier. Versions before this one can be listed and not read any more.

Nobody else may write to the table meanwhile: what is being written belongs to no version yet, and is deleted. A run is
alone with the tables of its pipeline, and a forgetting has waited for those who rewrite files beside runs
(planning/notices.py). It can be repeated, and finishes what was begun.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from hindcast.delta import tables, widened
from hindcast.delta.folder import LOG, Folder
from hindcast.errors import TableError

_COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*")


def purge(spark: SparkSession, folder: Folder, name: str, path: str, scrub: Callable[[str], str]) -> None:
    """Purges one table: `name` under `folder`, at `path`.

    `scrub` is given the notes and conditions of commits, and tells what may stay of each.
    """
    found = DeltaTable(path)
    if tables.VECTORS in found.metadata().configuration:
        spark.sql(f"REORG TABLE delta.`{path}` APPLY (PURGE)").collect()
        found = DeltaTable(path)
    # VACUUM would do this in seconds for each table; here nobody reads what it spares.
    sums = {file.path for file in folder.of(name) if _last(file.path).startswith(".")}

    def without_sum(path: str) -> str:
        """Removes the checksum that Hadoop keeps of a file on a disk: with that of before nobody reads a new one."""
        place, _, last = path.rpartition("/")
        if (checksum := f"{place}/.{last}.crc") in sums:
            sums.remove(checksum)
            folder.remove(checksum)
        return path

    for it in set(data(folder, name)) - {f"{name}/{it}" for it in live(found)}:
        folder.remove(without_sum(it))
    there, latest = live(found), found.version()
    needed = _checkpointed(found, [_last(file.path) for file in folder.files(f"{name}/{LOG}")], path)
    for file in list(folder.files(f"{name}/{LOG}")):
        last = _last(file.path)
        checkpoint = _CHECKPOINT.fullmatch(last)
        if _COMMIT.fullmatch(last):
            commit = folder.read(file.path).decode()
            if (kept := told(commit, there, scrub)) != commit:
                folder.write(without_sum(file.path), kept.encode())
        elif last.startswith("."):
            continue
        elif (
            (checkpoint and int(checkpoint[1]) < needed)
            or (last == "_last_checkpoint" and needed > latest)
            or last.endswith((".crc", ".compacted.json"))  # Delta's checksums of a version hold statistics too
        ):
            folder.remove(without_sum(file.path))


def told(commit: str, live: frozenset[str], scrub: Callable[[str], str]) -> str:
    """The text of a commit, without the statistics of files that do not belong to the table any more.

    `live`: the paths of those that do.
    """
    lines = []
    for line in filter(None, commit.splitlines()):
        action: dict[str, Any] = json.loads(line)
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
        info_of = info.get("operationParameters", {})
        info_of.update({n: scrub(text) for n, text in info_of.items() if isinstance(text, str)})
        lines.append(line if json.dumps(action) == before else json.dumps(action, separators=(",", ":")))
    return "\n".join(lines) + "\n"


def live(found: DeltaTable) -> frozenset[str]:
    """The paths of a table's files."""
    return frozenset(widened.paths(found))


def _checkpointed(found: DeltaTable, log: list[str], path: str) -> int:
    """Makes a checkpoint if there is any; the version before which checkpoints are not needed any more.

    Of a table whose types were widened delta-rs makes none: then all commits have to be there. TableError if not.
    """
    latest = found.version()
    if any(_CHECKPOINT.fullmatch(last) for last in log):
        try:
            found.create_checkpoint()
        except DeltaError as error:
            if not {f"{version:020}.json" for version in range(latest + 1)} <= {*log}:
                mend = "write the table anew (OPTIMIZE ... FULL), let Spark make a checkpoint, and repeat"
                raise TableError(f"no checkpoint can be made: {error}", where=path, mend=mend) from None
            return latest + 1
    return latest


def data(folder: Folder, name: str) -> list[str]:
    """The paths of all files of a table beside its log; deletion vectors too.

    Not the checksums that Hadoop keeps on a disk (`.name.crc`).
    """
    files = (file.path for file in folder.of(name))
    return [path for path in files if not path.startswith(f"{name}/{LOG}/") and not _last(path).startswith(".")]


def _last(path: str) -> str:
    return unquote(path.rpartition("/")[2])
