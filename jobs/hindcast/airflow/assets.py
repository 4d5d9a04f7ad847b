"""Airflow's assets: one for each published table, so that other DAGs can be scheduled on it.

An event is sent when a run has completed, for each table in which it published something: readers of the table then
find all of it. `extra` of the event has pipeline, run, knownAt, opened, closed and corrected.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import Asset, AssetAlias

from hindcast.common.errors import show_briefly

if TYPE_CHECKING:
    from airflow.sdk.types import OutletEventAccessorsProtocol

    from hindcast.common.json_values import JsonObject
    from hindcast.report.run_report import RunReport


def table_asset(warehouse: str, table: str) -> Asset:
    """Return the asset of a table, named like it (`restaurant.bills`), with its location in the warehouse as URI."""
    location = f"{warehouse}/{table.replace('.', '/')}"
    return Asset(name=table, uri=location if "://" in warehouse else Path(location).as_uri(), group="hindcast")


def pipeline_alias(pipeline: str) -> AssetAlias:
    """Return the alias through which the task that completes a pipeline's runs sends events."""
    return AssetAlias(pipeline, group="hindcast")


def send_asset_events(warehouse: str, events: OutletEventAccessorsProtocol, report: RunReport) -> list[str]:
    """Send the events of a completed run, given its report, and return the tables that they are for.

    Of a rehearsed run none: they would start other pipelines by the clock, which could not be rehearsed after that.
    """
    if report.rehearsed is not None:
        return []
    pipeline, published = report.pipeline, []
    known_at = report.known_at.isoformat() if report.known_at else None
    for name, table in report.tables.items():
        if table.opened + table.closed:
            counts = {"opened": table.opened, "closed": table.closed, "corrected": table.corrected}
            extra = {"pipeline": pipeline, "run": report.run, "knownAt": known_at, **counts}
            events[pipeline_alias(pipeline)].add(table_asset(warehouse, f"{pipeline}.{name}"), extra={**extra})
            published.append(name)
    return published


def describe_trigger(extras: Iterable[JsonObject]) -> str | None:
    """Return the reason of a run that events with these extras started; None if none of them is of a run.

    Anybody may send an event of a table's asset, with any extra.
    """
    runs: set[tuple[str, int]] = set()
    for extra in extras:
        pipeline, run = extra.get("pipeline"), extra.get("run")
        if isinstance(pipeline, str) and isinstance(run, int):
            runs.add((show_briefly(pipeline, _LONGEST), run))
    named = [f"{pipeline}, run {run}" for pipeline, run in sorted(runs)]
    more = [f"and {len(named) - _MOST:,} more"] if len(named) > _MOST else []
    return f"published by {'; '.join([*named[:_MOST], *more])}" if named else None


_MOST, _LONGEST = 10, 200
"""How many runs are named, and how many characters of a pipeline."""
