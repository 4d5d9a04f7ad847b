"""Gates: Great Expectations on what a run is about to publish.

All gates that look at the same rows are asked at once, for their verdicts alone (BOOLEAN_ONLY): then Great
Expectations bundles what it measures, and we keep its counts. Only those that fail are asked again, for examples. A
gate never passes what it did not check: without rows, or with nothing but nulls, it is unchecked; an expectation that
could not be evaluated is an error, and stops what it was to guard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from hindcast.contracts import Expectation
from hindcast.contracts.sensitive import discreet, sensitive
from hindcast.errors import GateError, cause, escape_controls, show_briefly
from hindcast.quality.candidates import Candidate
from hindcast.quality.expectations import configured, implementation, imported, looks_at, named, row_by_row
from hindcast.quality.verdicts import Outcome, Verdict


def check(candidate: Candidate, gates: Sequence[Expectation]) -> list[Verdict]:
    """The verdict of each gate, in their order."""
    if not candidate.opened + candidate.closed and not any(gate.beyond for gate in gates):
        return [_verdict(n, gate, "unchecked", _NONE, _NOTHING) for n, gate in enumerate(gates)]
    told: dict[int, Verdict] = {}
    about: dict[str, list[int]] = {}
    for number, gate in enumerate(gates):
        about.setdefault(looks_at(gate), []).append(number)
    for which, numbers in about.items():
        if candidate.empty(which):
            told |= {n: _verdict(n, gates[n], "unchecked", _NONE, _NOTHING) for n in numbers}
        else:
            told |= _checked(candidate, which, {n: gates[n] for n in numbers})
    return [told[number] for number in range(len(gates))]


def refuse(pipeline: str, table: str, run: int, verdicts: Sequence[Verdict]) -> None:
    """Raises GateError if one of the gates stops the table."""
    stopping = [v for v in verdicts if v.stops]
    if stopping:
        told = "; ".join(f"{named(v.expectation, v.kwargs)}: {v.detail}" for v in stopping)
        listed = any(v.failing for v in stopping)
        rows = f"`hindcast failing {pipeline} --table {table}` has the rows: " if listed else ""
        raise GateError(
            f"{len(stopping)} of {len(verdicts)} gates stopped it; nothing of it was published. {told}",
            where=f"{pipeline}.{table}, run {run}",
            mend=f"{rows}mend the records in the topic and run again (an event stays: leave it out by where:, or "
            "forget it); or change the gate under expect: in the contract",
        )


def failing(candidate: Candidate, gate: Expectation) -> DataFrame:
    """The rows that a gate finds wrong, with all columns of what it looks at; only of one that judges row by row."""
    rows = candidate.rows(looks_at(gate))
    expectation = configured(gate, candidate.facts(gate)).to_domain_obj()
    if hasattr(expectation, "unexpected_rows_query"):
        query = expectation.unexpected_rows_query.format(batch=candidate.view(rows))
        return rows.sparkSession.sql(query)
    batch = _batch(rows)
    from great_expectations.validator.metric_configuration import MetricConfiguration
    from great_expectations.validator.validator import Validator

    engine = batch.data.execution_engine
    wanted = expectation.get_validation_dependencies(engine, {"result_format": {"result_format": "BOOLEAN_ONLY"}})
    counted = wanted.metric_configurations[f"{expectation.map_metric}.unexpected_count"]
    metric = MetricConfiguration(
        f"{expectation.map_metric}.condition", counted.metric_domain_kwargs, counted.metric_value_kwargs
    )
    told = Validator(execution_engine=engine, batches=[batch], data_context=_context()).get_metric(metric)
    condition, domain, accessor = told
    found: DataFrame = engine.get_domain_records({**domain, **accessor})
    # A column first: conditions may be window functions.
    return found.withColumn("_failing", condition).where("_failing").drop("_failing")


def find_failing_rows(candidate: Candidate, gate: Expectation) -> DataFrame:
    """Return the failing rows as the table has them, where what a query makes of them might be a sensitive column's.

    `SELECT id, email AS note` names a value as another column. A query that does not tell which rows it found has none.
    """
    found = failing(candidate, gate)
    if gate.type != "unexpected_rows_expectation" or not sensitive(candidate.contract)[candidate.name]:
        return found
    looked, names = candidate.rows(looks_at(gate)), [*{*candidate.table.key, *candidate.table.identity}]
    if {*names} - {*found.columns}:
        return looked.limit(0)
    return looked.join(found.select(*names).distinct(), names, "left_semi")


_NOTHING = "nothing to check"
_EXAMPLES = 5
_LONGEST = 1_000
"""So many characters of what a gate observed are told."""


class _Measured(NamedTuple):
    """What Great Expectations measured for a gate: rows judged, rows that failed, and what it observed."""

    checked: int
    failing: int | None
    observed: float | None


_NONE = _Measured(0, None, None)


def _checked(candidate: Candidate, which: str, gates: Mapping[int, Expectation]) -> dict[int, Verdict]:
    """The verdicts of gates that look at the same rows, asked all at once."""
    told: dict[int, Verdict] = {}
    asked = _validate(candidate, which, list(gates.values()), "BOOLEAN_ONLY")
    for (n, gate), (result, metrics) in zip(gates.items(), asked, strict=True):
        if problem := _exception(result.exception_info):
            said = discreet(candidate.contract, candidate.name, problem)
            told[n] = _verdict(n, gate, "error", detail=f"could not be evaluated: {said}")
            continue
        measured = _measured(candidate, which, gate, metrics)
        if not result.success and measured.failing and (stranger := _find_stranger(candidate, gate)):
            told[n] = _verdict(n, gate, "error", detail=stranger)
            continue
        outcome: Outcome = "unchecked" if not measured.checked else "passed" if result.success else "failed"
        detail = _NOTHING if outcome == "unchecked" else ""
        if outcome == "failed":
            detail = _detail(candidate, which, gate, measured)
        told[n] = _verdict(n, gate, outcome, measured, detail)
    return told


def _measured(candidate: Candidate, which: str, gate: Expectation, metrics: Mapping[str, Any]) -> _Measured:
    """What a gate measured, from Great Expectations' own metrics."""
    it = implementation(gate.type)
    if f"{getattr(it, 'map_metric', None)}.unexpected_count" in metrics:
        failing, judged = (
            metrics[f"{it.map_metric}.unexpected_count"] or 0,
            metrics.get(f"{it.map_metric}.filtered_row_count"),
        )
        if judged is None:
            nulls = 0 if it.map_metric in _OF_NULLS else metrics["column_values.nonnull.unexpected_count"] or 0
            judged = metrics["table.row_count"] - nulls
        return _of_rows(judged, failing)
    if row_by_row(it):
        return _of_rows(candidate.size(which), metrics["unexpected_rows_query.row_count"])
    if "query.table" in metrics and hasattr(it, "about"):
        answer = metrics["query.table"][0]
        return _Measured(int(answer["checked"] or 0), None, _number(answer["observed"]))
    value = metrics.get(it.metric_dependencies[0]) if it.metric_dependencies else None
    nothing = bool(it.metric_dependencies) and (value is None or (hasattr(value, "__len__") and not len(value)))
    observed = None if candidate.sensitive(gate.columns) else _number(value)
    return _Measured(0 if nothing else candidate.size(which), None, observed)


