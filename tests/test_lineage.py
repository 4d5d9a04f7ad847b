"""Which columns a view is made of, and what OpenLineage is told of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import receivers
from hindcast.airflow import lineage
from hindcast.contract import load
from pipelines import RESTAURANT

ROOT = Path(__file__).resolve().parents[1]
INSTALL = "the extra lineage (make test-observed)"

MORE = """
  costly:
    stream: bills
    where: amount > 1
    group_by: {item: lower(item)}
    aggregate: {total: sum(amount), n: count(*)}
    window: {tumbling: 1 hour}
  dishes:
    table: menu
    join: {table: stock, how: outer}
    select: {price: price, left: menu.price * stock.pieces}
  halves:
    table: menu
    select: {price: price / 2}
"""
STOCK = """
  stock:
    read: table
    key: {item: string}
    value: {pieces: int}
views:
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, lineage.ColumnLineage]:
    path = tmp_path_factory.mktemp("schemas") / "restaurant.yaml"
    path.write_text(RESTAURANT.replace("\nviews:\n", STOCK) + MORE)
    contract = load(path)
    return {name: lineage.view_lineage(contract, name) for name in contract.views}


@pytest.mark.parametrize(
    ("view", "column", "sources"),
    [
        ("bills", "customer", ["orders.customer IDENTITY"]),
        ("bills", "amount", ["orders.quantity TRANSFORMATION", "menu.price TRANSFORMATION"]),
        ("bills", "timestamp", ["orders.timestamp IDENTITY"]),
        ("costly", "item", ["bills.item TRANSFORMATION"]),
        ("costly", "total", ["bills.amount AGGREGATION"]),
        ("costly", "n", []),
        ("costly", "windowEnd", ["bills.timestamp TRANSFORMATION"]),
        ("dishes", "item", ["menu.item TRANSFORMATION", "stock.item TRANSFORMATION"]),
        ("dishes", "left", ["menu.price TRANSFORMATION", "stock.pieces TRANSFORMATION"]),
        ("dishes", "validTo", [f"{i}.{c} TRANSFORMATION" for i in ("menu", "stock") for c in ("validFrom", "validTo")]),
        ("halves", "price", ["menu.price TRANSFORMATION"]),
        ("halves", "validTo", ["menu.validTo IDENTITY"]),
    ],
)
def test_what_a_column_comes_from(
    told: dict[str, lineage.ColumnLineage], view: str, column: str, sources: list[str]
) -> None:
    assert [f"{it.input}.{it.column} {it.subtype}" for it in told[view].columns[column]] == sources


@pytest.mark.parametrize(
    ("view", "sources"),
    [
        (
            "bills",
            [
                *("orders.item JOIN", "orders.timestamp JOIN"),
                *("menu.item JOIN", "menu.validFrom JOIN", "menu.validTo JOIN"),
            ],
        ),
        ("costly", ["bills.amount FILTER", "bills.item GROUP_BY", "bills.timestamp WINDOW"]),
        ("halves", []),
    ],
)
def test_what_all_of_a_table_depends_on(told: dict[str, lineage.ColumnLineage], view: str, sources: list[str]) -> None:
    assert [f"{it.input}.{it.column} {it.subtype}" for it in told[view].every] == sources


def test_an_expression_that_names_a_sensitive_column_is_not_told(tmp_path: Path) -> None:
    path = tmp_path / "restaurant.yaml"
    marked = RESTAURANT.replace("    key: {customer: string}\n", "    key: {customer: string}\n    sensitive: [item]\n")
    path.write_text(marked + "    where: orders.item <> 'oysters for Ann'\n")
    found = lineage.view_lineage(load(path), "bills")
    assert "oysters" not in str(found)
    assert [it.expression for it in found.columns["item"]] == [None]
    assert [it.expression for it in found.columns["amount"]] == ["orders.quantity * menu.price"] * 2


