"""The Quality page shows the rows that failed a gate, as far as they may be shown."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from fastapi.testclient import TestClient

from hindcast.airflow.pages import quality
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.common.settings import Settings
from hindcast.quality import failing_rows, failing_sample, gate_results
from hindcast.quality.gate_results import GateResult
from hindcast.store import table_creation
from warehouses import RUNS, shop

GATE = GateResult(
    0, "expect_column_values_to_not_be_null", {"column": "city"}, "quarantine", "failed", 12, 12, None, "12 of 12 fail"
)


def enter_rows(settings: Settings, *rows: dict[str, object]) -> None:
    """Enter failing rows of the second run, as it would."""
    schema = table_creation.arrow_schema(failing_rows.SCHEMA)
    base = dict.fromkeys(schema.names) | {
        "run": 2, "at": RUNS[1], "table": "people", "gate": 0, "entry": "held", "change": "open",
        "topic": "people", "partition": 0,
    }  # fmt: skip
    table = table_creation.ensure_table(failing_rows.failing_table(settings.warehouse, "shop"), failing_rows.SCHEMA)
    write_deltalake(table, pa.Table.from_pylist([base | row for row in rows], schema=schema), mode="append")


def test_the_first_rows_that_fail_a_gate_are_on_the_page_without_what_is_sensitive(tmp_path: Path) -> None:
    with shop(tmp_path) as now:
        gate_results.append_results(now.warehouse, "shop", 2, "people", [GATE])
        many = (
            {"key": f'{{"id":{n}}}', "row": f'{{"id":{n},"name":"Ann Secret","city":null}}', "offset": n}
            for n in range(12)
        )
        enter_rows(now, *many, {"key": '{"id":1}', "row": '{"id":1}', "gate": None, "offset": 99})
        web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))))  # noqa: ARG005
        page, fields = web.get("/quality/shop"), web.get("/quality/shop.json").json()
    (gate,) = fields["gates"]
    assert len(gate["rows"]) == 10
    assert gate["rows"][1] == {
        "entry": "held",
        "change": "open",
        "key": '{"id":10}',
        "row": {"id": 10, "city": None},
        "record": {"topic": "people", "partition": 0, "offset": 10},
    }
    assert "10 of 12 rows that fail, held back" in page.text
    assert "people, partition 0, offset 10" in page.text
    assert "Ann Secret" not in page.text


def test_large_rows_and_keys_are_not_on_the_page(tmp_path: Path) -> None:
    long = "x" * failing_sample.MAX_SHOWN
    with shop(tmp_path) as now:
        gate_results.append_results(now.warehouse, "shop", 2, "people", [GATE])
        enter_rows(
            now,
            {"key": '{"id":1}', "row": f'{{"id":1,"city":"{long}"}}', "offset": 1},
            {"key": f'{{"id":"{long}"}}', "row": '{"id":2}', "offset": 2},
        )
        rows = failing_sample.sample_entries(now.warehouse, "shop", 2, 10).to_pylist()
        assert [(row["key"], row["row"], row["offset"]) for row in rows] == [('{"id":1}', None, 1)]
        assert failing_sample.sample_entries(now.warehouse, "shop", 1, 10).num_rows == 0


def test_what_hindcast_did_not_write_is_named(tmp_path: Path) -> None:
    """Somebody wrote into the tables of gates: the parameters are no object, the outcome and a row are odd texts."""
    with shop(tmp_path) as now:
        gate_results.append_results(now.warehouse, "shop", 2, "people", [GATE])
        access = PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))  # noqa: ARG005
        web = TestClient(build_app(access), raise_server_exceptions=False)
        path = gate_results.results_table(now.warehouse, "shop").path
        written = DeltaTable(path).to_pyarrow_table().to_pylist()
        for odd, found in (({"kwargs": "[1]"}, "the parameters of a gate: [1]"), ({"outcome": "odd"}, "the outcome")):
            rows = pa.Table.from_pylist([written[0] | odd | {"at": RUNS[1]}], schema=gate_results._ARROW_SCHEMA)
            write_deltalake(path, rows, mode="overwrite")
            page = web.get("/quality/shop")
            assert page.status_code == 200
            assert found in page.text
            assert "RESTORE" in page.text
        write_deltalake(path, pa.Table.from_pylist(written, schema=gate_results._ARROW_SCHEMA), mode="overwrite")
        enter_rows(now, {"key": '{"id":1}', "row": "Ann Secret", "offset": 1})
        page = web.get("/quality/shop")
        assert page.status_code == 200
        assert "the key or the row of an entry is not the JSON of an object" in page.text
        assert "Ann Secret" not in page.text


def test_the_advice_of_an_unforeseen_error_names_the_pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError

    monkeypatch.setattr(quality, "build_pipeline_page", fail)
    with shop(tmp_path):
        access = PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))  # noqa: ARG005
        answer = TestClient(build_app(access), raise_server_exceptions=False).get("/quality/shop.json")
    assert answer.status_code == 500
    assert answer.json()["error"]["mend"].startswith("hindcast verify shop --quick, if")
