"""The columns that a step reads and writes, from the contract alone; and the same as OpenLineage's facets.

    bills: amount = orders.quantity * menu.price, joined on orders.item

    amount    orders.quantity, menu.price     DIRECT, TRANSFORMATION
    (all)     orders.item, menu.item          INDIRECT, JOIN

Each Kafka topic and each table is a dataset. All columns depend on `where`, a join's keys and an aggregate's groups.
OpenLineage's provider for Airflow asks operators.py for `build_step_facets` when a task has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from hindcast.contract import Contract, View, list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.contract.expressions import resolve
from hindcast.contract.parsing import find_columns
from hindcast.contract.sensitive import find_sensitive_columns
from hindcast.contract.shapes import (
    PERIODS,
    Shape,
    column_expressions,
    resolve_all,
    second_key_columns,
    view_scope,
)
from hindcast.plan import journal
from hindcast.runs.table_steps import TABLE_STEPS

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import DatasetFacet
    from openlineage.client.facet_v2.column_lineage_dataset import InputField

Subtype = Literal["IDENTITY", "TRANSFORMATION", "AGGREGATION", "JOIN", "FILTER", "GROUP_BY", "WINDOW"]


class ColumnSource(NamedTuple):
    """A column of an input on which a column or the whole table depends; `expression` is Spark SQL, None if hidden."""

    input: str
    column: str
    subtype: Subtype
    expression: str | None = None


class ColumnLineage(NamedTuple):
    """The sources of each column of a table (DIRECT), and those on which every column depends (INDIRECT)."""

    columns: dict[str, list[ColumnSource]]
    every: list[ColumnSource]


def topic_lineage(shape: Shape, name: str) -> ColumnLineage:
    """Return the lineage of a topic's table: its columns are the record's fields of the same names."""
    return ColumnLineage({column: [ColumnSource(name, column, "IDENTITY")] for column in shape.columns}, [])


def view_lineage(contract: Contract, name: str) -> ColumnLineage:
    """Return the lineage of a view from its inputs; an expression that names a sensitive column is left out."""
    view, known, hidden = contract.views[name], list_shapes(contract), find_sensitive_columns(contract)

    def find_sources(text: str, subtype: Subtype, expression: str | None = None) -> list[ColumnSource]:
        pairs = list(dict.fromkeys(_find_named_columns(text)))
        is_secret = any(column in hidden[i] for i, column in pairs)
        return [ColumnSource(i, column, subtype, None if is_secret else expression or text) for i, column in pairs]

    columns = {}
    for column, text in column_expressions(view, known).items():
        if column in (view.aggregate or {}):
            columns[column] = find_sources(text, "AGGREGATION", (view.aggregate or {})[column])
        else:
            is_plain = [f"{i}.{c}" for i, c in _find_named_columns(text)] == [text]
            columns[column] = find_sources(text, "IDENTITY" if is_plain else "TRANSFORMATION")
    for column, other in second_key_columns(view, known).items():
        sources = (*columns[column], *find_sources(other, "IDENTITY"))
        columns[column] = [source._replace(subtype="TRANSFORMATION") for source in sources]
    every = [source for text, subtype in _list_conditions(view, known) for source in find_sources(text, subtype)]
    return ColumnLineage(columns | dict(_list_time_sources(view, known, known[name])), list(dict.fromkeys(every)))


def _find_named_columns(text: str) -> Iterator[tuple[str, str]]:
    """Yield the input and the column of each column that a resolved expression names."""
    for first, *path in find_columns(text):
        if path:
            yield first, path[0]


def _list_conditions(view: View, known: Mapping[str, Shape]) -> Iterator[tuple[str, Subtype]]:
    """Yield the resolved expressions that decide which rows the view has."""
    first = known[view.first_input]
    if view.join and view.second_input:
        names = {view.first_input: list(first.columns)}
        keys = [resolve(text, names) for text in view.join.keys] or [f"{view.first_input}.{key}" for key in first.key]
        own = PERIODS[first.kind]
        other = known[view.second_input]
        for text in (*keys, *(f"{view.first_input}.{column}" for column in own)):
            yield text, "JOIN"
        for column in (*other.key, *PERIODS[other.kind]):
            yield f"{view.second_input}.{column}", "JOIN"
    if view.where is not None:
        yield resolve(view.where, view_scope(view, known)), "FILTER"
    if view.aggregate is not None:
        groups = resolve_all(view.group_by, view, known).values() if view.group_by else ()
        for text in groups or [f"{view.first_input}.{key}" for key in first.key]:
            yield text, "GROUP_BY"
    if view.window is not None:
        yield f"{view.first_input}.timestamp", "WINDOW"


def _list_time_sources(
    view: View, known: Mapping[str, Shape], shape: Shape
) -> Iterator[tuple[str, list[ColumnSource]]]:
    """Yield each column of valid time with the columns of the inputs that decide it."""
    deciding = view.inputs if shape.kind in ("versions", "pairs") else (view.first_input,)
    times = [(i, column) for i in deciding for column in PERIODS[known[i].kind]]
    for column in PERIODS[shape.kind]:
        same = [(i, c) for i, c in times if c == column] if shape.kind != "windows" else []
        if len(deciding) == 1 and same and view.aggregate is None:
            yield column, [ColumnSource(*source, "IDENTITY") for source in same]
        else:
            yield column, [ColumnSource(*source, "TRANSFORMATION") for source in times]


def build_step_facets(step: str, pipeline: str, table: str) -> OperatorLineage | None:
    """Return the OperatorLineage of a step of a table (runs/table_steps.py); None for another step."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    from hindcast.common.settings import read_settings
    from hindcast.plan.marks import find_bound_contract

    if step not in TABLE_STEPS:
        return None
    contract = find_bound_contract(read_settings(), pipeline)
    inputs, output = build_datasets(contract, table)
    return OperatorLineage(inputs=inputs, outputs=[output])


