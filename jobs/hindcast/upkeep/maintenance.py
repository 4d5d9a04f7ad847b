"""`hindcast maintain`: small files are joined, files are sorted by time, what no version needs any more is removed.

    compact   many small files of a partition become few: a run adds some to each table that it changes
    cluster   files whose times overlap much are sorted by when rows are true: a run looks only at files of its time
    vacuum    files that no version of the last days needs go, and with `HINDCAST_KEEP_REPORTS` old reports

No row changes, and no answer. It is safe beside runs: what conflicts with one is left for the next time. Beside a
forgetting it stops (planning/notices.py).
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyarrow.fs import FileSelector, FileType
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from hindcast import show
from hindcast.building import inventory
from hindcast.contracts import Contract, keep
from hindcast.contracts.shapes import PERIODS
from hindcast.delta import attempts, contents, tables, widened
from hindcast.delta.tables import Table
from hindcast.errors import HindcastError
from hindcast.planning import journal, notices
from hindcast.session import temporarily
from hindcast.settings import Settings
from hindcast.upkeep import retention as trimming
from hindcast.words import counted

SMALL, LARGE = 16 << 20, 64 << 20
"""Files of less bytes are small; those that become of them have at most so many. A merge writes whole files anew where
the table has no deletion vectors, so large ones would cost runs more than small ones cost readers.
"""
MANY = 8
"""From so many files of a partition on it is worth to join or to sort them."""
DEEP = 4
"""Files are sorted if a file's times are on average those of so many others too."""

Spark = Callable[[], SparkSession]


@dataclass
class Done:
    """What was done to a table, or would be: its `files` and `bytes` as readers have them, and on `disk`, before and
    after; which `steps`, and what was `left` to the next time.
    """

    table: str
    files: tuple[int, int]
    bytes: tuple[int, int]
    disk: tuple[int, int]
    steps: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@dataclass
class Maintained:
    """What was done to a pipeline: of each table, how many `reports` were removed, what `trimmed` tells."""

    pipeline: str
    retention: timedelta
    tables: list[Done] = field(default_factory=list)
    reports: int = 0
    trimmed: str = ""

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        hours = math.ceil(self.retention / timedelta(hours=1))
        told = {"pipeline": self.pipeline, "retentionHours": hours, "tables": [asdict(it) for it in self.tables]}
        return {**told, "reports": self.reports, "trimmed": self.trimmed}


def maintain(spark: Spark, now: Settings, contract: Contract, *, dry_run: bool = False) -> Maintained:
    """Maintains the tables of a pipeline, and removes its old reports; with `dry_run` it only says what it would do.

    `spark` is asked for a session only if there is something to do. BusyError while something is being forgotten: what
    is under way is finished, and no more is begun.
    """
    told, what = Maintained(contract.pipeline, retention(now, contract.pipeline)), "maintenance"

    def session() -> SparkSession:
        notices.refuse_forgetting(now.warehouse, contract.pipeline, what)
        return spark()

    with nullcontext() if dry_run else notices.post_notice(now.warehouse, contract.pipeline, what):
        told.trimmed = "" if dry_run else _trimmed(session, contract)
        for table in inventory.every(now.warehouse, contract):
            told.tables.append(_maintained(session, table, now.time_travel, told.retention, dry_run=dry_run))
    told.reports = _reports(now, contract.pipeline, dry_run=dry_run)
    return told


def text(told: Maintained) -> str:
    """What was done, as lines for a terminal or a task's log."""
    rows = [
        {
            "table": it.table,
            "files": _change(*it.files),
            "MB": _change(*(f"{n / 1e6:,.1f}" for n in it.bytes)),
            "MB on disk": _change(*(f"{n / 1e6:,.1f}" for n in it.disk)),
            "done": "; ".join([*it.steps, *it.left]),
        }
        for it in told.tables
    ]
    lines = [show.aligned(pa.Table.from_pylist(rows))] if rows else ["there is no table yet"]
    days = told.retention / timedelta(days=1)
    lines.append(f"{told.pipeline}: versions of the last {days:g} days can be read; {told.reports} reports removed")
    return "\n".join([*lines, *([told.trimmed] if told.trimmed else [])])


