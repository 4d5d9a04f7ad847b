"""Gates: Great Expectations on what a run is about to publish.

Expectations that look at one row after the other run for their verdict alone (BOOLEAN_ONLY), all in one pass; only
those that failed run again for their details. A gate never passes what it did not check: without rows, or with nothing
but nulls, it is unchecked; an expectation that could not be evaluated is an error, and stops what it was to guard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.candidates import Candidate
from hindcast.contracts import Expectation
from hindcast.contracts.sensitive import discreet
from hindcast.errors import GateError
from hindcast.expectations import configured, implementation, imported, looks_at, named, row_by_row


class Verdict(NamedTuple):
    """What became of one gate.

    `gate`: its number under the table's `expect`, from 0. `checked`: how many rows it looked at, `failing`: how many of
    them failed; null where that cannot be told. `observed`: what it measured: of rows the share that failed.
    """

    gate: int
    expectation: str
    kwargs: dict[str, Any]
    on_failure: str
    outcome: Literal["passed", "failed", "error", "unchecked"]
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


def check(candidate: Candidate, gates: Sequence[Expectation]) -> list[Verdict]:
    """The verdict of each gate, in their order."""
    if not candidate.opened + candidate.closed and not any(gate.beyond for gate in gates):
        return [_verdict(n, gate, "unchecked", checked=0, detail=_NOTHING) for n, gate in enumerate(gates)]
    told: dict[int, Verdict] = {}
    about: dict[str, list[int]] = {}
    for number, gate in enumerate(gates):
        about.setdefault(looks_at(gate), []).append(number)
    for which, numbers in about.items():
        if candidate.empty(which):
            told |= {n: _verdict(n, gates[n], "unchecked", checked=0, detail=_NOTHING) for n in numbers}
        else:
            told |= _checked(candidate, which, {n: gates[n] for n in numbers})
    return [told[number] for number in range(len(gates))]


def refuse(table: str, verdicts: Sequence[Verdict]) -> None:
    """Raises GateError if one of the gates stops the table."""
    stopping = [v for v in verdicts if v.stops]
    if stopping:
        told = "; ".join(f"{named(v.expectation, v.kwargs)}: {v.detail}" for v in stopping)
        raise GateError(
            f"{len(stopping)} of {len(verdicts)} gates stopped it; nothing of it was published. {told}",
            where=table,
            mend="mend the records in the topic and run again, or change the gate under expect: in the contract",
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


_NOTHING = "nothing to check"
_EXAMPLES = 5


def _checked(candidate: Candidate, which: str, gates: Mapping[int, Expectation]) -> dict[int, Verdict]:
    """The verdicts of gates that look at the same rows."""
    rows = candidate.rows(which)
    plain = {n: gate for n, gate in gates.items() if _plain(gate)}
    others = {n: gate for n, gate in gates.items() if n not in plain}
    counts = _counted(rows, plain.values())
    told: dict[int, Verdict] = {}
    again: dict[int, Expectation] = {}
    for format_, some in (("BOOLEAN_ONLY", plain), ("BASIC", others)):
        for (n, gate), result in zip(some.items(), _validate(candidate, rows, some.values(), format_), strict=True):
            checked = _looked_at(gate, result.result, counts)
            if problem := _exception(result.exception_info):
                said = discreet(candidate.contract, candidate.name, problem)
                told[n] = _verdict(n, gate, "error", detail=f"could not be evaluated: {said}")
            elif checked == 0:
                measured = _number(result.result.get("observed_value"))
                told[n] = _verdict(n, gate, "unchecked", checked=0, observed=measured, detail=_NOTHING)
            elif result.success:
                told[n] = _passed(n, gate, result.result, checked)
            elif _maps(gate):
                again[n] = gate
            else:
                told[n] = _failed(candidate, n, gate, result.result, checked)
    results = _validate(candidate, rows, again.values(), "SUMMARY")
    for (n, gate), result in zip(again.items(), results, strict=True):
        told[n] = _failed(candidate, n, gate, result.result, _looked_at(gate, result.result, counts))
    return told


def _plain(gate: Expectation) -> bool:
    """Whether a verdict alone says all of a pass: none of the rows failed, and which rows there were, we count."""
    return _maps(gate) and not gate.kwargs.keys() & {"mostly", "row_condition"}


def _maps(gate: Expectation) -> bool:
    """Whether it is one of Great Expectations' that look at one row after the other."""
    return hasattr(implementation(gate.type), "map_metric")


