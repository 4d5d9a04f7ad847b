"""The graph of a pipeline: from topics and other pipelines' tables to its tables and views, and to who reads those."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from hindcast.contracts import Contract, shapes
from hindcast.pages import catalog

WIDE, HIGH, ACROSS, DOWN = 170, 44, 230, 62
"""A box, and how far apart boxes are."""


@dataclass(frozen=True)
class Node:
    """A topic in Kafka, or a table; `column` counts from the left, `after` are the nodes that it is made of.

    `reading`: of a view.
    """

    id: str
    name: str
    kind: str
    column: int
    after: tuple[str, ...] = ()
    pipeline: str | None = None
    table: str | None = None
    reading: str | None = None


def of_contract(contract: Contract, readable: Collection[str]) -> dict[str, Any]:
    """The graph as it is drawn: boxes, arrows between them, and the size of it all."""
    nodes = _nodes(contract, readable)
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for node in nodes:
        places[node.id] = (node.column * ACROSS, rows.get(node.column, 0) * DOWN)
        rows[node.column] = rows.get(node.column, 0) + 1
    boxes = [
        {
            "name": node.name,
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
    arrows = [
        {"from": [places[i][0] + WIDE, places[i][1] + HIGH // 2], "to": [places[n.id][0], places[n.id][1] + HIGH // 2]}
        for n in nodes
        for i in n.after
    ]
    width = max(x for x, _ in places.values()) + WIDE
    return {"boxes": boxes, "arrows": arrows, "width": width, "height": max(rows.values()) * DOWN}


def _nodes(contract: Contract, readable: Collection[str]) -> list[Node]:
    """All nodes, each after those that it is made of."""
    kinds, own = shapes(contract), contract.pipeline
    nodes = [Node(f"topic {name}", contract.kafka_topic(name), "topic", 0) for name in contract.topics]
    nodes += [Node(name, name, kinds[name].kind, 1, (f"topic {name}",), own, name) for name in contract.topics]
    for name, it in contract.inputs.items():
        pipeline, _, table = it.table.partition(".")
        nodes.append(Node(name, it.table, kinds[name].kind, 1, (), pipeline, table))
    columns = {node.id: node.column for node in nodes}
    for name in contract.ordered:
        view = contract.views[name]
        inputs = tuple(dict.fromkeys(view.inputs))
        columns[name] = 1 + max(columns[i] for i in inputs)
        nodes.append(Node(name, name, kinds[name].kind, columns[name], inputs, own, name, view.semantics))
    last = max(columns.values()) + 1
    found, _ = catalog.known()
    for pipeline in sorted(name for name in found if name in readable and name != own):
        read = [it.table.partition(".")[2] for it in found[pipeline].inputs.values() if it.table.startswith(f"{own}.")]
        there = tuple(dict.fromkeys(table for table in read if table in columns))
        if there:
            nodes.append(Node(f"pipeline {pipeline}", pipeline, "pipeline", last, there, pipeline))
    return nodes
