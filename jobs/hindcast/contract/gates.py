"""Checks of gates that need the contract alone: columns and SQL. Pure, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from string import Formatter

from hindcast.common.errors import suggest_nearest
from hindcast.contract import bounds, queries, query_limits
from hindcast.contract.expectation import GATE_FIELDS, Expectation, Hold
from hindcast.contract.java_patterns import is_readable
from hindcast.contract.parsing import ExpressionError
from hindcast.contract.patterns import may_be_slow
from hindcast.contract.shapes import PERIODS, Columns, FieldPath, Shape, identity_columns
from hindcast.contract.types import format_value
from hindcast.contract.view_checks import Complaint


def build_complaint(location: FieldPath, found: str, fix: str) -> Complaint:
    """Return a complaint about a gate, named as `--gate` numbers it: `payments.expect.6`."""
    _, table, expect, number, *_ = location
    return Complaint(location, f"{table}.{expect}.{number}: {found}", fix)


def check_gates(location: FieldPath, gates: Sequence[Expectation], shape: Shape) -> Iterator[Complaint]:
    """Yield every complaint about the gates of a table."""
    columns = {**shape.columns, **dict.fromkeys((*PERIODS[shape.kind], "systemFrom"), "timestamp")}
    for number, gate in enumerate(gates):
        place = (*location, "expect", number)
        if any((gate.type, gate.kwargs) == (other.type, other.kwargs) for other in gates[:number]):
            yield build_complaint(
                place, f"{gate.type} is defined twice with the same parameters", "remove one of the two"
            )
        for parameter, found, fix in chain(
            _check_length(gate),
            _check_misplaced_fields(gate),
            _check_columns(gate, columns),
            _check_support(gate),
            _check_sql_type(gate),
            _check_condition(gate, columns),
            _check_query(gate, shape, columns),
            _check_patterns(gate),
        ):
            yield build_complaint((*place, gate.type, parameter), found, fix)


def check_hold(location: FieldPath, hold: Hold, gates: Sequence[Expectation], shape: Shape) -> Iterator[Complaint]:
    """Yield every complaint about `hold: row` on a table."""
    if hold == "key":
        return
    place = (*location, "hold")
    if location[0] == "views" and shape.kind == "versions":
        found = "hold: row on a view of versions: a row there is derived from several records, as are its neighbours"
        fix = "remove it, so that failing keys are held; or move the gate and hold: row to the topic"
        yield Complaint(place, found, fix)
    if not any(gate.on_failure == "quarantine" for gate in gates):
        found = "hold: row has no effect: no gate under expect: holds anything back"
        yield Complaint(place, found, "write on_failure: quarantine beside a gate, or remove hold")


_GateComplaints = Iterator[tuple[str, str, str]]
"""The parameter, what was found, and the fix."""


def _check_length(gate: Expectation) -> _GateComplaints:
    for field, text in gate.kwargs.items():
        if isinstance(text, str) and len(text) > bounds.EXPRESSION:
            yield field, f"{field} has more than {bounds.EXPRESSION:,} characters", "shorten it"


def _check_misplaced_fields(gate: Expectation) -> _GateComplaints:
    for field in GATE_FIELDS:
        if field in gate.kwargs:
            fix = f"it belongs beside the expectation, not in its braces: write `{field}: ...` on its own line"
            yield field, f"{gate.type} has no parameter '{field}'", fix


def _check_columns(gate: Expectation, columns: Columns) -> _GateComplaints:
    for column in gate.columns:
        if column not in columns:
            yield "column", f"no column '{column}' here", suggest_nearest(column, columns)


def _check_support(gate: Expectation) -> _GateComplaints:
    """Yield a complaint about an expectation that Great Expectations cannot evaluate in Spark."""
    name = "_like_pattern" if "_like_pattern" in gate.type else gate.type
    if name in _NOT_FOR_SPARK:
        parameter, reason, fix = _NOT_FOR_SPARK[name]
        yield parameter, f"Great Expectations has no {gate.type} for Spark{reason}", fix


_OWN_QUERY_FIX = "use unexpected_rows_expectation, whose query returns the failing rows of {batch}"
_NOT_FOR_SPARK = {
    "_like_pattern": ("column", "", "use expect_column_values_to_match_regex"),
    "expect_column_values_to_be_dateutil_parseable": (
        "column",
        "",
        "use expect_column_values_to_match_strftime_format, or make the column a timestamp",
    ),
    "expect_query_results_to_match_comparison": (
        "comparison_data_source_name",
        ": it compares with a query of another database",
        _OWN_QUERY_FIX,
    ),
    "expect_table_row_count_to_equal_other_table": (
        "other_table_name",
        ": it counts the rows of a table in another database",
        _OWN_QUERY_FIX,
    ),
}
"""By expectation: the parameter to point at, why Spark has none, and what to use."""


def _check_sql_type(gate: Expectation) -> _GateComplaints:
    """Yield SQL that is not text: Great Expectations takes other forms too, which nothing would check."""
    for field in ("row_condition", "unexpected_rows_query"):
        if not isinstance(gate.kwargs.get(field), str | None):
            yield field, f"{field} is {format_value(gate.kwargs[field])}, not text", "write Spark SQL in quotes"


def _check_condition(gate: Expectation, columns: Columns) -> _GateComplaints:
    """Yield complaints about `row_condition`.

    A condition in Great Expectations' own language, `col("a") > 1`, it parses itself: it uses the first comparison and
    ignores the rest.
    """
    text, parser = gate.kwargs.get("row_condition"), str(gate.kwargs.get("condition_parser"))
    if parser.startswith("great_expectations"):
        if isinstance(text, str) and _COMPARISON.fullmatch(text) is None:
            found = f"row_condition: {format_value(text)} is not a single comparison: only its first one would be used"
            yield "row_condition", found, "write it in Spark SQL, without condition_parser"
        return
    if isinstance(text, str) and (problem := queries.find_condition_problem(text)) is not None:
        yield "row_condition", f"row_condition {problem}", "use columns of the table and functions of Spark SQL"
    elif (
        isinstance(text, str)
        and (unknown := queries.find_unknown_column(queries.wrap_condition(text), columns)) is not None
    ):
        yield "row_condition", f"row_condition: no column '{unknown}' here", suggest_nearest(unknown, columns)


_COMPARISON = re.compile(
    r"""\s*col\("[^"]*"\)\s*(\.notnull\(\)|(==|!=|<=|>=|<|>)\s*([-+.\deE]+|"[^"]*"|'[^']*'|date\(("[^"]*"|'[^']*')\)))\s*""",
    re.IGNORECASE,
)
"""A condition in Great Expectations' own language."""


