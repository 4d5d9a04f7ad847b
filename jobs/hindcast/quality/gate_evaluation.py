"""Gates: Great Expectations on what a run is about to publish. The expectations of our own are in own_rules/.

All gates that look at the same rows are evaluated at once, without details (BOOLEAN_ONLY): then Great Expectations
bundles what it measures, and we keep its counts (`_read_measurement`). Only gates that fail are evaluated again, for
examples. A gate never passes what it did not check: without rows, or with nothing but nulls, it is unchecked. An
expectation that cannot be evaluated is an error and stops what it guards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.common.errors import GateError, describe_cause, escape_controls, show_briefly
from hindcast.common.json_values import JsonValue
from hindcast.common.python_values import list_values
from hindcast.contract import Expectation
from hindcast.contract.sensitive import find_sensitive_columns, redact_message
from hindcast.quality import slow_patterns
from hindcast.quality.expectations import (
    configure_gate,
    find_implementation,
    find_row_set,
    find_rule,
    format_gate,
    import_gx,
    is_row_by_row,
)
from hindcast.quality.gate_results import GateResult, Outcome
from hindcast.quality.staged_change import StagedChange
from hindcast.store.task_rows import collect_table

if TYPE_CHECKING:
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.core.batch_definition import BatchDefinition
    from great_expectations.data_context.data_context.ephemeral_data_context import EphemeralDataContext
    from great_expectations.datasource.fluent.interfaces import Batch
    from great_expectations.expectations.expectation import Expectation as Implementation
    from great_expectations.validator.computed_metric import MetricValue


def evaluate_gates(candidate: StagedChange, gates: Sequence[Expectation]) -> list[GateResult]:
    """Return the result of each gate, in the order of `gates`."""
    if not candidate.opened + candidate.closed and not any(gate.can_fail_without_change for gate in gates):
        return [_build_result(n, gate, "unchecked", _NO_MEASUREMENT, _NOTHING_CHECKED) for n, gate in enumerate(gates)]
    results: dict[int, GateResult] = {}
    numbers_by_row_set: dict[str, list[int]] = {}
    for number, gate in enumerate(gates):
        numbers_by_row_set.setdefault(find_row_set(gate), []).append(number)
    for which, numbers in numbers_by_row_set.items():
        if candidate.is_empty(which):
            results |= {n: _build_result(n, gates[n], "unchecked", _NO_MEASUREMENT, _NOTHING_CHECKED) for n in numbers}
        else:
            results |= _evaluate_together(candidate, which, {n: gates[n] for n in numbers})
    return [results[number] for number in range(len(gates))]


def refuse_failed_gates(pipeline: str, table: str, run: int, verdicts: Sequence[GateResult]) -> None:
    """Raise GateError if one of the gates stops the table."""
    stopping = [v for v in verdicts if v.is_stopping]
    if stopping:
        details = "; ".join(f"{format_gate(v.expectation, v.kwargs)}: {v.detail}" for v in stopping)
        listed = any(v.failing for v in stopping)
        rows = f"`hindcast failing {pipeline} --table {table}` has the rows: " if listed else ""
        raise GateError(
            f"{len(stopping)} of {len(verdicts)} gates stopped it; nothing of it was published. {details}",
            where=f"{pipeline}.{table}, run {run}",
            fix=f"{rows}fix the records in the topic and run again (an event stays: leave it out by where:, or "
            "forget it); or change the gate under expect: in the contract",
        )


def select_failing_rows(candidate: StagedChange, gate: Expectation) -> DataFrame:
    """Return the rows that a row-by-row gate fails, with all columns of the rows that it looks at."""
    rows = candidate.rows(find_row_set(gate))
    expectation = _configure_limited(candidate, gate)
    if hasattr(expectation, "unexpected_rows_query"):
        query = expectation.unexpected_rows_query.format(batch=candidate.create_view(rows))
        return rows.sparkSession.sql(query)
    return judge_rows(rows, expectation).where(FAILING).drop(FAILING)


FAILING = "_failing"
"""The column that says of a row whether it fails."""


def judge_rows(rows: DataFrame, expectation: Implementation) -> DataFrame:
    """Return those of some rows that a row-by-row gate looks at, and whether it fails each, in the column `FAILING`."""
    from hindcast.quality.own_rules.base import ConditionRule

    if isinstance(expectation, ConditionRule):
        condition = f"coalesce({expectation.failing_condition().format()}, false)"
        return rows.withColumn(FAILING, F.expr(condition))
    batch = _build_batch(rows)
    from great_expectations.validator.metric_configuration import MetricConfiguration
    from great_expectations.validator.validator import Validator

    engine = batch.data.execution_engine
    map_metric = getattr(expectation, "map_metric", None)
    needed = expectation.get_validation_dependencies(engine, {"result_format": {"result_format": "BOOLEAN_ONLY"}})
    count = needed.metric_configurations[f"{map_metric}.unexpected_count"]
    metric = MetricConfiguration(f"{map_metric}.condition", count.metric_domain_kwargs, count.metric_value_kwargs)
    validator = Validator(execution_engine=engine, batches=[batch], data_context=_open_context())
    condition, domain, accessor = validator.get_metric(metric)
    records: DataFrame = engine.get_domain_records({**domain, **accessor})
    # A column first: conditions may be window functions.
    return records.withColumn(FAILING, condition)


def describe_passed(number: int, gate: Expectation, checked: int) -> GateResult:
    """Return the result of a row-by-row gate that has checked so many rows, none of which fails."""
    if not checked:
        return _build_result(number, gate, "unchecked", _NO_MEASUREMENT, _NOTHING_CHECKED)
    return _build_result(number, gate, "passed", _measure_share(checked, 0))


def find_presentable_rows(candidate: StagedChange, gate: Expectation) -> DataFrame:
    """Return the failing rows in a form that is safe to show.

    A gate's SQL can show a sensitive value under another name (`SELECT id, email AS note`). So if the table has
    sensitive columns, the rows are those of the table; none if the query does not return the key and identity columns.
    """
    failing = select_failing_rows(candidate, gate)
    if gate.type != "unexpected_rows_expectation" or not find_sensitive_columns(candidate.contract)[candidate.name]:
        return failing
    rows, names = candidate.rows(find_row_set(gate)), [*{*candidate.table.key, *candidate.table.identity}]
    if {*names} - {*failing.columns}:
        return rows.limit(0)
    return rows.join(failing.select(*names).distinct(), names, "left_semi")


_NOTHING_CHECKED = "nothing to check"
_MAX_EXAMPLES = 5
_LONGEST = 1_000
"""The most characters that are kept of what a gate observed."""


class _Measurement(NamedTuple):
    """The counts and the value that Great Expectations measured for a gate; see `GateResult`."""

    checked: int
    failing: int | None
    observed: float | None


_NO_MEASUREMENT = _Measurement(0, None, None)


def _evaluate_together(candidate: StagedChange, which: str, gates: Mapping[int, Expectation]) -> dict[int, GateResult]:
    """Return the results of gates that look at the same rows, by their numbers; they are evaluated together."""
    results: dict[int, GateResult] = {}
    validated = _validate(candidate, which, list(gates.values()), "BOOLEAN_ONLY")
    for (n, gate), (result, metrics) in zip(gates.items(), validated, strict=True):
        if problem := _find_exception(result.exception_info):
            message = redact_message(candidate.contract, candidate.name, problem)
            results[n] = _build_result(n, gate, "error", detail=f"could not be evaluated: {message}")
            continue
        measured = _read_measurement(candidate, which, gate, metrics)
        if not result.success and measured.failing and (problem := _describe_foreign_rows(candidate, gate)):
            results[n] = _build_result(n, gate, "error", detail=problem)
            continue
        outcome: Outcome = "unchecked" if not measured.checked else "passed" if result.success else "failed"
        detail = _NOTHING_CHECKED if outcome == "unchecked" else ""
        if outcome == "failed":
            detail = _describe_failure(candidate, which, gate, measured)
        results[n] = _build_result(n, gate, outcome, measured, detail)
    return results


def _read_measurement(
    candidate: StagedChange, which: str, gate: Expectation, metrics: Mapping[str, MetricValue]
) -> _Measurement:
    """Return what a gate measured, from Great Expectations' own metrics."""
    implementation = find_implementation(gate.type)
    map_metric, dependencies = (getattr(implementation, name, ()) for name in ("map_metric", "metric_dependencies"))
    if f"{map_metric}.unexpected_count" in metrics:
        failing = metrics[f"{map_metric}.unexpected_count"] or 0
        checked = metrics.get(f"{map_metric}.filtered_row_count")
        if checked is None:
            nulls = 0 if map_metric in _NULL_METRICS else metrics["column_values.nonnull.unexpected_count"] or 0
            checked = metrics["table.row_count"] - nulls
        return _measure_share(checked, failing)
    if is_row_by_row(gate.type):
        return _measure_share(candidate.count_rows(which), metrics["unexpected_rows_query.row_count"])
    if "query.table" in metrics and find_rule(gate.type):
        answer = metrics["query.table"][0]
        return _Measurement(int(answer["checked"] or 0), None, _parse_number(answer["observed"]))
    value = metrics.get(dependencies[0]) if dependencies else None
    nothing = bool(dependencies) and (value is None or (hasattr(value, "__len__") and not len(value)))
    observed = None if gate.concerns_columns(candidate.sensitive) else _parse_number(value)
    return _Measurement(0 if nothing else candidate.count_rows(which), None, observed)


