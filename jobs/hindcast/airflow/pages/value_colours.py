"""Colours for the values of rectangles, and labels that fit into them. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from hindcast.airflow.pages import drawing
from hindcast.common.column_values import ColumnValue
from hindcast.common.json_values import JsonValue
from hindcast.query.show import format_cell, plain_value

LEVELS, MAX_CATEGORIES = 5, 6
"""How many shades numbers have, and how many values that are no numbers have a colour each."""

CHARACTER, PADDING, MIN_CUT = 7.0, 10.0, 8
"""The width of a character and of the sides of a label, in units of the drawing; the least of a text that is cut."""


class Colouring(NamedTuple):
    """The class of each row ("" without a colour), the column that it shows, and what the classes mean."""

    classes: list[str]
    column: str | None = None
    legend: Sequence[tuple[str, str]] = ()


def colour_rows(rows: Sequence[Mapping[str, ColumnValue]], columns: Collection[str]) -> Colouring:
    """Return a colouring by the first of some columns that varies: shades for numbers, hues for a few other values."""
    for column in columns:
        values = [row.get(column) for row in rows]
        colouring = _colour_numbers(column, values) or _colour_categories(column, values)
        if colouring is not None:
            return colouring
    return Colouring([""] * len(rows))


def _colour_numbers(column: str, values: Sequence[ColumnValue]) -> Colouring | None:
    numbers = [read_number(value) for value in values]
    known = {number: value for number, value in zip(numbers, values, strict=True) if number is not None}
    if len(known) < 2 or None in (read_number(value) for value in values if value is not None):
        return None
    low, high = min(known), max(known)

    def choose_level(number: float | None) -> str:
        return "" if number is None else f"n{round(drawing.find_share(number, low, high) * (LEVELS - 1))}"

    ends = {0: format_value(plain_value(known[low])), LEVELS - 1: format_value(plain_value(known[high]))}
    legend = [(f"n{level}", ends.get(level, "")) for level in range(LEVELS)]
    return Colouring([choose_level(number) for number in numbers], column, legend)


def _colour_categories(column: str, values: Sequence[ColumnValue]) -> Colouring | None:
    texts = [format_cell(value) if isinstance(value, str | bool) else "" for value in values]
    found = sorted({*texts} - {""})
    if not 2 <= len(found) <= MAX_CATEGORIES:
        return None
    classes = {text: f"c{n}" for n, text in enumerate(found)}
    return Colouring([classes.get(text, "") for text in texts], column, [(classes[it], it) for it in found])


def read_number(value: ColumnValue) -> float | None:
    """Return a number as a float; None for what is no number, and for one that is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def format_value(value: JsonValue) -> str:
    """Return a value as text on one line; a float without the noise of its last digits."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.12g}"
    return format_cell(value)


def fit_label(values: Sequence[JsonValue], width: float) -> str:
    """Return as many of some values as fit into a width, the first of them first; "" if there is room for none.

    A number is there whole or not at all; a text may be cut.
    """
    shown = [value for value in values if value is not None and value != ""]
    texts = [format_value(value) for value in shown]
    room = int((width - PADDING) / CHARACTER)
    for count in range(len(texts), 0, -1):
        label = " · ".join(texts[:count]) + (" · …" if count < len(texts) else "")
        if len(label) <= room:
            return label
    if texts and isinstance(shown[0], str) and not _is_decimal(texts[0]) and room >= MIN_CUT:
        return f"{texts[0][: room - 1]}…"
    return texts[0] if texts and len(texts[0]) <= room else ""


def _is_decimal(text: str) -> bool:
    try:
        Decimal(text)
    except ArithmeticError:
        return False
    return True
