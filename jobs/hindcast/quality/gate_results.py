"""Gate results: the verdicts of all gates in all runs. One Delta table per pipeline, appended without Spark.

| column | type | |
| --- | --- | --- |
| run, at | bigint, timestamp | the run, and when its gates were evaluated: always later than earlier rows |
| table, gate | string, bigint | whose gate, and its number under `expect`, from 0 |
| expectation, kwargs | string, string | as in the contract; the parameters as JSON |
| onFailure, outcome | string, string | stop, quarantine, warn; passed, failed, error, unchecked |
| checked, failing | bigint, bigint | the number of rows it looked at, and of those that failed |
| observed | double | what it measured; for row-by-row gates the share of rows that failed |
| detail | string | what was found |

A step that is retried evaluates its gates again; the last results count.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from hindcast.common.errors import TableError, show_briefly
from hindcast.common.json_values import JsonObject, JsonValue, StoredObject
from hindcast.contract import Contract, list_shapes
from hindcast.contract.expectation import OnFailure, concerns_columns, list_named_columns
from hindcast.contract.sensitive import REDACTED
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.quality import gate_result_rows
from hindcast.store import duckdb_reader
from hindcast.store.row_reader import open_dataset, read_next_moment
from hindcast.store.table_creation import arrow_schema, ensure_table, explain_write_error
from hindcast.store.tables import Table, open_table

TREND_RUNS = 20
"""The number of runs over which a report shows what a gate measured."""

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
_ARROW_SCHEMA = arrow_schema(SCHEMA)

Outcome: TypeAlias = Literal["passed", "failed", "error", "unchecked"]


@dataclass(frozen=True)
class GateResult:
    """The result of one gate.

    `gate`: its number under the table's `expect`, from 0. `checked`: the number of rows it looked at; `failing`: of
    those that failed; None if unknown. `observed`: what it measured; for row-by-row gates the share that failed.
    """

    gate: int
    expectation: str
    kwargs: JsonObject
    on_failure: OnFailure
    outcome: Outcome
    checked: int | None
    failing: int | None
    observed: float | None
    detail: str

    @property
    def is_stopping(self) -> bool:
        """True if nothing may be published. What could not be evaluated cannot be held back either."""
        return (self.outcome == "failed" and self.on_failure == "stop") or (
            self.outcome == "error" and self.on_failure != "warn"
        )

    @property
    def is_holding(self) -> bool:
        """True if the changes of the failing keys are held back."""
        return self.outcome == "failed" and self.on_failure == "quarantine"

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form in reports and previews."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, document: StoredObject) -> Self:
        """Return the result from its form in reports, which may say more; TypeError if its parameters have no names."""
        if not isinstance(document["kwargs"], dict):
            raise TypeError("the parameters of a gate are not an object")
        if document["outcome"] not in get_args(Outcome):
            raise TypeError("the outcome of a gate is none of ours")
        if not all(isinstance(document[name], str) for name in ("expectation", "on_failure")):
            raise TypeError("the expectation of a gate, or what its failure does, is not a text")
        return cls(**{name: document[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class TrackedResult(GateResult):
    """The result of one gate in a run, with the `trend` of what it observed in the last runs, oldest first."""

    trend: Sequence[float | None]

    def mask_values(self, columns: Collection[str], hidden: frozenset[str]) -> Self:
        """Return the result without what may show values of `hidden` columns, or of others than the table's `columns`.

        An error may show those of any column, what was found and observed those of the columns that the gate is about.
        """
        is_left = not set(columns).issuperset(list_named_columns(self.kwargs))
        if not is_left and not concerns_columns(self.kwargs, hidden) and (self.outcome != "error" or not hidden):
            return self
        detail = REDACTED if self.outcome in ("failed", "error") else self.detail
        return replace(self, detail=detail, observed=None, trend=[])


def build_masker(
    contract: Contract, hidden: Mapping[str, frozenset[str]]
) -> Callable[[str, TrackedResult], TrackedResult]:
    """Return a function that masks the result of a gate of a table (`TrackedResult.mask_values`): it hides `hidden`
    columns, and those that have left the table.
    """
    known = list_shapes(contract)

    def mask_result(table: str, result: TrackedResult) -> TrackedResult:
        columns = (*known[table].columns, *PERIOD_COLUMNS) if table in known else ()
        return result.mask_values(columns, hidden.get(table, frozenset()))

    return mask_result


def results_table(warehouse: str, pipeline: str) -> Table:
    """Return the table of a pipeline's gate results."""
    return Table(warehouse, pipeline, "gates", "gates")


