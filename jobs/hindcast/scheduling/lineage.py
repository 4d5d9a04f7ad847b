"""Which columns a step reads and writes, from the contract alone; and the same for OpenLineage.

    bills: amount = orders.quantity * menu.price, joined on orders.item

    amount    orders.quantity, menu.price     DIRECT, TRANSFORMATION
    (all)     orders.item, menu.item          INDIRECT, JOIN

A Kafka topic and each table is a dataset. What depends on `where`, a join's keys and the groups of an aggregate, is all
of the table. OpenLineage's provider for Airflow asks operators.py for `facets` when a task has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from hindcast.contracts import Contract, View, shapes
from hindcast.contracts.expressions import resolve
from hindcast.contracts.parsing import find_columns
from hindcast.contracts.sensitive import sensitive
from hindcast.contracts.shapes import PERIODS, Shape, computed, resolved, scope

Subtype = Literal["IDENTITY", "TRANSFORMATION", "AGGREGATION", "JOIN", "FILTER", "GROUP_BY", "WINDOW"]


class Source(NamedTuple):
    """A column of an input on which a column, or all of a table, depends; `how` in Spark SQL, None if not told."""

    input: str
    column: str
    subtype: Subtype
    how: str | None = None


class Lineage(NamedTuple):
    """What the columns of a table come from, each by itself (DIRECT), and what all of them depend on (INDIRECT)."""

    columns: dict[str, list[Source]]
    every: list[Source]


def of_topic(shape: Shape, name: str) -> Lineage:
    """The table of a topic: its columns are the record's fields of the same name."""
    return Lineage({column: [Source(name, column, "IDENTITY")] for column in shape.columns}, [])


def of_view(contract: Contract, name: str) -> Lineage:
    """A view's columns by those of its inputs. An expression that names a sensitive column is not told."""
    view, known, hidden = contract.views[name], shapes(contract), sensitive(contract)

    def found(text: str, subtype: Subtype, how: str | None = None) -> list[Source]:
        named = list(dict.fromkeys(_named(text)))
        secret = any(column in hidden[i] for i, column in named)
        return [Source(i, column, subtype, None if secret else how or text) for i, column in named]

    columns = {}
    for column, text in computed(view, known).items():
        if column in (view.aggregate or {}):
            columns[column] = found(text, "AGGREGATION", (view.aggregate or {})[column])
        else:
            plain = [f"{i}.{c}" for i, c in _named(text)] == [text]
            columns[column] = found(text, "IDENTITY" if plain else "TRANSFORMATION")
    if view.join and view.join.how == "outer" and view.key is None:
        for column, other in zip(known[name].key, known[view.second or ""].key, strict=True):
            columns[column] = [
                it._replace(subtype="TRANSFORMATION")
                for it in (*columns[column], *found(f"{view.second}.{other}", "IDENTITY"))
            ]
    every = [source for text, subtype in _conditions(view, known) for source in found(text, subtype)]
    return Lineage(columns | dict(_times(view, known, known[name])), list(dict.fromkeys(every)))


def _named(text: str) -> Iterator[tuple[str, str]]:
    """The columns of inputs that a resolved expression names."""
    for first, *path in find_columns(text):
        if path:
            yield first, path[0]


def _conditions(view: View, known: Mapping[str, Shape]) -> Iterator[tuple[str, Subtype]]:
    """Resolved expressions on which depends which rows there are."""
    first = known[view.first]
    if view.join and view.second:
        names = {view.first: list(first.columns)}
        keys = [resolve(text, names) for text in view.join.keys] or [f"{view.first}.{key}" for key in first.key]
        own = PERIODS[first.kind]
        other = known[view.second]
        for text in (*keys, *(f"{view.first}.{column}" for column in own)):
            yield text, "JOIN"
        for column in (*other.key, *PERIODS[other.kind]):
            yield f"{view.second}.{column}", "JOIN"
    if view.where is not None:
        yield resolve(view.where, scope(view, known)), "FILTER"
    if view.aggregate is not None:
        groups = resolved(view.group_by, view, known).values() if view.group_by else ()
        for text in groups or [f"{view.first}.{key}" for key in first.key]:
            yield text, "GROUP_BY"
    if view.window is not None:
        yield f"{view.first}.timestamp", "WINDOW"


