"""`hindcast verify`: check the invariants of tables (docs/verify.md) on the tables themselves.

    format -> files -> journal -> published -> tiling, system periods, belief -> offsets, stream time, quarantine
    -> emitted -> definition

Nothing is written. Only `definition` needs Spark. After the first finding a table is not checked any further: what else
is wrong with it may follow from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from hindcast.common import progress, step_events
from hindcast.common.errors import HindcastError, TableError, UnknownError, escape_controls, suggest_nearest
from hindcast.common.json_values import JsonValue
from hindcast.common.plurals import format_count
from hindcast.contract.bound import BoundContract
from hindcast.ingest import initial_rows, quarantine, trim_ledger
from hindcast.ops.verify import (
    definition,
    emitted_checks,
    file_checks,
    journal_checks,
    log_checks,
    quarantine_checks,
    rectangles,
)
from hindcast.ops.verify.findings import Finding, backup_advice
from hindcast.plan import closes, journal, marks
from hindcast.plan.runs import Run
from hindcast.runs import inventory
from hindcast.store import emitted_log, tables
from hindcast.store.tables import Table

SessionFactory = Callable[[], SparkSession]


@dataclass
class VerifyReport:
    """The findings, how many `tables` and `files` were checked, and what was not checked, with the reason."""

    pipeline: str
    tables: int = 0
    files: int = 0
    findings: list[Finding] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the report as data."""
        findings = [finding.as_json() for finding in self.findings]
        counts: dict[str, JsonValue] = {"pipeline": self.pipeline, "tables": self.tables, "files": self.files}
        return counts | {"findings": findings, "notChecked": self.not_checked}


def verify_tables(
    contract: BoundContract,
    name: str | None = None,
    spark: SessionFactory | None = None,
    *,
    whole: bool = False,
) -> VerifyReport:
    """Check the tables of a pipeline, or of its topic or view `name` and the tables behind it; return the report.

    Without `spark` it does not check that tables match the log; with `whole` it does so for all keys. Raises
    UnknownError for an unknown `name`, and if there are no tables at all.
    """
    names = [*contract.topics, *contract.views]
    if name is not None and name not in names:
        raise UnknownError(f"no table '{name}'", where=contract.pipeline, fix=suggest_nearest(name, names))
    with step_events.record_step("verify", contract.pipeline), progress.report_progress() as watch:
        return _Verification(contract, names if name is None else [name], watch).run(spark, whole=whole)


def format_report(report: VerifyReport) -> str:
    """Return the report as lines for a terminal."""
    checked = f"{format_count(report.tables, 'table')}, {format_count(report.files, 'file')}"
    found = format_count(len(report.findings), "finding") if report.findings else "nothing wrong"
    lines = [f"{report.pipeline}: {checked} checked, {found}"]
    for finding in report.findings:
        lines += ["", f"{finding.check}: {finding.where}", f"  found: {finding.found}", f"  what to do: {finding.fix}"]
    lines += [f"not checked: {why}" for why in report.not_checked]
    return escape_controls("\n".join(lines))


