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

from hindcast import exact
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


def parsed(raw: Column, part: Part) -> Column:
    """The text as one value of a JSON object, with what must follow it, so that nothing else can; and its fields' names
    where these matter.

    from_json alone passes over what comes after an object:    {"n": 1}, {"n": 2}    {"n": 1}} and more
    """
    lenient = part.json == "lenient"
    end = f'{chr(10) if lenient else ""}, "{_END}": {{}}}}}}'  # a comment may end the line
    text = F.concat(F.lit(f'{{"{_END}": {{"": '), raw.cast("string"), F.lit(end))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _RAW}
    options |= {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
    if lenient:
        options |= dict.fromkeys(_LENIENT, "true")
    asked = typed({name: exact.asked(kind) for name, kind in _fields(part).items()}, ": ")
    objects = F.from_json(text, f"`{_END}` map<string, struct<{asked}>>, `{_RAW}` string", options)
    columns = {"objects": objects, "again": exact.long_numbers(raw, _fields(part))}
    if _named(part):
        names = F.map_keys(F.from_json(raw.cast("string"), "map<string, string>", options))
        columns["names"] = names if lenient else F.json_object_keys(raw.cast("string"))
    return F.struct(*(column.alias(name) for name, column in columns.items() if column is not None))


def read(raw: Column, parsed: Column, part: Part) -> Column:
    """The object's columns, and what is wrong with it."""
    found = parsed["objects"]
    object_ = F.get(F.map_values(found[_END]), F.lit(0))
    whole = found[_RAW].isNull() & (F.map_keys(found[_END]) == F.array(F.lit(""), F.lit(_END)))
    right = whole & object_.isNotNull() & utf8(raw) & ~exact.half_characters(raw)
    if part.json == "strict":
        right = right & _exactly(parsed["names"], part)
    fields, names = _fields(part), parsed["names"] if _named(part) else None
    longer = exact.bearing(fields)
    again = _chosen(parsed["again"], longer, names, part) if longer else None
    asked = {name: exact.asked(kind) for name, kind in fields.items()}
    kinds = {name: fields[name] for name in part.columns if name not in _loose(part)}
    columns = _chosen(object_, asked, names, part)
    read_ = exact.columns(columns, kinds, raw.cast("string"), again)
    given = F.struct(F.coalesce(right, F.lit(False)).alias("right"), columns.alias("columns"), read_.alias("read"))
    # Of an array of one: else Spark would convert the columns again for each use.
    return F.get(F.transform(F.array(given), lambda it: _told(raw, it, part)), F.lit(0))


def _told(raw: Column, given: Column, part: Part) -> Column:
    """A result of what was `given`: whether the text is an object as it is asked for (`right`), its `columns` as they
    were asked for, and as they are `read`.
    """
    texts, read = {name: given["columns"][name] for name in _loose(part)}, given["read"]
    columns = {
        name: _from_text(texts[name], kind) if name in texts else read["struct"][name]
        for name, kind in part.columns.items()
    }
    good = reduce(and_, (text.isNull() | columns[name].isNotNull() for name, text in texts.items()), given["right"])
    what = f"a JSON object of {'exactly ' if part.json == 'strict' else ''}{typed(part.columns)}"
    told = F.concat(F.lit(f"the {part.name} is not {what}: "), shown(raw.cast("string")))
    problem = F.when(~good, told).when(read["wrong"].isNotNull(), F.concat(F.lit(f"the {part.name}'s "), read["wrong"]))
    struct = F.when(good & read["wrong"].isNull(), F.struct(*(it.alias(name) for name, it in columns.items())))
    return result(struct, F.when(raw.isNotNull(), problem))


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


def _chosen(object_: Column, kinds: Mapping[str, str], names: Column | None, part: Part) -> Column:
    """Of an object with fields of these kinds that of each column: of several names the first that is there."""
    if names is None or not part.renamed:
        return object_
    places = {name: f"f{n}" for n, name in enumerate(kinds)}  # names may differ in case alone
    numbered = object_.cast(f"struct<{', '.join(f'{places[name]}: {kind}' for name, kind in kinds.items())}>")
    found = []
    for column in (name for name in part.columns if name in kinds):
        first, *others = _names(column, part)
        value = F.when(F.array_contains(names, first), numbered[places[first]])
        for name in others:
            value = value.when(F.array_contains(names, name), numbered[places[name]])
        found.append(value.alias(column))
    return F.when(object_.isNotNull(), F.struct(*found))


def _exactly(names: Column, part: Part) -> Column:
    """Whether each column has one field, and there is no other."""
    there = [F.arrays_overlap(names, F.array(*(F.lit(n) for n in _names(it, part)))) for it in part.columns]
    return reduce(and_, there, F.size(names) == len(part.columns))


def _from_text(text: Column, kind: str) -> Column:
    """A number or boolean from its text; Jackson gives NaN and Infinity in quotes."""
    return F.regexp_replace(text, '^"(NaN|-?Infinity)"$', "$1").try_cast(kind)
