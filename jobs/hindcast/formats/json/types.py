"""Types of columns as trees that Spark's workers read without a parser of types."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from sqlglot import expressions as exp

from hindcast.formats.record_part import quote_name

WHOLE_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""The bits of whole numbers, by type."""

_KIND = exp.DataType.Type
_RENAMED = {_KIND.TEXT: "string", _KIND.TIMESTAMPTZ: "timestamp"}


class FieldType(NamedTuple):
    """The type of a column, of a field or of an array's elements.

    `kind`: its name without parameters (`variant`: the text of any value, with the digits of a number as written);
    `name`: as messages write it; `digits`, `scale`: of a decimal; `fields`: of a struct, by name; `element`: of an
    array, else empty.
    """

    kind: str
    name: str
    digits: int = 0
    scale: int = 0
    fields: tuple[tuple[str, FieldType], ...] = ()
    element: tuple[FieldType, ...] = ()

    @property
    def ddl(self) -> str:
        """The type in Spark's DDL."""
        if self.kind == "struct":
            return f"struct<{', '.join(f'{quote_name(name)}: {it.ddl}' for name, it in self.fields)}>"
        if self.kind == "array":
            return f"array<{self.element[0].ddl}>"
        return "string" if self.kind == "variant" else self.name


@cache
def parse_type(kind: str) -> FieldType:
    """Return the tree of a type in Spark's DDL."""
    return _convert_type(exp.DataType.build(kind, dialect="spark"))


def _convert_type(type_: exp.DataType) -> FieldType:
    name = type_.sql(dialect="spark").lower().replace(", ", ",")
    match type_.this:
        case _KIND.DECIMAL:
            digits, scale = [*(int(it.name) for it in type_.expressions), *(10, 0)[len(type_.expressions) :]]
            return FieldType("decimal", name, digits, scale)
        case _KIND.STRUCT:
            return FieldType(
                "struct", name, fields=tuple((it.name, _convert_type(it.args["kind"])) for it in type_.expressions)
            )
        case _KIND.ARRAY:
            return FieldType("array", name, element=(_convert_type(type_.expressions[0]),))
    return FieldType(_RENAMED.get(type_.this, type_.this.value.lower()), name)
