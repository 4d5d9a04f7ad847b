"""What no run writes into the tables of gates is named on the Quality page, and takes little of the API server."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.common.settings import Settings
from hindcast.quality import failing_rows, failing_sample, gate_result_rows, gate_results
from hindcast.store import delta_log, tables
from test_failing_page import GATE, enter_rows
from test_former_marks import open_web
from warehouses import RUNS, shop

NULL = replace(GATE, outcome="passed", observed=1.0, detail="")


def write_results(now: Settings, rows: list[dict[str, Any]]) -> str:
    """Append rows to the table of gate results as somebody else would, and return the path of the table."""
    if not (path := Path(gate_results.results_table(now.warehouse, "shop").path)).exists():
        gate_results.append_results(now.warehouse, "shop", 1, "people", [NULL])
    base = {
        "run": 2, "at": RUNS[1], "table": "people", "gate": 0, "expectation": GATE.expectation, "kwargs": "{}",
        "onFailure": "warn", "outcome": "failed", "checked": 1, "failing": 1, "observed": 1.0, "detail": "",
    }  # fmt: skip
    schema = gate_results._ARROW_SCHEMA
    write_deltalake(str(path), pa.Table.from_pylist([base | row for row in rows], schema=schema), mode="append")
    return str(path)


def test_equal_gates_of_a_run_have_a_trend_of_a_value_for_each_run(tmp_path: Path) -> None:
    place = (str(tmp_path), "shop")
    for run in range(1, 25):
        gates = [replace(NULL, gate=n, observed=float(run)) for n in range(3)]
        gate_results.append_results(*place, run, "people", gates)
    for gate in gate_results.read_results(*place, 24)["people"]:
        assert gate.trend == [float(run) for run in range(5, 25)]


EXCESSES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "too many gates": ([{"gate": n} for n in range(6)], "a run has 6 gate results, more than 5"),
    "too many tries": (
        [{"at": RUNS[1] + timedelta(seconds=n)} for n in range(11)],
        "run 2 has 11 gate results, more than 10",
    ),
    "a long detail": ([{"detail": "x" * 1_100}], "bytes, more than 1,000"),
    "a long expectation": ([{"expectation": "x" * 1_100}], "bytes, more than 1,000"),
    "long parameters": ([{"kwargs": json.dumps({"a": "x" * 1_100})}], "bytes, more than 1,000"),
    "many parameters": ([{"kwargs": json.dumps({"a": [[]] * 50})}], "have 101 values, more than 100"),
}


@pytest.mark.parametrize(("rows", "found"), EXCESSES.values(), ids=EXCESSES)
def test_gate_results_that_no_run_writes_are_named_beside_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], found: str
) -> None:
    for name, limit in (("MAX_RESULTS", 5), ("MAX_ALL_RESULTS", 10), ("MAX_TEXT", 1_000), ("MAX_PARTS", 100)):
        monkeypatch.setattr(gate_result_rows, name, limit)
    with shop(tmp_path) as now:
        path, web = write_results(now, rows), open_web("shop")
        page, fields = web.get("/quality/shop"), web.get("/quality/shop.json").json()
        assert len(fields["runs"]) == 2
        assert fields["gates"] == []
        (problem,) = fields["problems"]
        assert found in problem["found"]
        assert (problem["where"], "RESTORE" in problem["mend"]) == (path, True)
        assert problem["found"] in page.text


@pytest.mark.parametrize("limit", ["MAX_STORED_ROWS", "MAX_STORED_BYTES"])
def test_large_files_of_gate_results_are_refused_by_their_footers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    read: list[object] = []
    with shop(tmp_path) as now:
        write_results(now, [{"gate": n, "detail": "x" * 1_000} for n in range(20)])
        monkeypatch.setattr(gate_result_rows, limit, 19)
        monkeypatch.setattr(gate_result_rows.arrow_reader, "read_rows", lambda *given, **_: read.append(given))
        (problem,) = open_web("shop").get("/quality/shop.json").json()["problems"]
    assert "are in files of 2" in problem["found"]
    assert read == []


def test_texts_of_gate_results_are_expanded_once_it_is_known_how_large_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that each row repeats is once in a file, and a thousand times as large in a table of texts."""
    sizes = []

    def measure(table: Any, results: pa.Table) -> None:
        sizes.append(results.nbytes)
        refuse(table, results)

    refuse = gate_result_rows.refuse_excess
    monkeypatch.setattr(gate_result_rows, "refuse_excess", measure)
    with shop(tmp_path) as now:
        write_results(now, [{"gate": n, "detail": "x" * 100_000} for n in range(1_000)])
        (problem,) = open_web("shop").get("/quality/shop.json").json()["problems"]
    assert "bytes, more than 16,777,216" in problem["found"]
    assert max(sizes) < 1_000_000


def test_long_details_and_parameters_are_cut(tmp_path: Path) -> None:
    long = replace(GATE, detail="x" * 30_000, kwargs={"column": "city", "value_set": ["y"] * 3_000})
    with shop(tmp_path) as now:
        gate_results.append_results(now.warehouse, "shop", 2, "people", [long])
        stored = DeltaTable(gate_results.results_table(now.warehouse, "shop").path).to_pyarrow_table()
        assert stored["detail"].to_pylist() == ["x" * 10_000 + "... (30,000 characters)"]
        write_results(now, [{"table": "prices", "detail": "z" * 30_000}])
        answer = open_web("shop").get("/quality/shop.json")
        gates = {gate["table"]: gate for gate in answer.json()["gates"]}
    assert [len(gates[name]["detail"]) for name in ("people", "prices")] == [10_023, 10_023]
    assert "characters, sha256" in gates["people"]["kwargs"]
    assert len(gates["people"]["named"]) < 1_100


