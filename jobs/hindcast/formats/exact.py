"""JSON values as exactly what was sent, or a problem: nothing is rounded, cut off, wrapped around or guessed.

Spark's own JSON parser rounds decimals, takes 200 for the tinyint -56, 1e999 for infinity, "12:30" for that time of
today, "2026-01-01 and more" for a date; and a decimal of 1e999999999 keeps it busy for ever. So it is asked for wider
types or texts (`asked`), and what it gives is converted here (`value`, `problem`).

| column type | what is taken |
| --- | --- |
| decimal(p,s) | a number, or its text, that needs no more than p digits, s of them behind the point |
| tinyint, smallint, int, bigint | a whole number that fits, without point and exponent |
| float, double | a number that is finite as one; it is the nearest one |
| date | 2026-01-31, years 1 to 9999 |
| timestamp | ISO 8601, UTC unless it says otherwise, years 1 to 9999; what is below a microsecond is cut |
| | or seconds since 1970, of 5 to 12 digits |
| boolean, binary | true, false; base64 |
| string | a string; of another value its JSON text, as Spark writes it |
"""

from __future__ import annotations

from collections.abc import Container
from functools import cache

from pyspark.sql import Column
from pyspark.sql import functions as F
from sqlglot import expressions as exp

_KIND = exp.DataType.Type
_TEXTS = {_KIND.DECIMAL, _KIND.DATE, _KIND.TIMESTAMP, _KIND.TIMESTAMPTZ}
_CONVERTED = {*_TEXTS, _KIND.TINYINT, _KIND.BINARY}
_CHECKED = {*_CONVERTED, _KIND.TEXT, _KIND.FLOAT, _KIND.DOUBLE}
_LONGEST = 128
"""So many characters a number may have: Java takes the square of their number of steps."""

_END = r"(?![\s\S])"
"""The end of a text; $ would also be before its last line feed."""
_PLAIN = r"^[-+]?[0-9]+(?:\.(?=[0-9])[0-9]{{0,{scale}}}0*)?" + _END
_POWER = r"^[-+]?[0-9]{1,20}(?:\.[0-9]{1,20})?[eE][+-]?[0-9]{1,2}" + _END
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}" + _END
_MOMENT = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?)?"
    + _END
)
_SECONDS = "^-?[0-9]{5,12}" + _END
_LOSSY = r"[0-9.]{16}|[0-9.][eE][-+]?[0-9]{3}"
"""Numbers that a double does not keep, and texts that look like it: then numbers are read as they were written."""
_BETWEEN = r"""\s"'{}\[\],:/"""
_NUMBER = rf"-?[0-9][-+0-9.eE]*+(?![^{_BETWEEN}])"
_QUOTED = "|".join(rf"{q}[^{q}\\]*+(?:\\[\s\S][^{q}\\]*+)*+{q}" for q in "\"'")
_COMMENT = r"/\*[\s\S]*?\*/|//[^\n\r]*+"
_NUMBERS = rf"\G((?:{_QUOTED}|{_COMMENT}|[\s{{}}\[\],:]++|(?!{_NUMBER})[^{_BETWEEN}]++)*+)({_NUMBER})"
"""A number, with what stands between it and the one before."""
_FIRST, _LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"


def asked(kind: str) -> str:
    """The type that Spark's JSON parser is asked for, given that of a column.

    >>> asked("decimal(8,2)"), asked("array<struct<x: tinyint>>"), asked("int")
    ('string', 'array<struct<`x`: smallint>>', 'int')
    """
    return _asked(_parsed(kind))


def bears_decimals(kind: str) -> bool:
    """Whether a column's values are decimals, or have some in them."""
    return _bears_decimals(_parsed(kind))


def lossy(raw: Column) -> Column:
    """Whether a JSON text may have a number that a double does not keep: then its decimals are read from `quoted`."""
    return raw.cast("string").rlike(_LOSSY)


def quoted(text: Column) -> Column:
    """A JSON text, lenient or not, with its numbers as strings, so that the parser leaves them as they were written.

    {"n": 1e-400, "text": "2, 3"} becomes {"n": "1e-400", "text": "2, 3"}
    """
    return F.regexp_replace(text, _NUMBERS, '$1"$2"')


def asked_quoted(kind: str) -> str:
    """What is `asked` for of a text `quoted`: of a column with decimals these, and of structs no more than these.

    >>> asked_quoted("decimal(8,2)"), asked_quoted("struct<x: int, y: array<decimal(4,1)>>")
    ('string', 'struct<`y`: array<string>>')
    """
    return _asked_quoted(_parsed(kind))


