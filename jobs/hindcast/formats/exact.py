"""JSON values exactly as sent, or a problem: nothing is rounded, cut off, wrapped around or guessed.

Spark's own JSON parser rounds decimals, takes 200 for the tinyint -56, 1e999 for infinity, "12:30" for that time of
today, "2026-01-01 and more" for a date; and a decimal of 1e999999999 keeps it busy for ever. So it is asked for wider
types or texts (`parser_type`), and what it gives is converted here (`convert_value`, `describe_problem`).

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


def parser_type(kind: str) -> str:
    """Return the type that Spark's JSON parser must read for a column type.

    >>> parser_type("decimal(8,2)"), parser_type("array<struct<x: tinyint>>"), parser_type("int")
    ('string', 'array<struct<`x`: smallint>>', 'int')
    """
    return _parser_type(_parse_type(kind))


def has_decimals(kind: str) -> bool:
    """Return whether a column type is a decimal or contains one."""
    return _has_decimals(_parse_type(kind))


def can_lose_digits(raw: Column) -> Column:
    """Return whether a JSON text may have a number that a double cannot keep; see `quote_numbers`."""
    return raw.cast("string").rlike(_LOSSY)


def quote_numbers(text: Column) -> Column:
    """Return a JSON text, lenient or not, with its numbers as strings, so that the parser keeps them as written.

    {"n": 1e-400, "text": "2, 3"} becomes {"n": "1e-400", "text": "2, 3"}
    """
    return F.regexp_replace(text, _NUMBERS, '$1"$2"')


def quoted_parser_type(kind: str) -> str:
    """Return the `parser_type` for a text of `quote_numbers`: only the decimals, and structs with only their decimals.

    >>> quoted_parser_type("decimal(8,2)"), quoted_parser_type("struct<x: int, y: array<decimal(4,1)>>")
    ('string', 'struct<`y`: array<string>>')
    """
    return _quoted_parser_type(_parse_type(kind))


def restore_numbers(found: Column, digits: Column, kind: str) -> Column:
    """Return a value of `parser_type` with its numbers as written; `digits` is the same value of `quote_numbers`."""
    return _restore_numbers(found, digits, _parse_type(kind))


def convert_value(found: Column, kind: str) -> Column:
    """Return a value of `parser_type` in its column's type; null, also within, if it is invalid."""
    return _convert_value(found, _parse_type(kind))


def describe_problem(found: Column, value: Column, kind: str, path: str) -> Column:
    """Return a text that says what is wrong with a value of `parser_type`; null if nothing is.

    `value` is its `convert_value`; `path` its name in the text.
    """
    return _describe_problem(found, value, _parse_type(kind), path)


def has_half_characters(raw: Column) -> Column:
    r"""Return whether a JSON text has half a character, \ud83d without \ude00 or the reverse. Java makes ? of it."""
    text = raw.cast("string")
    escapes = F.regexp_replace(F.regexp_replace(text, r"\\\\", "_"), r"\\u[dD][89abAB]..\\u[dD][c-fC-F]", "")
    return F.contains(text, F.lit(r"\u")) & escapes.rlike(r"\\u[dD][89a-fA-F]")


def parse_text(text: Column, kind: str) -> Column:
    """Return a text, such as a record's key, as a value of a column type; null if it is not exactly one.

    " 42" and "4e1" are no int, "yes" is no boolean, "12:30" no timestamp, "1.005" no decimal(8,2).
    """
    type_ = _parse_type(kind)
    match type_.this:
        case _KIND.TEXT:
            return text
        case _KIND.TINYINT | _KIND.SMALLINT | _KIND.INT | _KIND.BIGINT:
            return F.when(text.rlike("^-?[0-9]{1,20}" + _END), text.try_cast(kind))
        case _KIND.BOOLEAN:
            return F.when(text.isin("true", "false"), text.try_cast(kind))
        case _KIND.FLOAT | _KIND.DOUBLE:
            number = F.when(text.rlike(r"^-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?" + _END), text.try_cast(kind))
            return F.when(_is_finite(number), number)
        case _:
            return _convert_value(text, type_)


def decimal_places(number: Column) -> Column:
    """Return how many digits after the point a number needs: 1.50 (as text) needs one, 15e-1 too, 1500e-2 none."""
    mantissa = F.regexp_replace(number, "[eE].*|[^0-9]", "")
    needed = F.regexp_replace(mantissa, "0+$", "")
    behind = F.length(F.regexp_extract(number, r"\.([0-9]*)", 1)) - F.length(mantissa) + F.length(needed)
    power = F.regexp_extract(number, "[eE](.*)", 1).try_cast("int")
    return F.when(needed == "", F.lit(0)).otherwise(behind - F.coalesce(power, F.lit(0)))


def is_in_years(value: Column, kind: str) -> Column:
    """Return whether a date or a timestamp is in the years 1 to 9999, as Python requires."""
    return value.between(F.lit(_FIRST).cast(kind), F.lit(_LAST).cast(kind))


@cache
def _parse_type(kind: str) -> exp.DataType:
    return exp.DataType.build(kind, dialect="spark")


def _parser_type(kind: exp.DataType) -> str:
    match kind.this:
        case _KIND.ARRAY:
            return f"array<{_parser_type(kind.expressions[0])}>"
        case _KIND.STRUCT:
            return f"struct<{', '.join(f'`{name}`: {_parser_type(it)}' for name, it in _field_types(kind).items())}>"
        case _KIND.TINYINT:
            return "smallint"
        case _KIND.BINARY:
            return "variant"
        case it if it in _TEXTS:
            return "string"
    return kind.sql(dialect="spark").lower()