def _counted(rows: DataFrame, gates: Any) -> dict[tuple[str, ...], int]:
    """How many rows have a value in one of some columns, for the columns of each gate; () is all rows."""
    asked = {(), *(tuple(c for c in gate.columns if c in rows.columns) for gate in gates if not _of_nulls(gate))}
    names = {columns: f"n{number}" for number, columns in enumerate(sorted(asked))}
    counts = [
        F.count(F.coalesce(*(F.when(F.col(f"`{c}`").isNotNull(), 1) for c in columns)) if columns else F.lit(1)).alias(
            n
        )
        for columns, n in names.items()
    ]
    row = rows.agg(*counts).first()
    return {columns: row[name] if row else 0 for columns, name in names.items()}


def _of_nulls(gate: Expectation) -> bool:
    """Whether nulls are what it judges."""
    return gate.type in ("expect_column_values_to_not_be_null", "expect_column_values_to_be_null")


def _looked_at(gate: Expectation, result: Mapping[str, Any], counts: Mapping[tuple[str, ...], int]) -> int:
    """How many rows a gate has judged."""
    if "checked" in result:
        return int(result["checked"])
    if "element_count" in result:
        return int(result["element_count"]) - (0 if _of_nulls(gate) else int(result.get("missing_count") or 0))
    columns = () if _of_nulls(gate) else tuple(gate.columns)
    return counts.get(columns, counts[()]) if _maps(gate) else counts[()]


def _passed(n: int, gate: Expectation, result: Mapping[str, Any], checked: int) -> Verdict:
    if row_by_row(implementation(gate.type)):
        failing = int(result.get("unexpected_count") or 0)
        return _verdict(n, gate, "passed", checked=checked, failing=failing, observed=failing / checked)
    return _verdict(n, gate, "passed", checked=checked, observed=_number(result.get("observed_value")))


def _failed(candidate: Candidate, n: int, gate: Expectation, result: Mapping[str, Any], checked: int) -> Verdict:
    if not row_by_row(implementation(gate.type)):
        measured = result.get("observed_value")
        told = "is not told" if candidate.sensitive(gate.columns) else measured
        return _verdict(n, gate, "failed", checked=checked, observed=_number(measured), detail=f"observed {told}")
    failing = int(result["unexpected_count"] if "unexpected_count" in result else result["observed_value"])
    seen = ", ".join(str(v) for v in result.get("partial_unexpected_list", [])[:_EXAMPLES])
    example = f", for example {seen}" if seen and not candidate.sensitive(gate.columns) else ""
    detail = f"{failing} of {checked} rows fail{example}"
    return _verdict(n, gate, "failed", checked=checked, failing=failing, observed=failing / checked, detail=detail)


def _verdict(
    n: int,
    gate: Expectation,
    outcome: Literal["passed", "failed", "error", "unchecked"],
    *,
    checked: int | None = None,
    failing: int | None = None,
    observed: float | None = None,
    detail: str = "",
) -> Verdict:
    kwargs = dict(gate.kwargs)
    return Verdict(n, gate.type, kwargs, gate.on_failure, outcome, checked, failing, observed, detail)


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


def _validate(candidate: Candidate, rows: DataFrame, gates: Any, result_format: str) -> list[Any]:
    """Great Expectations' results for gates on the same rows, in their order."""
    wanted = list(gates)
    if not wanted:
        return []
    asked = []
    for number, gate in enumerate(wanted):
        asked.append(configured(gate, candidate.facts(gate)).to_domain_obj())
        asked[-1].meta = {"gate": number}
    # Added one by one, a gate would take the place of another of the same type and column.
    suite = imported().ExpectationSuite(name="gates", expectations=asked)
    results = _batch(rows).validate(suite, result_format={"result_format": result_format})
    ordered = sorted(results.results, key=lambda r: r.expectation_config.meta["gate"])
    if len(ordered) != len(wanted):
        raise GateError(
            f"Great Expectations evaluated {len(ordered)} of {len(wanted)} gates",
            where=", ".join(gate.type for gate in wanted),
            mend="two gates of one table must not be equal: remove one",
        )
    return ordered


def _exception(info: Mapping[str, Any] | None) -> str:
    """The message of what went wrong in evaluating, if anything did."""
    if not info:
        return ""
    if "raised_exception" in info:
        return str(info.get("exception_message") or "") if info["raised_exception"] else ""
    return next((text for part in info.values() if (text := _exception(part))), "")