def _check_query(gate: Expectation, shape: Shape, columns: Columns) -> _GateComplaints:
    """Yield complaints about a rule in SQL, where the batch replaces `{batch}`.

    Unpaired braces are reported by the expectation itself.
    """
    name = "unexpected_rows_query"
    text = gate.kwargs.get(name)
    if gate.type != "unexpected_rows_expectation" or not isinstance(text, str):
        return
    try:
        parts = [*Formatter().parse(text)]
    except ValueError:
        return
    if any(form or conversion for _, _, form, conversion in parts):  # which can write quotes and comments
        yield (
            name,
            f"{name} has a format or a conversion in {{batch}}",
            "write {batch} alone, and double literal braces",
        )
        return
    places = [place for _, place, _, _ in parts if place is not None]
    for place in places:
        if place != "batch":
            found = f"{name}: nothing replaces {{{place}}}"
            yield name, found, "only {batch} is replaced; double literal braces: {{ and }}"
            return
    if not places:
        yield name, f"{name} does not use {{batch}}", "read the rows from it: SELECT * FROM {batch} WHERE ..."
        return
    query = "".join(literal + (queries.BATCH if place else "") for literal, place, _, _ in parts)
    if (problem := queries.find_query_problem(query)) is not None:
        yield name, f"{name} {problem}", "write one SELECT ... FROM {batch} WHERE ..., over tables"
        return
    if (unknown := queries.find_unknown_column(query, columns)) is not None:
        yield name, f"{name}: no column '{unknown}' here", suggest_nearest(unknown, columns)
    projected = queries.list_projected_columns(query) if gate.on_failure == "quarantine" else None
    if projected is not None and (missing := _list_missing(projected, shape)):
        found = f"{name} does not return {', '.join(missing)}: on_failure: quarantine needs the key of each failing row"
        yield name, found, "return all columns: SELECT * FROM {batch} WHERE ..."


def _check_patterns(gate: Expectation) -> _GateComplaints:
    """Yield a complaint about a pattern that could take for ever, where no time limit is possible."""
    for name, regex in gate.regexes:
        if may_be_slow(regex) and not is_readable(regex):
            yield name, f"{regex} {query_limits.UNLIMITED}", query_limits.SIMPLER_FIX
    try:
        query_limits.limit_gate(gate)
    except ExpressionError as error:
        yield next(iter(gate.sql_parameters)), error.found, error.fix
    except (KeyError, IndexError, ValueError):  # of braces, about which `_check_query` complains
        return


def _list_missing(columns: Sequence[str], shape: Shape) -> list[str]:
    """Return the columns that identify a row of a table and are missing from `columns`."""
    present = {name.lower() for name in columns}
    needed = dict.fromkeys((*shape.key, *identity_columns(shape.kind, shape.key)))
    return [name for name in needed if name.lower() not in present]