def _measure_share(checked: int, failing: int) -> _Measurement:
    """Return the measurement of a row-by-row gate; it observes the share of rows that fail."""
    return _Measurement(checked, failing, failing / checked) if checked else _NO_MEASUREMENT


def _describe_foreign_rows(candidate: StagedChange, gate: Expectation) -> str:
    """Return why the rows of a quarantine gate's SQL do not identify the rows to hold; "" if they do."""
    if gate.on_failure != "quarantine" or gate.type != "unexpected_rows_expectation":
        return ""
    names, failing = sorted({*candidate.table.key, *candidate.table.identity}), select_failing_rows(candidate, gate)
    if lacking := sorted({*names} - {*failing.columns}):
        return f"its query gives no {', '.join(lacking)}: let it give all columns of {{batch}}"
    failing, rows = failing.select(*names), candidate.rows(find_row_set(gate)).select(*names)
    fix = "let it give all columns of {batch} as they are"
    if changed := [name for name in names if failing.schema[name].dataType != rows.schema[name].dataType]:
        return f"its query gives {', '.join(changed)} with another type: {fix}"
    if failing.subtract(rows).take(1):
        return f"its query gives rows with another {', '.join(names)} than any that it looked at: {fix}"
    return ""


_NULL_METRICS = ("column_values.nonnull", "column_values.null")
"""Metrics whose expectations judge nulls; others ignore them."""