def append_results(warehouse: str, pipeline: str, run: int, name: str, results: Sequence[GateResult]) -> None:
    """Append the results of one table's gates in a run; do nothing if there are none."""
    append_all_results(warehouse, pipeline, [(run, name, result) for result in results])


def append_all_results(warehouse: str, pipeline: str, results: Sequence[tuple[int, str, GateResult]]) -> None:
    """Append results of gates in one commit, each with its run and table; do nothing if there are none."""
    if not results:
        return
    delta_table = ensure_table(results_table(warehouse, pipeline), SCHEMA)
    at = read_next_moment(delta_table)
    rows = [
        {
            "run": run,
            "at": at,
            "table": name,
            "gate": result.gate,
            "expectation": result.expectation,
            "kwargs": _format_json(result.kwargs),
            "onFailure": result.on_failure,
            "outcome": result.outcome,
            "checked": result.checked,
            "failing": result.failing,
            "observed": result.observed,
            "detail": gate_result_rows.cut_detail(result.detail),
        }
        for run, name, result in results
    ]
    try:
        write_deltalake(delta_table, pa.Table.from_pylist(rows, schema=_ARROW_SCHEMA), mode="append")
    except (DeltaError, OSError) as error:
        raise explain_write_error(error, results_table(warehouse, pipeline).path) from None


def has_results(warehouse: str, pipeline: str, first: int, last: int) -> bool:
    """Return whether there are results of a run from `first` to `last`."""
    table = results_table(warehouse, pipeline)
    delta_table = open_table(table)
    return delta_table is not None and gate_result_rows.load_last_tries(table, delta_table, first, last).num_rows > 0


def measurement_key(expectation: str, kwargs: JsonObject) -> tuple[str, str]:
    """Return a key that is equal for gates that measure the same thing, whatever limits they set."""
    return expectation, _format_json({name: value for name, value in kwargs.items() if name in _MEASURED_PARAMETERS})


_MEASURED_PARAMETERS = ("column", "row_condition", "condition_parser")


def read_measurements(
    warehouse: str, pipeline: str, name: str, runs: Iterable[int]
) -> dict[tuple[str, str], list[float]]:
    """Return what the gates of a table measured in some runs, oldest first, by `measurement_key`."""
    rows = _run_query(
        warehouse,
        pipeline,
        """SELECT expectation, kwargs, observed, run FROM verdicts WHERE run IN (SELECT unnest(?::BIGINT[]))
            QUALIFY dense_rank() OVER (PARTITION BY run, "table" ORDER BY "at" DESC) = 1
            AND "table" = ? AND observed IS NOT NULL AND outcome <> 'error' ORDER BY run""",
        [list(runs), name],
    )
    measurements: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows.to_pylist():
        gate = measurement_key(row["expectation"], _parse_parameters(row["kwargs"], warehouse, pipeline))
        measurements.setdefault(gate, {})[row["run"]] = row["observed"]
    return {gate: list(by_run.values()) for gate, by_run in measurements.items()}


def read_results(warehouse: str, pipeline: str, run: int) -> dict[str, list[TrackedResult]]:
    """Return the results of a run by table, in the order of its gates; TableError for what no run has written.

    Gates of a table that are equal share a trend. A detail that is very long is cut.
    """
    return read_all_results(warehouse, pipeline, [run])[run]


