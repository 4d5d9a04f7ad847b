"""What Avro asks of a schema beyond its types, as the parser in Spark does: names, symbols, sizes, unions.

Pure, without Spark. A schema that breaks a rule is refused here, with what is wrong, and never comes to that parser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

NAMED = ("record", "enum", "fixed")


def broken(schema: Any) -> Iterator[str]:
    """What is wrong with a schema (parsed JSON) whose types are known: `has an enum 'E' without symbols`."""
    if isinstance(schema, list):
        yield from _union(schema)
    if not isinstance(schema, dict):
        return
    kind = schema["type"]
    if kind in NAMED:
        yield from _named(schema, kind)
    if kind == "record":
        yield from _record(schema)
    elif kind in ("array", "map"):
        yield from broken(schema["items" if kind == "array" else "values"])
    elif not isinstance(kind, str):
        yield "has a type whose own type is no name: leave the outer one out"


def _union(types: Sequence[Any]) -> Iterator[str]:
    """A union has each kind of type once, each named type once, and no union."""
    if any(isinstance(it, list) for it in types):
        yield "has a union within a union"
    told = [_told(it) for it in types]
    for name in _twice(told):
        yield f"has '{name}' twice in a union"
    for it in types:
        yield from broken(it)


def _told(schema: Any) -> str:
    """What a type is called in a union."""
    if not isinstance(schema, dict):
        return str(schema)
    return str(schema["name"] if schema["type"] in NAMED and "name" in schema else schema["type"])


def _named(schema: dict[str, Any], kind: str) -> Iterator[str]:
    name, namespace = schema.get("name"), schema.get("namespace") or ""
    if not isinstance(name, str) or not name:
        yield f"has a {kind} without a name"
        return
    for part in (name if "." in name else f"{namespace}.{name}").split("."):
        if part:
            yield from _refused(part)
    if kind == "fixed" and not _is_size(schema.get("size")):
        yield f"has a fixed '{name}' without a size"
    if kind == "enum":
        yield from _enum(name, schema)


def _enum(name: str, schema: dict[str, Any]) -> Iterator[str]:
    symbols, default = schema.get("symbols"), schema.get("default")
    if not isinstance(symbols, list):
        yield f"has an enum '{name}' without symbols"
        return
    for symbol in symbols:
        yield from _refused(str(symbol))
    if len(set(map(str, symbols))) < len(symbols):
        yield f"has an enum '{name}' with a symbol twice"
    if default is not None and default not in symbols:
        yield f"has an enum '{name}' whose default is not among its symbols"


def _record(schema: dict[str, Any]) -> Iterator[str]:
    names = [str(field["name"]) for field in schema["fields"]]
    for name in names:
        yield from _refused(name)
    for name in _twice(names):
        yield f"has the field '{name}' twice"
    for field in schema["fields"]:
        yield from broken(field["type"])


def _twice(names: Sequence[str]) -> list[str]:
    """Return the names that stand more than once."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _refused(name: str) -> Iterator[str]:
    plain = name.replace("_", "a")
    if not plain[:1].isalpha() or not plain.isalnum():
        yield f"has the name '{name}': names are of letters, digits and _, and begin with no digit"


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 0