def _of_rows(judged: int, failing: int) -> _Measured:
    """What a gate measured that judges row by row: the share that failed."""
    return _Measured(judged, failing, failing / judged) if judged else _NONE


def _find_stranger(candidate: Candidate, gate: Expectation) -> str:
    """Return what is wrong with the rows that a quarantine gate's SQL gives, if they do not tell which rows to hold."""
    if gate.on_failure != "quarantine" or gate.type != "unexpected_rows_expectation":
        return ""
    names, found = sorted({*candidate.table.key, *candidate.table.identity}), failing(candidate, gate)
    if lacking := sorted({*names} - {*found.columns}):
        return f"its query gives no {', '.join(lacking)}: let it give all columns of {{batch}}"
    given, looked = found.select(*names), candidate.rows(looks_at(gate)).select(*names)
    if changed := [name for name in names if given.schema[name].dataType != looked.schema[name].dataType]:
        return (
            f"its query gives {', '.join(changed)} with another type: let it give all columns of {{batch}} as they are"
        )
    if given.subtract(looked).take(1):
        told = f"its query gives rows with another {', '.join(names)} than any that it looked at"
        return f"{told}: let it give all columns of {{batch}} as they are"
    return ""


_OF_NULLS = ("column_values.nonnull", "column_values.null")
"""Metrics whose expectations judge nulls; others pass over them."""