def test_what_lies_in_an_object_store_is_named_as_openlineage_names_it() -> None:
    assert lineage._delta_dataset("s3a://bucket/w", "restaurant.bills") == ("s3://bucket", "w/restaurant/bills")
    assert lineage._delta_dataset("/a place/w", "restaurant.bills") == ("file", "/a place/w/restaurant/bills")


TASKS = """
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.openlineage.extractors import ExtractorManager
from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
from airflow.utils.state import TaskInstanceState
dags = DagBag(sys.argv[1]).dags
adapter, run = OpenLineageAdapter(), SimpleNamespace(run_id="first")
for name in sys.argv[2:]:
    dag = dags["restaurant__preview" if name == "preview" else "restaurant"]
    task, now = dag.get_task(name), datetime.now(UTC)
    found = ExtractorManager().extract_metadata(run, task, TaskInstanceState.SUCCESS, None)
    adapter.complete_task(adapter.build_task_instance_run_id("restaurant", name, 1, now, -1), f"restaurant.{name}",
                          now.isoformat(), found, None, None, [], [], None)
"""
"""The tasks of our own DAGs, asked as OpenLineage's listener asks them when they have ended, and its events sent."""


@pytest.mark.parametrize("how", ["connect", "submit"])
def test_the_provider_sends_what_tasks_have_read_and_written(tmp_path: Path, how: str) -> None:
    pytest.importorskip("airflow.providers.openlineage", reason=INSTALL)
    (tmp_path / "restaurant.yaml").write_text(RESTAURANT)
    with receivers.http() as (url, bodies):
        env = {
            **os.environ,
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "HINDCAST_SCHEMAS": str(tmp_path),
            "HINDCAST_WAREHOUSE": "/w",
            "HINDCAST_KAFKA": "kafka1:9092,kafka2:9092",
            "HINDCAST_SPARK": how,
            "OPENLINEAGE_URL": url,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-W", "ignore", "-c", TASKS, str(ROOT / "dags")]
        names = ["replay.menu", "build.bills", "preview"]
        done = subprocess.run([*command, *names], env=env, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
    came = [json.loads(body) for body in bodies]
    replay, build, preview = came
    assert [(it["eventType"], it["job"]["name"]) for it in came] == [("COMPLETE", f"restaurant.{n}") for n in names]
    assert (preview["inputs"], preview["outputs"]) == ([], [])
    assert place(*replay["inputs"]) == [("kafka://kafka1:9092", "menu")]
    assert place(*replay["outputs"]) == [("file", "/w/restaurant/menu")]
    assert place(*build["inputs"]) == [("file", "/w/restaurant/orders"), ("file", "/w/restaurant/menu")]
    (bills,) = build["outputs"]
    assert place(bills) == [("file", "/w/restaurant/bills")]
    assert [(it["name"], it.get("type")) for it in bills["facets"]["schema"]["fields"]] == [
        *(("customer", "string"), ("item", "string"), ("amount", None)),
        *((name, "timestamp") for name in ("timestamp", "systemFrom", "systemTo")),
    ]
    assert bills["facets"]["symlinks"]["identifiers"][0]["name"] == "restaurant.bills"
    columns = bills["facets"]["columnLineage"]
    assert columns["fields"]["amount"]["inputFields"] == [
        {
            "namespace": "file",
            "name": f"/w/restaurant/{table}",
            "field": column,
            "transformations": [
                {"type": "DIRECT", "subtype": "TRANSFORMATION", "description": "orders.quantity * menu.price"}
            ],
        }
        for table, column in (("orders", "quantity"), ("menu", "price"))
    ]
    assert {(it["field"], it["transformations"][0]["subtype"]) for it in columns["dataset"]} == {
        (column, "JOIN") for column in ("item", "timestamp", "validFrom", "validTo")
    }


def place(*datasets: dict[str, Any]) -> list[tuple[str, str]]:
    return [(it["namespace"], it["name"]) for it in datasets]
