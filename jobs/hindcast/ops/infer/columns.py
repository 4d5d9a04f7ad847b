"""Columns of a draft: names, types and reasons for the fields of keys and values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from sqlglot.dialects import Spark

from hindcast.contract.bounds import NAME
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.contract.valid_time import RECORD, RECORD_TIMESTAMP
from hindcast.ops.infer.field_types import TypeChoice, choose_type, find_sensitive_reason
from hindcast.ops.infer.fields import FieldStats
from hindcast.ops.infer.json_text import Parsed
from hindcast.ops.infer.sensitive_values import find_sensitive_text

MAX_COLUMNS, _MANY, _RARE = 500, 50, 0.02
"""The most columns of a value; with many fields, those in fewer than so many of the records are left out."""

_RESERVED = {*map(str.lower, PERIOD_COLUMNS), RECORD, RECORD_TIMESTAMP}


@dataclass(frozen=True)
class DraftColumn:
    """A column of a draft, and the field that it is read from.

    `sensitive`: why no value of it may be shown, else empty; `least` and `most`: the range of its numbers; `values`:
    different values that were seen, as text, for comparison alone.
    """

    name: str
    kind: str
    reason: str
    field: str
    encoding: str = ""
    sensitive: str = ""
    never_null: bool = False
    least: Decimal | None = None
    most: Decimal | None = None
    values: frozenset[str] = frozenset()


@dataclass
class Rows:
    """Objects of one topic: what was seen of each of their fields. `total` counts the objects."""

    fields: dict[str, FieldStats]
    total: int

    @property
    def rare(self) -> list[str]:
        """The fields that are left out, because there are many and these are in few objects: names that are data."""
        if len(self.fields) <= _MANY:
            return []
        ordered = sorted(self.fields, key=lambda name: -self.fields[name].count)
        kept = {name for name in ordered[:MAX_COLUMNS] if self.fields[name].count >= _RARE * self.total}
        return [name for name in self.fields if name not in kept]


def collect_fields(rows: Iterable[tuple[Mapping[str, Parsed], str]]) -> Rows:
    """Return what is seen of each field of these objects, each given with its record's place."""
    fields: dict[str, FieldStats] = {}
    total = 0
    for row, place in rows:
        total += 1
        for name, value in row.items():
            stats = fields.get(name)
            if stats is None:
                stats = fields[name] = FieldStats(keeps_values=len(fields) < MAX_COLUMNS)
            stats.observe(value, place)
    return Rows(fields, total)


def draft_column(
    name: str, field: str, stats: FieldStats, total: int, choice: TypeChoice | None = None, *, envelope: bool = False
) -> DraftColumn:
    """Return the column of a field. `choice`: its type, if something better than the values says it."""
    sensitive = find_sensitive_reason(stats, field) or ""
    chosen = choice or choose_type(stats, field, plain=envelope)
    absent, null = total - stats.kinds.total(), stats.kinds["null"]
    parts = [f"in {stats.count:,} of {total:,}"]
    parts += [f"null in {null:,}"] if null else []
    parts += [f"absent in {absent:,}"] if absent else []
    numbers = stats.numbers if stats.numbers.count == stats.count else None
    return DraftColumn(
        name,
        chosen.kind,
        f"{', '.join(parts)}; {chosen.reason}",
        field,
        sensitive=sensitive,
        never_null=stats.count == total > 0,
        least=numbers.least if numbers else None,
        most=numbers.most if numbers else None,
        values=frozenset(stats.values),
    )


def choose_column_name(field: str, taken: Iterable[str], fields: Iterable[str] = ()) -> str:
    """Return a valid column name for a field that is none of those taken, ignoring case.

    A field that cannot keep its name gets none of the names of the other `fields` either: a column is read from the
    field of its own name first.

    >>> choose_column_name("order-id", []), choose_column_name("timestamp", []), choose_column_name("Id", ["id"])
    ('order_id', 'timestamp_value', 'Id_value')
    >>> choose_column_name("_id", [], ["_id", "id"]), choose_column_name("id", ["id_value"], ["_id", "id"])
    ('id_value', 'id')
    """
    base = re.sub(r"[^A-Za-z0-9_]", "_", field).lstrip("_0123456789")[: NAME - 10] or "field"
    used = {*map(str.lower, taken), *_RESERVED}
    if base == field and field.lower() not in used:
        return field
    used |= {*map(str.lower, fields)}
    names = (base, f"{base}_value", *(f"{base}_{n}" for n in range(2, len(used) + 3)))
    return next(name for name in names if name.lower() not in used)


def is_showable(field: str) -> bool:
    """Return whether a contract can show a field's name: it is printable, not too long, and no secret itself."""
    return field.isprintable() and 0 < len(field) <= NAME and find_sensitive_text(field) is None


def quote_column(name: str) -> str:
    """Return a column's name as SQL has it: in backticks if it is a word of SQL."""
    return f"`{name}`" if name.upper() in Spark.Tokenizer.KEYWORDS or name.upper() in _SQL_WORDS else name


_SQL_WORDS = {"FOR", "IN", "IS", "NOT", "ON", "TO", "USER", "CURRENT_DATE", "CURRENT_TIMESTAMP"}


def quote_text(text: str) -> str:
    """Return a text as YAML has it: in quotes unless it is a plain word."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_.]*(\([A-Za-z0-9_]+\))?", text) and text.lower() not in YAML_WORDS:
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


YAML_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""What YAML does not read as text, without quotes."""
