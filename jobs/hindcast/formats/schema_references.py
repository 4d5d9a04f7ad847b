"""The Avro schemas that another one refers to, written out within it. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Iterable

from hindcast.common.json_values import JsonObject, JsonValue


def inline_references(schema: JsonValue, referred: Iterable[JsonValue]) -> JsonValue:
    """Return a schema with the named types of others written out where it first names them.

    >>> inline_references({"type": "array", "items": "x.Item"}, [{"type": "fixed", "name": "x.Item", "size": 4}])
    {'type': 'array', 'items': {'type': 'fixed', 'name': 'x.Item', 'size': 4}}
    """
    known = {_full_name(it, None): it for it in referred if isinstance(it, dict)}
    done: set[str] = set()

    def within(it: JsonValue, namespace: str | None) -> JsonValue:
        if isinstance(it, str):
            full = next((n for n in (f"{namespace}.{it}", it) if n in known), None)
            if full is None or full in done:
                return it
            done.add(full)
            return within({**known[full], "name": full}, None)
        if isinstance(it, list):
            return [within(part, namespace) for part in it]
        if not isinstance(it, dict):
            return it
        inner = _full_name(it, namespace).rpartition(".")[0] if "name" in it and "type" in it else namespace
        parts = {name: within(it[name], inner) for name in ("type", "items", "values") if name in it}
        if isinstance(it.get("type"), str) and it["type"] != parts["type"]:
            return parts["type"]  # {"type": "x.Item"} is x.Item itself
        if isinstance(fields := it.get("fields"), list):
            parts["fields"] = [field(each, inner) for each in fields]
        return {**it, **parts}

    def field(it: JsonValue, namespace: str | None) -> JsonValue:
        return {**it, "type": within(it.get("type"), namespace)} if isinstance(it, dict) else it

    return within(schema, None)


def _full_name(schema: JsonObject, namespace: str | None) -> str:
    name, own = str(schema.get("name", "")), schema.get("namespace", namespace)
    return name if "." in name or not own else f"{own}.{name}"