def as_written(found: Column, digits: Column, kind: str) -> Column:
    """What was `asked` for, with the numbers as they were written: `digits`, the same column of a text `quoted`."""
    return _as_written(found, digits, _parsed(kind))


def value(found: Column, kind: str) -> Column:
    """What was `asked` for, as a value of its column's type; what is none (`problem`) is null, also within it."""
    return _value(found, _parsed(kind))


def problem(found: Column, value: Column, kind: str, path: str) -> Column:
    """What is wrong with what was `asked` for, given its `value`; null: nothing."""
    return _problem(found, value, _parsed(kind), path)


def half_characters(raw: Column) -> Column:
    r"""Whether a JSON text has half a character: \ud83d without \ude00 after it, or the reverse. Java makes ? of it."""
    text = raw.cast("string")
    escapes = F.regexp_replace(F.regexp_replace(text, r"\\\\", "_"), r"\\u[dD][89abAB]..\\u[dD][c-fC-F]", "")
    return F.contains(text, F.lit(r"\u")) & escapes.rlike(r"\\u[dD][89a-fA-F]")


def of_text(text: Column, kind: str) -> Column:
    """A text as a value of a column type, null where it is not exactly one; of a record's key, for example.

    " 42" and "4e1" are no int, "yes" is no boolean, "12:30" no timestamp, "1.005" no decimal(8,2).
    """
    type_ = _parsed(kind)
    match type_.this:
        case _KIND.TEXT:
            return text
        case _KIND.TINYINT | _KIND.SMALLINT | _KIND.INT | _KIND.BIGINT:
            return F.when(text.rlike("^-?[0-9]{1,20}" + _END), text.try_cast(kind))
        case _KIND.BOOLEAN:
            return F.when(text.isin("true", "false"), text.try_cast(kind))
        case _KIND.FLOAT | _KIND.DOUBLE:
            number = F.when(text.rlike(r"^-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?" + _END), text.try_cast(kind))
            return F.when(_finite(number), number)
        case _:
            return _value(text, type_)


def digits_behind(number: Column) -> Column:
    """How many digits behind the point a number needs, given its text: 1.50 needs one, 15e-1 too, 1500e-2 none."""
    mantissa = F.regexp_replace(number, "[eE].*|[^0-9]", "")
    needed = F.regexp_replace(mantissa, "0+$", "")
    behind = F.length(F.regexp_extract(number, r"\.([0-9]*)", 1)) - F.length(mantissa) + F.length(needed)
    power = F.regexp_extract(number, "[eE](.*)", 1).try_cast("int")
    return F.when(needed == "", F.lit(0)).otherwise(behind - F.coalesce(power, F.lit(0)))


def in_years(value: Column, kind: str) -> Column:
    """Whether a date or a timestamp is one of the years 1 to 9999; Python has no others."""
    return value.between(F.lit(_FIRST).cast(kind), F.lit(_LAST).cast(kind))


@cache
def _parsed(kind: str) -> exp.DataType:
    return exp.DataType.build(kind, dialect="spark")


def _asked(kind: exp.DataType) -> str:
    match kind.this:
        case _KIND.ARRAY:
            return f"array<{_asked(kind.expressions[0])}>"
        case _KIND.STRUCT:
            return f"struct<{', '.join(f'`{name}`: {_asked(it)}' for name, it in _fields(kind).items())}>"
        case _KIND.TINYINT:
            return "smallint"
        case _KIND.BINARY:
            return "variant"
        case it if it in _TEXTS:
            return "string"
    return kind.sql(dialect="spark").lower()


def _fields(kind: exp.DataType) -> dict[str, exp.DataType]:
    return {field.name: field.args["kind"] for field in kind.expressions}


def _bears_decimals(kind: exp.DataType) -> bool:
    return _has(kind, (_KIND.DECIMAL,))


def _asked_quoted(kind: exp.DataType) -> str:
    match kind.this:
        case _KIND.ARRAY:
            return f"array<{_asked_quoted(kind.expressions[0])}>"
        case _KIND.STRUCT:
            fields = {name: it for name, it in _fields(kind).items() if _bears_decimals(it)}
            return f"struct<{', '.join(f'`{name}`: {_asked_quoted(it)}' for name, it in fields.items())}>"
    return "string"


