"""Which tables of a pipeline are fresh: a line for each, with its verdict, its last change and its newest row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.airflow.pages import freshness
from hindcast.common.errors import HindcastError
from hindcast.common.json_values import JsonObject
from hindcast.common.settings import Settings
from hindcast.contract import Contract, list_shapes
from hindcast.contract.shapes import PERIODS
from hindcast.plan.runs import Run
from hindcast.store import tables
from hindcast.store.tables import Table

MAX_LINES = 40
"""How many tables are listed."""


def list_fresh_tables(settings: Settings, contract: Contract, past: Sequence[Run]) -> list[JsonObject]:
    """Return for each table its verdict, which run changed it last, and when its newest row begins (None: not known).

    The verdict is the one that the table has on its own page (freshness.py), without what the line says beside it.
    Nothing before the first run.
    """
    now = datetime.now(UTC)
    limits = freshness.find_limits(settings, contract, past)
    completed = [run for run in past if run.state == "completed"]
    names = [name for name in list_shapes(contract) if name in contract.topics or name in contract.views]
    lines: list[JsonObject] = []
    for name in names[:MAX_LINES]:
        own = {table: limit for table, limit in limits.items() if table == name}
        verdict = freshness.judge_freshness(contract, past, "", now, own, name)
        if verdict is None:
            return []
        located = tables.locate_table(settings.warehouse, contract, name)
        begins = PERIODS[located.kind][0]
        newest = find_newest(located, begins, completed[-1].known_at) if completed else None
        change = freshness.describe_change(freshness.list_table_changes(past, name), now)
        lines.append(
            {
                "name": name,
                "kind": verdict.kind,
                "verdict": verdict.words.partition(";")[0].rstrip("."),
                "change": change.removeprefix("last change "),
                "newest": newest.isoformat() if newest else None,
            }
        )
    return lines


def find_newest(table: Table, column: str, known_at: datetime) -> datetime | None:
    """Return the greatest moment in a column of files whose rows are current and known; None if statistics do not tell.

    Left out are files of superseded rows, and those that a run has written after `known_at`.
    """
    try:
        delta_table = tables.open_table(table)
    except HindcastError:
        return None
    if delta_table is None:
        return None
    files = pa.table(delta_table.get_add_actions(flatten=True))
    name = f"max.{column}"
    if name not in files.column_names or not pa.types.is_timestamp(files.schema.field(name).type):
        return None
    if "partition._belief" in files.column_names:
        files = files.filter(pc.not_equal(files.column("partition._belief"), "superseded"))
    if "min.systemFrom" in files.column_names and pa.types.is_timestamp(files.schema.field("min.systemFrom").type):
        is_later = pc.fill_null(pc.greater(files.column("min.systemFrom"), known_at), False)
        files = files.filter(pc.invert(is_later))
    newest: datetime | None = pc.max(files.column(name)).as_py()
    return newest and newest.astimezone(UTC)