def test_long_texts_of_failing_rows_are_cut(tmp_path: Path) -> None:
    with shop(tmp_path) as now:
        gate_results.append_results(now.warehouse, "shop", 2, "people", [GATE])
        long = {"key": '{"id":1}', "row": '{"id":1}', "offset": 1, "topic": "<" * 5_000, "change": ">" * 5_000}
        enter_rows(now, *[long | {"reason": "r" * 5_000, "by": "b" * 5_000}] * 3)
        rows = failing_sample.sample_entries(now.warehouse, "shop", 2, 10)
        assert rows.nbytes < 3_000
        (gate,) = open_web("shop").get("/quality/shop.json").json()["gates"]
    assert [len(row["change"]) for row in gate["rows"]] == [250, 250, 250]
    assert [len(row["record"]["topic"]) for row in gate["rows"]] == [250, 250, 250]


def test_failing_rows_of_more_gates_than_a_contract_has_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_sample.bounds, "GATES", 3)
    with shop(tmp_path) as now:
        enter_rows(now, *({"key": '{"id":1}', "row": '{"id":1}', "table": f"t{n}"} for n in range(9)))
        assert failing_sample.sample_entries(now.warehouse, "shop", 2, 2).num_rows == 6


ODD_ENTRIES = {
    "a row that is cut": {"row": '{"id":'},
    "a key that is cut": {"key": "[1"},
    "a row that is a list": {"row": "[1]"},
    "a key that is a list": {"key": "[1]"},
    "a deep row": {"row": '{"a":' * 390},
}


@pytest.mark.parametrize("odd", ODD_ENTRIES.values(), ids=ODD_ENTRIES)
def test_an_odd_failing_row_is_named_beside_runs_and_gates(tmp_path: Path, odd: dict[str, str]) -> None:
    with shop(tmp_path) as now:
        gate_results.append_results(now.warehouse, "shop", 2, "people", [GATE])
        enter_rows(now, {"key": '{"id":1}', "row": '{"id":1}', "offset": 1} | odd)
        fields = open_web("shop").get("/quality/shop.json").json()
        assert (len(fields["runs"]), len(fields["gates"])) == (2, 1)
        (problem,) = fields["problems"]
    assert "is not the JSON of an object" in problem["found"]
    assert problem["where"].endswith("/failing")


def test_failing_rows_are_read_with_each_text_once_and_from_files_of_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    load_run = failing_sample._load_run

    def measure(*given: Any) -> pa.Table:
        rows = load_run(*given)
        read.append(rows.nbytes)
        return rows

    monkeypatch.setattr(failing_sample, "_load_run", measure)
    with shop(tmp_path) as now:
        long = "x" * 1_000_000
        enter_rows(now, *[{"key": '{"id":1}', "row": f'{{"id":"{long}"}}', "topic": long}] * 1_000)
        enter_rows(now, *[{"key": f'{{"id":"{long}"}}', "row": '{"id":1}', "gate": 1}] * 1_000)
        rows = failing_sample.sample_entries(now.warehouse, "shop", 2, 10)
        assert [(len(row["topic"]), row["row"], row["gate"]) for row in rows.to_pylist()] == [(250, None, 0)] * 10
        assert max(read) < 8_000_000
        monkeypatch.setattr(failing_sample, "MAX_STORED_BYTES", 100_000)
        (problem,) = open_web("shop").get("/quality/shop.json").json()["problems"]
        assert "the failing rows of run 2 are not shown" in problem["found"]
        monkeypatch.setattr(failing_sample, "MAX_STORED_BYTES", 1 << 30)
        monkeypatch.setattr(failing_sample, "MAX_STORED_ROWS", 1_999)
        (problem,) = open_web("shop").get("/quality/shop.json").json()["problems"]
    assert "their files have 2,000 rows" in problem["found"]


def test_the_first_failing_rows_of_each_gate_are_chosen_in_order(tmp_path: Path) -> None:
    with shop(tmp_path) as now:
        entries = [
            {"table": table, "gate": gate, "key": f'{{"id":{key}}}', "row": f'{{"id":{key}}}', "offset": offset}
            for table, gate, key, offset in product(("people", "b"), (1, 0), (2, 10, 1), (9, 8))
        ]
        enter_rows(now, *entries, entries[0] | {"gate": None}, entries[0] | {"entry": "released"})
        rows = failing_sample.sample_entries(now.warehouse, "shop", 2, 3).to_pylist()
    own = [(row["table"], row["gate"], row["key"], row["offset"]) for row in rows]
    first = [('{"id":10}', 8), ('{"id":10}', 9), ('{"id":1}', 8)]  # as texts
    assert own == [(table, gate, *it) for table in ("b", "people") for gate in (0, 1) for it in first]


def test_a_file_with_deleted_rows_is_measured_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop(tmp_path) as now:
        enter_rows(now, {"key": '{"id":1}', "row": '{"id":1}'}, {"key": '{"id":2}', "row": '{"id":2}', "run": 1})
        delta_table = tables.open_table(failing_rows.failing_table(now.warehouse, "shop"))
        assert delta_table is not None
        paths = delta_log.list_paths(delta_table)
        assert gate_result_rows.measure_files(delta_table, paths, 3, 3, ("row",))[0] == 0
        monkeypatch.setattr(gate_result_rows.deletion_vectors, "read_deletion_vectors", lambda *_: dict.fromkeys(paths))
        assert gate_result_rows.measure_files(delta_table, paths, 3, 3, ("row",))[0] == 2
