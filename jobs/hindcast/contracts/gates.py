"""What can be wrong with a gate, as far as the contract alone tells: its columns, its SQL. Pure, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from string import Formatter
from typing import Any

from hindcast.contracts import bounds, queries
from hindcast.contracts.expectation import OF_GATES, Expectation, Hold
from hindcast.contracts.shapes import PERIODS, Columns, Shape, identity
from hindcast.contracts.types import shown
from hindcast.contracts.views import Complaint
from hindcast.errors import nearest


def complaint(location: tuple[Any, ...], found: str, mend: str) -> Complaint:
    """A complaint about a gate, which is named as `--gate` counts: `payments.expect.6`."""
    _, table, expect, number, *_ = location
    return Complaint(location, f"{table}.{expect}.{number}: {found}", mend)


def complaints(location: tuple[Any, ...], gates: Sequence[Expectation], shape: Shape) -> Iterator[Complaint]:
    """Every complaint about the gates of a table."""
    columns = {**shape.columns, **dict.fromkeys((*PERIODS[shape.kind], "systemFrom"), "timestamp")}
    for number, gate in enumerate(gates):
        place = (*location, "expect", number)
        if any((gate.type, gate.kwargs) == (other.type, other.kwargs) for other in gates[:number]):
            yield complaint(place, f"{gate.type} stands twice, alike", "remove one of the two")
        for parameter, found, mend in chain(
            _too_long(gate),
            _beside(gate),
            _columns(gate, columns),
            _unsupported(gate),
            _unread(gate),
            _condition(gate, columns),
            _query(gate, shape, columns),
        ):
            yield complaint((*place, gate.type, parameter), found, mend)


def hold_complaints(
    location: tuple[Any, ...], hold: Hold, gates: Sequence[Expectation], shape: Shape
) -> Iterator[Complaint]:
    """Yield what is wrong with `hold: row` on a table."""
    if hold == "key":
        return
    place = (*location, "hold")
    if location[0] == "views" and shape.kind == "versions":
        found = (
            "hold: row on a view of versions: a row there is made of several records, and its neighbours of the same"
        )
        mend = "remove it, so that failing keys are held; or move the gate and hold: row to the topic"
        yield Complaint(place, found, mend)
    if not any(gate.on_failure == "quarantine" for gate in gates):
        found = "hold: row, and no gate under expect: holds anything back"
        yield Complaint(place, found, "write on_failure: quarantine beside a gate, or remove hold")


_Found = Iterator[tuple[str, str, str]]
"""The parameter, what was found, what would do."""


def _too_long(gate: Expectation) -> _Found:
    for field, text in gate.kwargs.items():
        if isinstance(text, str) and len(text) > bounds.EXPRESSION:
            yield field, f"{field} has more than {bounds.EXPRESSION:,} characters", "write it shorter"


def _beside(gate: Expectation) -> _Found:
    for field in OF_GATES:
        if field in gate.kwargs:
            mend = f"it stands beside the expectation, not in its braces: write `{field}: ...` on a line of its own"
            yield field, f"{gate.type} has no parameter '{field}'", mend


def _columns(gate: Expectation, columns: Columns) -> _Found:
    for column in gate.columns:
        if column not in columns:
            yield "column", f"no column '{column}' here", nearest(column, columns)


def _unsupported(gate: Expectation) -> _Found:
    if "_like_pattern" in gate.type:
        yield "column", f"Great Expectations has no {gate.type} for Spark", "use expect_column_values_to_match_regex"


def _unread(gate: Expectation) -> _Found:
    """Of SQL that is no text: Great Expectations takes other forms too, in which nobody would look at it."""
    for field in ("row_condition", "unexpected_rows_query"):
        if not isinstance(gate.kwargs.get(field), str | None):
            yield field, f"{field} is {shown(gate.kwargs[field])}, not a text", "write Spark SQL in quotes"


def _condition(gate: Expectation, columns: Columns) -> _Found:
    """Of a condition in Spark SQL. That in Great Expectations' own language, `col("a") > 1`, it parses itself: the
    first comparison, whatever follows it.
    """
    text, parser = gate.kwargs.get("row_condition"), str(gate.kwargs.get("condition_parser"))
    if parser.startswith("great_expectations"):
        if isinstance(text, str) and _COMPARISON.fullmatch(text) is None:
            found = f"row_condition: {shown(text)} is not one comparison, and only its first would be looked at"
            yield "row_condition", found, "write it in Spark SQL, without condition_parser"
        return
    if isinstance(text, str) and (reach := queries.refuse_condition(text)) is not None:
        yield "row_condition", f"row_condition {reach}", "name columns of the table, and functions of Spark SQL"
    elif isinstance(text, str) and (lacking := queries.unknown(queries.where(text), columns)) is not None:
        yield "row_condition", f"row_condition: no column '{lacking}' here", nearest(lacking, columns)


_COMPARISON = re.compile(
    r"""\s*col\("[^"]*"\)\s*(\.notnull\(\)|(==|!=|<=|>=|<|>)\s*([-+.\deE]+|"[^"]*"|'[^']*'|date\(("[^"]*"|'[^']*')\)))\s*""",
    re.IGNORECASE,
)
"""A condition in Great Expectations' own language."""


def _query(gate: Expectation, shape: Shape, columns: Columns) -> _Found:
    """Of a rule in SQL: the batch takes the place of `{batch}`. That braces do not pair, its expectation tells."""
    name = "unexpected_rows_query"
    text = gate.kwargs.get(name)
    if gate.type != "unexpected_rows_expectation" or not isinstance(text, str):
        return
    try:
        parts = [*Formatter().parse(text)]
    except ValueError:
        return
    if any(form or conversion for _, _, form, conversion in parts):  # that can write quotes, and comments
        yield (
            name,
            f"{name} has more than the name in {{batch}}",
            "write {batch} alone, and double braces that are meant",
        )
        return
    places = [place for _, place, _, _ in parts if place is not None]
    for place in places:
        if place != "batch":
            found = f"{name}: nothing takes the place of {{{place}}}"
            yield name, found, "only {batch} is replaced; double braces that are meant: {{ and }}"
            return
    if not places:
        yield name, f"{name} does not look at {{batch}}", "read the rows from it: SELECT * FROM {batch} WHERE ..."
        return
    query = "".join(literal + (queries.BATCH if place else "") for literal, place, _, _ in parts)
    if (reach := queries.refuse_query(query)) is not None:
        yield name, f"{name} {reach}", "write one SELECT ... FROM {batch} WHERE ..., over tables"
        return
    if (lacking := queries.unknown(query, columns)) is not None:
        yield name, f"{name}: no column '{lacking}' here", nearest(lacking, columns)
    given = queries.projected(query) if gate.on_failure == "quarantine" else None
    if given is not None and (missing := _missing(given, shape)):
        found = f"{name} gives no {', '.join(missing)}: on_failure: quarantine needs the key of each failing row"
        yield name, found, "let it give all columns: SELECT * FROM {batch} WHERE ..."


def _missing(given: Sequence[str], shape: Shape) -> list[str]:
    """What some columns lack of what tells one row from another."""
    there = {name.lower() for name in given}
    wanted = dict.fromkeys((*shape.key, *identity(shape.kind, shape.key)))
    return [name for name in wanted if name.lower() not in there]
