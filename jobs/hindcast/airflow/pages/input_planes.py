"""Why a joined row is what it is, as a picture: the planes of its inputs, one above the other, on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from hindcast.airflow.pages import drawing, plane
from hindcast.airflow.pages.plane import Crosshair, PlaneSource
from hindcast.airflow.pages.row_formatter import RowFormatter
from hindcast.common.errors import QueryError, TableError, UnknownError
from hindcast.common.json_values import JsonObject, JsonValue, list_objects
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.plan import inputs, marks
from hindcast.plan.runs import Run
from hindcast.query import key_history, read
from hindcast.query.show import format_key_label
from hindcast.store import table_columns, tables
from hindcast.store.tables import Table

MAX_RECTANGLES = 40
"""How many rectangles of an input are drawn: those nearest to the moment."""

HEIGHT = 110.0


class _Input(NamedTuple):
    """An input of a row: its part of the explanation, the key of its first row, the rows of that, and a known-at."""

    part: JsonObject
    key: str
    label: str
    source: PlaneSource
    known_at: datetime


def build_input_planes(
    settings: Settings, contract: Contract, name: str, why: JsonObject, as_of: datetime, past: Sequence[Run]
) -> list[JsonValue]:
    """Return the planes of the rows that a row of a joined view was made of; of other views none.

    `why` is its explanation (query/explain.py). Inputs that may not be shown, or take too long to read, have none.
    """
    if name not in contract.views or contract.views[name].join is None:
        return []
    found = [_read_input(settings, contract, part, as_of, past) for part in list_objects(why["parts"])]
    drawn = [it for it in found if it is not None]
    moments = [moment for it in drawn for moment in it.source.valid_moments]
    if not moments:
        return []
    across = drawing.build_axis([*moments, as_of], even=True)
    return [
        {
            "name": it.part["name"],
            "pipeline": it.part["pipeline"],
            "label": it.label,
            "link": {
                "table": it.part["table"],
                "key": it.key,
                "asOf": as_of.isoformat(),
                "knownAt": it.known_at.isoformat(),
            },
            "plane": plane.build_plane(
                it.source,
                Crosshair(as_of, it.known_at),
                height=HEIGHT,
                axes=(across, drawing.build_axis(it.source.system_moments, even=True)),
            ),
        }
        for it in drawn
    ]


def _read_input(
    settings: Settings, contract: Contract, part: JsonObject, as_of: datetime, past: Sequence[Run]
) -> _Input | None:
    """Return the rows of the key of an input's first row; None if they are not to be shown."""
    rows = list_objects(part["rows"])
    key = rows[0]["key"] if rows else None
    if not isinstance(key, str):
        return None
    name, known_at = str(part["name"]), datetime.fromisoformat(str(part["knownAt"]))
    table = _locate_source(settings, contract, name)
    try:
        values = read.parse_key(table, key)
        last = read.read_last_known_at(table.warehouse, table.pipeline)
        history = key_history.read_history(table, values, until=last)
        delta_table = tables.open_table(table)
    except (QueryError, UnknownError, TableError):
        return None
    dropped = table_columns.read_dropped_columns(delta_table) if delta_table is not None else {}
    hidden = marks.find_hidden_columns(settings, contract, name) | dropped.keys()
    near = history.find_nearest(as_of, MAX_RECTANGLES)
    formatter = RowFormatter(
        settings.warehouse, contract, name, past if table.pipeline == contract.pipeline else (), hidden
    )
    shown = [formatter.format_row(row) for row in near.rows]
    source = PlaneSource(table.kind, near.rows, shown, near.total, formatter.named_runs, table.key, hidden)
    return _Input(part, key, format_key_label(values), source, known_at)


def _locate_source(settings: Settings, contract: Contract, name: str) -> Table:
    """Return the table of an input: of this pipeline, or of another one."""
    if name in contract.inputs:
        return inputs.locate_input_table(settings.warehouse, contract, name)
    return tables.locate_table(settings.warehouse, contract, name)