def _describe_failure(candidate: StagedChange, which: str, gate: Expectation, measured: _Measurement) -> str:
    """Return what a failed gate found, with examples if it has a column that may be shown."""
    hidden = gate.concerns_columns(candidate.sensitive)
    if measured.failing is None and hidden:
        return "observed is not told"
    if measured.failing is None:
        from hindcast.quality.own_rules.base import ShareRule

        rule = configure_gate(gate, candidate.gate_facts(gate)).to_domain_obj()
        if isinstance(rule, ShareRule):
            return rule.describe_failure(measured.observed, measured.checked)
        (result, _), *_ = _validate(candidate, which, [gate], "BASIC")
        return f"observed {show_briefly(str(result.result.get('observed_value')), _LONGEST)}"
    column = gate.kwargs.get("column")
    examples = ""
    if column is not None and not hidden:
        rows = select_failing_rows(candidate, gate).where(f"`{column}` IS NOT NULL").select(f"`{column}`")
        values = list_values(collect_table(rows.limit(_MAX_EXAMPLES)).column(0))
        examples = ", ".join(show_briefly(str(value)) for value in values)
        examples = examples and f", for example {examples}"
    return f"{measured.failing} of {measured.checked} rows fail{examples}"


def _build_result(
    n: int, gate: Expectation, outcome: Outcome, measured: _Measurement | None = None, detail: str = ""
) -> GateResult:
    checked, failing, observed = measured or (None, None, None)
    text = escape_controls(detail)
    return GateResult(n, gate.type, dict(gate.kwargs), gate.on_failure, outcome, checked, failing, observed, text)


