"""The graph of a pipeline: from topics and other pipelines' tables to its tables and views, and to their readers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hindcast.airflow.pages import catalog
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract, list_shapes

MIN_WIDTH, MAX_WIDTH, BOX_HEIGHT, COLUMN_GAP, ROW_STEP = 170, 320, 44, 60, 62
"""The sizes of a box and the distances between boxes, in pixels."""
CHARACTER, PADDING = 8.2, 24
"""How wide a character of a name is, and what is beside a name in its box."""


@dataclass(frozen=True)
class GraphNode:
    """A topic in Kafka, a table or a reading pipeline; `column` counts from the left, `after` are its inputs' nodes.

    `reading` is set for a view: the semantics that it has.
    """

    id: str
    name: str
    kind: str
    column: int
    after: tuple[str, ...] = ()
    pipeline: str | None = None
    table: str | None = None
    reading: str | None = None


def build_graph(settings: Settings, contract: Contract, readable: Collection[str]) -> JsonObject:
    """Return the graph as it is drawn, in pixels: `boxes` of `boxWidth`, `arrows`, its `width` and `height`.

    The folder of contracts of the settings may have some that read tables of this one.
    """
    nodes = _list_nodes(settings, contract, readable)
    longest = max(len(node.name) for node in nodes)
    box_width = round(min(max(CHARACTER * longest + PADDING, MIN_WIDTH), MAX_WIDTH))
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for node in nodes:
        places[node.id] = (node.column * (box_width + COLUMN_GAP), rows.get(node.column, 0) * ROW_STEP)
        rows[node.column] = rows.get(node.column, 0) + 1
    boxes: list[JsonValue] = [
        {
            "name": node.name,
            "label": shorten_name(node.name, int((box_width - PADDING) / CHARACTER)),
            "kind": node.kind,
            "reading": node.reading,
            "x": places[node.id][0],
            "y": places[node.id][1],
            "pipeline": node.pipeline if node.pipeline in readable else None,
            "table": node.table,
            "other": node.pipeline not in (None, contract.pipeline),
        }
        for node in nodes
    ]
    arrows: list[JsonValue] = [
        {
            "from": [places[i][0] + box_width, places[i][1] + BOX_HEIGHT // 2],
            "to": [places[n.id][0], places[n.id][1] + BOX_HEIGHT // 2],
        }
        for n in nodes
        for i in n.after
    ]
    width = max(x for x, _ in places.values()) + box_width
    return {
        "boxes": boxes,
        "boxWidth": box_width,
        "arrows": arrows,
        "width": width,
        "height": max(rows.values()) * ROW_STEP,
    }


def shorten_name(name: str, most: int) -> str:
    """Return a name as it is, or of a long one its beginning and its end, by which names differ.

    >>> shorten_name("departures_weather_kafka", 15)
    'departu…r_kafka'
    """
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}…{name[len(name) - end :]}"


def _list_nodes(settings: Settings, contract: Contract, readable: Collection[str]) -> list[GraphNode]:
    """Return all nodes, each after those that it is made of."""
    kinds, own = list_shapes(contract), contract.pipeline
    nodes = [GraphNode(f"topic {name}", contract.kafka_topic(name), "topic", 0) for name in contract.topics]
    nodes += [GraphNode(name, name, kinds[name].kind, 1, (f"topic {name}",), own, name) for name in contract.topics]
    for name, source in contract.inputs.items():
        pipeline, _, table = source.table.partition(".")
        nodes.append(GraphNode(name, source.table, kinds[name].kind, 1, (), pipeline, table))
    columns = {node.id: node.column for node in nodes}
    for name in contract.ordered_views:
        view = contract.views[name]
        inputs = tuple(dict.fromkeys(view.inputs))
        columns[name] = 1 + max(columns[i] for i in inputs)
        nodes.append(GraphNode(name, name, kinds[name].kind, columns[name], inputs, own, name, view.semantics))
    last = max(columns.values()) + 1
    contracts, _ = catalog.load_contracts(settings)
    for pipeline in sorted(name for name in contracts if name in readable and name != own):
        addresses = [source.table.partition(".") for source in contracts[pipeline].inputs.values()]
        tables = (table for owner, _, table in addresses if owner == own and table in columns)
        if after := tuple(dict.fromkeys(tables)):
            nodes.append(GraphNode(f"pipeline {pipeline}", pipeline, "pipeline", last, after, pipeline))
    return nodes
