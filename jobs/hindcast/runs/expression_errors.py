"""Errors of expressions on records: which expression of the contract failed, on what, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from hindcast.common.errors import ContractError
from hindcast.common.time_limits import MAX_SECONDS, TOO_SLOW
from hindcast.contract import Contract, Shape, View, list_shapes, locate_complaint, query_limits
from hindcast.contract.expressions import parse_aggregate, resolve
from hindcast.contract.sensitive import REDACTED, has_sensitive_columns, redact_message
from hindcast.contract.shapes import FieldPath, row_expressions, view_scope
from hindcast.contract.view_checks import Complaint
from hindcast.streams import measures


class UnfitExpressionError(ValueError):
    """An expression that does not fit its place in the contract."""

    def __init__(self, place: FieldPath, found: str, fix: str) -> None:
        self.complaint = Complaint(place, found, fix)
        super().__init__(found)


@contextmanager
def explain_expression_errors(folder: Path, contract: Contract, name: str) -> Iterator[None]:
    """Raise unfit expressions, and failures on a record for which Spark names an expression, as ContractErrors."""
    try:
        yield
    except UnfitExpressionError as unfit:
        raise locate_error(folder, contract, name, unfit.complaint) from None
    except (PySparkException, Py4JJavaError) as error:
        if found := _find_failed_expression(contract, name, error):
            explained = locate_error(folder, contract, name, found)
            raise explained from (None if REDACTED in str(explained) else error)
        raise


def locate_error(folder: Path, contract: Contract, name: str, complaint: Complaint) -> ContractError:
    place = ("views", name, *complaint.location)
    return locate_complaint(folder, contract.pipeline, complaint._replace(location=place))


def resolve_expressions(
    view: View, known: Mapping[str, Shape], places: Mapping[str, str] | None = None
) -> dict[FieldPath, str]:
    """Return a view's expressions over one row, resolved, by their places in the contract."""
    return {place: resolve(text, names, places) for place, (text, names) in row_expressions(view, known).items()}


def resolve_aggregates(
    view: View, known: Mapping[str, Shape], places: Mapping[str, str] | None = None
) -> dict[FieldPath, tuple[str, str]]:
    """Return the function and resolved argument of a view's aggregates, by their places in the contract."""
    texts, names = view.aggregate or {}, view_scope(view, known)
    parsed = {("aggregate", column): parse_aggregate(text, names, places) for column, text in texts.items()}
    return {place: ("count" if f == "count_distinct" else f, argument) for place, (f, argument) in parsed.items()}


def _find_failed_expression(contract: Contract, name: str, error: Exception) -> Complaint | None:
    """Return a complaint about the expression that Spark names in a runtime failure, if it is one of the view's."""
    view, known = contract.views[name], list_shapes(contract)
    aggregates = resolve_aggregates(view, known)
    texts = resolve_expressions(view, known) | {place: argument for place, (_, argument) in aggregates.items()}
    if TOO_SLOW in str(error):
        return explain_slow_patterns(contract, name, texts)
    match = re.search(r"== SQL \(line \d+, position \d+\) ==\n(.*?)\n *\^", str(error), re.DOTALL)
    if not match:
        # Nobody names the expression if a sum, or that of an average, overflows.
        adding = {place: argument for place, (function, argument) in aggregates.items() if function in ("sum", "avg")}
        of_kafka = next((reason for reason in (measures.OVERFLOW, measures.INEXACT) if reason in str(error)), None)
        if not adding or ("OVERFLOW" not in str(error) and of_kafka is None):
            return None
        place, argument = (
            next(iter(adding.items()))
            if len(adding) == 1
            else (("aggregate",), ", ".join(dict.fromkeys(adding.values())))
        )
        if of_kafka is not None:
            text = (
                f"{contract.pipeline}.{name}: the sum of {argument} exceeds its type in the kafka reading: {of_kafka}"
            )
            return Complaint(place, text, "cast the summed expression to double")
        reason = _explain_failure(contract, name, error)[0]
        text = f"{contract.pipeline}.{name}: the sum of {argument} exceeds its type: {reason}"
        return Complaint(place, text, "cast the summed expression to a wider type, for example decimal(38,2)")
    fragment = match[1].strip(". \n").replace("value.", f"{view.first_input}.")
    for place, text in texts.items():
        if fragment in text:
            what, fix = _explain_failure(contract, name, error)
            message = f"{contract.pipeline}.{name} has a record on which {text} fails: {what}"
            return Complaint(place, message, fix or "make the expression return null for such records")
    return None


def _explain_failure(contract: Contract, name: str, error: Exception) -> tuple[str, str]:
    """Return what failed on a record and Spark's fix, which may be empty; both can have values of the record.

    So of a table with sensitive columns there is only the error class, and no fix.
    """
    if has_sensitive_columns(contract, name):
        return redact_message(contract, name, str(error)), ""
    return parse_message(error)


def explain_slow_patterns(contract: Contract, name: str, texts: Mapping[FieldPath, str]) -> Complaint | None:
    """Return a complaint about those of a table's expressions whose patterns have a limit of time; None if none has."""
    slow = {place: text for place, text in texts.items() if query_limits.limit_expression(text) != text}
    if not slow:
        return None
    which = " or ".join(slow.values())
    found = f"{contract.pipeline}.{name} has a record on which {which} takes more than {MAX_SECONDS:.0f} seconds"
    return Complaint(next(iter(slow)), found, query_limits.SIMPLER_FIX)


def parse_message(error: Exception) -> tuple[str, str]:
    """Return the first sentence of a Spark error and the others, without its class, codes and settings."""
    text = re.split(r"SQLSTATE: |\n== SQL|\n\tat ", str(error), maxsplit=1)[0]
    text = text.rpartition("Exception: ")[2] if "Exception: " in text else text
    plain = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text.strip())
    first, *others = re.split(r"(?<=\.)\s+(?=[A-Z])", plain)
    return first.rstrip("."), " ".join(other for other in others if "spark.sql." not in other).rstrip(".")