def _field_types(kind: exp.DataType) -> dict[str, exp.DataType]:
    return {field.name: field.args["kind"] for field in kind.expressions}


def _has_decimals(kind: exp.DataType) -> bool:
    return _has_type(kind, (_KIND.DECIMAL,))


def _quoted_parser_type(kind: exp.DataType) -> str:
    match kind.this:
        case _KIND.ARRAY:
            return f"array<{_quoted_parser_type(kind.expressions[0])}>"
        case _KIND.STRUCT:
            fields = {name: it for name, it in _field_types(kind).items() if _has_decimals(it)}
            return f"struct<{', '.join(f'`{name}`: {_quoted_parser_type(it)}' for name, it in fields.items())}>"
    return "string"


def _restore_numbers(found: Column, digits: Column, kind: exp.DataType) -> Column:
    if _quoted_parser_type(kind) == _parser_type(kind):
        return digits
    if kind.this is _KIND.ARRAY:
        inner = kind.expressions[0]
        return F.zip_with(found, digits, lambda it, its: _restore_numbers(it, its, inner))
    fields = [
        (_restore_numbers(found[name], digits[name], it) if _has_decimals(it) else found[name]).alias(name)
        for name, it in _field_types(kind).items()
    ]
    return F.when(found.isNotNull(), F.struct(*fields))


def _convert_value(found: Column, kind: exp.DataType) -> Column:
    match kind.this:
        case _KIND.ARRAY if _has_type(kind, _CONVERTED):
            inner = kind.expressions[0]
            return F.transform(found, lambda it: _convert_value(it, inner))
        case _KIND.STRUCT if _has_type(kind, _CONVERTED):
            values = [_convert_value(found[name], it).alias(name) for name, it in _field_types(kind).items()]
            return F.when(found.isNotNull(), F.struct(*values))
        case _KIND.BINARY:
            return _decode_base64(found)
        case _KIND.TINYINT:
            return found.try_cast("tinyint")
        case _KIND.DECIMAL:
            return _parse_decimal(found, kind)
        case _KIND.DATE:
            return _parse_date(found)
        case _KIND.TIMESTAMP | _KIND.TIMESTAMPTZ:
            return _parse_timestamp(found)
    return found


def _describe_problem(found: Column, value: Column, kind: exp.DataType, path: str) -> Column:
    match kind.this:
        case _KIND.ARRAY if _has_type(kind, _CHECKED):
            inner = kind.expressions[0]
            problems = F.zip_with(found, value, lambda it, its: _describe_problem(it, its, inner, f"{path}[]"))
            return F.get(F.filter(problems, lambda it: it.isNotNull()), F.lit(0))
        case _KIND.STRUCT:
            return F.coalesce(
                *(_describe_problem(found[n], value[n], it, f"{path}.{n}") for n, it in _field_types(kind).items())
            )
        case _KIND.TEXT:
            return _describe_where(found.isin('"Infinity"', '"-Infinity"'), path, "a number that is none", found)
        case _KIND.FLOAT | _KIND.DOUBLE:
            problems = F.lit("infinite")
            return _describe_where(found.isNotNull() & ~_is_finite(found), path, f"not a {_type_name(kind)}", problems)
        case it if it in _CONVERTED:
            return _describe_where(found.isNotNull() & value.isNull(), path, f"not a {_type_name(kind)}", found)
    return F.lit(None).cast("string")


def _has_type(kind: exp.DataType, types: Container[exp.DType]) -> bool:
    return any(part.this in types for part in kind.find_all(exp.DataType))


def _describe_where(condition: Column, path: str, what: str, found: Column) -> Column:
    shown = F.substring(found.cast("string"), 1, 60)
    return F.when(condition, F.concat(F.lit(f"{path} is {what}: "), shown))


def _type_name(kind: exp.DataType) -> str:
    return kind.sql(dialect="spark").lower().replace(", ", ",")


def _is_finite(number: Column) -> Column:
    return (F.abs(number) < F.lit(float("inf"))) & ~F.isnan(number)


def _parse_decimal(text: Column, kind: exp.DataType) -> Column:
    """Return a decimal with no more digits than its type has; so short that Java is not slow with it."""
    scale = int(kind.expressions[1].name) if len(kind.expressions) > 1 else 0
    power = text.rlike(_POWER) & (decimal_places(text) <= scale)
    right = text.rlike(_PLAIN.format(scale=scale)) | power
    return F.when((F.length(text) <= _LONGEST) & right, text.try_cast(_type_name(kind)))


def _decode_base64(found: Column) -> Column:
    """Return the bytes of base64 with all its padding; Java's own decoder ignores spaces and zeros."""
    text = F.when(F.schema_of_variant(found) == "STRING", F.try_variant_get(found, "$", "string"))
    right = text.rlike("^[A-Za-z0-9+/]*={0,2}" + _END) & (F.length(text) % 4 == 0)
    return F.when(right, F.unbase64(text))


def _parse_date(text: Column) -> Column:
    day = F.when(text.rlike(_DATE), text.try_cast("date"))
    return F.when(is_in_years(day, "date"), day)


def _parse_timestamp(text: Column) -> Column:
    moment = F.when(text.rlike(_MOMENT), text.try_cast("timestamp"))
    counted = F.when(text.rlike(_SECONDS), F.timestamp_seconds(text.try_cast("bigint")))
    either = F.coalesce(moment, counted)
    return F.when(is_in_years(either, "timestamp"), either)
