"""The Quality page shows the rows that failed a gate, as far as they may be shown."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from fastapi.testclient import TestClient

import reports
from hindcast.airflow.pages import failing_changes, failing_page, opening_causes, quality
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.common.column_values import ColumnValue
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import load
from hindcast.plan import journal
from hindcast.plan.purposes import Purpose, Release, ReleasedKeys
from hindcast.plan.runs import Completed, Run, Stopped
from hindcast.quality import failing_rows, failing_sample, gate_results, rows_before
from hindcast.quality.gate_results import GateResult
from hindcast.query.explain_limits import EngineLimitError
from hindcast.report.page import render_page
from hindcast.report.run_report import RunReport
from hindcast.store import table_creation
from warehouses import RUNS, plan, report, shop

GATE = GateResult(
    0, "expect_column_values_to_not_be_null", {"column": "city"}, "quarantine", "failed", 12, 12, None, "12 of 12 fail"
)


def enter_rows(settings: Settings, *rows: dict[str, object]) -> None:
    """Enter failing rows of the second run, unless they say another, as it would."""
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
    assert len(gate["rows"]) == 12
    assert gate["rows"][1] == {
        "entry": "held",
        "change": "open",
        "isNew": False,
        "key": '{"id":10}',
        "row": {"id": 10, "city": None},
        "cells": [{"name": "city", "before": "", "after": "null", "differs": False}],
        "valid": "",
        "record": {"topic": "people", "partition": 0, "offset": 10},
        "plane": {"table": "people", "key": "10"},
    }
    assert "people: city must not be null." in " ".join(page.text.split())
    assert "12 failing rows, held back" in " ".join(page.text.split())
    assert "people, partition 0, offset 10" in page.text
    assert "Ann Secret" not in page.text


PRICE_GATE = GateResult(
    0,
    "expect_column_values_to_be_between",
    {"column": "price", "min_value": 1},
    "quarantine",
    "failed",
    9,
    1,
    0.1,
    "1 of 9",
)
BEGIN = "2026-01-01T00:02:00.000000Z"


def add_price_gate(settings: Settings) -> None:
    """Let a gate of the contract hold back prices below 1."""
    path = settings.schemas / "shop.yaml"
    text = path.read_text()
    line = next(line for line in text.splitlines() if "prices:" in line)
    block = (
        "  prices:\n    topic: shop.prices\n    read: table\n    key: {item: string}\n"
        '    value: {price: "decimal(8,2)", note: string}\n    expect:\n'
        "      - expect_column_values_to_be_between: {column: price, min_value: 1}\n"
        "        on_failure: quarantine"
    )
    path.write_text(text.replace(line, block))


@contextmanager
def shop_that_holds_a_price(folder: Path, run: int = 2) -> Iterator[Settings]:
    """The pipeline `shop`, one of whose runs holds back that naan costs 0.50 instead of 3.00."""
    with shop(folder) as settings:
        add_price_gate(settings)
        gate_results.append_results(settings.warehouse, "shop", run, "prices", [PRICE_GATE])
        held = {"run": run, "table": "prices", "topic": "shop.prices", "key": '{"item":"naan"}', "digest": 5}
        period = f'"validFrom":"{BEGIN}","validTo":null'
        enter_rows(
            settings,
            held | {"row": f'{{"item":"naan","price":0.50,"note":"n",{period}}}', "offset": 7},
            held | {"row": f'{{"item":"naan","price":3.00,"note":"n",{period}}}', "gate": None, "change": "close"},
        )
        yield settings


def end_run(
    settings: Settings, prices: dict[str, object], purpose: Purpose | None = None, reason: str | None = None
) -> None:
    """Complete a third run, for this `purpose` and reason if any, which says this of the table `prices`."""
    contract = load(settings.schemas / "shop.yaml")
    planned = plan(contract, 2)
    planned = replace(planned, run=3, run_id="manual__3", known_at=RUNS[1] + timedelta(days=1))
    run = Run(replace(planned, purpose=purpose or planned.purpose, reason=reason))
    changed = {"opened": 0, "closed": 0, "corrected": 0} | prices
    known = {"run": 3, "runId": "manual__3", "knownAt": run.known_at.isoformat(), "tables": {"prices": changed}}
    made = report(contract, 2) | known
    journal.append_entry(settings.warehouse, run)
    journal.append_entry(settings.warehouse, replace(run, outcome=Completed(made)))
    reports.write_page(settings.reports, made)


def test_a_failing_row_is_a_change_with_its_gate_in_words_and_its_record(tmp_path: Path) -> None:
    with shop_that_holds_a_price(tmp_path):
        web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))))  # noqa: ARG005
        page, (gate,) = web.get("/quality/shop").text, web.get("/quality/shop.json").json()["gates"]
    (row,) = gate["rows"]
    assert (gate["words"], gate["line"]) == ("price must be at least 1", "shop.yaml:12")
    assert row["cells"][0] == {"name": "price", "before": "3.00", "after": "0.50", "differs": True}
    assert row["record"] == {"topic": "shop.prices", "partition": 0, "offset": 7}
    assert row["plane"] == {"table": "prices", "key": "naan", "asOf": BEGIN}
    assert "<del>3.00</del> → <ins>0.50</ins>" in page
    assert "/machine/shop?table=prices&amp;key=naan&amp;asOf=2026-01-01" in page


@pytest.mark.parametrize("entry", ["stopped", "warned"])
def test_a_row_that_stopped_a_run_or_only_warned_is_a_change_of_what_was_there_before_the_run(
    entry: str, tmp_path: Path
) -> None:
    """Of a version, an event and a new key: nothing of what the run itself published counts."""
    naan = f'"item":"naan","validFrom":"{BEGIN}","validTo":null'
    bill = '"customer":"dave","item":"naan","timestamp":"2026-01-01T00:02:00.000000Z"'
    with shop(tmp_path) as settings:
        for table in ("prices", "bills"):
            gate_results.append_results(settings.warehouse, "shop", 2, table, [PRICE_GATE])
        prices = {"entry": entry, "table": "prices", "topic": "shop.prices"}
        enter_rows(
            settings,
            prices | {"key": '{"item":"naan"}', "row": f'{{"price":0.50,"note":"",{naan}}}', "offset": 7},
            prices | {"key": '{"item":"naan"}', "row": f'{{"price":0.75,"note":"n",{naan}}}', "offset": 9},
            prices | {"key": '{"item":"new"}', "row": f'{{"price":0.50,"validFrom":"{BEGIN}"}}', "offset": 8},
            {"entry": entry, "table": "bills", "key": '{"customer":"dave"}', "row": f'{{"amount":5.00,{bill}}}'},
        )
        web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))))  # noqa: ARG005
        page, gates = web.get("/quality/shop").text, web.get("/quality/shop.json").json()["gates"]
    rows = {gate["table"]: gate["rows"] for gate in gates}
    before = [(row["isNew"], *row["cells"][0].values()) for name in ("prices", "bills") for row in rows[name]]
    assert before == [
        (False, "price", "3.00", "0.50", True),
        (False, "price", "3.00", "0.75", True),
        (True, "price", "", "0.50", False),
        (False, "amount", "6.00", "5.00", True),
    ]
    assert [cell["differs"] for cell in rows["prices"][0]["cells"]] == [True, False], "the note is the same"
    assert "<del>3.00</del> → <ins>0.50</ins>" in page
    assert "<del>empty</del> → <ins>n</ins>" in page
    assert page.count("not there before") == 1


def test_the_time_machine_shows_what_is_held_back_of_a_key_also_of_one_that_never_had_a_row(tmp_path: Path) -> None:
    with shop_that_holds_a_price(tmp_path) as settings:
        row = f'{{"item":"tea","price":0.25,"note":"n","validFrom":"{BEGIN}","validTo":null}}'
        held = {"table": "prices", "topic": "shop.prices", "key": '{"item":"tea"}', "since": 0, "digest": 1}
        enter_rows(settings, held | {"row": row, "offset": 8})
        enter_rows(settings, *({"run": 2, "entry": "held", "table": "prices", "key": f'{{"item":"k{n}"}}', "digest": 1}
                               for n in range(failing_changes.MAX_ROWS)))  # fmt: skip
        web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))))  # noqa: ARG005
        page, problem = (web.get(f"/machine/shop?table=prices&key={key}") for key in ("naan", "tea"))
        fields = web.get("/machine/shop.json?table=prices&key=naan").json()
        other = web.get("/machine/shop?table=prices&key=curry").text
    assert (page.status_code, problem.status_code) == (200, 404)
    assert "Held back by run 2" in problem.text
    assert "never had a row of this key" in problem.text
    assert "Hindcast failing" not in problem.text, "the rows are on the page"
    for text, words in ((page.text, "<del>3.00</del> → <ins>0.50</ins>"), (problem.text, "0.25")):
        shown = text.partition('id="failing-2"')[2].partition("</section>")[0]
        assert "price must be at least 1" in shown
        assert "shop.prices, partition 0, offset" in shown
        assert words in shown
        assert 'href="/reports/shop/run-2.html#failing"' in shown
        assert 'href="/quality/shop#waiting"' in shown
    assert [(it["run"], [row["key"] for gate in it["gates"] for row in gate["rows"]]) for it in fields["failing"]] == [
        (2, ['{"item":"naan"}'])
    ]
    assert "failing-2" not in other


def test_the_time_machine_shows_what_stopped_the_last_run_of_a_key_and_not_what_stopped_one_before(
    tmp_path: Path,
) -> None:
    with shop(tmp_path) as settings:
        add_price_gate(settings)
        naan = {"entry": "stopped", "table": "prices", "topic": "shop.prices", "key": '{"item":"naan"}'}
        for run, price in ((1, "0.25"), (3, "0.50")):
            gate_results.append_results(settings.warehouse, "shop", run, "prices", [PRICE_GATE])
            row = f'{{"item":"naan","price":{price},"note":"n","validFrom":"{BEGIN}","validTo":null}}'
            enter_rows(settings, naan | {"run": run, "row": row, "offset": run})
        contract = load(settings.schemas / "shop.yaml")
        third = replace(plan(contract, 2), run=3, run_id="manual__3", known_at=RUNS[1] + timedelta(days=1))
        for stopped in (Run(third), Run(third, Stopped("prices", "a gate stopped it"))):
            journal.append_entry(settings.warehouse, stopped)
        web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))))  # noqa: ARG005
        page = web.get("/machine/shop?table=prices&key=naan").text
        (settings.schemas / "shop.yaml").write_text(
            (settings.schemas / "shop.yaml").read_text().replace("    expect:", "    sensitive: [price]\n    expect:")
        )
        hidden = web.get("/machine/shop?table=prices&key=naan").text
    assert "Not published: a gate stopped run 3" in page
    assert "<ins>0.50</ins>" in page
    assert "a gate stopped run 1" not in page
    assert "stopped run 3" in hidden
    assert "0.50" not in hidden


def test_before_the_first_run_there_is_nothing_and_of_a_row_without_a_time_it_is_not_known(tmp_path: Path) -> None:
    row = {"key": '{"item":"naan"}', "row": f'{{"price":0.50,"validFrom":"{BEGIN}"}}', "offset": 7}
    with shop(tmp_path) as settings:
        contract = load(settings.schemas / "shop.yaml")
        find = partial(rows_before.find_rows_before, settings.warehouse, contract, "prices", seconds=9.0)
        assert find(number=1, entries=[row]) == {0: None}
        assert find(number=2, entries=[row]) == {0: '{"price": "3.00", "validFrom": "2026-01-01T00:00:00.000000Z"}'}
        assert find(number=3, entries=[row]) == {}, "there is no such run"
        assert find(number=2, entries=[row | {"row": '{"price":0.50}'}]) == {}, "nobody knows for which time"


def test_a_failing_event_is_beside_the_row_of_its_record(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        gate_results.append_results(settings.warehouse, "shop", 2, "bills", [PRICE_GATE])
        held = {"table": "bills", "topic": "orders", "key": '{"customer":"ann"}'}
        for change, prices in (("close", (3, 4)), ("open", (30, 40))):
            for n, price in enumerate(prices):
                row = f'{{"customer":"ann","amount":{price},"timestamp":"{BEGIN}"}}'
                gate = 0 if change == "open" else None
                enter_rows(settings, held | {"row": row, "offset": n, "change": change, "gate": gate})
        found = failing_changes.read_failing_rows(settings, load(settings.schemas / "shop.yaml"), 2)
    assert [(row["cells"][0]["before"], row["cells"][0]["after"]) for row in found["bills", 0]] == [
        ("3", "30"),
        ("4", "40"),
    ]


TYPED = """
pipeline: typed
start: 2026-01-01
topics:
  amounts: {read: table, key: {k: "decimal(20,2)"}, value: {n: int}}
  tags: {read: table, key: {k: binary}, value: {n: int}}
