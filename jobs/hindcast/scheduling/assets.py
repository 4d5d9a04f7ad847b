"""Airflow's assets: one for each published table, so that other DAGs can be scheduled on it.

An event is sent when a run has completed, for each table of which it published something: then those who read the
table find what the run has made of it. It tells in `extra`: pipeline, run, knownAt, opened, closed, corrected.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from hindcast.settings import settings

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import OutletEventAccessors


def asset(table: str) -> Asset:
    """The asset of a table, named as it is (`restaurant.bills`); its URI is where the table lies."""
    warehouse = settings().warehouse
    place = f"{warehouse}/{table.replace('.', '/')}"
    return Asset(name=table, uri=place if "://" in warehouse else Path(place).as_uri(), group="hindcast")


def alias(pipeline: str) -> AssetAlias:
    """What the task that completes a pipeline's runs sends events through."""
    return AssetAlias(pipeline, group="hindcast")


def announce(events: OutletEventAccessors, report: dict[str, Any]) -> list[str]:
    """Sends the events of a completed run, given its report; the tables that they are of."""
    pipeline, published = report["pipeline"], []
    for name, table in report["tables"].items():
        if table["opened"] + table["closed"]:
            counts = {count: table[count] for count in ("opened", "closed", "corrected")}
            told = {"pipeline": pipeline, "run": report["run"], "knownAt": report["knownAt"], **counts}
            events[alias(pipeline)].add(asset(f"{pipeline}.{name}"), extra=told)
            published.append(name)
    return published


def reason(triggering: Iterable[Any]) -> str | None:
    """Why there is a run that these events have started; None if none have."""
    told = {f"{e.extra['pipeline']}, run {e.extra['run']}": e for e in triggering if "run" in (e.extra or {})}
    return f"published by {'; '.join(sorted(told))}" if told else None
