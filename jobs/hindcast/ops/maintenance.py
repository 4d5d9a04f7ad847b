"""`hindcast maintain`: join small files, sort files by time, and remove what no version needs any more.

    compact   many small files of a partition become few: each run adds some to every table that it changes
    cluster   files whose times overlap much are sorted by when rows are true: a run reads only files of its time
    vacuum    files that no version of the last days needs are removed; with `HINDCAST_KEEP_REPORTS` also old reports
    close     periods that are due by the contract's `close` are closed (close_periods.py); then it is trimmed

No row changes, and no answer. It is safe beside runs: what conflicts with one is left for the next time. It stops while
something is being forgotten (plan/notices.py).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from hindcast.common import progress, step_events
from hindcast.common.errors import HindcastError
from hindcast.common.json_values import JsonValue
from hindcast.common.plurals import format_count
from hindcast.common.session import override_conf
from hindcast.common.settings import Settings
from hindcast.contract import Contract, find, keep
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.contract.shapes import PERIODS
from hindcast.ops import close_periods, file_layout
from hindcast.ops import retention as trimming
from hindcast.ops.file_layout import (
    LARGE_FILE_BYTES,
    count_live_files,
    count_stored_files,
    count_unneeded_files,
    list_live_files,
    overlap_depth,
)
from hindcast.plan import journal, journal_rows, notices
from hindcast.query import show
from hindcast.report import page
from hindcast.runs import inventory
from hindcast.store import commit_history, commit_once, odd_tables, own_files, own_tables, tables
from hindcast.store.commit_notes import parse_own_note
from hindcast.store.tables import Table

MAX_DEPTH = 4
"""Files are sorted if a file overlaps more others than this in time, on average."""


SessionFactory = Callable[[], SparkSession]


@dataclass
class TableMaintenance:
    """What was done to a table, or would be.

    Its `files` and `bytes` as readers see them, and its bytes on `disk`, before and after; `steps` done, and those
    `left`.
    """

    table: str
    files: tuple[int, int]
    bytes: tuple[int, int]
    disk: tuple[int, int]
    steps: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@dataclass
class MaintenanceReport:
    """What was done to a pipeline: to each table, to how many old `reports`, which periods it `closed`, and the report
    of the trim as text.
    """

    pipeline: str
    retention: timedelta
    tables: list[TableMaintenance] = field(default_factory=list)
    reports: int = 0
    closed: list[str] = field(default_factory=list)
    trimmed: str = ""

    def as_json(self) -> dict[str, JsonValue]:
        """Return the report as data."""
        hours = math.ceil(self.retention / timedelta(hours=1))
        head: dict[str, JsonValue] = {"pipeline": self.pipeline, "retentionHours": hours}
        changes = [asdict(table) for table in self.tables]
        return head | {"tables": changes, "reports": self.reports, "closed": [*self.closed], "trimmed": self.trimmed}


def maintain_pipelines(spark: SessionFactory, settings: Settings, pipelines: Sequence[str]) -> None:
    """Maintain the tables of pipelines (`maintain_tables`) and print what was done.

    Where one fails the others have their turn; then the first error is raised.
    """
    failed: Exception | None = None
    for pipeline in pipelines:
        try:
            print(format_report(maintain_tables(spark, settings, find(settings.schemas, pipeline, settings.choice))))
        except Exception as error:  # noqa: BLE001  # it is raised below
            print(f"{pipeline}: {type(error).__name__}: {error}")
            failed = failed or error
    if failed is not None:
        raise failed


def maintain_tables(
    spark: SessionFactory, settings: Settings, contract: Contract, *, dry_run: bool = False
) -> MaintenanceReport:
    """Maintain the tables of a pipeline and remove its old reports; return the report. With `dry_run`, write nothing.

    `spark` is called for a session only if there is something to do. Raises BusyError while something is being
    forgotten: a step under way is finished, and no other is begun.
    """
    report, activity = MaintenanceReport(contract.pipeline, file_retention(settings, contract.pipeline)), "maintenance"

    def session() -> SparkSession:
        notices.refuse_forgetting(settings.warehouse, contract.pipeline, activity)
        opened = spark()
        watch(opened)
        return opened

    with (
        step_events.record_step("maintain", contract.pipeline),
        progress.report_progress() as watch,
        nullcontext() if dry_run else notices.post_notice(settings.warehouse, contract.pipeline, activity),
    ):
        if not dry_run:
            bound = bind_contract(contract, settings)
            report.closed = close_periods.close_due_periods(bound)  # before its rows are trimmed
            report.trimmed = _trim_pipeline(session, bound)
        existing = list(inventory.list_existing_tables(settings.warehouse, contract))
        for number, table in enumerate(existing):
            step_events.add_fields(tables=len(existing), tables_done=number, part=table.name)
            done = _maintain_table(session, table, settings.time_travel, report.retention, dry_run=dry_run)
            report.tables.append(done)
    report.reports = _remove_old_reports(settings, contract.pipeline, dry_run=dry_run)
    return report


def format_report(report: MaintenanceReport) -> str:
    """Return the report as lines for a terminal or a task's log."""
    rows = [
        {
            "table": table.table,
            "files": _format_change(*map(str, table.files)),
            "MB": _format_change(*(f"{n / 1e6:,.1f}" for n in table.bytes)),
            "MB on disk": _format_change(*(f"{n / 1e6:,.1f}" for n in table.disk)),
            "done": "; ".join([*table.steps, *table.left]),
        }
        for table in report.tables
    ]
    lines = [show.format_aligned(pa.Table.from_pylist(rows))] if rows else ["there are no tables yet"]
    days = report.retention / timedelta(days=1)
    lines.append(f"{report.pipeline}: versions of the last {days:g} days can be read; {report.reports} reports removed")
    lines += [f"{report.pipeline}: {closed}" for closed in report.closed]
    return "\n".join([*lines, *([report.trimmed] if report.trimmed else [])])


