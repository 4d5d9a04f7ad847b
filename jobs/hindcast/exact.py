"""JSON values as exactly what was sent, or a problem: nothing is rounded, cut off, wrapped around or guessed.

Spark's own JSON parser rounds decimals, takes 200 for the tinyint -56, 1e999 for infinity, "12:30" for that time of
today, "2026-01-01 and more" for a date; and a decimal of 1e999999999 keeps it busy for ever. So it is asked for wider
types or texts (`asked`), and what it gives is converted here (`read`).

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

from collections.abc import Mapping
from functools import cache

from pyspark.sql import Column
from pyspark.sql import functions as F
from sqlglot import expressions as exp

_KIND = exp.DataType.Type
_TEXTS = {_KIND.DECIMAL, _KIND.DATE, _KIND.TIMESTAMP, _KIND.TIMESTAMPTZ}
_LONGEST = 128
"""So many characters a number may have: Java takes the square of their number of steps."""

_LONG = "[0-9.]{16}"
"""Numbers that a double does not keep: of records with one, decimals are read a second time, as variants."""
_TOO_LONG = r"(?<![0-9.])(?:[1-9][0-9.]{39}|0\.[0-9]{39}|[0-9][0-9.]{15,}[eE])"
"""Numbers that a variant does not keep either."""
_END = r"(?![\s\S])"
"""The end of a text; $ would also be before its last line feed."""
_PLAIN = r"^[-+]?[0-9]+(?:\.(?=[0-9])[0-9]{{0,{scale}}}0*)?" + _END
_POWER = r"^[-+]?([0-9]{1,20})(?:\.([0-9]{1,20}))?[eE]([+-]?[0-9]{1,2})" + _END
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}" + _END
_MOMENT = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?)?"
    + _END
)
_SECONDS = "^-?[0-9]{5,12}" + _END
_FIRST, _LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"


def asked(kind: str) -> str:
    """The type that Spark's JSON parser is asked for, given that of a column.

    >>> asked("decimal(8,2)"), asked("array<struct<x: tinyint>>"), asked("int")
    ('string', 'array<struct<`x`: smallint>>', 'int')
    """
    return _asked(_parsed(kind), "binary")


def columns(found: Column, kinds: Mapping[str, str], raw: Column, again: Column | None) -> Column:
    """A JSON object as `struct`, its columns, and `wrong`: what is wrong with the first one that is not of its type.

    `found`: the object as `asked` for; `again`: what `long_numbers` gave for it, of the same text `raw`.
    """
    if not checks(kinds):
        struct = F.struct(*(found[name].alias(name) for name in kinds))
        return F.struct(struct.alias("struct"), F.lit(None).cast("string").alias("wrong"))

    def told(object_: Column) -> Column:
        read = {name: _column(object_, name, kind, raw, again) for name, kind in kinds.items()}
        problems = [problem for _, problem in read.values() if problem is not None]
        struct = F.struct(*(value.alias(name) for name, (value, _) in read.items()))
        return F.struct(struct.alias("struct"), F.coalesce(*problems).alias("wrong"))

    if not any(part.this in _TEXTS for kind in kinds.values() for part in _parsed(kind).find_all(exp.DataType)):
        return told(found)
    # Of an array of one: else its code would stand there for each use of each text, and soon be more than Java takes.
    return F.get(F.transform(F.array(found), told), F.lit(0))


def _column(object_: Column, name: str, kind: str, raw: Column, again: Column | None) -> tuple[Column, Column | None]:
    """The value of one column, and what is wrong with it."""
    type_ = _parsed(kind)
    value, problem = _read(object_[name], type_, name, raw)
    if again is None or not _bears_decimals(type_):
        return value, problem
    # Two texts of one number: the second is exact, also where the first is not.
    other, its_problem = _read(again[name], type_, name, raw, base64=True)
    lost = object_[name].isNotNull() & (again[name].isNull() | raw.rlike(_too_long({name: kind})))
    told = F.when(lost, F.lit(f"{name} has a number of more digits than decimals have")).otherwise(
        _or_null(its_problem)
    )
    long_ = _is_long(raw)
    return F.when(long_, other).otherwise(value), F.when(long_, told).otherwise(_or_null(problem))


def long_numbers(raw: Column, kinds: Mapping[str, str]) -> Column | None:
    """The columns with decimals of a JSON text that has numbers of many digits, as `asked` for; null for another text.

    None if there are no such columns. Null too where a field stands twice.
    """
    if not bearing(kinds):
        return None
    fields = ", ".join(f"`{name}`: {kind}" for name, kind in bearing(kinds).items())
    text = F.when(_is_long(raw), raw.cast("string"))
    return F.try_variant_get(F.try_parse_json(text), "$", f"struct<{fields}>")


def bearing(kinds: Mapping[str, str]) -> dict[str, str]:
    """The columns with decimals, with the types that `long_numbers` gives them."""
    return {name: _asked(_parsed(kind), "string") for name, kind in kinds.items() if _bears_decimals(_parsed(kind))}


def checks(kinds: Mapping[str, str]) -> bool:
    """Whether some of these columns have to be converted."""
    return any(_read(F.col("c"), _parsed(kind), "c", F.col("c"))[1] is not None for kind in kinds.values())


def half_characters(raw: Column) -> Column:
    r"""Whether a JSON text has half a character: \ud83d without \ude00 after it, or the reverse. Java makes ? of it."""
    text = raw.cast("string")
    escapes = F.regexp_replace(F.regexp_replace(text, r"\\\\", ""), r"\\u[dD][89abAB]..\\u[dD][c-fC-F]", "")
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
            value, problem = _read(text, type_, "", text)
            return value if problem is None else F.when(problem.isNull(), value)


@cache
def _parsed(kind: str) -> exp.DataType:
    return exp.DataType.build(kind, dialect="spark")


def _asked(kind: exp.DataType, binary: str) -> str:
    match kind.this:
        case _KIND.ARRAY:
            return f"array<{_asked(kind.expressions[0], binary)}>"
        case _KIND.STRUCT:
            return f"struct<{', '.join(f'`{name}`: {_asked(it, binary)}' for name, it in _fields(kind).items())}>"
        case _KIND.TINYINT:
            return "smallint"
        case _KIND.BINARY:
            return binary
        case it if it in _TEXTS:
            return "string"
    return kind.sql(dialect="spark").lower()


def _fields(kind: exp.DataType) -> dict[str, exp.DataType]:
    return {field.name: field.args["kind"] for field in kind.expressions}


def _bears_decimals(kind: exp.DataType) -> bool:
    return any(part.this is _KIND.DECIMAL for part in kind.find_all(exp.DataType))


def _too_long(kinds: Mapping[str, str]) -> str:
    """What a JSON text has in which the number of a decimal, or one of an array of them, is too long."""
    names = sorted({leaf for name, kind in kinds.items() for leaf in _decimals(name, _parsed(kind))})
    return rf"""\"(?:{"|".join(names)})\"\s*:[-\[\]0-9.eE+,\snul\"]*?{_TOO_LONG}"""


