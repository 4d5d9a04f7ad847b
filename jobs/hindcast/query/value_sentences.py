"""Why a value of a view's row is what it is, in a sentence: its expression with the values that the inputs had.

    amount 24.00 = 3 × 8.00: quantity × price. quantity comes from the record sales/0@17 of sales; price comes from the
    version of prices valid from 2026-01-01 (record prices/0@4).

Only of arithmetic over columns and numbers, and of columns that another input has, where each input had one row that
may be shown. What the row does not have by its expression is not said: the definition may have been another one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, DivisionByZero, InvalidOperation, Overflow

from sqlglot import expressions as exp

from hindcast.common.column_values import ColumnValue, Row
from hindcast.contract import Contract
from hindcast.contract.parsing import parse_resolved
from hindcast.query.cut_values import is_cut
from hindcast.query.inputs_as_of import InputRows, find_records
from hindcast.query.key_history import read_moment
from hindcast.query.show import format_cell, format_moment

MAX_SENTENCES, MAX_OPERANDS = 5, 12
"""How many columns are explained, and how many operands an expression of them has at most."""


@dataclass(frozen=True)
class _Formula:
    """An expression in words, with values in place of its columns, its value, and the columns, as (input, column)."""

    words: str
    numbers: str
    value: Decimal
    columns: tuple[tuple[str, str], ...]


def describe_values(
    warehouse: str,
    contract: Contract,
    row: Row,
    expressions: Mapping[str, str],
    parts: Sequence[InputRows],
    hidden: Collection[str],
) -> list[str]:
    """Return sentences about columns of a row, given their resolved `expressions`, the input rows that it was made of
    and the `hidden` columns of the view; none for columns of which nothing can be said.
    """
    inputs = {part.name: part for part in parts if part.open and not part.hidden and part.total == 1}
    shown = {name: text for name, text in expressions.items() if name not in hidden}
    computed: list[str] = []
    taken: dict[str, list[str]] = {}
    for name, text in shown.items():
        formula = _read_formula(parse_resolved(text), inputs)
        if formula is None or not _is_value(row.get(name), formula.value):
            continue
        for input_, column in formula.columns:
            names = taken.setdefault(input_, [])
            names += [column] if column not in names else []
        computed.append(f"{name} {format_cell(row[name])} = {formula.numbers}: {formula.words}.")
    places = {name: _describe_place(warehouse, contract, inputs[name]) for name in taken}
    origins = [
        f"{' and '.join(names)} {'come' if names[1:] else 'comes'} from {places[name]}" for name, names in taken.items()
    ]
    if computed:
        return [*computed[:MAX_SENTENCES], f"{'; '.join(origins)}."]
    return _describe_copies(warehouse, contract, row, shown, inputs, parts)


def _describe_copies(
    warehouse: str,
    contract: Contract,
    row: Row,
    shown: Mapping[str, str],
    inputs: Mapping[str, InputRows],
    parts: Sequence[InputRows],
) -> list[str]:
    """Return sentences about the columns that a row has from an input which it looked up."""
    looked_up = {part.name for part in parts[1:]} & inputs.keys()
    sentences = []
    for name, text in shown.items():
        place = _find_column(parse_resolved(text))
        if place is None or place[0] not in looked_up or place[1] in inputs[place[0]].marked:
            continue
        value = inputs[place[0]].rows[0].get(place[1])
        if value is None or value != row.get(name) or is_cut(value):
            continue
        origin = _describe_place(warehouse, contract, inputs[place[0]])
        sentences.append(f"{name} {format_cell(value)} is {place[1]} of {origin}.")
    return sentences[:MAX_SENTENCES]


def _describe_place(warehouse: str, contract: Contract, part: InputRows) -> str:
    """Return which row of an input it was, in words, with its record."""
    row = part.rows[0]
    places = [
        f"{it['topic']}, partition {it['partition']}, offset {it['offset']}"
        for it in find_records(warehouse, contract, part.name, row)
    ]
    record = "; ".join(places)
    if part.source.kind == "versions":
        version = f"the version of {part.name} valid from {format_moment(read_moment(row, 'validFrom'))}"
        return f"{version} ({record})" if record else version
    return f"the record of {part.name} ({record})" if record else f"the row of {part.name}"


def _read_formula(tree: exp.Expr, inputs: Mapping[str, InputRows]) -> _Formula | None:
    """Return an arithmetic expression with its value; None for another one, or for a mere column or number."""
    tree = tree.unnest()
    if not isinstance(tree, tuple(_SIGNS)) or sum(1 for _ in tree.find_all(exp.Column, exp.Literal)) > MAX_OPERANDS:
        return None
    return _read_operand(tree, inputs)


def _read_operand(tree: exp.Expr, inputs: Mapping[str, InputRows]) -> _Formula | None:
    if isinstance(tree, exp.Paren):
        inner = _read_operand(tree.this, inputs)
        return inner and _Formula(f"({inner.words})", f"({inner.numbers})", inner.value, inner.columns)
    if isinstance(tree, exp.Literal):
        return None if tree.is_string else _Formula(tree.name, tree.name, Decimal(tree.name), ())
    if isinstance(tree, exp.Binary) and (sign := _SIGNS.get(type(tree))) is not None:
        left, right = _read_operand(tree.left, inputs), _read_operand(tree.right, inputs)
        value = None if left is None or right is None else _calculate(sign, left.value, right.value)
        if left is None or right is None or value is None:
            return None
        words, numbers = f"{left.words} {sign} {right.words}", f"{left.numbers} {sign} {right.numbers}"
        return _Formula(words, numbers, value, (*left.columns, *right.columns))
    place = _find_column(tree)
    part = inputs.get(place[0]) if place else None
    if place is None or part is None or place[1] in part.marked:
        return None
    value = _read_number(part.rows[0].get(place[1]))
    return None if value is None else _Formula(place[1], format_cell(part.rows[0][place[1]]), value, (place,))


def _find_column(tree: exp.Expr) -> tuple[str, str] | None:
    """Return the input and the column that an expression is; None for another one, and for a field of a struct."""
    if not isinstance(tree, exp.Column) or len(tree.parts) != _PARTS:
        return None
    return tree.parts[0].name, tree.parts[1].name


def _calculate(sign: str, left: Decimal, right: Decimal) -> Decimal | None:
    try:
        match sign:
            case "+":
                return left + right
            case "\N{MINUS SIGN}":
                return left - right
            case "\N{MULTIPLICATION SIGN}":
                return left * right
            case _:
                return left / right
    except (DivisionByZero, InvalidOperation, Overflow):
        return None


def _is_value(value: ColumnValue, computed: Decimal) -> bool:
    """Return whether a row has a value that was computed, rounded to as many places as it has."""
    number = _read_number(value)
    if number is None:
        return False
    if isinstance(value, float):
        return abs(number - computed) <= abs(computed) * _TOLERANCE
    exponent = number.as_tuple().exponent
    try:
        return isinstance(exponent, int) and round(computed, -exponent) == number
    except InvalidOperation:
        return False


def _read_number(value: ColumnValue) -> Decimal | None:
    """Return a value as a number; None for another one, and for infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = Decimal(str(value))
    return number if number.is_finite() else None


_SIGNS: Mapping[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "\N{MINUS SIGN}",
    exp.Mul: "\N{MULTIPLICATION SIGN}",
    exp.Div: "÷",
}
_PARTS = 2
"""A resolved column has the name of its input, and its own."""
_TOLERANCE = Decimal("1e-9")