class _Verification:
    """One pass over a pipeline's tables."""

    def __init__(self, contract: BoundContract, names: list[str], watch: Callable[[SparkSession], None]) -> None:
        self._watch = watch
        self._warehouse, self._contract, self._names = contract.warehouse, contract, names
        self._report = VerifyReport(contract.pipeline)
        self._tables: dict[Table, DeltaTable] = {}
        self._lacks_runs = False
        self._broken: set[Table] = set()
        self._runs: list[Run] = []

    def run(self, spark: SessionFactory | None, *, whole: bool) -> VerifyReport:
        warehouse, pipeline = self._warehouse, self._contract.pipeline
        runs_table, *others = every = list(inventory.list_possible_tables(warehouse, self._contract, self._names))
        self._open_table(runs_table)
        self._check_storage(runs_table)
        self._check_entry_order(runs_table)
        self._runs = before = [] if runs_table in self._broken else journal.read_runs(warehouse, pipeline)
        if before and before[-1].state == "planned" and before[-1].plan.erasure:
            self._report.not_checked.append(f"everything else, until hindcast forget finishes run {before[-1].number}")
            return self._report
        for table in others:
            self._open_table(table)
        for name in self._names:
            self._open_state(name)
        if not (self._tables or self._report.findings or self._report.not_checked):
            raise UnknownError(
                "there are no tables to verify",
                where=f"{warehouse}/{pipeline}",
                fix=f"set HINDCAST_WAREHOUSE to where the tables are; hindcast run {pipeline} creates them",
            )
        to_check = [table for table in self._tables if table != runs_table]
        for number, table in enumerate(to_check):
            step_events.add_fields(tables=len(to_check), tables_done=number, part=f"files of {table.name}")
            self._check_storage(table)
            self._skip_older(table)
        if runs_table in self._broken:
            self._report.not_checked.append("everything else, until the journal of runs can be read")
            return self._report
        self._runs = journal_checks.reopen_late_runs(before, journal.read_runs(warehouse, pipeline))
        moments = self._check_runs(every)
        self._check_rows(moments)
        self._check_closes(runs_table)
        self._check_logs()
        self._check_emitted(moments)
        self._check_definitions(spark, whole=whole)
        return self._report

    def _check_entry_order(self, runs_table: Table) -> None:
        """Check the order of the journal's entries; a run without a plan makes it unusable for the checks of tables."""
        if runs_table in self._broken:
            return
        pipeline = self._contract.pipeline
        damage = journal.find_damage(self._warehouse, pipeline)
        self._report.findings += journal_checks.check_entry_order(damage, journal.repair_command(pipeline))
        if journal.read_planned_runs(self._warehouse, pipeline)[1]:
            self._broken.add(runs_table)

    def _open_table(self, table: Table) -> None:
        try:
            delta_table = tables.open_table(table)
        except TableError as error:
            last = self._runs[-1] if self._runs else None
            upgrade = last.plan.upgrade if last is not None and last.state == "planned" else None
            if last is not None and upgrade is not None and upgrade.table == table.name:
                self._skip_table(table, f"run {last.number} adopts it")
            else:
                self._add_findings(table, [file_checks.describe_unopened(table, error)])
            return
        if delta_table is not None:
            self._tables[table] = delta_table
            self._report.tables += 1
            self._report.files += len(delta_table.file_uris())

    def _check_storage(self, table: Table) -> None:
        """Check a table's marks and files."""
        if (delta_table := self._tables.get(table)) is not None:
            self._add_findings(table, file_checks.check_marks(table, delta_table))
            if table not in self._broken:
                self._add_findings(table, file_checks.check_files(table, delta_table))

    def _skip_older(self, table: Table) -> None:
        """Skip a table that runs refuse until it is upgraded, and what is made of it."""
        older = tables.read_older_format(self._tables[table])
        if older is not None and older.mode is None:
            upgrade = f"hindcast upgrade {table.pipeline}.{table.name}"
            self._skip_table(table, f"it has the older store format {older.format}, until {upgrade}")

    def _skip_table(self, table: Table, why: str) -> None:
        """Check nothing more of a table, though nothing is wrong with it."""
        self._report.not_checked.append(f"{table.name} and what is made of it: {why}")
        self._broken.add(table)

    def _open_state(self, name: str) -> None:
        if name in self._contract.views and self._contract.views[name].semantics == "kafka":
            log = emitted_log.emitted_table(self._warehouse, self._contract, name)
            if log in self._tables and (state := inventory.find_state_table(self._warehouse, self._contract, name)):
                self._open_table(state)

    def _add_findings(self, table: Table, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._report.findings.append(finding)
            self._broken.add(table)

    def _is_sound(self, *some: Table) -> bool:
        """Return True if tables are there and nothing was found that makes it useless to check them further."""
        return all(table in self._tables and table not in self._broken for table in some)

    def _check_runs(self, every: list[Table]) -> journal_checks.RunMoments:
        logged = {
            table: log_checks.read_run_numbers(found)
            for table, found in self._tables.items()
            if table.kind == "log" and self._is_sound(table)
        }
        found = {table: delta for table, delta in self._tables.items() if table not in self._broken}
        missing = journal_checks.find_missing_runs(self._runs, found, logged)
        self._report.findings += journal_checks.check_journal(self._contract, self._runs, missing)
        if missing:
            self._lacks_runs = True
            self._report.not_checked.append("whether tables match the log: the journal lacks runs")
        for table in every:
            if table not in self._broken and table.kind not in ("runs", "gates", "failing", "schemas"):
                self._add_findings(table, journal_checks.check_published(self._runs, table, self._tables.get(table)))
            if table.kind == "emitted" and self._is_sound(table):
                self._add_findings(table, emitted_checks.check_emptied(table, self._tables[table]))
        return journal_checks.collect_run_moments(self._runs, missing)

    def _check_rows(self, moments: journal_checks.RunMoments) -> None:
        hidden = marks.find_marked_columns(self._contract.settings, self._contract, self._names)
        for number, name in enumerate(self._names):
            step_events.add_fields(tables=len(self._names), tables_done=number, part=f"rows of {name}")
            table = tables.locate_table(self._warehouse, self._contract, name)
            if self._is_sound(table) and not self._is_output_broken(name):
                masked = any(column in hidden[name] for column in table.key)
                findings = rectangles.check_rows(table, self._tables[table], self._runs, moments, hidden=masked)
                self._add_findings(table, findings)

    def _check_closes(self, runs_table: Table) -> None:
        """Check that tables have kept the rows of the closes; they are not broken without."""
        try:
            closed = closes.list_kept(self._warehouse, self._contract.pipeline)
        except TableError as error:
            self._report.findings.append(Finding("journal", runs_table.name, error.found, error.fix))
            return
        for name in self._names:
            table = tables.locate_table(self._warehouse, self._contract, name)
            if self._is_sound(table):
                self._report.findings += journal_checks.check_closes(closed, table, self._tables[table])

    def _is_output_broken(self, name: str) -> bool:
        """Return True for a kafka view whose emitted log has a finding: that of its table would follow from it."""
        return any(table.kind == "emitted" and table in self._broken for table in self._sources(name))

    def _check_logs(self) -> None:
        contract, pipeline = self._contract, self._contract.pipeline
        topics = [name for name in self._names if name in contract.topics]
        for number, name in enumerate(topics):
            step_events.add_fields(tables=len(topics), tables_done=number, part=f"log of {name}")
            log = tables.log_table(self._warehouse, pipeline, name)
            counts = trim_ledger.trim_table(log)
            if not self._is_sound(log) or counts in self._broken:
                continue
            removed = trim_ledger.read_trim_counts(log)
            trims = self._tables[log].transaction_version(log.app_id(trim_ledger.PART)) or 0
            if tables.read_last_run(log, trim_ledger.PART) != trims:
                self._report.not_checked.append(f"{log.name}: it was trimmed meanwhile; verify it again")
                self._broken.add(log)
                continue
            if trims and not removed.num_rows:
                text = f"has nothing of trim {trims}, which removed records from {log.name}"
                self._add_findings(counts, [Finding("published", counts.name, text, backup_advice(counts))])
                continue
            arguments = contract, name, log, self._tables[log], self._runs, removed
            self._add_findings(log, log_checks.check_offsets(*arguments))
            if self._is_sound(log):
                self._add_findings(log, log_checks.check_stream_time(*arguments))
                self._add_findings(log, log_checks.check_arrivals(*arguments))
        logs = [tables.log_table(self._warehouse, pipeline, name) for name in topics]
        sources = [*logs, *(tables.fates_table(self._warehouse, pipeline, name) for name in topics)]
        sources += map(trim_ledger.trim_table, logs)
        refused = quarantine.quarantine_table(self._warehouse, pipeline)
        if topics and not self._broken.intersection([refused, *sources]):
            self._add_findings(
                refused, quarantine_checks.check_quarantine(contract, topics, self._runs, refused, self._tables)
            )

    def _check_emitted(self, moments: journal_checks.RunMoments) -> None:
        for name in self._names:
            log = (
                emitted_log.emitted_table(self._warehouse, self._contract, name)
                if name in self._contract.views
                else None
            )
            if log is not None and self._is_sound(log):
                its = inventory.find_state_table(self._warehouse, self._contract, name)
                if its not in self._broken:
                    self._add_findings(
                        log,
                        emitted_checks.check_output(self._contract, name, log, self._tables[log], self._runs, moments),
                    )

    def _check_definitions(self, spark: SessionFactory | None, *, whole: bool) -> None:
        if self._lacks_runs or not self._tables:
            return
        what = "whether tables match the log"
        if spark is None:
            self._report.not_checked.append(f"{what}: this check needs Spark")
            return
        if why := definition.describe_obstacle(self._contract, self._runs):
            self._report.not_checked.append(f"{what}: {why}")
            return
        try:
            session = spark()
        except HindcastError as error:  # what was found without Spark is reported nevertheless
            self._report.not_checked.append(f"{what}: {error}")
            return
        self._watch(session)
        for number, name in enumerate(self._names):
            step_events.add_fields(tables=len(self._names), tables_done=number, part=f"{name} by its definition")
            table = tables.locate_table(self._warehouse, self._contract, name)
            if not self._is_sound(table, *self._sources(name)):
                continue
            if why := definition.describe_trimmed_input(self._contract, name, self._runs[-1]):
                self._report.not_checked.append(f"{what}: {why}")
            else:
                arguments = self._contract, name, self._tables[table], self._runs[-1]
                self._add_findings(table, definition.check_definition(session, *arguments, whole=whole))

    def _sources(self, name: str) -> Iterator[Table]:
        """Yield the tables of the pipeline that a table is derived from, without those of other pipelines."""
        if name in self._contract.topics:
            yield tables.log_table(self._warehouse, self._contract.pipeline, name)
            initial = initial_rows.initial_rows_table(self._warehouse, self._contract.pipeline, name)
            if initial in self._tables or initial in self._broken:
                yield initial
        elif self._contract.views[name].semantics == "kafka":
            yield emitted_log.emitted_table(self._warehouse, self._contract, name)
        else:
            own = (i for i in self._contract.views[name].inputs if i not in self._contract.inputs)
            yield from (tables.locate_table(self._warehouse, self._contract, i) for i in own)