def read_all_results(warehouse: str, pipeline: str, runs: Sequence[int]) -> dict[int, dict[str, list[TrackedResult]]]:
    """Return the results of some runs, which are in order, as `read_results` does of one."""
    table = results_table(warehouse, pipeline)
    delta_table = open_table(table)
    if delta_table is None:
        return {run: {} for run in runs}
    every = gate_result_rows.load_last_tries(table, delta_table, runs[0] - TREND_RUNS + 1, runs[-1])
    found = {}
    for run in runs:
        within = pc.and_(pc.greater(every["run"], run - TREND_RUNS), pc.less_equal(every["run"], run))
        found[run] = _parse_results(table, every.filter(within), run)
    return found


def _parse_results(table: Table, rows: pa.Table, run: int) -> dict[str, list[TrackedResult]]:
    """Return the results of a run by table, given those of the last runs."""
    place = table.warehouse, table.pipeline
    own = rows.filter(pc.equal(rows["run"], run))
    gate_result_rows.refuse_excess(table, own)
    trends, results = _list_trends(rows, own), dict[str, list[TrackedResult]]()
    for row, trend in sorted(zip(own.to_pylist(), trends, strict=True), key=lambda pair: str(pair[0]["table"])):
        kwargs = _parse_parameters(row["kwargs"], *place)
        texts = {"on_failure": row["onFailure"], "detail": gate_result_rows.cut_detail(str(row["detail"]))}
        try:
            result = TrackedResult.from_json({**row, **texts, "kwargs": kwargs, "trend": trend})
        except TypeError:
            raise _build_odd_value_error("the outcome", str(row["outcome"]), *place) from None
        results.setdefault(row["table"], []).append(result)
    return results


def _list_trends(rows: pa.Table, own: pa.Table) -> list[list[float | None]]:
    """Return for each of a run's `own` results what its gate observed in all runs of `rows`, one value for a run."""
    trends: dict[tuple[int | None, ...], dict[int, float | None]] = {key: {} for key in _list_gate_codes(own)}
    for key, run, observed in zip(
        _list_gate_codes(rows), rows["run"].to_pylist(), rows["observed"].to_pylist(), strict=True
    ):
        if key in trends:
            trends[key][run] = None if observed is None else float(f"{observed:.6g}")
    return [[*trends[key].values()] for key in _list_gate_codes(own)]


def _list_gate_codes(rows: pa.Table) -> list[tuple[int | None, ...]]:
    """Return of each row numbers that are equal for the same gate of the same table."""
    codes = (gate_result_rows.list_codes(rows, name).to_pylist() for name in ("table", "expectation", "kwargs"))
    return [*zip(*codes, strict=True)]


def _run_query(warehouse: str, pipeline: str, query: str, values: Sequence[int | str | list[int]]) -> pa.Table:
    delta_table = open_table(results_table(warehouse, pipeline))
    if delta_table is None:
        return pa.table({})
    with duckdb_reader.open_arrow_engine() as engine:
        engine.register("verdicts", open_dataset(delta_table))
        return engine.sql(query, params=values).to_arrow_table()


def _parse_parameters(text: str, warehouse: str, pipeline: str) -> JsonObject:
    """Return the parameters of a gate as they are stored; TableError for what `append_results` cannot have written."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        if isinstance(kwargs := json.loads(text), dict):
            return kwargs
    raise _build_odd_value_error("the parameters", str(text), warehouse, pipeline)


def _build_odd_value_error(what: str, value: str, warehouse: str, pipeline: str) -> TableError:
    found = f"{what} of a gate: {show_briefly(value)}. Hindcast did not write this"
    fix = "RESTORE the table to the last version that Hindcast wrote (DESCRIBE HISTORY names the writers)"
    return TableError(found, where=results_table(warehouse, pipeline).path, fix=fix)


def _format_json(kwargs: JsonObject) -> str:
    return json.dumps(kwargs, sort_keys=True, default=str)