def _times(view: View, known: Mapping[str, Shape], shape: Shape) -> Iterator[tuple[str, list[Source]]]:
    """The columns that say when a row is true, from those of the inputs that decide it."""
    deciding = view.inputs if shape.kind in ("versions", "pairs") else (view.first,)
    times = [(i, column) for i in deciding for column in PERIODS[known[i].kind]]
    for column in PERIODS[shape.kind]:
        same = [(i, c) for i, c in times if c == column] if shape.kind != "windows" else []
        copied = len(deciding) == 1 and bool(same) and view.aggregate is None
        yield column, [Source(*it, "IDENTITY" if copied else "TRANSFORMATION") for it in (same if copied else times)]


def facets(step: str, pipeline: str, table: str) -> Any:
    """What OpenLineage is told of a step `replay` or `build` of a table (an OperatorLineage); None of another step."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    from hindcast.contracts import find
    from hindcast.settings import settings

    if step not in ("replay", "build"):
        return None
    contract = find(settings().schemas, pipeline)
    inputs, output = datasets(contract, table)
    return OperatorLineage(inputs=inputs, outputs=[output])


def datasets(contract: Contract, name: str) -> tuple[list[Any], Any]:
    """The inputs and the table of a step as OpenLineage's datasets, with their schemas and the columns' lineage."""
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import column_lineage_dataset as c

    known = shapes(contract)
    places = (
        {name: _kafka(contract, name)}
        if name in contract.topics
        else {i: [_delta(_address(contract, i))] for i in contract.views[name].inputs}
    )
    lineage = of_topic(known[name], name) if name in contract.topics else of_view(contract, name)

    def fields(sources: list[Source], kind: str) -> list[Any]:
        return [
            c.InputField(*place, it.column, [c.Transformation(kind, it.subtype, it.how)])
            for it in sources
            for place in places[it.input]
        ]

    columns = {column: c.Fields(fields(sources, "DIRECT")) for column, sources in lineage.columns.items()}
    told = c.ColumnLineageDatasetFacet(columns, fields(lineage.every, "INDIRECT"))
    output = OutputDataset(*_delta(_address(contract, name)), facets=_facets(contract, name, known[name]))
    output.facets = {**(output.facets or {}), "columnLineage": told}
    return [
        InputDataset(*place, facets=_facets(contract, i, known[i], record=i == name))
        for i, where in places.items()
        for place in where
    ], output


def _facets(contract: Contract, name: str, shape: Shape, *, record: bool = False) -> dict[str, Any]:
    """The schema of a table, or of a topic's records; and of a table the name by which it is asked for."""
    from openlineage.client.facet_v2 import schema_dataset, symlinks_dataset

    times = () if record else (*PERIODS[shape.kind], "systemFrom", "systemTo")
    types = {**shape.columns, **dict.fromkeys(times, "timestamp")}
    fields = [schema_dataset.SchemaDatasetFacetFields(column, kind) for column, kind in types.items()]
    told: dict[str, Any] = {"schema": schema_dataset.SchemaDatasetFacet(fields)}
    if not record:
        known_as = symlinks_dataset.Identifier("hindcast", _address(contract, name), "TABLE")
        told["symlinks"] = symlinks_dataset.SymlinksDatasetFacet([known_as])
    return told


def _address(contract: Contract, name: str) -> str:
    """PIPELINE.TABLE of a topic, view or input of a contract."""
    return contract.inputs[name].table if name in contract.inputs else f"{contract.pipeline}.{name}"


def _delta(address: str) -> tuple[str, str]:
    """The namespace and the name of a table, as OpenLineage names what lies in a file system or an object store.

    >>> _delta("restaurant.bills")  # in s3a://bucket/warehouse
    ('s3://bucket', 'warehouse/restaurant/bills')
    """
    from hindcast.scheduling.assets import asset

    place = urlsplit(asset(address).uri)
    if place.scheme == "file":
        return "file", unquote(place.path)
    return f"{place.scheme.replace('s3a', 's3')}://{place.netloc}", place.path.lstrip("/")


def _kafka(contract: Contract, name: str) -> list[tuple[str, str]]:
    """The same of the topics in Kafka of a contract's topic; several if it has a pattern."""
    from hindcast.planning import plans
    from hindcast.settings import settings

    now = settings()
    members = plans.known_members(now.warehouse, contract, name).values()
    topics = sorted({it.topic for it in members}) or [contract.kafka_topic(name)]
    return [(f"kafka://{now.kafka.split(',')[0].strip()}", topic) for topic in topics]