def file_retention(settings: Settings, pipeline: str) -> timedelta:
    """Return how long files that tables no longer have are kept: as set, but at least twice as long as any run has
    taken.

    VACUUM takes uncommitted files for unneeded ones: a run that takes longer would lose what it writes.
    """
    table = journal.runs_table(settings.warehouse, pipeline)
    delta_table = tables.open_table(table)
    setting = timedelta(days=settings.time_travel)
    if delta_table is None:
        return setting
    spans: dict[int, tuple[datetime, datetime]] = {}
    ended = set()
    with odd_tables.refuse_unreadable_rows(table):
        for row in journal_rows.load_rows(table, delta_table, ("run", "entry", "at")):
            first, last = spans.get(row["run"], (row["at"], row["at"]))
            spans[row["run"]] = min(first, row["at"]), max(last, row["at"])
            ended |= {row["run"]} if row["entry"] in ("completed", "abandoned") else set()
    now = datetime.now(UTC)
    longest = max(((last if run in ended else now) - first for run, (first, last) in spans.items()), default=setting)
    return max(setting, 2 * longest)


def _maintain_table(
    spark: SessionFactory, table: Table, days: int, retention: timedelta, *, dry_run: bool
) -> TableMaintenance:
    if "://" not in table.path:
        own_files.refuse_links(Path(table.path))
    delta_table = own_tables.open_whole(table.path)
    before, disk = count_live_files(delta_table), count_stored_files(delta_table)
    done = TableMaintenance(table.name, (before[0],) * 2, (before[1],) * 2, (disk[1],) * 2)

    if missing := _missing_properties(delta_table, days):
        step = f"promise versions of {days} days"
        statement = f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ({missing})"
        if dry_run or _run_statement(spark(), statement, {}):
            done.steps.append(step)
        else:
            done.left.append(f"{step}: left, as a run committed first")
    for what, statement in _plan_steps(table, delta_table):
        if dry_run or _optimize_files(spark(), table, statement):
            done.steps.append(what)
        else:
            done.left.append(f"{what}: left, as a run committed first")
    count = count_unneeded_files(delta_table, retention)
    if count and dry_run:
        done.steps.append(f"vacuum at most {format_count(count, 'file')}")
    elif count:
        stored = count_stored_files(delta_table)[0]
        _vacuum_table(spark(), table, retention)
        gone = stored - count_stored_files(delta_table)[0]
        done.steps += [f"vacuum {format_count(gone, 'file')}"] if gone else []
    if done.steps and not dry_run:
        delta_table = DeltaTable(table.path)
        count, size = count_live_files(delta_table)
        done.files, done.bytes = (before[0], count), (before[1], size)
        done.disk = disk[1], count_stored_files(delta_table)[1]
    return done


def _missing_properties(delta_table: DeltaTable, days: int) -> str:
    """Return the table properties that are missing for Delta to keep the versions of so many days readable, as SQL."""
    properties = delta_table.metadata().configuration
    needed = {"delta.deletedFileRetentionDuration": days, "delta.logRetentionDuration": max(days, _DEFAULT_LOG_DAYS)}
    by_default = {
        "delta.deletedFileRetentionDuration": _DEFAULT_FILE_DAYS,
        "delta.logRetentionDuration": _DEFAULT_LOG_DAYS,
    }
    texts = {name: f"interval {n} days" for name, n in needed.items() if name in properties or n != by_default[name]}
    return ", ".join(f"'{name}' = '{text}'" for name, text in texts.items() if properties.get(name) != text)


