"""The verdicts of all gates in all runs: one Delta table per pipeline, appended without Spark.

| column | type | |
| --- | --- | --- |
| run, at | bigint, timestamp | the run, and when its gates were asked: later than all before, by any clock |
| table, gate | string, bigint | whose gate, and its number under `expect`, from 0 |
| expectation, kwargs | string, string | as in the contract; the parameters as JSON |
| onFailure, outcome | string, string | stop, quarantine, warn; passed, failed, error, unchecked |
| checked, failing | bigint, bigint | how many rows it looked at, and how many of them failed |
| observed | double | what it measured; of rows the share that failed |
| detail | string | what was found |

A step that is retried asks its gates again; what it told last counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import duckdb
import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from hindcast.delta.contents import dataset, next_moment
from hindcast.delta.making import arrow_schema, ensure, unwritten
from hindcast.delta.tables import Table, opened

TREND = 20
"""Of so many runs a report shows what a gate measured."""

SCHEMA = StructType(
    [
        StructField("run", LongType()),
        StructField("at", TimestampType()),
        StructField("table", StringType()),
        StructField("gate", LongType()),
        StructField("expectation", StringType()),
        StructField("kwargs", StringType()),
        StructField("onFailure", StringType()),
        StructField("outcome", StringType()),
        StructField("checked", LongType()),
        StructField("failing", LongType()),
        StructField("observed", DoubleType()),
        StructField("detail", StringType()),
    ]
)
_ARROW = arrow_schema(SCHEMA)

_LAST = """
    FROM verdicts WHERE run {runs} QUALIFY dense_rank() OVER (PARTITION BY run, "table" ORDER BY "at" DESC) = 1
"""


Outcome = Literal["passed", "failed", "error", "unchecked"]


class Verdict(NamedTuple):
    """What became of one gate.

    `gate`: its number under the table's `expect`, from 0. `checked`: how many rows it looked at, `failing`: how many of
    them failed; null where that cannot be told. `observed`: what it measured: of rows the share that failed.
    """

    gate: int
    expectation: str
    kwargs: dict[str, Any]
    on_failure: str
    outcome: Outcome
    checked: int | None
    failing: int | None
    observed: float | None
    detail: str

    @property
    def stops(self) -> bool:
        """Whether nothing may be published. What could not be evaluated cannot be held back either."""
        return (self.outcome == "failed" and self.on_failure == "stop") or (
            self.outcome == "error" and self.on_failure != "warn"
        )

    @property
    def holds(self) -> bool:
        """Whether the changes of the failing keys are held back."""
        return self.outcome == "failed" and self.on_failure == "quarantine"


def table(warehouse: str, pipeline: str) -> Table:
    """The verdicts of a pipeline."""
    return Table(warehouse, pipeline, "gates", "gates")


def enter(warehouse: str, pipeline: str, run: int, name: str, verdicts: Sequence[Verdict]) -> None:
    """Appends what the gates of one table told in a run; nothing if it has none."""
    if not verdicts:
        return
    found = ensure(table(warehouse, pipeline), SCHEMA)
    at = next_moment(found)
    rows = [
        {
            "run": run,
            "at": at,
            "table": name,
            "gate": v.gate,
            "expectation": v.expectation,
            "kwargs": _json(v.kwargs),
            "onFailure": v.on_failure,
            "outcome": v.outcome,
            "checked": v.checked,
            "failing": v.failing,
            "observed": v.observed,
            "detail": v.detail,
        }
        for v in verdicts
    ]
    try:
        write_deltalake(found, pa.Table.from_pylist(rows, schema=_ARROW), mode="append")
    except (DeltaError, OSError) as error:
        raise unwritten(error, table(warehouse, pipeline).path) from None


def identity(expectation: str, kwargs: Mapping[str, Any]) -> tuple[str, str]:
    """What makes gates of different runs measure the same, whatever they allow."""
    return expectation, _json({name: value for name, value in kwargs.items() if name in _MEASURED})


_MEASURED = ("column", "row_condition", "condition_parser")


def measured(warehouse: str, pipeline: str, name: str, runs: Iterable[int]) -> dict[tuple[str, str], list[float]]:
    """What the gates of a table measured in some runs, oldest first, by `identity`."""
    rows = _asked(
        warehouse,
        pipeline,
        f"""SELECT expectation, kwargs, observed, run {_LAST.format(runs="IN (SELECT unnest(?::BIGINT[]))")}
            AND "table" = ? AND observed IS NOT NULL AND outcome <> 'error' ORDER BY run""",
        [list(runs), name],
    )
    told: dict[tuple[str, str], dict[int, float]] = {}
    for expectation, kwargs, observed, run in rows:
        told.setdefault(identity(expectation, json.loads(kwargs)), {})[run] = observed
    return {gate: list(of_runs.values()) for gate, of_runs in told.items()}


def of_run(warehouse: str, pipeline: str, run: int) -> dict[str, list[dict[str, Any]]]:
    """The verdicts of a run by table, in the order of its gates, each with the `trend` of what it has measured."""
    rows = _asked(
        warehouse,
        pipeline,
        f"""SELECT run, "table", gate, expectation, kwargs, onFailure, outcome, checked, failing, observed, detail
            {_LAST.format(runs="BETWEEN ? AND ?")} ORDER BY run, "table", gate""",
        [run - TREND + 1, run],
    )
    trends: dict[tuple[str, str, str], list[float | None]] = {}
    told: dict[str, list[dict[str, Any]]] = {}
    for number, name, gate, expectation, kwargs, on_failure, outcome, checked, failing, observed, detail in rows:
        trend = trends.setdefault((name, expectation, kwargs), [])
        trend.append(None if observed is None else float(f"{observed:.6g}"))
        if number == run:
            verdict = {"gate": gate, "expectation": expectation, "kwargs": json.loads(kwargs), "on_failure": on_failure}
            verdict |= {"outcome": outcome, "checked": checked, "failing": failing, "observed": observed}
            told.setdefault(name, []).append({**verdict, "detail": detail, "trend": list(trend)})
    return told


def _asked(warehouse: str, pipeline: str, query: str, values: list[Any]) -> list[tuple[Any, ...]]:
    found = opened(table(warehouse, pipeline))
    if found is None:
        return []
    with duckdb.connect() as engine:
        engine.register("verdicts", dataset(found))
        return engine.execute(query, values).fetchall()


def _json(kwargs: Mapping[str, Any]) -> str:
    return json.dumps(kwargs, sort_keys=True, default=str)
