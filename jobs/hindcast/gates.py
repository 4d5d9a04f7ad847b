"""Great Expectations on the rows that a run is about to publish.

Every expectation runs once for its verdict alone (BOOLEAN_ONLY); only those that failed run again for their details.
An expectation that could not be evaluated has failed: a gate never passes what it did not check.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pyspark.sql import DataFrame

from hindcast.contracts import Expectation
from hindcast.errors import ContractError, GateError, nearest


class Verdict(NamedTuple):
    """What became of one gate."""

    expectation: str
    kwargs: dict[str, Any]
    on_failure: str
    outcome: Literal["passed", "failed", "error"]
    detail: str

    @property
    def stops(self) -> bool:
        """Whether nothing may be published."""
        return self.outcome != "passed" and self.on_failure == "stop"


def check(rows: DataFrame, gates: Sequence[Expectation]) -> list[Verdict]:
    """The verdict of each gate on `rows`, which is read several times: persist it before."""
    if not gates:
        return []
    failed = {n for n, result in enumerate(_validate(rows, gates, "BOOLEAN_ONLY")) if not result.success}
    order = sorted(failed)
    details = dict(zip(order, _validate(rows, [gates[n] for n in order], "SUMMARY"), strict=True)) if order else {}
    return [_verdict(gate, details.get(n)) for n, gate in enumerate(gates)]


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


def known(gates: Sequence[Expectation], where: str) -> None:
    """Raises ContractError for an expectation that Great Expectations does not have, or with parameters it refuses."""
    if not gates:
        return
    gx = imported()
    for gate in gates:
        try:
            _configured(gate).to_domain_obj()
        except gx.exceptions.ExpectationNotFoundError:
            names = gx.expectations.registry.list_registered_expectation_implementations()
            raise ContractError(f"no expectation '{gate.type}'", where=where, mend=nearest(gate.type, names)) from None
        except (TypeError, ValueError, gx.exceptions.GreatExpectationsError) as error:
            raise ContractError(
                f"{named(gate.type, gate.kwargs)}: {_first_line(error)}",
                where=where,
                mend="see the expectation's parameters in Great Expectations' gallery",
            ) from None


def named(expectation: str, kwargs: dict[str, Any]) -> str:
    """An expectation with its parameters, as people write it."""
    return f"{expectation}({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"


def imported() -> Any:
    """Great Expectations, imported when a gate needs it, without its chatter: it takes seconds."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("TQDM_DISABLE", "1")
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    import great_expectations
    import great_expectations.expectations.registry

    return great_expectations


def _configured(gate: Expectation) -> Any:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    return ExpectationConfiguration(type=gate.type, kwargs=dict(gate.kwargs))


def _validate(rows: DataFrame, gates: Sequence[Expectation], result_format: str) -> list[Any]:
    gx = imported()
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_spark("candidate", persist=False)
    batch = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")
    suite = gx.ExpectationSuite(name="gates")
    for number, gate in enumerate(gates):
        configuration = _configured(gate)
        configuration.meta = {"gate": number}
        suite.add_expectation_configuration(configuration)
    results = batch.get_batch({"dataframe": rows}).validate(suite, result_format={"result_format": result_format})
    ordered = sorted(results.results, key=lambda r: r.expectation_config.meta["gate"])
    if len(ordered) != len(gates):
        raise GateError(
            f"Great Expectations evaluated {len(ordered)} of {len(gates)} gates",
            where=", ".join(gate.type for gate in gates),
            mend="two gates of one table must not be equal: remove one",
        )
    return ordered


def _verdict(gate: Expectation, failure: Any | None) -> Verdict:
    if failure is None or failure.success:
        return Verdict(gate.type, dict(gate.kwargs), gate.on_failure, "passed", "")
    problem = _exception(failure.exception_info)
    if problem:
        return Verdict(gate.type, dict(gate.kwargs), gate.on_failure, "error", f"could not be evaluated: {problem}")
    result = failure.result
    if "unexpected_count" in result:
        seen = ", ".join(str(v) for v in result.get("partial_unexpected_list", [])[:5])
        detail = (
            f"{result['unexpected_count']} of {result.get('element_count')} rows fail, for example {seen or 'null'}"
        )
    else:
        detail = f"observed {result.get('observed_value')}"
    return Verdict(gate.type, dict(gate.kwargs), gate.on_failure, "failed", detail)


def _exception(info: dict[str, Any] | None) -> str:
    """The message of what went wrong in evaluating, if anything did."""
    if not info:
        return ""
    if "raised_exception" in info:
        return str(info.get("exception_message") or "") if info["raised_exception"] else ""
    return next((text for part in info.values() if (text := _exception(part))), "")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