def _decimals(name: str, kind: exp.DataType) -> list[str]:
    """The fields whose values are decimals, or arrays of them."""
    match kind.this:
        case _KIND.ARRAY:
            return _decimals(name, kind.expressions[0])
        case _KIND.STRUCT:
            return [leaf for field, it in _fields(kind).items() for leaf in _decimals(field, it)]
    return [name] if kind.this is _KIND.DECIMAL else []


def _is_long(raw: Column) -> Column:
    return raw.cast("string").rlike(_LONG)


def _read(
    found: Column, kind: exp.DataType, path: str, raw: Column, *, base64: bool = False
) -> tuple[Column, Column | None]:
    """A value as it was asked for, as one of its type, and what is wrong with it; no problem: nothing can be.

    `base64`: binaries are still texts.
    """
    match kind.this:
        case _KIND.ARRAY:
            return _read_array(found, kind, path, raw, base64=base64)
        case _KIND.STRUCT:
            return _read_struct(found, kind, path, raw, base64=base64)
        case _KIND.BINARY:
            return F.unbase64(found) if base64 else found, None
        case _KIND.TEXT:
            return found, _wrong(found.isin('"Infinity"', '"-Infinity"'), path, "a number that is none", found)
        case _KIND.FLOAT | _KIND.DOUBLE:
            told = F.lit("infinite")
            return found, _wrong(found.isNotNull() & ~_finite(found), path, f"not a {_named(kind)}", told)
        case _KIND.TINYINT:
            return found.try_cast("tinyint"), _wrong(~found.between(-128, 127), path, "not a tinyint", found)
        case it if it in _TEXTS:
            value = {_KIND.DECIMAL: _decimal, _KIND.DATE: _date}.get(it, _moment)(found, kind, raw)
            return value, _wrong(found.isNotNull() & value.isNull(), path, f"not a {_named(kind)}", found)
    return found, None