def build_datasets(contract: BoundContract, name: str) -> tuple[list[InputDataset], OutputDataset]:
    """Return the inputs and the table of a step as OpenLineage's datasets, with schemas and column lineage."""
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import column_lineage_dataset as c

    known = list_shapes(contract)
    datasets = (
        {name: _kafka_datasets(contract, name)}
        if name in contract.topics
        else {i: [_delta_dataset(contract.warehouse, _table_address(contract, i))] for i in contract.views[name].inputs}
    )
    lineage = topic_lineage(known[name], name) if name in contract.topics else view_lineage(contract, name)

    def fields(sources: list[ColumnSource], kind: str) -> list[InputField]:
        return [
            c.InputField(*dataset, source.column, [c.Transformation(kind, source.subtype, source.expression)])
            for source in sources
            for dataset in datasets[source.input]
        ]

    columns = {column: c.Fields(fields(sources, "DIRECT")) for column, sources in lineage.columns.items()}
    facet = c.ColumnLineageDatasetFacet(columns, fields(lineage.every, "INDIRECT"))
    output = OutputDataset(
        *_delta_dataset(contract.warehouse, _table_address(contract, name)),
        facets=_build_dataset_facets(contract, name, known[name]),
    )
    output.facets = {**(output.facets or {}), "columnLineage": facet}
    return [
        InputDataset(*dataset, facets=_build_dataset_facets(contract, i, known[i], record=i == name))
        for i, group in datasets.items()
        for dataset in group
    ], output


def _build_dataset_facets(
    contract: Contract, name: str, shape: Shape, *, record: bool = False
) -> dict[str, DatasetFacet]:
    """Return the schema of a table, or of a topic's records (`record`); for a table also its name, PIPELINE.TABLE."""
    from openlineage.client.facet_v2 import schema_dataset, symlinks_dataset

    times = () if record else (*PERIODS[shape.kind], "systemFrom", "systemTo")
    types = {**shape.columns, **dict.fromkeys(times, "timestamp")}
    fields = [schema_dataset.SchemaDatasetFacetFields(column, kind) for column, kind in types.items()]
    facets = {"schema": schema_dataset.SchemaDatasetFacet(fields)}
    if not record:
        identifier = symlinks_dataset.Identifier("hindcast", _table_address(contract, name), "TABLE")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet([identifier])
    return facets


def _table_address(contract: Contract, name: str) -> str:
    """Return PIPELINE.TABLE of a topic, view or input of a contract."""
    return contract.inputs[name].table if name in contract.inputs else f"{contract.pipeline}.{name}"


def _delta_dataset(warehouse: str, address: str) -> tuple[str, str]:
    """Return the namespace and name of a table, by OpenLineage's rules for file systems and object stores.

    >>> _delta_dataset("s3a://bucket/warehouse", "restaurant.bills")
    ('s3://bucket', 'warehouse/restaurant/bills')
    """
    from hindcast.airflow.assets import table_asset

    uri = urlsplit(table_asset(warehouse, address).uri)
    if uri.scheme == "file":
        return "file", unquote(uri.path)
    return f"{uri.scheme.replace('s3a', 's3')}://{uri.netloc}", uri.path.lstrip("/")


def _kafka_datasets(contract: BoundContract, name: str) -> list[tuple[str, str]]:
    """Return the namespace and name of each Kafka topic of a contract's topic; several if it has a pattern."""
    settings = contract.settings
    members = journal.read_members(settings.warehouse, contract, name).values()
    topics = sorted({member.topic for member in members}) or [contract.kafka_topic(name)]
    return [(f"kafka://{settings.kafka.split(',')[0].strip()}", topic) for topic in topics]