def retention(now: Settings, pipeline: str) -> timedelta:
    """How long files are kept that tables have no more: as is set, but at least twice as long as a run has taken.

    VACUUM takes what is not committed for what is not needed: a run that takes longer would lose what it writes.
    """
    found = tables.opened(journal.table(now.warehouse, pipeline))
    set_ = timedelta(days=now.time_travel)
    if found is None:
        return set_
    spans: dict[int, tuple[datetime, datetime]] = {}
    ended = set()
    for row in contents.dataset(found).to_table(columns=["run", "entry", "at"]).to_pylist():
        first, last = spans.get(row["run"], (row["at"], row["at"]))
        spans[row["run"]] = min(first, row["at"]), max(last, row["at"])
        ended |= {row["run"]} if row["entry"] in ("completed", "abandoned") else set()
    here = datetime.now(UTC)
    longest = max(((last if run in ended else here) - first for run, (first, last) in spans.items()), default=set_)
    return max(set_, 2 * longest)


def _maintained(spark: Spark, table: Table, days: int, kept: timedelta, *, dry_run: bool) -> Done:
    found = DeltaTable(table.path)
    before, disk = _size(found), _on_disk(found)
    done = Done(table.name, (before[0],) * 2, (before[1],) * 2, (disk[1],) * 2)

    if lacking := _promise(found, days):
        promise = f"promise versions of {days} days"
        statement = f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ({lacking})"
        if dry_run or _committed(spark(), statement, {}):
            done.steps.append(promise)
        else:
            done.left.append(f"{promise}: left, as a run came first")
    for what, statement in _work(table, found):
        if dry_run or _optimized(spark(), table, statement):
            done.steps.append(what)
        else:
            done.left.append(f"{what}: left, as a run came first")
    count = _unneeded(found, kept)
    if count and dry_run:
        done.steps.append(f"vacuum at most {counted(count, 'file')}")
    elif count:
        there = _on_disk(found)[0]
        _vacuumed(spark(), table, kept)
        gone = there - _on_disk(found)[0]
        done.steps += [f"vacuum {counted(gone, 'file')}"] if gone else []
    if done.steps and not dry_run:
        found = DeltaTable(table.path)
        after = _size(found)
        done.files, done.bytes, done.disk = (before[0], after[0]), (before[1], after[1]), (disk[1], _on_disk(found)[1])
    return done


def _promise(found: DeltaTable, days: int) -> str:
    """What a table lacks of the properties by which Delta promises that its versions of so many days can be read."""
    there = found.metadata().configuration
    wanted = {"delta.deletedFileRetentionDuration": days, "delta.logRetentionDuration": max(days, _LOGGED)}
    by_default = {"delta.deletedFileRetentionDuration": _PROMISED, "delta.logRetentionDuration": _LOGGED}
    told = {name: f"interval {n} days" for name, n in wanted.items() if name in there or n != by_default[name]}
    return ", ".join(f"'{name}' = '{text}'" for name, text in told.items() if there.get(name) != text)


_PROMISED, _LOGGED = 7, 30
"""For so many days Delta keeps what versions need, and its log, unless a table says otherwise."""


def _work(table: Table, found: DeltaTable) -> Iterator[tuple[str, str]]:
    """What is to be done to the files of each partition of a table: in words, and as a statement of Delta's."""
    if table.kind == "kept":  # a run replaces it
        return
    partitions: dict[str | None, list[dict[str, Any]]] = {}
    for file in pa.table(found.get_add_actions(flatten=True)).to_pylist():
        partitions.setdefault(file.get("partition._belief"), []).append(file)
    for belief, files in sorted(partitions.items(), key=str):
        where = f" WHERE _belief = '{belief}'" if belief is not None else ""
        small = [file for file in files if file["size_bytes"] < SMALL]
        of = f" of {belief} rows" if belief else ""
        if table.kind in PERIODS and depth(files, PERIODS[table.kind][0]) > DEEP:
            by = PERIODS[table.kind][0]
            yield f"cluster {len(files)} files{of} by {by}", f"OPTIMIZE delta.`{table.path}`{where} ZORDER BY (`{by}`)"
        elif len(small) >= MANY:
            yield f"compact {len(small)} files{of}", f"OPTIMIZE delta.`{table.path}`{where}"


