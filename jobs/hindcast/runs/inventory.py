"""The tables of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hindcast.contract import Contract
from hindcast.ingest import initial_rows, quarantine, schemas, trim_ledger
from hindcast.plan import journal
from hindcast.quality import failing_rows, gate_results
from hindcast.store import commit_history, emitted_log, tables
from hindcast.store.commit_notes import EmissionNote
from hindcast.store.tables import Table


def list_possible_tables(warehouse: str, contract: Contract, names: Iterable[str]) -> Iterator[Table]:
    """Yield the tables of some topics and views, and the tables behind them, whether they exist or not.

    The journal comes first; the state of kafka views is not included (`find_state_table`).
    """
    pipeline = contract.pipeline
    yield journal.runs_table(warehouse, pipeline)
    for name in names:
        yield tables.locate_table(warehouse, contract, name)
        if name in contract.topics:
            log = tables.log_table(warehouse, pipeline, name)
            yield from (log, trim_ledger.trim_table(log), initial_rows.initial_rows_table(warehouse, pipeline, name))
            yield from (of(warehouse, pipeline, name) for of in (tables.fates_table, schemas.schemas_table))
        elif contract.views[name].semantics == "kafka":
            yield emitted_log.emitted_table(warehouse, contract, name)
    yield from (
        of(warehouse, pipeline)
        for of in (quarantine.quarantine_table, gate_results.results_table, failing_rows.failing_table)
    )


def find_state_table(warehouse: str, contract: Contract, name: str) -> Table | None:
    """Return the table of a kafka view's state in its last epoch; None if it has processed nothing yet."""
    note = next(
        iter(
            commit_history.read_notes(
                emitted_log.emitted_table(warehouse, contract, name), EmissionNote.from_json
            ).values()
        ),
        None,
    )
    return Table(warehouse, contract.pipeline, f"kept/{name}/{note.epoch}", "kept") if note else None


def list_existing_tables(warehouse: str, contract: Contract) -> Iterator[Table]:
    """Yield all tables of a pipeline that exist."""
    possible = list_possible_tables(warehouse, contract, [*contract.topics, *contract.views])
    yield from (table for table in possible if tables.open_table(table) is not None)
    for name, view in contract.views.items():
        state = find_state_table(warehouse, contract, name) if view.semantics == "kafka" else None
        if state is not None and tables.open_table(state) is not None:
            yield state