_DEFAULT_FILE_DAYS, _DEFAULT_LOG_DAYS = 7, 30
"""The days for which Delta keeps files of old versions, and its log, unless a table says otherwise."""


def _plan_steps(table: Table, delta_table: DeltaTable) -> Iterator[tuple[str, str]]:
    """Yield what to do to the files of each partition of a table: in words, and as a statement of Delta's."""
    if table.kind == "kept":  # a run replaces it
        return
    by = PERIODS[table.kind][0] if table.kind in PERIODS else None
    for belief, files in sorted(list_live_files(delta_table, by).items(), key=str):
        where = f" WHERE _belief = '{belief}'" if belief is not None else ""
        small = [file for file in files if file.size < file_layout.SMALL_FILE_BYTES]
        of = f" of {belief} rows" if belief else ""
        if by is not None and overlap_depth(files) > MAX_DEPTH:
            yield f"cluster {len(files)} files{of} by {by}", f"OPTIMIZE delta.`{table.path}`{where} ZORDER BY (`{by}`)"
        elif len(small) >= file_layout.MIN_FILES:
            yield f"compact {len(small)} files{of}", f"OPTIMIZE delta.`{table.path}`{where}"


def _optimize_files(spark: SparkSession, table: Table, statement: str) -> bool:
    """Commit new files in place of others; return False, with nothing changed, if a run committed first.

    The commit repeats the note of the last run: Delta forgets old commits, and what a run noted is needed.
    """
    own_tables.open_whole(table.path)
    own_tables.refuse_foreign_to_spark(spark, table.path)
    note = next(iter(commit_history.read_notes(table, parse_own_note).values()), None)
    confs = {
        "spark.databricks.delta.optimize.minFileSize": str(file_layout.SMALL_FILE_BYTES),
        "spark.databricks.delta.optimize.maxFileSize": str(LARGE_FILE_BYTES),
        **({"spark.databricks.delta.commitInfo.userMetadata": json.dumps(note)} if note else {}),
    }
    return _run_statement(spark, statement, confs)


def _run_statement(spark: SparkSession, statement: str, confs: Mapping[str, str]) -> bool:
    """Run a statement that commits; return False if another commit came first."""
    notices.refuse_lost_notice()
    try:
        with override_conf(spark, confs):
            spark.sql(statement).collect()
    except (PySparkException, Py4JJavaError) as error:
        if not commit_once.is_conflict(error):
            raise
        return False
    return True


def _vacuum_table(spark: SparkSession, table: Table, retention: timedelta) -> None:
    """Remove unneeded files without a commit, which would bring nearer the day when Delta forgets the notes of runs."""
    confs = {
        "spark.databricks.delta.vacuum.logging.enabled": "false",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
        # The number of tasks that list files: 10,000 by default, nearly all of them with nothing to do.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
    }
    with override_conf(spark, confs):
        notices.refuse_lost_notice()
        if "://" not in table.path:
            own_files.refuse_links(Path(table.path))
        spark.sql(f"VACUUM delta.`{table.path}` RETAIN {math.ceil(retention / timedelta(hours=1))} HOURS").collect()


def _remove_old_reports(settings: Settings, pipeline: str, *, dry_run: bool) -> int:
    """Remove reports older than `HINDCAST_KEEP_REPORTS` days and return how many; the journal keeps their content."""
    if not settings.keep_reports:
        return 0
    since = time.time() - settings.keep_reports * 86_400
    folder = page.open_folder(settings.reports, pipeline)
    old = [path for path in folder.glob("run-*.html") if path.lstat().st_mtime < since]
    for path in old if not dry_run else ():
        path.unlink()
        path.with_suffix(".json").unlink(missing_ok=True)
    return len(old)


def _trim_pipeline(spark: SessionFactory, contract: BoundContract) -> str:
    """Trim a pipeline and return the report as text, or why it was not trimmed; "" if everything is kept forever."""
    if not any(keep.find_retention(contract, name) for name in (*contract.topics, *contract.views)):
        return ""
    try:
        return trimming.format_report(trimming.trim_pipeline(spark(), contract))
    except HindcastError as error:
        return f"not trimmed: {error}"


def _format_change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"
