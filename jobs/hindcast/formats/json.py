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
from hindcast.formats.part import Part, result, shown, typed, utf8

_RAW = "_raw"
_END = secrets.token_hex(16)
"""What nobody who sends a record can know."""

_LENIENT = (
    *("allowSingleQuotes", "allowUnquotedFieldNames", "allowComments", "allowNumericLeadingZeros"),
    *("allowBackslashEscapingAnyCharacter", "allowUnquotedControlChars", "allowNonNumericNumbers"),
)
_LOOSE = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean")
"""Types that lenient reads from text too. Decimals and moments are read from text in any mode."""


def parsed(raw: Column, _: Column, part: Part) -> Column:
    """The text as one of two elements, so that nothing else can follow it, and its fields' names where these matter.

    from_json alone passes over what comes after an object:    {"n": 1}, {"n": 2}    {"n": 1}} and more
    """
    lenient = part.json == "lenient"
    end = f'{chr(10) if lenient else ""}, {{"{_END}": true}}]}}'  # a comment may end the line
    text = F.concat(F.lit(f'{{"{_END}": ['), raw.cast("string"), F.lit(end))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _RAW}
    options |= {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
    if lenient:
        options |= dict.fromkeys(_LENIENT, "true")
    asked = {name: exact.asked(kind) for name, kind in _fields(part).items()}
    columns = {"found": F.from_json(text, _two(asked), options)}
    if written := _written(part):
        columns["lossy"] = exact.lossy(raw)
        asked = {name: exact.asked_quoted(kind) for name, kind in written.items()}
        columns["written"] = F.when(exact.lossy(raw), F.from_json(exact.quoted(text), _two(asked), options))
    if _named(part):
        names = F.map_keys(F.from_json(raw.cast("string"), "map<string, string>", options))
        columns["names"] = names if lenient else F.json_object_keys(raw.cast("string"))
    return F.struct(*(column.alias(name) for name, column in columns.items()))


def chosen(raw: Column, parsed: Column, part: Part) -> Column:
    """Whether the text is an object as it is asked for (`right`), and its columns as they were `asked` for."""
    fields, written = _fields(part), _written(part)
    names = parsed["names"] if _named(part) else None
    right = _whole(parsed["found"]) & utf8(raw) & ~exact.half_characters(raw)
    if part.json == "strict":
        right = right & _exactly(parsed["names"], part)
    asked = _chosen(parsed["found"], {name: exact.asked(it) for name, it in fields.items()}, names, part)
    if written:
        right = right & (~parsed["lossy"] | _whole(parsed["written"]))
        kinds = {name: exact.asked_quoted(it) for name, it in written.items()}
        for name, it in _chosen(parsed["written"], kinds, names, part).items():
            number = exact.as_written(asked[name], it, fields[name])
            asked[name] = F.when(parsed["lossy"], number).otherwise(asked[name])
    return F.struct(
        F.coalesce(right, F.lit(False)).alias("right"),
        F.struct(*(column.alias(name) for name, column in asked.items())).alias("asked"),
    )


def converted(_: Column, chosen: Column, part: Part) -> Column:
    """The same, and the columns as `values` of their types."""
    asked, loose = chosen["asked"], _loose(part)
    values = {
        name: _from_text(asked[name], kind) if name in loose else exact.value(asked[name], kind)
        for name, kind in part.columns.items()
    }
    struct = F.struct(*(value.alias(name) for name, value in values.items()))
    return F.struct(chosen["right"].alias("right"), chosen["asked"].alias("asked"), struct.alias("values"))


def read(raw: Column, converted: Column, part: Part) -> Column:
    """The object's columns, and what is wrong with it."""
    asked, values, loose = converted["asked"], converted["values"], _loose(part)
    good = reduce(and_, (asked[n].isNull() | values[n].isNotNull() for n in loose), converted["right"])
    what = part.what or f"a JSON object of {'exactly ' if part.json == 'strict' else ''}{typed(part.columns)}"
    told = F.concat(F.lit(f"the {part.name} is not {what}: "), shown(raw.cast("string")))
    exactly = ((n, kind) for n, kind in part.columns.items() if n not in loose)
    wrong = F.coalesce(
        *(exact.problem(asked[n], values[n], kind, n) for n, kind in exactly), F.lit(None).cast("string")
    )
    problem = F.when(~good, told).otherwise(F.concat(F.lit(f"the {part.name}'s "), wrong))
    return result(F.when(raw.isNotNull() & problem.isNull(), values), F.when(raw.isNotNull(), problem))


STEPS = (parsed, chosen, converted, read)


def _named(part: Part) -> bool:
    """Whether it matters which fields are there."""
    return part.json == "strict" or bool(part.renamed)


def _loose(part: Part) -> list[str]:
    return [name for name, kind in part.columns.items() if part.json == "lenient" and kind in _LOOSE]


def _names(column: str, part: Part) -> tuple[str, ...]:
    """The names that a column's field can have, in the order in which they are looked for."""
    return column, *part.renamed.get(column, ())


def _fields(part: Part) -> dict[str, str]:
    """The fields that are read, with their types; what is loose is a text first."""
    loose = _loose(part)
    kinds = {name: "string" if name in loose else kind for name, kind in part.columns.items()}
    return {name: kind for column, kind in kinds.items() for name in _names(column, part)}


def _written(part: Part) -> dict[str, str]:
    """The fields whose numbers have to be as they were written, with their types: decimals, and what is loose."""
    loose = {name for column in _loose(part) for name in _names(column, part)}
    return {name: kind for name, kind in _fields(part).items() if name in loose or exact.bears_decimals(kind)}


def _two(kinds: Mapping[str, str]) -> str:
    """The schema of what is parsed: the object, and the element that ends it."""
    return f"`{_END}` array<struct<{typed(kinds, ': ')}, `{_END}`: boolean>>, `{_RAW}` string"


def _first(found: Column) -> Column:
    return F.get(found[_END], F.lit(0))


def _whole(found: Column) -> Column:
    """Whether an object was found and nothing else."""
    ended = (F.size(found[_END]) == 2) & F.get(found[_END], F.lit(1))[_END]
    return found[_RAW].isNull() & ended & _first(found).isNotNull()


def _chosen(found: Column, kinds: Mapping[str, str], names: Column | None, part: Part) -> dict[str, Column]:
    """Of what was found with fields of these kinds that of each column: of several names the first that is there."""
    columns, object_ = [name for name in part.columns if name in kinds], _first(found)
    if names is None or not part.renamed:
        return {name: object_[name] for name in columns}
    places = {name: f"f{n}" for n, name in enumerate(kinds)}  # names may differ in case alone
    fields = ", ".join(f"{places[name]}: {kind}" for name, kind in kinds.items())
    numbered = object_.cast(f"struct<{fields}, `{_END}`: boolean>")
    chosen = {}
    for column in columns:
        first, *others = _names(column, part)
        value = F.when(F.array_contains(names, first), numbered[places[first]])
        for name in others:
            value = value.when(F.array_contains(names, name), numbered[places[name]])
        chosen[column] = value
    return chosen


def _exactly(names: Column, part: Part) -> Column:
    """Whether each column has one field, and there is no other."""
    there = [F.arrays_overlap(names, F.array(*(F.lit(n) for n in _names(it, part)))) for it in part.columns]
    return reduce(and_, there, F.size(names) == len(part.columns))


def _from_text(text: Column, kind: str) -> Column:
    """A number or boolean from its text, infinite only where it says so; Jackson gives NaN and Infinity in quotes."""
    found = F.regexp_replace(text, '^"(NaN|-?Infinity)"$', "$1").try_cast(kind)
    if kind not in ("float", "double"):
        return found
    return F.when((F.abs(found) != F.lit(float("inf"))) | F.contains(F.lower(text), F.lit("inf")), found)
