"""`json`: an object of the columns.

| mode | fields | values |
| --- | --- | --- |
| typed | one that is missing is null, others are passed over | of the column's type |
| strict | exactly the columns, each once | of the column's type |
| lenient | as typed | numbers and booleans also as text; comments, single quotes, names without quotes, leading zeros |

Modes are about the object itself; objects within it are read as typed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.formats import exact
from hindcast.formats.record_part import RecordPart, ddl_columns, is_utf8, part_result, shorten_text

_RAW = "_raw"
_END = secrets.token_hex(16)
"""What nobody who sends a record can know."""

_LENIENT = (
    *("allowSingleQuotes", "allowUnquotedFieldNames", "allowComments", "allowNumericLeadingZeros"),
    *("allowBackslashEscapingAnyCharacter", "allowUnquotedControlChars", "allowNonNumericNumbers"),
)
_LOOSE = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean")
"""Types that lenient reads from text too. Decimals and moments are read from text in any mode."""


def parse_object(raw: Column, _: Column, part: RecordPart) -> Column:
    """Return the text parsed as one of two elements, so that nothing can follow it, and its field names if they matter.

    from_json alone ignores what comes after an object:    {"n": 1}, {"n": 2}    {"n": 1}} and more
    """
    lenient = part.json == "lenient"
    end = f'{chr(10) if lenient else ""}, {{"{_END}": true}}]}}'  # a comment may end the line
    text = F.concat(F.lit(f'{{"{_END}": ['), raw.cast("string"), F.lit(end))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _RAW}
    options |= {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
    if lenient:
        options |= dict.fromkeys(_LENIENT, "true")
    asked = {name: exact.parser_type(kind) for name, kind in _field_types(part).items()}
    columns = {"found": F.from_json(text, _parser_schema(asked), options)}
    if written := _exact_fields(part):
        columns["lossy"] = exact.can_lose_digits(raw)
        asked = {name: exact.quoted_parser_type(kind) for name, kind in written.items()}
        columns["written"] = F.when(
            exact.can_lose_digits(raw), F.from_json(exact.quote_numbers(text), _parser_schema(asked), options)
        )
    if _needs_names(part):
        names = F.map_keys(F.from_json(raw.cast("string"), "map<string, string>", options))
        columns["names"] = names if lenient else F.json_object_keys(raw.cast("string"))
    return F.struct(*(column.alias(name) for name, column in columns.items()))


def choose_fields(raw: Column, parsed: Column, part: RecordPart) -> Column:
    """Return a struct of `right` (the text is an object as expected) and `asked` (columns as `exact.parser_type`)."""
    fields, written = _field_types(part), _exact_fields(part)
    names = parsed["names"] if _needs_names(part) else None
    right = _is_whole(parsed["found"]) & is_utf8(raw) & ~exact.has_half_characters(raw)
    if part.json == "strict":
        right = right & _has_exact_fields(parsed["names"], part)
    asked = _choose_columns(parsed["found"], {name: exact.parser_type(it) for name, it in fields.items()}, names, part)
    if written:
        right = right & (~parsed["lossy"] | _is_whole(parsed["written"]))
        kinds = {name: exact.quoted_parser_type(it) for name, it in written.items()}
        for name, it in _choose_columns(parsed["written"], kinds, names, part).items():
            number = exact.restore_numbers(asked[name], it, fields[name])
            asked[name] = F.when(parsed["lossy"], number).otherwise(asked[name])
    return F.struct(
        F.coalesce(right, F.lit(False)).alias("right"),
        F.struct(*(column.alias(name) for name, column in asked.items())).alias("asked"),
    )


def convert_fields(_: Column, chosen: Column, part: RecordPart) -> Column:
    """Return `right` and `asked` of `choose_fields`, and `values`: the columns in their types."""
    asked, loose = chosen["asked"], _list_loose_columns(part)
    values = {
        name: _parse_loose(asked[name], kind) if name in loose else exact.convert_value(asked[name], kind)
        for name, kind in part.columns.items()
    }
    struct = F.struct(*(value.alias(name) for name, value in values.items()))
    return F.struct(chosen["right"].alias("right"), chosen["asked"].alias("asked"), struct.alias("values"))


def read_value(raw: Column, converted: Column, part: RecordPart) -> Column:
    """Return `struct` and `problem` (`record_part.part_result`) for a result of `convert_fields`."""
    asked, values, loose = converted["asked"], converted["values"], _list_loose_columns(part)
    good = reduce(and_, (asked[n].isNull() | values[n].isNotNull() for n in loose), converted["right"])
    what = part.what or f"a JSON object of {'exactly ' if part.json == 'strict' else ''}{ddl_columns(part.columns)}"
    message = F.concat(F.lit(f"the {part.name} is not {what}: "), shorten_text(raw.cast("string")))
    exactly = ((n, kind) for n, kind in part.columns.items() if n not in loose)
    wrong = F.coalesce(
        *(exact.describe_problem(asked[n], values[n], kind, n) for n, kind in exactly), F.lit(None).cast("string")
    )
    problem = F.when(~good, message).otherwise(F.concat(F.lit(f"the {part.name}'s "), wrong))
    return part_result(F.when(raw.isNotNull() & problem.isNull(), values), F.when(raw.isNotNull(), problem))


STEPS = (parse_object, choose_fields, convert_fields, read_value)


def _needs_names(part: RecordPart) -> bool:
    """Return whether it matters which fields exist."""
    return part.json == "strict" or bool(part.renamed)


def _list_loose_columns(part: RecordPart) -> list[str]:
    return [name for name, kind in part.columns.items() if part.json == "lenient" and kind in _LOOSE]


def _field_names(column: str, part: RecordPart) -> tuple[str, ...]:
    """Return the names that a column's field can have, in the order in which they are tried."""
    return column, *part.renamed.get(column, ())


