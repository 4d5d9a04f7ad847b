"""Avro's rules for a schema beyond its types, as the parser in Spark has them: names, symbols, sizes, unions.

Pure, without Spark. A schema that breaks a rule is refused here, with the reason, and never reaches that parser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hindcast.common.json_values import JsonObject, JsonValue, list_objects
from hindcast.contract.bounds import FIXED_BYTES

NAMED = ("record", "enum", "fixed")


def full_name(schema: JsonObject, namespace: str | None) -> tuple[str, str | None]:
    """Return the full name of a named type, and the namespace inside it."""
    name = str(schema.get("name", ""))
    if "." in name:
        space = name.rpartition(".")[0] or None
        return name if space else name[1:], space
    inner = str(schema.get("namespace", namespace) or "") or None
    return (f"{inner}.{name}" if inner else name), inner


def check_schema(schema: JsonValue) -> Iterator[str]:
    """Yield what is wrong with a schema (parsed JSON) whose types are known: `has an enum 'E' without symbols`."""
    for kind in schema if isinstance(schema, list) else ():
        yield from ["has a union within a union"] if isinstance(kind, list) else check_schema(kind)
    if not isinstance(schema, dict):
        return
    kind = schema["type"]
    if kind in NAMED:
        yield from _check_named_type(schema)
    if kind == "record":
        yield from _check_record(schema)
    elif kind in ("array", "map"):
        yield from check_schema(schema["items" if kind == "array" else "values"])
    elif not isinstance(kind, str):
        yield "has a type whose own type is not a name: remove the outer one"


def _check_named_type(schema: JsonObject) -> Iterator[str]:
    kind, name, namespace = schema["type"], schema.get("name"), schema.get("namespace") or ""
    if not isinstance(name, str) or not name:
        yield f"has a {kind} without a name"
        return
    space, _, own = name.rpartition(".") if "." in name else (str(namespace), "", name)
    for part in (*(space.split(".") if space else ()), own):
        yield from _check_name(part)
    for alias in _list_aliases(schema):
        yield from _check_name(str(alias).rpartition(".")[2])
    yield from _check_aliases(f"the {kind} '{name}'", schema)
    if kind == "fixed":
        yield from _check_size(name, schema.get("size"))
    if kind == "enum":
        yield from _check_enum(name, schema)


def _check_enum(name: str, schema: JsonObject) -> Iterator[str]:
    symbols, default = schema.get("symbols"), schema.get("default")
    if not isinstance(symbols, list):
        yield f"has an enum '{name}' without symbols"
        return
    for symbol in symbols:
        yield from _check_name(str(symbol))
    if len(set(map(str, symbols))) < len(symbols):
        yield f"has an enum '{name}' with a symbol twice"
    if default is not None and default not in symbols:
        yield f"has an enum '{name}' whose default is not among its symbols"


def _check_record(schema: JsonObject) -> Iterator[str]:
    fields = list_objects(schema["fields"])
    names = [str(field["name"]) for field in fields]
    for name in names:
        yield from _check_name(name)
    for name in find_duplicates(names):
        yield f"has the field '{name}' twice"
    for field in fields:
        yield from _check_aliases(f"the field '{field['name']}'", field)
        yield from _check_order(field)
        yield from check_schema(field["type"])


def _check_order(field: JsonObject) -> Iterator[str]:
    if "order" in field and str(field["order"]).lower() not in _ORDERS:
        yield f"has the field '{field['name']}' whose order is none of {', '.join(_ORDERS)}"


_ORDERS = ("ascending", "descending", "ignore")


def _list_aliases(schema: JsonObject) -> Sequence[JsonValue]:
    aliases = schema.get("aliases")
    return aliases if isinstance(aliases, list) else ()


def _check_aliases(owner: str, schema: JsonObject) -> Iterator[str]:
    """Yield what is wrong with the aliases of a field or a named type: they are a list of texts."""
    aliases = schema.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        yield f"has {owner} whose aliases are not a list of names"


def find_duplicates(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _check_name(name: str) -> Iterator[str]:
    plain = name.replace("_", "a")
    if not plain[:1].isalpha() or not plain.isalnum():
        yield f"has the name '{name}': names have only letters, digits and _, and do not begin with a digit"


def _check_size(name: str, size: JsonValue) -> Iterator[str]:
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        yield f"has a fixed '{name}' without a size"
    elif size > FIXED_BYTES:
        yield f"has a fixed '{name}' of more than {FIXED_BYTES:,} bytes"
