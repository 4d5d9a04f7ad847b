"""What logs and tables know of the runs of a lost journal: when each was known, what it was for, and which rehearsed
ones were not completed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.ingest import erasure_marks, ledger, quarantine
from hindcast.ingest.initial_rows import initial_rows_table
from hindcast.ingest.ledger import IngestedRange
from hindcast.ops.erase import row_removal
from hindcast.ops.erase.proof import Proof, read_proofs
from hindcast.plan.plans import Plan
from hindcast.plan.purposes import ArrivalInterval, Purpose, Release, ReleasedKeys, Replay, Requeue
from hindcast.plan.rehearsals import MICROSECOND
from hindcast.quality import failing_rows
from hindcast.store import arrow_reader, commit_history, emitted_log, odd_tables, tables
from hindcast.store.commit_notes import EmissionNote, FatesNote, TableNote


def read_known_ats(
    warehouse: str, contract: Contract, ingested: Mapping[str, list[IngestedRange]]
) -> dict[int, datetime]:
    """Return the known-ats of the runs that ingested records, revised fates, or emitted records of a kafka view."""
    known_ats = dict[int, datetime]()
    for name in (name for name, view in contract.views.items() if view.semantics == "kafka"):
        notes = commit_history.read_notes(emitted_log.emitted_table(warehouse, contract, name), EmissionNote.from_json)
        known_ats |= {run: datetime.fromisoformat(note.known_at) for run, note in notes.items() if note.known_at}
    for name in contract.topics:
        revisions = ledger.read_fate_revisions(tables.fates_table(warehouse, contract.pipeline, name))
        known_ats |= {revision.run: revision.known_at for revision in revisions}
    return known_ats | {piece.run: piece.known_at for pieces in ingested.values() for piece in pieces}


def find_last_entry(warehouse: str, pipeline: str) -> int:
    """Return the last run that has entries among failing rows; 0 if there is none. It may have written nothing else."""
    (last,) = (
        failing_rows.query_entries(warehouse, pipeline, "SELECT max(run) AS run FROM failing", [])
        .column("run")
        .to_pylist()
    )
    return last or 0


def find_removals(warehouse: str, contract: Contract) -> set[int]:
    """Return the runs that have forgotten something, by the notes of commits and by the marks in the logs.

    They may have written nothing else.
    """
    pipeline, runs = contract.pipeline, set[int]()
    own = [tables.locate_table(warehouse, contract, name) for name in (*contract.topics, *contract.views)]
    for of in (tables.log_table, tables.fates_table, initial_rows_table):
        own += [of(warehouse, pipeline, name) for name in contract.topics]
    own += [failing_rows.failing_table(warehouse, pipeline), quarantine.quarantine_table(warehouse, pipeline)]
    for table in own:
        if (delta_table := tables.open_table(table)) is None:
            continue
        with odd_tables.refuse_unreadable_rows(table):
            runs |= row_removal.list_forgetting_runs(delta_table)
            if table.kind == "log" and erasure_marks.MARK in pa.schema(delta_table.schema().to_arrow()).names:
                runs |= _read_marks(delta_table)
    return runs


def _read_marks(log: DeltaTable) -> set[int]:
    """Return the runs that have forgotten records of a log."""
    column = erasure_marks.MARK
    marks = set[int]()
    for batch in arrow_reader.read_rows(log, columns=[column], where=pc.field(column).is_valid()):
        marks |= {*pc.unique(batch.column(0)).to_pylist()} - {None}
    return marks


def find_own_proofs(
    contract: BoundContract, known_ats: Mapping[int, datetime], removing: Collection[int]
) -> dict[int, Proof]:
    """Return the proofs of runs of this warehouse, by run; others are of one that it has replaced.

    A run that forgets is among those `removing` (`find_removals`). It is known after all runs before it and before all
    runs after it, and the rows that it wrote have the moment of its proof.
    """
    proofs = [it for it in read_proofs(contract.settings.reports / contract.pipeline) if it.run in removing]
    of_rows = find_published_runs(contract.warehouse, contract, known_ats) if proofs else {}
    return {
        proof.run: proof
        for proof in proofs
        if of_rows.get(proof.run, proof.known_at) == proof.known_at
        and _is_in_order(proof.run, proof.known_at, known_ats)
    }


def _is_in_order(number: int, known_at: datetime, known_ats: Mapping[int, datetime]) -> bool:
    """Return whether a run would be known after all other runs before it, and before all after it."""
    return all((run < number) == (at < known_at) for run, at in known_ats.items() if run != number)


def find_published_runs(warehouse: str, contract: Contract, known_ats: Mapping[int, datetime]) -> dict[int, datetime]:
    """Return the runs that committed to tables, with their known-ats; those in `known_ats` are known already.

    The rows of the others have moments on the system axis that no known run has: the latest one of a table is that of
    its last run; other runs have the rest, if these are as many. Runs whose known-at cannot be told are left out.
    """
    dated, moments, writers = dict(known_ats), set[datetime](), set[int]()
    for name in (*contract.topics, *contract.views):
        table = tables.locate_table(warehouse, contract, name)
        if (delta_table := tables.open_table(table)) is None or not (number := tables.read_last_run(table)):
            continue
        notes = commit_history.read_notes(table, TableNote.from_json)
        own = {run for run, note in notes.items() if note.changed_rows} | ({number} - notes.keys())
        writers |= own
        if undated := own - known_ats.keys():
            with odd_tables.refuse_unreadable_rows(table):
                found = _read_moments(delta_table, _find_before(min(undated), known_ats)) - {*known_ats.values()}
            moments |= found
            if number in undated and found and _is_in_order(number, max(found), known_ats):
                dated[number] = max(found)
    for group in _group_undated(writers, dated):
        before = _find_before(group[0], dated)
        after = min((at for run, at in dated.items() if run > group[-1]), default=None)
        own_moments = sorted(at for at in moments if (not before or before < at) and (not after or at < after))
        if len(own_moments) == len(group):
            dated |= dict(zip(group, own_moments, strict=True))
    return {run: dated[run] for run in writers if run in dated}


def date_last_commits(warehouse: str, contract: Contract, known_ats: Mapping[int, datetime]) -> dict[int, datetime]:
    """Return the requeues, and the runs that committed to a table last, which left no row that has their known-at: each
    is known directly after the run before it. Those in `known_ats` are left out.
    """
    own = [tables.locate_table(warehouse, contract, name) for name in (*contract.topics, *contract.views)]
    last = {run for runs in _list_requeues(warehouse, contract).values() for run in runs}
    last |= {tables.read_last_run(table) for table in own} - {0}
    dated = dict(known_ats)
    for run in sorted(last - known_ats.keys()):
        if (before := _find_before(run, dated)) is not None:
            dated[run] = before + MICROSECOND
    return {run: at for run, at in dated.items() if run not in known_ats}


def find_repeated_intervals(plans: Mapping[int, Plan], writing: Collection[int]) -> dict[int, ArrivalInterval]:
    """Return the intervals of runs that rehearsed one again and had nothing to ingest, so that no log tells.

    `plans`: of all runs, with the intervals that logs have. `writing`: the runs that changed rows and were for nothing
    else. Each is known a microsecond after the run before it (`rehearsals.date_run`):

        1 ingested [0, 10), known at 10; 2 changed rows, known at 10.000001    ->    2 is of [0, 10) too
    """
    found, rehearsed = {}, {n: it for n, plan in plans.items() if (it := plan.rehearsed_interval) is not None}
    for number in writing:
        plan, before = plans[number], max((n for n in rehearsed if n < number), default=None)
        if before is None or number in rehearsed or not isinstance(plan.purpose, Replay) or plan.ingests_offsets:
            continue
        since_end = plan.known_at - rehearsed[before].until
        if timedelta(0) < since_end <= (number - before) * MICROSECOND:
            found[number] = rehearsed[before]
    return found


def find_unfinished(rehearsed: Mapping[int, ArrivalInterval], ended: Collection[int]) -> set[int]:
    """Return the runs that did not complete the interval of arrival that they `rehearsed`.

    A later run begins before the interval's end. Or no later run tells, and the run has `ended`: tables refuse its
    commits, because it was abandoned.
    """
    unfinished = set()
    for number, interval in rehearsed.items():
        begins = [later.since for n, later in rehearsed.items() if n > number]
        if any(since < interval.until for since in begins) or (not begins and number in ended):
            unfinished.add(number)
    return unfinished


def find_unfinished_passes(warehouse: str, contract: Contract) -> set[int]:
    """Return the runs of passes that were killed: not all tables have the commit of the pass (plan/passes.py)."""
    own = [tables.locate_table(warehouse, contract, name) for name in (*contract.topics, *contract.views)]
    logs = [tables.log_table(warehouse, contract.pipeline, name) for name in contract.topics]
    reached = min((tables.read_last_run(table) for table in own if tables.open_table(table) is not None), default=0)
    joined = (runs for table in (*own, *logs) for runs in commit_history.list_joined_runs(table))
    return {run for runs in joined if max(runs) > reached for run in runs}


def list_published_tables(warehouse: str, contract: Contract, run: int) -> tuple[str, ...]:
    """Return the tables that a run published, by the notes of its commits."""
    own = {name: tables.locate_table(warehouse, contract, name) for name in (*contract.topics, *contract.views)}
    return tuple(n for n, table in own.items() if run in commit_history.read_notes(table, TableNote.from_json))


def _find_before(number: int, known_ats: Mapping[int, datetime]) -> datetime | None:
    """Return when the run before one was known; None if none was."""
    return max((at for run, at in known_ats.items() if run < number), default=None)


def _group_undated(writers: Collection[int], dated: Mapping[int, datetime]) -> list[list[int]]:
    """Return the runs that are not dated, in order, those between two dated ones together.

    1, 2, 3, 4, 5 with 3 dated    ->    [1, 2], [4, 5]
    """
    groups: dict[int, list[int]] = {}
    for run in sorted(run for run in writers if run not in dated):
        groups.setdefault(sum(other < run for other in dated), []).append(run)
    return list(groups.values())


def _read_moments(delta_table: DeltaTable, after: datetime | None) -> set[datetime]:
    """Return the moments on the system axis of a table's rows, all those `after` one among them.

    From the rows, because statistics have milliseconds.
    """
    schema = pa.schema(delta_table.schema().to_arrow())
    columns = [name for name in ("systemFrom", "systemTo") if name in schema.names]
    later = [pc.field(name) > pa.scalar(after, schema.field(name).type) for name in columns if after is not None]
    moments = set[datetime]()
    for batch in arrow_reader.read_rows(delta_table, columns=columns, where=reduce(or_, later) if later else None):
        for values in batch.columns:
            moments |= {moment for moment in pc.unique(values).to_pylist() if moment is not None}
    return {moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in moments}


def find_purposes(
    warehouse: str, contract: Contract, proofs: Mapping[int, Proof], ingesting: Collection[int]
) -> dict[int, Purpose]:
    """Return what runs were for that replayed nothing, as far as tables tell: requeues, releases and erasures.

    Which of the malformed records a requeue was to decode is not known: it is one of all records of its topics.
    """
    found: dict[int, Purpose] = {}
    for name, runs in _list_requeues(warehouse, contract).items():
        for run in runs:
            before = found.get(run)
            found[run] = Requeue((*(before.topics if isinstance(before, Requeue) else ()), name))
    found |= _find_releases(warehouse, contract.pipeline)
    found |= {run: proof.erasure for run, proof in proofs.items()}
    return {run: purpose for run, purpose in found.items() if run not in ingesting}


def _list_requeues(warehouse: str, contract: Contract) -> dict[str, list[int]]:
    """Return by topic the requeues that have decided its malformed records again."""
    found = {}
    for name in contract.topics:
        notes = commit_history.read_notes(tables.fates_table(warehouse, contract.pipeline, name), FatesNote.from_json)
        # One of other topics has noted neither, if only the contract changed fates of this one.
        found[name] = [run for run, note in notes.items() if note.requeued or note.still.get("records")]
    return found


def _find_releases(warehouse: str, pipeline: str) -> dict[int, Release]:
    """Return the releases whose entries are among the failing rows, by run; of each table the keys that it released."""
    tables_by_run: dict[int, dict[str, ReleasedKeys]] = {}
    for row in failing_rows.query_entries(warehouse, pipeline, _RELEASED_KEYS, []).to_pylist():
        released = ReleasedKeys(row["until"], tuple(row["keys"]), row["by"])
        tables_by_run.setdefault(row["run"], {})[row["table"]] = released
    return {run: Release(by_table) for run, by_table in tables_by_run.items()}


_RELEASED_KEYS = """
    SELECT run, "table", list_sort(list(DISTINCT key)) AS keys, min("at") AS until, any_value("by") AS "by"
    FROM failing WHERE entry = 'released' AND key IS NOT NULL GROUP BY run, "table" ORDER BY run, "table"
"""
