"""The answer that a key has at a moment, as known at another, with its reasons (explain.py)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from hindcast.bitemporal.predicates import Question
from hindcast.common.column_values import ColumnValue, Row
from hindcast.common.errors import UnknownError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.contract.shapes import PERIODS
from hindcast.plan import horizon, marks
from hindcast.query import key_history, read
from hindcast.query.explain import explain_row
from hindcast.query.holds import HoldFinder
from hindcast.query.inputs_as_of import find_records
from hindcast.query.show import format_cell, format_moment

MAX_ANSWERS = 20


class ExplainedAnswer(NamedTuple):
    """A row that was true then: its values and its own records, a sentence, and the rows of inputs it was made of.

    `parts`: as `inputs_as_of.InputRows.as_json`. Values of sensitive columns are masked.
    """

    values: dict[str, JsonValue]
    records: list[JsonValue]
    text: str
    parts: list[JsonObject]

    def as_json(self) -> JsonObject:
        """Return the answer as JSON."""
        parts: list[JsonValue] = [*self.parts]
        return {"values": self.values, "records": self.records, "why": self.text, "inputs": parts}


def explain_answers(
    settings: Settings,
    contract: Contract,
    name: str,
    key: Sequence[ColumnValue],
    as_of: datetime,
    known_at: datetime,
    readable: Collection[str],
    holds: HoldFinder | None = None,
) -> list[ExplainedAnswer]:
    """Return what was true of a key at `as_of`, as known at `known_at`, the latest first, at most `MAX_ANSWERS`.

    Of a stream these are its events up to `as_of`. Rows of other pipelines are shown only if those are `readable`.
    `holds`: what is held back of the table.
    Raise UnknownError if the table never had a row of the key, or had none then; QueryError if it cannot answer that.
    """
    table = read.locate_table(settings.warehouse, contract, name)
    read.refuse_forgotten(settings.warehouse, contract, name)
    read.refuse_unanswerable(settings.warehouse, contract.pipeline, known_at)
    horizon.refuse_question(table, horizon.read_horizon(table), Question(as_of=as_of), known_at)
    window = contract.views[name].window if name in contract.views else None
    history = key_history.read_history(table, key, holds)
    answer = history.find_answer(as_of, known_at, MAX_ANSWERS, window)
    if not answer.rows:
        hold = holds.find_of_key(key) if holds is not None else None
        held = f"; a change of it has been held back since run {hold.began}" if hold is not None else ""
        raise UnknownError(
            f"nothing was true of the key at {format_moment(as_of)}, as known at {format_moment(known_at)}{held}",
            where=f"{contract.pipeline}.{name}",
            fix=f"hindcast history {contract.pipeline}.{name} --key KEY lists what was ever true of it",
        )
    marked = marks.find_hidden_columns(settings, contract, name)

    def explain(row: Row) -> ExplainedAnswer:
        found = explain_row(settings, contract, name, row, known_at, readable, holds)
        own = {column: value for column, value in row.items() if not column.startswith("_")}
        parts = found["parts"]
        return ExplainedAnswer(
            key_history.mask_row(own, marked),
            [*map(dict, find_records(settings.warehouse, contract, name, row))],
            str(found["text"]),
            [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else [],
        )

    return [explain(row) for row in answer.rows]


def format_answers(answers: Sequence[ExplainedAnswer]) -> str:
    """Return answers as text: each row, why it was true, and below it a line for each input row and its record."""
    return "\n\n".join("\n".join(_list_lines(answer)) for answer in answers)


def _list_lines(answer: ExplainedAnswer) -> list[str]:
    lines = [_format_values(answer.values), f"  {answer.text}"]
    for part in answer.parts:
        if part["rows"] is None:
            lines.append(f"  {part['name']}: you may not read {part['pipeline']}.{part['table']}")
            continue
        rows = [row for row in part["rows"] if isinstance(row, dict)] if isinstance(part["rows"], list) else []
        for row in rows:
            values = row["values"] if isinstance(row["values"], dict) else {}
            lines.append(f"  {part['name']}  {_format_values(values)}{_format_records(row['records'])}")
        total = part["total"] if isinstance(part["total"], int) else len(rows)
        if total > len(rows):
            lines.append(f"  {part['name']}  and {total - len(rows):,} more")
    return lines


def _format_values(values: dict[str, JsonValue]) -> str:
    """Return the values of a row in words: `item tea, price 8, validFrom 2026-01-01`; not the periods' open ends."""
    shown = {c: v for c, v in values.items() if v is not None or c not in _PERIOD_COLUMNS}
    return ", ".join(f"{column} {_format_value(column, value)}" for column, value in shown.items())


def _format_value(column: str, value: JsonValue) -> str:
    if column in _PERIOD_COLUMNS and isinstance(value, str):
        return format_moment(datetime.fromisoformat(value))
    return "''" if value == "" else format_cell(value)


_PERIOD_COLUMNS = {column for columns in PERIODS.values() for column in columns} | {"systemFrom", "systemTo"}


def _format_records(records: JsonValue) -> str:
    """Return where the records of a row are, in brackets; nothing without one."""
    places = [
        f"{record['topic']}, partition {record['partition']}, offset {record['offset']}"
        for record in (records if isinstance(records, list) else [])
        if isinstance(record, dict)
    ]
    return f"  ({'; '.join(places)})" if places else ""
