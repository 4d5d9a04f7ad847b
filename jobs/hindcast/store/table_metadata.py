"""What a table's metadata may tell its readers and writers: nothing that is run as code, and no other place.

Spark runs the expressions of computed columns, defaults and constraints, which can call any function of Java; and it
follows a redirection to another table. Hindcast writes none of these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from deltalake import DeltaTable

from hindcast.common.errors import TableError, show_briefly
from hindcast.common.json_values import JsonObject, JsonValue, parse_object

RESTORE_FIX = "RESTORE the table to the last version that Hindcast wrote (DESCRIBE HISTORY names the writers)"
"""What to do about a table in whose log somebody else has written."""

_CONSTRAINTS = "delta.constraints."
_PLACES = ("delta.coordinatedcommits.", "delta.redirect", "delta.universalformat.")
"""How properties begin, in lower case, that have Spark read or write elsewhere."""
_COMPUTED = ("CURRENT_DEFAULT", "EXISTS_DEFAULT", "delta.generationExpression", "delta.identity.", "delta.invariants")
"""How the names in a column's metadata begin that have its values computed or checked."""


def refuse_risks(delta_table: DeltaTable, place: str) -> None:
    """Raise TableError if the metadata of the table at a place has what Spark would run, or another place; or if its
    columns are mapped: what its files have under a name may then be another column.
    """
    if (mode := find_mapping(delta_table)) is not None:
        found = (
            f"its columns have other names in its files ({MAPPING} is {show_briefly(mode)}), which Hindcast never does"
        )
        fix = f"{RESTORE_FIX}; or copy its rows to a table without that, and put that in its place"
        raise TableError(found, where=place, fix=fix)
    raise_risks(list_table_risks(delta_table), place, f"remove that by ALTER TABLE if it is yours; else {RESTORE_FIX}")


def find_mapping(delta_table: DeltaTable) -> str | None:
    """Return how the columns of a table are mapped to those of its files; None if they have the same names."""
    properties = delta_table.metadata().configuration.items()
    modes = (mode for name, mode in properties if name.lower() == MAPPING.lower())
    return next((mode for mode in modes if mode != "none"), None)


MAPPING = "delta.columnMapping.mode"
"""The property of a table whose columns were renamed or dropped without a change of its files."""


def raise_risks(risks: Iterable[str], where: str, fix: str) -> None:
    """Raise TableError if there are any risks."""
    if found := "; ".join(risks):
        raise TableError(f"has metadata that Hindcast never writes: {show_briefly(found)}", where=where, fix=fix)


def list_table_risks(delta_table: DeltaTable) -> Iterator[str]:
    """Yield the risks of a table's metadata, as delta-rs reads it (`list_risks`)."""
    return list_risks(json.loads(delta_table.schema().to_json()), delta_table.metadata().configuration)


def list_risks(schema: JsonValue, properties: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield in words what Spark would run for a table with a schema, or other places that its properties name."""
    names = sorted(properties)
    if checks := [name[len(_CONSTRAINTS) :] for name in names if name.lower().startswith(_CONSTRAINTS)]:
        yield f"it has constraints ({', '.join(checks)})"
    if places := [name for name in names if name.lower().startswith(_PLACES)]:
        yield f"it names other places ({', '.join(places)})"
    nodes = [*_list_nodes(schema)]
    if computed := [str(it.get("name")) for it in nodes if _is_computed(parse_object(it.get("metadata")))]:
        yield f"columns are computed ({', '.join(computed)})"
    if any(it.get("type") == "udt" for it in nodes):
        yield "a column has a type that is a program"


def _is_computed(metadata: JsonObject) -> bool:
    return any(name.startswith(_COMPUTED) for name in metadata)


def _list_nodes(value: JsonValue) -> Iterator[JsonObject]:
    """Yield all objects in a JSON value, however deep."""
    waiting = [value]
    while waiting:
        it = waiting.pop()
        if isinstance(it, Mapping):
            yield it
            waiting += it.values()
        elif isinstance(it, list):
            waiting += it
