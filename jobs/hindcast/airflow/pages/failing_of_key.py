"""What gates found of one key and is not published: what is held back, and what stopped the last run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from hindcast.airflow.pages import failing_changes, quality
from hindcast.common.column_values import ColumnValue
from hindcast.common.errors import QueryError, TableError
from hindcast.common.json_values import JsonObject
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.plan import journal, marks
from hindcast.quality import gate_results, gate_words
from hindcast.quality.failing_rows import failing_table
from hindcast.quality.held_keys import HeldKeys
from hindcast.store import tables

MAX_RUNS = 3
"""Of how many runs the failing rows of a key are shown: the last ones."""


def find_failing_of_key(
    settings: Settings, contract: Contract, name: str, key: Sequence[ColumnValue]
) -> list[JsonObject]:
    """Return the runs whose failing rows of a key are not published, the last first, each with its `gates`.

    A gate has the fields that failing.html asks for. There are none if they cannot be read, or not in time.
    """
    if tables.open_table(failing_table(settings.warehouse, contract.pipeline)) is None:
        return []
    holds = HeldKeys(settings.warehouse, contract, name, datetime.max.replace(tzinfo=UTC))
    try:
        found = holds.find_failing_runs(key)[:MAX_RUNS]
        states = {run.number: run.state for run in journal.read_runs(settings.warehouse, contract.pipeline)}
        shown = [
            {"run": run, "state": states.get(run), "gates": [*_list_gates(settings, contract, run, (name, text))]}
            for run, text in found
        ]
    except (QueryError, TableError):
        return []  # hindcast failing lists them, or says what is wrong
    return [run for run in shown if run["gates"]]


def _list_gates(settings: Settings, contract: Contract, run: int, key: tuple[str, str]) -> list[JsonObject]:
    """Return the gates that a key fails in a run, each in words, with the rows of the key."""
    name = key[0]
    rows = failing_changes.read_failing_rows(settings, contract, run, key)
    hidden = marks.find_marked_columns(settings, contract, (*contract.topics, *contract.views))
    mask = gate_results.build_masker(contract, hidden)
    lines = gate_words.locate_gates(settings.schemas, contract) if rows else {}
    results = gate_results.read_results(settings.warehouse, contract.pipeline, run)
    gates = [(name, mask(name, gate)) for gate in results.get(name, [])]
    return quality.list_gates_with_rows(contract, gates, rows, lines)
