"""One erasure under way: its rows, texts and files are removed, and what is left of them is searched for."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from hindcast.common import bounded_files
from hindcast.common.errors import TableError
from hindcast.contract.bound import BoundContract
from hindcast.ingest import initial_rows, quarantine
from hindcast.ops.erase import proof, purge, records, row_removal
from hindcast.ops.erase.erased_rows import find_erased_rows
from hindcast.ops.erase.failing_entries import FailingEntries
from hindcast.ops.erase.proof import Proof
from hindcast.ops.erase.readers import find_readers
from hindcast.ops.erase.records import ErasureRequest
from hindcast.ops.erase.texts import ForgottenTexts
from hindcast.plan import journal, notices
from hindcast.plan.plans import Plan
from hindcast.plan.purposes import Erasure
from hindcast.plan.runs import MALFORMED, Run
from hindcast.quality import datadocs, gate_results
from hindcast.report import page, preview_files
from hindcast.report.run_report import RunReport
from hindcast.runs import row_counts, shadow_table
from hindcast.store import emitted_log, row_reader, table_creation, tables
from hindcast.store.folder import WarehouseFolder
from hindcast.store.tables import Table


class ErasureStep:
    """One erasure under way."""

    def __init__(
        self,
        spark: SparkSession,
        contract: BoundContract,
        request: ErasureRequest,
        plan: Plan,
        erasure: Erasure,
        past: list[Run],
    ) -> None:
        self._spark, self._contract, self._request, self._plan = spark, contract, request, plan
        self._digest = erasure.digest
        same = {run.number for run in past if run.plan.erasure and run.plan.erasure.digest == erasure.digest}
        self._is_repeated = plan.run in same
        self._records = records.read_records(spark, contract, request, {*same, plan.run}).localCheckpoint()
        self.erased = find_erased_rows(spark, contract, request, self._records, plan, past)
        adopted = records.find_adopted_records(spark, contract, request)
        self._adopted = adopted.localCheckpoint() if adopted is not None else None
        below = contract.list_tables_below(request.topic).union(self.erased.names)
        self.texts = records.collect_texts(request, self._records, self._adopted, below)
        self._lost_since = records.find_lost_since(spark, contract, request)
        self._failing = FailingEntries(spark, contract, request, plan, self._records, self.erased, self.texts)
        self._readers = find_readers(contract, self.erased.tables)
        self._redefined: list[str] = []
        self._cleared: dict[str, list[Table]] = {}
        """The tables of which rows are removed or cleared, by the name under which the proof counts them."""

    def refuse_ended(self) -> None:
        """Raise RunError if others may write to the tables by now: the notice is lost, or the run has ended."""
        notices.refuse_lost_notice()
        journal.read_active_run(self._contract.warehouse, self._contract.pipeline, self._plan.run)

    def remove_rows(self) -> None:
        """Remove rows, from below upwards; then scrub texts about them; last take the bytes out of the log."""
        warehouse, pipeline, run = self._contract.warehouse, self._contract.pipeline, self._plan.run
        processed = {name for name in self.erased.restarting if self._is_processed_again(name)}
        touched = [n for n in self.erased.tables if n not in processed and self.erased.has_table(n)]
        shadow_table.clear_shadow(self._spark, self.erased.table(self._request.topic))
        self._redefined = self.erased.find_redefined()  # all rows are found before any is removed
        self._cleared["failing"] = [self._failing.table]
        self._failing.remove_found(touched)
        for name in self.erased.formerly_emitting:
            self._cleared[f"emitted/{name}"] = self._find_emission_tables(name)
            self._empty_tables(f"emitted/{name}")
        for name in reversed(self.erased.tables):
            table = self.erased.table(name)
            emitting = self._find_emission_tables(name) if name in self.erased.restarting else []
            if name in processed or name in touched or emitting:
                self._cleared[name] = [*emitting, table]
            if name in processed or name not in self._cleared:
                continue
            if name in self.erased.restarting:
                count = self._empty_tables(name)
            else:
                count = row_removal.remove_rows(
                    self.erased.find_rows(name), table, [*table.identity, "systemFrom"], run
                )
            if name in touched and (count or self._is_repeated):  # an earlier attempt may have died between the two
                row_counts.write_row_counts(self._spark, table, self._plan.known_at - timedelta(microseconds=1))
        self._scrub_texts()
        if self._adopted is not None:
            initial = initial_rows.initial_rows_table(warehouse, pipeline, self._request.topic)
            self._cleared[initial.name] = [initial]
            row_removal.remove_rows(self._adopted, initial, ["key", "timestamp"], run)
        places = {"partition": "partition", "offset": "offset"}
        fates = tables.fates_table(warehouse, pipeline, self._request.topic)
        row_removal.blank_records(self._records, fates, places, run)
        in_kafka = {"topic": "topic", "partition": "topicPartition", "offset": "offset"}
        row_removal.blank_records(self._records, quarantine.quarantine_table(warehouse, pipeline), in_kafka, run)
        log = tables.log_table(warehouse, pipeline, self._request.topic)
        row_removal.blank_records(self._records, log, places, run)

    def _is_processed_again(self, name: str) -> bool:
        """Return whether an earlier attempt has begun to process a kafka view again: after it had removed all rows."""
        log = emitted_log.emitted_table(self._contract.warehouse, self._contract, name)
        return tables.read_last_run(log) >= self._plan.run

    def _find_emission_tables(self, name: str) -> list[Table]:
        """Return the emitted log and the state of a kafka view, as far as they exist."""
        place = self._contract.warehouse, self._contract.pipeline
        states = [path for path in self._folder.tables if path.startswith(f"kept/{name}/")]
        found = [Table(*place, path, "kept") for path in states]
        log = Table(*place, f"emitted/{name}", "emitted")
        return [*found, log] if tables.open_table(log) is not None else found

    def _empty_tables(self, name: str) -> int:
        """Remove all rows of the tables that are counted under a name; return how many there were."""
        return sum(row_removal.empty_table(self._spark, table, self._plan.run) for table in self._cleared[name])

    def _count_removed(self) -> dict[str, int]:
        """Return how many rows this run has removed by table, in all its attempts, and records of the log."""
        run, log = self._plan.run, f"logs/{self._request.topic}"
        counts = {n: sum(row_removal.count_removed(t, run) for t in some) for n, some in self._cleared.items()}
        return {name: n for name, n in {**counts, log: self._records.count()}.items() if n}

    def remove_unheld(self, *, derived: bool) -> None:
        """Remove what was held and is not any more; `derived`: whether all tables were derived again."""
        self._failing.remove_unheld()
        self._failing.clear_samples(derived=derived)

    def _scrub_texts(self) -> None:
        """Remove the texts from the journal, the gate results and the reports, and the Data Docs of all runs."""
        warehouse, pipeline, run = self._contract.warehouse, self._contract.pipeline, self._plan.run
        entries = journal.runs_table(warehouse, pipeline)
        table_creation.ensure_table(entries, journal.SCHEMA)
        by = ["run", "entry", "at", "sequence"]
        row_removal.rewrite_column(
            self._spark, entries, by, "detail", run, lambda text, _: _scrub_json(self.texts, text)
        )
        gates = gate_results.results_table(warehouse, pipeline)
        by = ["run", "at", "table", "gate"]
        row_removal.rewrite_column(self._spark, gates, by, "detail", run, self.texts.scrub_detail)
        self.refuse_ended()
        datadocs.remove_sites(self._reports)
        page.remove_unfinished_files(self._reports)
        preview_files.remove_previews(self._reports)
        for path in sorted(self._reports.glob("run-*.json")):
            notices.refuse_lost_notice()
            _scrub_report(self._contract.settings.reports, pipeline, path, self.texts)

    @property
    def _folder(self) -> WarehouseFolder:
        return WarehouseFolder(f"{self._contract.warehouse}/{self._contract.pipeline}")

    @property
    def _reports(self) -> Path:
        return page.open_folder(self._contract.settings.reports, self._contract.pipeline)

    def purge_files(self) -> None:
        """Remove from the files of all tables what their rows no longer have."""
        folder = self._folder
        folder.remove_unfinished_files(self.refuse_ended)
        for name in folder.tables:
            self.refuse_ended()
            path = f"{self._contract.warehouse}/{self._contract.pipeline}/{name}"
            purge.purge_table(self._spark, folder, name, path, self.texts.scrub_text)

    def _count_left(self) -> int:
        """Return how many rows of the topic's table, and records of its log and base, are still to be forgotten."""
        request = self._request
        table = tables.locate_table(self._contract.warehouse, self._contract, request.topic)
        left = records.read_records(self._spark, self._contract, request, set()).count()
        if tables.open_table(table) is not None:
            condition = records.erased_condition(self._contract, request)
            left += row_reader.load_rows(self._spark, table).where(condition).count()
        adopted = records.find_adopted_records(self._spark, self._contract, request)
        return left + (adopted.count() if adopted is not None else 0)

    def write_proof(self) -> Proof:
        """Purge what deriving has left, read everything once more, and return the proof; store it with the reports."""
        self.purge_files()
        folder, pipeline = self._folder, self._contract.pipeline
        paths = {name: f"{self._contract.warehouse}/{pipeline}/{name}" for name in folder.tables}
        live = {f"{name}/{file}" for name, path in paths.items() for file in purge.list_live_files(DeltaTable(path))}
        result = proof.search_files(folder, live, self._reports, self.texts.search_terms)
        described = " ".join(DeltaTable(path).schema().to_json() for path in paths.values())
        contract_text, pages = self._contract.model_dump_json(), page.read_fixed_text()
        vocabulary = " ".join((proof.FORMAT_WORDS, contract_text, pages, *paths, described))
        proven = Proof(
            pipeline,
            self._plan.run,
            self._plan.known_at,
            table=f"{pipeline}.{self._request.topic}",
            sha256=self._digest,
            rows=self._count_removed(),
            readers=self._readers.views,
            unread=self._readers.unread,
            redefined=tuple(self._redefined),
            lost_since=self._lost_since,
            evidence=proof.weigh_evidence(
                result, live, self.texts.search_terms, vocabulary, self._count_left(), self._contract.topics
            ),
        )
        self.refuse_ended()
        place = proof.proof_path(self._reports, self._plan.run)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(proven.as_json(), indent=2), encoding="utf-8")
        return proven


def _scrub_report(reports: Path, pipeline: str, path: Path, texts: ForgottenTexts) -> None:
    """Remove the texts from the file of a run's report; remove a file that is none, as one that was cut off: nobody
    knows what is in it.
    """
    try:
        report = json.loads(bounded_files.read_text(path, _MAX_REPORT))
        scrubbed = texts.scrub_json(report)
        if scrubbed == report:
            return
        if not isinstance(scrubbed, dict):
            raise TypeError("not a report")
        made, number = RunReport.from_json(scrubbed), int(path.stem.removeprefix("run-"))
        notices.refuse_lost_notice()
        page.write_page(reports, pipeline, number, made)
    except (*MALFORMED, TableError):
        path.unlink()


_MAX_REPORT = 1 << 30
"""No report has so many bytes."""


def _scrub_json(texts: ForgottenTexts, detail: str) -> str:
    fields = json.loads(detail)
    scrubbed = texts.scrub_json(fields)
    return detail if scrubbed == fields else json.dumps(scrubbed)
