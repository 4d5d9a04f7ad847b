"""What the whole stack tells of a run: task logs, statsd, OpenLineage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import receivers
from browser import running
from hindcast.kafka import produce
from hindcast_demo import restaurant

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.long
@pytest.mark.parametrize("how", ["connect", "submit"])
def test_a_run_in_airflow_is_told_by_its_logs_by_statsd_and_by_openlineage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    for package in ("statsd", "airflow.providers.openlineage"):
        pytest.importorskip(package, reason="the extras statsd and lineage (make test-observed)")
    with receivers.http() as (url, bodies), receivers.udp() as (port, metrics):
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        for option, value in {"ON": "True", "PORT": str(port), "INFLUXDB_ENABLED": "True"}.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__STATSD_{option}", value)
        with running(tmp_path, ROOT / "schemas" / "restaurant.yaml", HINDCAST_SPARK=how) as (now, web):
            first = restaurant.first_records()
            produce.create_topics(now.kafka, *first)
            for topic, records in first.items():
                produce.send_records(now.kafka, topic, records)
            web.unpause("restaurant")
            run = web.wait("restaurant")
            told = web._call(
                "GET", f"/api/v2/dags/restaurant/dagRuns/{run}/taskInstances/build.bills/logs/1?map_index=-1"
            )
    begun, ended = (it for it in told["content"] if it.get("logger") == "hindcast.steps")
    assert (begun["event"], begun["run_id"], begun["table"]) == ("step begun", run, "bills")
    assert (ended["event"], ended["opened"], ended["closed"], ended["run"]) == ("step ended", 4, 0, 1)
    assert ended["seconds"] > 0

    assert "airflow.hindcast.rows_opened,pipeline=restaurant,table=bills:4|c" in metrics
    assert "airflow.hindcast.restaurant.bills.rows_opened:4|c" in metrics
    assert "airflow.hindcast.offsets_left,pipeline=restaurant,table=menu:0|g" in metrics
    assert any(
        line.startswith("airflow.hindcast.records,pipeline=restaurant,table=menu,fate=accepted:") for line in metrics
    )
    assert any(line.startswith("airflow.hindcast.step_duration,pipeline=restaurant,step=finish:") for line in metrics)

    events: list[dict[str, Any]] = [json.loads(body) for body in bodies]
    (bills,) = [it for it in events if (it["job"]["name"], it["eventType"]) == ("restaurant.build.bills", "COMPLETE")]
    (output,) = bills["outputs"]
    assert output["name"] == f"{now.warehouse}/restaurant/bills"
    made_of = {
        name: [it["field"] for it in column["inputFields"]]
        for name, column in output["facets"]["columnLineage"]["fields"].items()
    }
    assert made_of["amount"] == ["quantity", "price"]
    (menu,) = [it for it in events if (it["job"]["name"], it["eventType"]) == ("restaurant.replay.menu", "COMPLETE")]
    assert [(it["namespace"], it["name"]) for it in menu["inputs"]] == [(f"kafka://{now.kafka}", "restaurant.menu")]