def _as_written(found: Column, digits: Column, kind: exp.DataType) -> Column:
    if _asked_quoted(kind) == _asked(kind):
        return digits
    if kind.this is _KIND.ARRAY:
        inner = kind.expressions[0]
        return F.zip_with(found, digits, lambda it, its: _as_written(it, its, inner))
    fields = [
        (_as_written(found[name], digits[name], it) if _bears_decimals(it) else found[name]).alias(name)
        for name, it in _fields(kind).items()
    ]
    return F.when(found.isNotNull(), F.struct(*fields))


def _value(found: Column, kind: exp.DataType) -> Column:
    match kind.this:
        case _KIND.ARRAY if _has(kind, _CONVERTED):
            inner = kind.expressions[0]
            return F.transform(found, lambda it: _value(it, inner))
        case _KIND.STRUCT if _has(kind, _CONVERTED):
            values = [_value(found[name], it).alias(name) for name, it in _fields(kind).items()]
            return F.when(found.isNotNull(), F.struct(*values))
        case _KIND.BINARY:
            return _bytes(found)
        case _KIND.TINYINT:
            return found.try_cast("tinyint")
        case _KIND.DECIMAL:
            return _decimal(found, kind)
        case _KIND.DATE:
            return _date(found)
        case _KIND.TIMESTAMP | _KIND.TIMESTAMPTZ:
            return _moment(found)
    return found


def _problem(found: Column, value: Column, kind: exp.DataType, path: str) -> Column:
    match kind.this:
        case _KIND.ARRAY if _has(kind, _CHECKED):
            inner = kind.expressions[0]
            told = F.zip_with(found, value, lambda it, its: _problem(it, its, inner, f"{path}[]"))
            return F.get(F.filter(told, lambda it: it.isNotNull()), F.lit(0))
        case _KIND.STRUCT:
            return F.coalesce(*(_problem(found[n], value[n], it, f"{path}.{n}") for n, it in _fields(kind).items()))
        case _KIND.TEXT:
            return _wrong(found.isin('"Infinity"', '"-Infinity"'), path, "a number that is none", found)
        case _KIND.FLOAT | _KIND.DOUBLE:
            told = F.lit("infinite")
            return _wrong(found.isNotNull() & ~_finite(found), path, f"not a {_named(kind)}", told)
        case it if it in _CONVERTED:
            return _wrong(found.isNotNull() & value.isNull(), path, f"not a {_named(kind)}", found)
    return F.lit(None).cast("string")


def _has(kind: exp.DataType, types: Container[object]) -> bool:
    return any(part.this in types for part in kind.find_all(exp.DataType))


def _wrong(condition: Column, path: str, what: str, found: Column) -> Column:
    shown = F.substring(found.cast("string"), 1, 60)
    return F.when(condition, F.concat(F.lit(f"{path} is {what}: "), shown))


def _named(kind: exp.DataType) -> str:
    return kind.sql(dialect="spark").lower().replace(", ", ",")


def _finite(number: Column) -> Column:
    return (F.abs(number) < F.lit(float("inf"))) & ~F.isnan(number)


def _decimal(text: Column, kind: exp.DataType) -> Column:
    """A decimal of no more digits than its type has; so short that Java does not labour over it."""
    scale = int(kind.expressions[1].name) if len(kind.expressions) > 1 else 0
    power = text.rlike(_POWER) & (digits_behind(text) <= scale)
    right = text.rlike(_PLAIN.format(scale=scale)) | power
    return F.when((F.length(text) <= _LONGEST) & right, text.try_cast(_named(kind)))


def _bytes(found: Column) -> Column:
    """The bytes of base64 with all its padding; Java's own decoder passes over spaces, and zeros."""
    text = F.when(F.schema_of_variant(found) == "STRING", F.try_variant_get(found, "$", "string"))
    right = text.rlike("^[A-Za-z0-9+/]*={0,2}" + _END) & (F.length(text) % 4 == 0)
    return F.when(right, F.unbase64(text))


def _date(text: Column) -> Column:
    day = F.when(text.rlike(_DATE), text.try_cast("date"))
    return F.when(in_years(day, "date"), day)


def _moment(text: Column) -> Column:
    moment = F.when(text.rlike(_MOMENT), text.try_cast("timestamp"))
    counted = F.when(text.rlike(_SECONDS), F.timestamp_seconds(text.try_cast("bigint")))
    either = F.coalesce(moment, counted)
    return F.when(in_years(either, "timestamp"), either)
