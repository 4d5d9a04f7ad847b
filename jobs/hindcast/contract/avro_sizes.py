"""Whether a small record of an Avro schema could fill Spark's memory: by items that take no byte, or hardly one.

Pure, without Spark. A null, an empty record and a fixed of size 0 take no byte, and an array may declare a million of
them in three bytes; in an array of such arrays a kilobyte declares hundreds of millions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hindcast.common.json_values import JsonObject, JsonValue, list_objects
from hindcast.contract.avro_rules import NAMED, full_name
from hindcast.contract.bounds import EMPTY_PARTS


def check_items(schema: JsonValue) -> Iterator[str]:
    """Yield what is wrong with the arrays and maps of a schema (parsed JSON) that breaks none of `avro_rules`.

    `has items that take too few bytes in the array 'lines[].marks': ...`
    """
    yield from _ItemReader().find_small_items(schema)


class _ItemReader:
    """A reader of one schema. A type's excess: the most parts without bytes that a value can have, beyond EMPTY_PARTS
    for each byte that it takes.
    """

    def __init__(self) -> None:
        self._named: dict[str, int] = {}
        self._small: list[str] = []

    def find_small_items(self, schema: JsonValue) -> Iterator[str]:
        """Yield the arrays and maps whose items have an excess."""
        self._measure(schema, None, "")
        for place in self._small:
            yield (
                f"has items that take too few bytes in the {place}: a small record could fill Spark's memory; "
                "give them a part that takes bytes, or remove the field"
            )

    def _measure(self, schema: JsonValue, namespace: str | None, path: str) -> int:
        """Return the excess of a type at a path of fields; note the arrays and maps in it whose items have one."""
        if isinstance(schema, list):
            return self._measure_union(schema, namespace, path)
        if not isinstance(schema, dict):
            return self._find_excess(str(schema), namespace)
        kind = schema["type"]
        if kind in NAMED:
            return self._measure_named_type(schema, namespace, path)
        if kind == "array":
            self._note("array", path, self._measure(schema["items"], namespace, f"{path}[]"))
            return -EMPTY_PARTS
        if kind == "map":
            value = self._measure(schema["values"], namespace, f"{path}[]")
            self._note("map", path, value - EMPTY_PARTS)  # its key takes a byte
            return -EMPTY_PARTS
        return self._measure(kind, namespace, path)

    def _note(self, kind: str, path: str, excess: int) -> None:
        if excess > 0:
            self._small.append(f"{kind} '{path}'" if path else kind)

    def _find_excess(self, name: str, namespace: str | None) -> int:
        if name == "null":
            return 1
        return self._named.get(f"{namespace}.{name}", self._named.get(name, -EMPTY_PARTS))

    def _measure_union(self, types: Sequence[JsonValue], namespace: str | None, path: str) -> int:
        """Return the excess of a union, which has a byte for the type that follows.

        In Spark a null among other types is one null, and each other value has a field for each type but null.
        """
        others = [kind for kind in types if kind not in ("null", {"type": "null"})]
        chosen = [len(others) - 1 + self._measure(kind, namespace, path) for kind in others]
        return max([*chosen, *[1] * (len(others) < len(types))], default=0) - EMPTY_PARTS

    def _measure_named_type(self, schema: JsonObject, namespace: str | None, path: str) -> int:
        name, inner = full_name(schema, namespace)
        if schema["type"] == "record":
            fields = [(f"{path}.{it['name']}".lstrip("."), it["type"]) for it in list_objects(schema["fields"])]
            excess = 1 + sum(self._measure(kind, inner, place) for place, kind in fields)
        elif schema["type"] == "fixed":
            excess = 1 - EMPTY_PARTS * int(str(schema["size"]))
        else:
            excess = -EMPTY_PARTS
        return self._named.setdefault(name, excess)