def _field_types(part: RecordPart) -> dict[str, str]:
    """Return the fields that are read, with their types; loose ones are text first."""
    loose = _list_loose_columns(part)
    kinds = {name: "string" if name in loose else kind for name, kind in part.columns.items()}
    return {name: kind for column, kind in kinds.items() for name in _field_names(column, part)}


def _exact_fields(part: RecordPart) -> dict[str, str]:
    """Return the fields whose numbers must stay as written, with their types: decimals, and loose ones."""
    loose = {name for column in _list_loose_columns(part) for name in _field_names(column, part)}
    return {name: kind for name, kind in _field_types(part).items() if name in loose or exact.has_decimals(kind)}


def _parser_schema(kinds: Mapping[str, str]) -> str:
    """Return the schema for the parser: the object, and the element that ends it."""
    return f"`{_END}` array<struct<{ddl_columns(kinds, ': ')}, `{_END}`: boolean>>, `{_RAW}` string"


def _first_element(found: Column) -> Column:
    return F.get(found[_END], F.lit(0))


def _is_whole(found: Column) -> Column:
    """Return whether the text is one object and nothing else."""
    ended = (F.size(found[_END]) == 2) & F.get(found[_END], F.lit(1))[_END]
    return found[_RAW].isNull() & ended & _first_element(found).isNotNull()


def _choose_columns(
    found: Column, kinds: Mapping[str, str], names: Column | None, part: RecordPart
) -> dict[str, Column]:
    """Return each column from the fields of these kinds: of several names the first that exists."""
    columns, object_ = [name for name in part.columns if name in kinds], _first_element(found)
    if names is None or not part.renamed:
        return {name: object_[name] for name in columns}
    places = {name: f"f{n}" for n, name in enumerate(kinds)}  # names may differ in case alone
    fields = ", ".join(f"{places[name]}: {kind}" for name, kind in kinds.items())
    numbered = object_.cast(f"struct<{fields}, `{_END}`: boolean>")
    chosen = {}
    for column in columns:
        first, *others = _field_names(column, part)
        value = F.when(F.array_contains(names, first), numbered[places[first]])
        for name in others:
            value = value.when(F.array_contains(names, name), numbered[places[name]])
        chosen[column] = value
    return chosen


def _has_exact_fields(names: Column, part: RecordPart) -> Column:
    """Return whether each column has one field, and there is no other."""
    there = [F.arrays_overlap(names, F.array(*(F.lit(n) for n in _field_names(it, part)))) for it in part.columns]
    return reduce(and_, there, F.size(names) == len(part.columns))


def _parse_loose(text: Column, kind: str) -> Column:
    """Return a number or boolean from its text, infinite only if the text says so; Jackson quotes NaN and Infinity."""
    found = F.regexp_replace(text, '^"(NaN|-?Infinity)"$', "$1").try_cast(kind)
    if kind not in ("float", "double"):
        return found
    return F.when((F.abs(found) != F.lit(float("inf"))) | F.contains(F.lower(text), F.lit("inf")), found)