def _read_array(
    found: Column, kind: exp.DataType, path: str, raw: Column, *, base64: bool
) -> tuple[Column, Column | None]:
    inner = kind.expressions[0]
    plain, problem = _read(found, inner, path, raw, base64=base64)
    if problem is None and plain is found:
        return found, None
    values = F.transform(found, lambda it: _read(it, inner, f"{path}[]", raw, base64=base64)[0])
    if problem is None:
        return values, None
    problems = F.transform(found, lambda it: _or_null(_read(it, inner, f"{path}[]", raw, base64=base64)[1]))
    return values, F.get(F.filter(problems, lambda it: it.isNotNull()), F.lit(0))


def _read_struct(
    found: Column, kind: exp.DataType, path: str, raw: Column, *, base64: bool
) -> tuple[Column, Column | None]:
    parts = {n: _read(found[n], it, f"{path}.{n}", raw, base64=base64) for n, it in _fields(kind).items()}
    problems = [problem for _, problem in parts.values() if problem is not None]
    values = F.when(found.isNotNull(), F.struct(*(value.alias(name) for name, (value, _) in parts.items())))
    return values, F.coalesce(*problems) if problems else None


def _or_null(problem: Column | None) -> Column:
    return F.lit(None).cast("string") if problem is None else problem


def _wrong(condition: Column, path: str, what: str, found: Column) -> Column:
    shown = F.substring(found.cast("string"), 1, 60)
    return F.when(condition, F.concat(F.lit(f"{path} is {what}: "), shown))


def _named(kind: exp.DataType) -> str:
    return kind.sql(dialect="spark").lower().replace(", ", ",")


def _finite(number: Column) -> Column:
    return (F.abs(number) < F.lit(float("inf"))) & ~F.isnan(number)


def _decimal(text: Column, kind: exp.DataType, raw: Column) -> Column:
    """A decimal of no more digits than its type has; so short that Java does not labour over it."""
    scale = int(kind.expressions[1].name) if len(kind.expressions) > 1 else 0
    exact = F.length(text) <= _LONGEST
    plain = text.rlike(_PLAIN.format(scale=scale)) & ~_underflown(text, raw)
    power = text.rlike(_POWER) & (_digits_behind(text) <= scale)
    return F.when(exact & (plain | power), text.try_cast(_named(kind)))


def _underflown(text: Column, raw: Column) -> Column:
    """Whether a zero may have been 1e-999: the parser takes numbers with an exponent for doubles."""
    return text.isin("0.0", "-0.0") & raw.cast("string").rlike("[eE]-[0-9]{3}")


def _digits_behind(text: Column) -> Column:
    """How many digits behind the point a number with an exponent needs: 1500e-2 needs none, 15e-1 one."""
    whole, behind, power = (F.regexp_extract(text, _POWER, n) for n in (1, 2, 3))
    mantissa = F.concat(whole, behind)
    zeros = F.length(mantissa) - F.length(F.regexp_replace(mantissa, "0+$", ""))
    needed = F.length(behind) - zeros - power.try_cast("int")
    return F.when(zeros == F.length(mantissa), F.lit(0)).otherwise(needed)


def _date(text: Column, _kind: exp.DataType, _raw: Column) -> Column:
    day = F.when(text.rlike(_DATE), text.try_cast("date"))
    return F.when(day >= F.lit(_FIRST).cast("date"), day)


def _moment(text: Column, _kind: exp.DataType, _raw: Column) -> Column:
    moment = F.when(text.rlike(_MOMENT), text.try_cast("timestamp"))
    counted = F.when(text.rlike(_SECONDS), F.timestamp_seconds(text.try_cast("bigint")))
    either = F.coalesce(moment, counted)
    return F.when(either.between(F.lit(_FIRST).cast("timestamp"), F.lit(_LAST).cast("timestamp")), either)