"""


def test_the_time_machine_is_asked_for_the_key_of_a_failing_row(tmp_path: Path) -> None:
    with shop(tmp_path, TYPED) as settings:
        contract = load(settings.schemas / "typed.yaml")
        for table, key, asked in (
            ("amounts", "123456789012345678.25", "123456789012345678.25"),
            ("tags", f'"{b64encode(b"abc").decode()}"', "616263"),
        ):
            found = failing_changes._ask_plane(settings, contract, table, f'{{"k":{key}}}', None, "failing")
            assert found == {"table": table, "key": asked}


@pytest.mark.parametrize(
    ("by", "answered", "reason", "words"),
    [
        (
            "ann",
            RUNS[1],
            "it is <b>so</b>",
            "ann at 2026-02-02 00:00:00 UTC: it is &lt;b&gt;so&lt;/b&gt;",
        ),
        ("ann", None, None, "ann; no reason was given"),
        (None, None, None, "nobody named; no reason was given"),
    ],
    ids=["when and why", "of an older journal", "by nobody"],
)
def test_a_release_shows_the_rows_that_it_released_and_who_approved_them(
    by: str | None, answered: datetime | None, reason: str | None, words: str, tmp_path: Path
) -> None:
    """Also rows of other keys and of other changes of the key were held; these are not what was released."""
    key, period = '{"item":"naan"}', f'"validFrom":"{BEGIN}","validTo":null'
    with shop(tmp_path) as settings:
        add_price_gate(settings)
        held = {"table": "prices", "topic": "shop.prices", "key": key, "expectation": PRICE_GATE.expectation}
        for run, digest, price in ((1, 5, "0.25"), (2, 6, "0.50")):
            row = f'{{"item":"naan","price":{price},"note":"n",{period}}}'
            enter_rows(settings, held | {"run": run, "row": row, "offset": run, "since": 0, "digest": digest})
        other = held | {"key": '{"item":"tea"}', "row": f'{{"item":"tea","price":0.75,{period}}}', "offset": 9}
        enter_rows(settings, other | {"since": 0, "digest": 6}, other | {"since": 0, "digest": 7})
        release = {"run": 3, "table": "prices", "key": key, "gate": None, "entry": "released", "change": None}
        enter_rows(settings, release | {"since": 0, "digest": 6, "by": by, "topic": None, "partition": None})
        gate = replace(PRICE_GATE, checked=1, failing=1, detail="1 of 1")
        gate_results.append_results(settings.warehouse, "shop", 3, "prices", [gate])
        gates = [gate.as_json() | {"trend": [], "rows": "hindcast failing shop --run 3 --table prices"}]
        purpose = Release({"prices": ReleasedKeys(RUNS[1], (key,), by, answered)})
        end_run(settings, {"opened": 1, "noLongerHeld": {"released": 1}, "gates": gates}, purpose, reason)
        web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))))  # noqa: ARG005
        report_page, quality_page = (web.get(path).text for path in ("/reports/shop/run-3.html", "/quality/shop"))
        fields = web.get("/quality/shop.json").json()
        changes_page = web.get("/changes/shop?knownAt=run:3").text
        earlier = web.get("/changes/shop?knownAt=run:2").text
        path = settings.schemas / "shop.yaml"
        path.write_text(path.read_text().replace("expect_column_values_to_be_between: {column: price, min_value: 1}",
                                                 "expect_column_values_to_not_be_null: {column: price}"))  # fmt: skip
        other_gate = web.get("/reports/shop/run-3.html").text
    (gate_shown,) = fields["gates"]
    assert [(row["entry"], row["heldBy"], row["row"]["price"]) for row in gate_shown["rows"]] == [("released", 2, 0.5)]
    for page in (report_page, quality_page):
        assert "1 failing row, released by run 3; held back by" in " ".join(page.split())
        assert 'href="/reports/shop/run-2.html"' in page
        assert "<del>2.50</del> → <ins>0.50</ins>" in page
    for page in (report_page, quality_page, changes_page):
        assert f"Approved by {words}" in re.sub("</?time[^>]*>", "", page)
    assert "Approved by" not in earlier
    answers = report_page.partition('id="failing"')[2].partition("</section>")[0]
    assert 'id="approval"' in answers
    assert "<ins>0.50</ins>" in answers, "who approved stands beside what was approved"
    assert report_page.index('id="failing"') < report_page.index('id="gates"'), "the script lengthens the gates"
    assert "Run it again" not in report_page, "it would release nothing"
    assert "<dt>Reason</dt>" not in report_page, "it is beside who approved"
    at = answered and answered.isoformat()
    assert [run["release"] for run in fields["runs"]] == [{"by": by, "at": at, "reason": reason}, None, None]
    assert "on released rows" in quality_page
    assert "held back by" not in other_gate, "the gate of this number is another by now"


def test_what_an_earlier_run_let_through_with_a_warning_stays_on_the_page(tmp_path: Path) -> None:
    """The gate has not checked these rows since."""
    with shop(tmp_path) as settings:
        add_price_gate(settings)
        warned = replace(PRICE_GATE, on_failure="warn")
        gate_results.append_results(settings.warehouse, "shop", 3, "prices", [warned])
        row = f'{{"item":"naan","price":0.50,"note":"n","validFrom":"{BEGIN}","validTo":null}}'
        enter_rows(settings, {"run": 3, "table": "prices", "entry": "warned", "key": '{"item":"naan"}', "row": row})
        end_run(settings, {"gates": [warned.as_json() | {"trend": [], "rows": "hindcast failing shop --run 3"}]})
        web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))))  # noqa: ARG005
        assert web.get("/quality/shop.json").json()["warned"] == [], "the gates of the last run have their rows"
        before = web.get("/failing.json").json()
        contract = load(settings.schemas / "shop.yaml")
        fourth = replace(plan(contract, 2), run=4, run_id="manual__4", known_at=RUNS[1] + timedelta(days=2))
        known = {"run": 4, "runId": "manual__4", "knownAt": fourth.known_at.isoformat()}
        for run in (Run(fourth), Run(fourth, Completed(report(contract, 2) | known))):
            journal.append_entry(settings.warehouse, run)
        page, later, own, every = (
            " ".join(web.get(address).text.split())
            for address in ("/quality/shop", "/reports/shop/run-4.html", "/reports/shop/run-3.html", "/failing")
        )
        after = web.get("/failing.json").json()
    for shown in (page, later):
        assert 'warning by <a href="/reports/shop/run-3.html#failing">run 3</a>: 1 row of prices (naan).' in shown
    assert "Earlier, let through" not in own
    for shown in (own, every):
        assert "published with a warning" in shown
    for found in (before, after):
        (only,) = found["pipelines"]
        (run,) = only["runs"]
        assert (only["pipeline"], run["run"], found["unread"]) == ("shop", 3, [])
        assert [(gate["table"], gate["rows"][0]["row"]["price"]) for gate in run["gates"]] == [("prices", 0.5)]


@pytest.mark.parametrize(
    ("by", "reason", "words"), [("eva", "Free this week.", " by eva: Free this week"), (None, None, "")]
)
def test_the_time_machine_says_who_approved_what_a_run_released(
    tmp_path: Path, by: str | None, reason: str | None, words: str
) -> None:
    with shop(tmp_path) as settings:
        purpose = Release({"prices": ReleasedKeys(RUNS[1], ('{"item":"naan"}',), by, RUNS[1])})
        run = Run(replace(plan(load(settings.schemas / "shop.yaml"), 2), purpose=purpose, reason=reason))
    told = [f"Run 2 published it: it had been held back, and was approved{words}."]
    assert opening_causes.describe_approval(run, "prices") == told
    assert opening_causes.describe_approval(run, "bills") == opening_causes.describe_approval(None, "prices") == []


def test_failing_rows_of_all_pipelines_are_on_one_page_as_far_as_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop_that_holds_a_price(tmp_path, run=3) as settings:
        end_run(settings, {"gates": [PRICE_GATE.as_json() | {"trend": [], "rows": "hindcast failing shop --run 3"}]})
        for names in (frozenset(["shop", "guest"]), frozenset(["guest"])):
            web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda names=names: names)))  # noqa: ARG005
            found = [it["pipeline"] for it in web.get("/failing.json").json()["pipelines"]]
            assert found == (["shop"] if "shop" in names else [])
            assert ("0.50" in web.get("/failing").text) == ("shop" in names)
        web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))))  # noqa: ARG005
        with monkeypatch.context() as patch:
            patch.setattr(failing_page.quality, "read_gates", Mock(side_effect=ValueError("odd")))
            page = " ".join(web.get("/failing").text.split())
            assert "its failing rows cannot be shown: ValueError" in page
            assert "odd" not in page
        monkeypatch.setattr(failing_page, "SECONDS", -1.0)
        page = " ".join(web.get("/failing").text.split())
        assert 'There was no time for <a href="/quality/shop">shop</a>.' in page


def test_rows_of_a_release_that_were_not_released_do_not_count_as_such() -> None:
    row = {"key": "{}", "cells": [], "valid": "", "record": None, "plane": None, "change": "open", "isNew": False}
    released = [row | {"entry": "released", "heldBy": run} for run in (4, 2, 4)]
    gate: JsonObject = {
        "table": "prices",
        "words": "",
        "line": None,
        "failing": 4,
        "rows": [row | {"entry": "held"}, *released],
    }
    made = RunReport("shop", 5, "manual__5", RUNS[0])
    shown = " ".join(re.sub("<[^>]*>", "", render_page(made, [gate])).split())
    assert "4 failing rows, 3 of these released by run 5; held back by run 2, run 4." in shown


def test_the_report_of_a_run_has_its_failing_rows_where_airflow_shows_it(tmp_path: Path) -> None:
    with shop_that_holds_a_price(tmp_path, run=3) as settings:
        gates = [PRICE_GATE.as_json() | {"trend": [], "rows": "hindcast failing shop --held"}]
        end_run(settings, {"gates": gates})
        web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))))  # noqa: ARG005
        path = settings.reports / "shop" / "run-3.html"
        shown, written = web.get("/reports/shop/run-3.html"), path.read_text()
        (settings.schemas / "shop.yaml").write_text(
            (settings.schemas / "shop.yaml").read_text().replace("    expect:", "    sensitive: [price]\n    expect:")
        )
        hidden = web.get("/reports/shop/run-3.html").text
    assert "<del>3.00</del> → <ins>0.50</ins>" in shown.text
    assert "sandbox" in shown.headers["content-security-policy"]
    assert '<a href="/reports/shop/run-2.html">Previous run (2)</a>' in shown.text
    assert '<a href="/quality">All pipelines</a>' in shown.text
    assert '<a href="/changes/shop?knownAt=run:3">Changes</a>' in shown.text
    assert "Next run" not in shown.text
    assert "Previous run" not in written, "a file leads nowhere"
    assert "0.50" not in written, "a file of the reports' folder has no values of records"
    assert "Failing rows" in hidden
    assert "0.50" not in hidden


def test_rows_that_are_not_read_in_time_are_shown_as_they_are_proposed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def open_slow_engine(*_: object) -> Iterator[None]:
        raise EngineLimitError
        yield

    monkeypatch.setattr(rows_before, "open_limited_engine", open_slow_engine)
    row = {"key": '{"item":"naan"}', "row": f'{{"price":0.50,"validFrom":"{BEGIN}"}}', "offset": 7}
    with shop(tmp_path) as settings:
        contract = load(settings.schemas / "shop.yaml")
        assert rows_before.find_rows_before(settings.warehouse, contract, "prices", 2, [row], 9.0) == {}


@pytest.mark.parametrize(
    ("value", "written", "other"),
    [
        (Decimal("3.00"), "3.00", "3.01"),
        (1e10, "1.0E10", "1.1E10"),
        (7, 7, 8),
        (True, True, False),
        (None, None, ""),
        ("1.0", "1.0", "1.00"),
        (date(2026, 1, 2), "2026-01-02", "2026-01-03"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00.000000Z", "2026-01-02T00:00:00.000001Z"),
        (b"ab", "YWI=", "YWM="),
        ({"a": [Decimal("1.50")]}, {"a": ["1.50"]}, {"a": ["1.50", "2.50"]}),
    ],
)
def test_a_value_of_a_table_is_known_again_as_entries_write_it(
    value: ColumnValue, written: JsonValue, other: JsonValue
) -> None:
    row = json.loads(rows_before._format_row({"x": value}, {"x": written}))
    assert row == {"x": written}
    assert json.loads(rows_before._format_row({"x": value}, {"x": other})) != {"x": other}


def test_keys_that_wait_for_approval_are_a_badge_that_leads_to_the_open_action(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))))  # noqa: ARG005
        assert "for approval" not in web.get("/quality").text
        end_run(settings, {"gates": [], "held": {"keys": 2, "rows": 3, "newly": 0}})
        overview, page = web.get("/quality").text, web.get("/quality/shop").text
    assert '<a class="badge" href="/quality/shop#waiting">2 keys wait for approval</a>' in overview
    assert 'href="/dags/shop__release/required_actions?response_received=false" target="_top"' in page
    assert '"mark passed"' in page, "it is no alarm"


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