def depth(files: list[dict[str, Any]], column: str) -> float:
    """How many others, on average, a file overlaps in a column, by Delta's statistics; small files do not count.

    [0, 4] [5, 9]: 0    [0, 9] [0, 9]: 1
    """
    spans = [(file.get(f"min.{column}"), file.get(f"max.{column}")) for file in files if file["size_bytes"] >= SMALL]
    known = sorted((least, most) for least, most in spans if least is not None and most is not None)
    if len(known) < MANY:
        return 0
    # Of each: those that begin before it ends, without those that end before it begins, and without itself.
    ends = sorted(most for _, most in known)
    starts = [least for least, _ in known]
    over = sum(bisect_right(starts, most) - bisect_left(ends, least) - 1 for least, most in known)
    return over / len(known)


def _optimized(spark: SparkSession, table: Table, statement: str) -> bool:
    """Makes a commit that puts files in place of others; False, and nothing is changed, if a run came first.

    The commit repeats the note of the last run: Delta forgets old commits, and what a run noted is needed.
    """
    note = next(iter(tables.notes(table).values()), None)
    confs = {
        "spark.databricks.delta.optimize.minFileSize": str(SMALL),
        "spark.databricks.delta.optimize.maxFileSize": str(LARGE),
        **({"spark.databricks.delta.commitInfo.userMetadata": json.dumps(note)} if note else {}),
    }
    return _committed(spark, statement, confs)


def _committed(spark: SparkSession, statement: str, confs: Mapping[str, str]) -> bool:
    """Makes a commit; False if another one came first."""
    try:
        with temporarily(spark, confs):
            spark.sql(statement).collect()
    except (PySparkException, Py4JJavaError) as error:
        if not attempts.conflicting(error):
            raise
        return False
    return True


def _vacuumed(spark: SparkSession, table: Table, kept: timedelta) -> None:
    """Removes files without a commit: each would bring the day nearer on which Delta forgets what runs noted."""
    confs = {
        "spark.databricks.delta.vacuum.logging.enabled": "false",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
        # As many tasks list the files: 10,000 by default, nearly all of them with nothing to do.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
    }
    with temporarily(spark, confs):
        spark.sql(f"VACUUM delta.`{table.path}` RETAIN {math.ceil(kept / timedelta(hours=1))} HOURS").collect()


def _size(found: DeltaTable) -> tuple[int, int]:
    """How many files and bytes readers have."""
    sizes = pa.table(found.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
    return len(sizes), sum(sizes)


def _stored(found: DeltaTable) -> Iterator[tuple[str, int, datetime | None]]:
    """The files of data in a table's folder: path, size, when they were written."""
    for info in widened.files(found).get_file_info(FileSelector("", recursive=True)):
        if info.type == FileType.File and not any(part.startswith("_delta_log") for part in info.path.split("/")):
            yield info.path, info.size, info.mtime


def _on_disk(found: DeltaTable) -> tuple[int, int]:
    """How many files and bytes of data lie in the table's folder."""
    sizes = [size for _, size, _ in _stored(found)]
    return len(sizes), sum(sizes)


def _unneeded(found: DeltaTable, kept: timedelta) -> int:
    """How many files the table as it stands does not have that are older than what is kept; VACUUM decides."""
    live = set(widened.paths(found))
    since = datetime.now(UTC) - kept
    return sum(path not in live and at is not None and at < since for path, _, at in _stored(found))


def _reports(now: Settings, pipeline: str, *, dry_run: bool) -> int:
    """Removes reports that are older than `HINDCAST_KEEP_REPORTS` days; how many. The journal has what they tell."""
    if not now.keep_reports:
        return 0
    since = time.time() - now.keep_reports * 86_400
    old = [it for it in Path(now.reports, pipeline).glob("run-*.html") if it.stat().st_mtime < since]
    for page in old if not dry_run else ():
        page.unlink()
        page.with_suffix(".json").unlink(missing_ok=True)
    return len(old)


def _trimmed(spark: Spark, contract: Contract) -> str:
    """What retention has trimmed, in words; it does not trim beside a run. Nothing if all is kept for ever."""
    if not any(keep.length(contract, name) for name in (*contract.topics, *contract.views)):
        return ""
    try:
        return trimming.text(trimming.trim(spark(), contract))
    except HindcastError as error:
        return f"not trimmed: {error}"


def _change(before: object, after: object) -> str:
    return str(before) if before == after else f"{before} -> {after}"
