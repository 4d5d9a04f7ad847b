"""What abandoned runs wrote: it stays, and the report of the next completed run lists it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow.compute as pc

from hindcast.common.json_values import JsonObject, StoredObject
from hindcast.common.plurals import format_count
from hindcast.contract import Contract
from hindcast.ingest import ledger
from hindcast.plan import journal
from hindcast.plan.runs import find_last_completed
from hindcast.store import commit_history, row_reader, tables
from hindcast.store.commit_notes import TableNote


@dataclass(frozen=True)
class AbandonedRun:
    """What a run wrote before it was abandoned.

    `offsets`: by topic, how many it appended to the log. `tables`: by table, the rows that it `opened` and `closed`,
    and how many of these are past answers (`corrected`). `fates`: by topic, how many records got which fate when it
    decided about them again.
    """

    run: int
    run_id: str
    offsets: Mapping[str, int]
    tables: Mapping[str, Mapping[str, int]]
    fates: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        """Return the form in reports."""
        fates: JsonObject = {"fates": self.fates} if self.fates else {}
        return {"run": self.run, "runId": self.run_id, "offsets": self.offsets, "tables": self.tables, **fates}

    @classmethod
    def from_json(cls, run: StoredObject) -> AbandonedRun:
        """Return the run from its form in reports."""
        return cls(run["run"], run["runId"], run["offsets"], run["tables"], run.get("fates", {}))


def find_abandoned_runs(warehouse: str, contract: Contract, number: int) -> list[AbandonedRun]:
    """Return the runs between the last completed one and the run `number` that were abandoned but wrote something."""
    earlier = [run for run in journal.read_runs(warehouse, contract.pipeline) if run.number < number]
    last = find_last_completed(earlier)
    abandoned = []
    for run in earlier:
        if run.state != "abandoned" or (last is not None and run.number < last.number):
            continue
        offsets = {name: _count_offsets(warehouse, contract, name, run.number) for name in contract.topics}
        counts = {
            name: _read_published_counts(warehouse, contract, name, run.number)
            for name in (*contract.topics, *contract.views)
        }
        fates = {name: _count_fates(warehouse, contract, name, run.number) for name in contract.topics}
        written = AbandonedRun(
            run.number,
            run.run_id,
            {name: n for name, n in offsets.items() if n},
            {name: rows for name, rows in counts.items() if any(rows.values())},
            {name: counts for name, counts in fates.items() if counts},
        )
        if written.offsets or written.tables or written.fates:
            abandoned.append(written)
    return abandoned


def format_abandoned_run(run: AbandonedRun) -> str:
    """Return a sentence that says what an abandoned run did."""
    parts = []
    for name in dict.fromkeys([*run.offsets, *run.fates, *run.tables]):
        offsets, rows = run.offsets.get(name, 0), run.tables.get(name, {})
        counts = [format_count(offsets, "offset")] if offsets else []
        if fates := run.fates.get(name):
            decided = ", ".join(f"{n:,} {fate}" for fate, n in fates.items())
            counts.append(f"{format_count(sum(fates.values()), 'fate')} decided again ({decided})")
        counts += [f"{format_count(rows['opened'], 'row')} opened"] if rows.get("opened") else []
        counts += [f"{rows['closed']:,} closed"] if rows.get("closed") else []
        counts += [f"{rows['corrected']:,} of these a past answer"] if rows.get("corrected") else []
        parts.append(f"{name}: {', '.join(counts)}")
    return f"run {run.run} was abandoned; what it did stays: {'; '.join(parts)}"


def _count_offsets(warehouse: str, contract: Contract, name: str, number: int) -> int:
    pieces = ledger.read_ingested_ranges(tables.log_table(warehouse, contract.pipeline, name), number)
    return sum(piece.end - piece.start for piece in pieces)


def _count_fates(warehouse: str, contract: Contract, name: str, number: int) -> dict[str, int]:
    """Return how many records of a topic got which fate when a run decided about them again."""
    entered = tables.open_table(tables.fates_table(warehouse, contract.pipeline, name))
    if entered is None:
        return {}
    fates = row_reader.open_dataset(entered).to_table(["fate"], filter=pc.field("run") == number).column("fate")
    return dict(sorted(Counter(fates.to_pylist()).items()))


def _read_published_counts(warehouse: str, contract: Contract, name: str, number: int) -> dict[str, int]:
    notes = commit_history.read_notes(tables.locate_table(warehouse, contract, name), TableNote.from_json)
    note = notes.get(number, TableNote(number))
    return {"opened": note.opened, "closed": note.closed, "corrected": note.corrected}