def _parse_number(value: MetricValue) -> float | None:
    try:
        return None if value is None or isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        return None


def _configure_limited(candidate: StagedChange, gate: Expectation) -> Implementation:
    """Return a gate to evaluate, with time limits in its SQL."""
    limited = slow_patterns.limit_gate(candidate.change.sparkSession, gate)
    return configure_gate(limited, candidate.gate_facts(gate)).to_domain_obj()


def _build_batch(rows: DataFrame) -> Batch:
    return _build_definition().get_batch({"dataframe": rows})


@cache
def _build_definition() -> BatchDefinition[None]:
    source = _open_context().data_sources.add_spark("candidate", persist=False)
    return source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")


@cache
def _open_context() -> EphemeralDataContext:
    """Return a context, one per process: each keeps a temporary folder until the process ends."""
    context: EphemeralDataContext = import_gx().get_context(mode="ephemeral")
    context.variables.config["progress_bars"] = {"globally": False}
    return context


def _validate(
    candidate: StagedChange, which: str, gates: Sequence[Expectation], result_format: str
) -> list[tuple[ExpectationValidationResult, Mapping[str, MetricValue]]]:
    """Return Great Expectations' result of each gate on the same rows, in their order, with the metrics it used."""
    configured = []
    for number, gate in enumerate(gates):
        configured.append(_configure_limited(candidate, gate))
        configured[-1].meta = {"gate": number}
    # Added one by one, a gate would replace another of the same type and column.
    suite = import_gx().ExpectationSuite(name="gates", expectations=configured)
    from hindcast.quality.metrics import bundle_metrics

    batch = _build_batch(candidate.rows(which))
    with bundle_metrics(batch.data.execution_engine, candidate.known_size(which)) as metrics:
        results = batch.validate(suite, result_format={"result_format": result_format}).results
    if len(results) != len(configured):
        raise GateError(
            f"Great Expectations evaluated {len(results)} of {len(configured)} gates",
            where=", ".join(gate.type for gate in gates),
            fix="two gates of one table must not be equal: remove one",
        )
    configuration = {"result_format": {"result_format": result_format}}
    measured: list[tuple[ExpectationValidationResult, Mapping[str, MetricValue]]] = []
    for result in sorted(results, key=lambda r: r.expectation_config.meta["gate"]):
        expectation = result.expectation_config.to_domain_obj()  # which names the batch by now
        needed = expectation.get_validation_dependencies(batch.data.execution_engine, configuration)
        ids = {name: metric.id for name, metric in needed.metric_configurations.items()}
        measured.append((result, {name: metrics[id_] for name, id_ in ids.items() if id_ in metrics}))
    return measured


def _find_exception(info: JsonValue) -> str:
    """Return the message of the exception that an evaluation raised; "" if it raised none."""
    if not isinstance(info, Mapping):
        return ""
    if "raised_exception" in info:
        return describe_cause(Exception(info.get("exception_message"))) if info["raised_exception"] else ""
    return next((text for part in info.values() if (text := _find_exception(part))), "")
