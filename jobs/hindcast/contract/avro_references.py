"""The Avro schemas that another one refers to, written out within it. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Iterable

from hindcast.common.json_values import JsonObject, JsonValue, list_objects
from hindcast.contract.avro import PRIMITIVES
from hindcast.contract.avro_rules import NAMED, full_name

_KINDS = {*PRIMITIVES, *NAMED, "array", "map"}
_PARTS = ("type", "items", "values")


def inline_references(schema: JsonValue, referred: Iterable[JsonValue]) -> JsonValue:
    """Return a schema with the named types of others, wherever these have them, written out where it first names them.

    >>> inline_references({"type": "array", "items": "x.Item"}, [{"type": "fixed", "name": "x.Item", "size": 4}])
    {'type': 'array', 'items': {'type': 'fixed', 'name': 'x.Item', 'size': 4}}

    Raise ValueError if two of the others have types of one name that differ.
    """
    known = _find_named_types(referred)
    own, written = set[str](), set[str]()

    def within(it: JsonValue, namespace: str | None) -> JsonValue:
        if isinstance(it, list):
            return [within(part, namespace) for part in it]
        if isinstance(it, str) and it not in _KINDS:
            names = (it,) if "." in it else (f"{namespace}.{it}", it)
            name = next((name for name in names if name in known or name in own), it)
            return it if name in written or name not in known else within(known[name], name.rpartition(".")[0])
        if not isinstance(it, dict):
            return it
        if it.get("type") in NAMED:
            name, namespace = full_name(it, namespace)
            if known.get(name) is not it:
                own.add(name)
            elif name in written:
                return name
            else:
                written.add(name)
                it = {**it, "name": name} | ({} if namespace else {"namespace": ""})
        parts = {name: within(it[name], namespace) for name in _PARTS if name in it}
        if isinstance(it.get("type"), str) and it["type"] != parts["type"]:
            return parts["type"]  # {"type": "x.Item"} is x.Item itself
        if isinstance(fields := it.get("fields"), list):
            parts["fields"] = [field(each, namespace) for each in fields]
        return {**it, **parts}

    def field(it: JsonValue, namespace: str | None) -> JsonValue:
        return {**it, "type": within(it.get("type"), namespace)} if isinstance(it, dict) else it

    return within(schema, None)


def _find_named_types(schemas: Iterable[JsonValue]) -> dict[str, JsonObject]:
    """Return by their full names all types that schemas have; ValueError if two of one name differ."""
    found: dict[str, JsonObject] = {}

    def collect(it: JsonValue, namespace: str | None) -> None:
        if isinstance(it, dict):
            if it.get("type") in NAMED:
                name, namespace = full_name(it, namespace)
                if name in found:
                    first, second = (_drop_docs({**each, "name": name, "namespace": ""}) for each in (found[name], it))
                    if first != second:
                        raise ValueError(f"it refers to two types named '{name}' that differ: refer to one of them")
                    return
                found[name] = it
            it = [*map(it.get, _PARTS), *(field.get("type") for field in list_objects(it.get("fields")))]
        for part in it if isinstance(it, list) else ():
            collect(part, namespace)

    for schema in schemas:
        collect(schema, None)
    return found


def _drop_docs(it: JsonValue) -> JsonValue:
    if isinstance(it, dict):
        return {name: _drop_docs(value) for name, value in it.items() if name != "doc"}
    return [_drop_docs(part) for part in it] if isinstance(it, list) else it
