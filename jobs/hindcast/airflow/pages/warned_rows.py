"""Rows that a gate let through with a warning in an earlier run: later runs do not check them again."""

from __future__ import annotations

from collections.abc import Sequence

from hindcast.airflow.pages import failing_changes, run_reports
from hindcast.common.errors import HindcastError
from hindcast.common.json_values import JsonObject
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.plan.runs import Run

MAX_KEYS = 3
"""How many keys of a gate are named."""


def list_warned_rows(settings: Settings, contract: Contract, past: Sequence[Run]) -> list[JsonObject]:
    """Return the gates that warned in the last run in which any did, but for the last of all: its gates have their rows
    on the page. Each has its `table`, the `run`, how many rows are `failing` and the first `keys`.
    """
    ended = [run for run in past if run.has_report][-run_reports.MAX_SOUGHT : -1]
    for run in reversed(ended):
        try:
            report = run_reports.read_report(settings, run) if run.state == "completed" else None
            gates = [
                (name, gate.result)
                for name, table in (report.tables if report else {}).items()
                for gate in table.gates
                if gate.result.on_failure == "warn" and gate.result.outcome == "failed"
            ]
            rows = failing_changes.read_failing_rows(settings, contract, run.number) if gates else {}
        except HindcastError:
            continue  # the line of the run says what is wrong
        if gates:
            return [
                {
                    "table": name,
                    "run": run.number,
                    "failing": gate.failing,
                    "keys": [_name_key(row) for row in rows.get((name, gate.gate), [])[:MAX_KEYS]],
                }
                for name, gate in gates
            ]
    return []


def _name_key(row: JsonObject) -> str:
    plane = row["plane"]
    return str(plane["key"] if isinstance(plane, dict) else row["key"])
