"""Texts, such as keys and headers, as values of a column type: exactly as sent, or null. As Spark expressions.

Spark's own casts round decimals, take "12:30" for that time of today, "2026-01-01 and more" for a date; and a decimal
of 1e999999999 keeps it busy for ever. The rules are those of JSON's texts (`json.values`).
"""

from __future__ import annotations

from functools import cache

from pyspark.sql import Column
from pyspark.sql import functions as F
from sqlglot import expressions as exp

_KIND = exp.DataType.Type
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
_FIRST, _LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"


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
        case _KIND.DECIMAL:
            return _parse_decimal(text, type_)
        case _KIND.DATE:
            return _parse_date(text)
    return _parse_timestamp(text)


def decimal_places(number: Column) -> Column:
    """Return how many digits after the point a number needs: 1.50 (as text) needs one, 15e-1 too, 1500e-2 none."""
    mantissa = F.regexp_replace(number, "[eE].*|[^0-9]", "")
    needed = F.regexp_replace(mantissa, "(?<!0)0+$", "")
    behind = F.length(F.regexp_extract(number, r"\.([0-9]*)", 1)) - F.length(mantissa) + F.length(needed)
    power = F.regexp_extract(number, "[eE](.*)", 1).try_cast("int")
    return F.when(needed == "", F.lit(0)).otherwise(behind - F.coalesce(power, F.lit(0)))


def is_in_years(value: Column, kind: str) -> Column:
    """Return whether a date or a timestamp is in the years 1 to 9999, as Python requires."""
    return value.between(F.lit(_FIRST).cast(kind), F.lit(_LAST).cast(kind))


@cache
def _parse_type(kind: str) -> exp.DataType:
    return exp.DataType.build(kind, dialect="spark")


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


def _parse_date(text: Column) -> Column:
    day = F.when(text.rlike(_DATE), text.try_cast("date"))
    return F.when(is_in_years(day, "date"), day)


def _parse_timestamp(text: Column) -> Column:
    moment = F.when(text.rlike(_MOMENT), text.try_cast("timestamp"))
    counted = F.when(text.rlike(_SECONDS), F.timestamp_seconds(text.try_cast("bigint")))
    either = F.coalesce(moment, counted)
    return F.when(is_in_years(either, "timestamp"), either)