def _detail(candidate: Candidate, which: str, gate: Expectation, measured: _Measured) -> str:
    """What a failed gate found; with examples, if there is a column that may be shown."""
    hidden = candidate.sensitive(gate.columns)
    if measured.failing is None and hidden:
        return "observed is not told"
    if measured.failing is None and hasattr(implementation(gate.type), "found"):
        rule = configured(gate, candidate.facts(gate)).to_domain_obj()
        told: str = rule.found(measured.observed, measured.checked)
        return told
    if measured.failing is None:
        (result, _), *_ = _validate(candidate, which, [gate], "BASIC")
        return f"observed {show_briefly(str(result.result.get('observed_value')), _LONGEST)}"
    column = gate.kwargs.get("column")
    examples = ""
    if column is not None and not hidden:
        seen = failing(candidate, gate).where(f"`{column}` IS NOT NULL").select(f"`{column}`").limit(_EXAMPLES)
        examples = ", ".join(show_briefly(str(row[0])) for row in seen.collect())
        examples = examples and f", for example {examples}"
    return f"{measured.failing} of {measured.checked} rows fail{examples}"


def _verdict(
    n: int, gate: Expectation, outcome: Outcome, measured: _Measured | None = None, detail: str = ""
) -> Verdict:
    checked, failing_, observed = measured or (None, None, None)
    told = escape_controls(detail)
    return Verdict(n, gate.type, dict(gate.kwargs), gate.on_failure, outcome, checked, failing_, observed, told)


def _number(value: Any) -> float | None:
    try:
        return None if value is None or isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        return None


def _batch(rows: DataFrame) -> Any:
    return _definition().get_batch({"dataframe": rows})


@cache
def _definition() -> Any:
    source = _context().data_sources.add_spark("candidate", persist=False)
    return source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")


@cache
def _context() -> Any:
    """One for a process: each has a temporary folder until the process ends."""
    context = imported().get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    return context


def _validate(
    candidate: Candidate, which: str, gates: Sequence[Expectation], result_format: str
) -> list[tuple[Any, dict[str, Any]]]:
    """Great Expectations' result of each gate on the same rows, in their order, and the metrics that it is made of."""
    asked = []
    for number, gate in enumerate(gates):
        asked.append(configured(gate, candidate.facts(gate)).to_domain_obj())
        asked[-1].meta = {"gate": number}
    # Added one by one, a gate would take the place of another of the same type and column.
    suite = imported().ExpectationSuite(name="gates", expectations=asked)
    from hindcast.quality.metrics import bundled

    batch = _batch(candidate.rows(which))
    with bundled(batch.data.execution_engine, candidate.known_size(which)) as metrics:
        found = batch.validate(suite, result_format={"result_format": result_format}).results
    if len(found) != len(asked):
        raise GateError(
            f"Great Expectations evaluated {len(found)} of {len(asked)} gates",
            where=", ".join(gate.type for gate in gates),
            mend="two gates of one table must not be equal: remove one",
        )
    wanted = {"result_format": {"result_format": result_format}}
    told = []
    for result in sorted(found, key=lambda r: r.expectation_config.meta["gate"]):
        expectation = result.expectation_config.to_domain_obj()  # which names the batch by now
        needed = expectation.get_validation_dependencies(batch.data.execution_engine, wanted).metric_configurations
        told.append((result, {name: metrics[it.id] for name, it in needed.items() if it.id in metrics}))
    return told


def _exception(info: Mapping[str, Any] | None) -> str:
    """The message of what went wrong in evaluating, if anything did."""
    if not info:
        return ""
    if "raised_exception" in info:
        return cause(Exception(info.get("exception_message"))) if info["raised_exception"] else ""
    return next((text for part in info.values() if (text := _exception(part))), "")
