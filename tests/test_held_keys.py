"""What is told of held keys without Spark: how many there are, what a person is asked, which commands do it again."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

import reports
from bare_runs import bare_run
from hindcast.airflow import approval_tasks
from hindcast.cli import main
from hindcast.common.errors import BusyError, ContractError, RequestError
from hindcast.common.settings import read_settings
from hindcast.contract import Contract, load
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.plan import definitions, journal, notices, planner
from hindcast.plan.plans import Plan
from hindcast.plan.purposes import Erasure, Purpose, Release, ReleasedKeys, Replay, Requeue
from hindcast.plan.runs import Completed, Run
from hindcast.quality import approval, failing_rows, held_change, held_changes
from hindcast.report import report
from hindcast.store import commit_history, table_creation, tables
from hindcast.store.tables import Table

MENU = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    expect:
      - expect_column_values_to_be_between: {column: price, min_value: 0}
        on_failure: quarantine
  orders:
    read: stream
    key: {customer: string}
    value: {item: string}
"""
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def contract(folder: Path, text: str = MENU) -> Contract:
    path = folder / "restaurant.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def bind(warehouse: str, contract: Contract) -> BoundContract:
    return bind_contract(contract, read_settings({"HINDCAST_WAREHOUSE": warehouse, "HINDCAST_VAR": warehouse}))


def enter(warehouse: str, *rows: dict[str, Any]) -> None:
    """Enter rows of what is held; each with the number of its run, its key and what its change amounts to."""
    table = failing_rows.failing_table(warehouse, "restaurant")
    found = table_creation.ensure_table(table, failing_rows.SCHEMA)
    schema = table_creation.arrow_schema(failing_rows.SCHEMA)
    write_deltalake(
        found, pa.Table.from_pylist([{**dict.fromkeys(schema.names), **row} for row in rows], schema), mode="append"
    )


def held(run: int, item: str, digest: int, *, fails: bool = True, price: int = -1, **other: Any) -> dict[str, Any]:
    why = {"gate": 0, "expectation": "expect_x", "reason": "too cheap"} if fails else {}
    place = {"topic": "menu", "partition": 0, "offset": digest}
    row = {"run": run, "at": T0 + timedelta(hours=run), "table": "menu", "entry": "held", "change": "open"}
    told = {"key": json.dumps({"item": item}), "row": json.dumps({"item": item, "price": price})}
    return {**row, **told, "digest": digest, "since": 0, **why, **place, **other}


def test_a_key_that_is_held_already_is_not_newly_held(tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    enter(warehouse, held(1, "curry", 1), held(1, "naan", 2))
    assert held_changes.count_held(warehouse, "restaurant", 1, 0) == {
        "menu": {"keys": 2, "rows": 2, "newly": 2, "grown": 0}
    }
    # Curry gets more, which is held with it; naan stays as it was; soup is new.
    enter(warehouse, held(2, "curry", 3), held(2, "curry", 3, fails=False), held(2, "soup", 4))
    assert held_changes.count_held(warehouse, "restaurant", 2, 1) == {
        "menu": {"keys": 3, "rows": 4, "newly": 1, "grown": 1}
    }
    assert held_changes.count_held(warehouse, "restaurant", 3, 2) == {
        "menu": {"keys": 3, "rows": 4, "newly": 0, "grown": 0}
    }


def test_a_person_is_shown_one_line_for_each_key_with_its_first_failing_row(tmp_path: Path) -> None:
    warehouse, menu = str(tmp_path), contract(tmp_path)
    right = [held(1, "curry", 1, fails=False, price=n) for n in range(60)]
    enter(warehouse, *right, held(1, "curry", 1, price=-7), held(1, "naan", 2))
    keys = approval.read_held_keys(bind(warehouse, menu))
    assert [(key.label, key.rows, key.failing) for key in keys] == [
        ('menu {"item": "curry"}', 61, 1),
        ('menu {"item": "naan"}', 1, 1),
    ]
    text, labels = approval.describe_keys(menu, keys)
    lines = text.splitlines()
    assert len(lines) == 2 + len(keys)  # the header has two
    assert "| price -7 |" in lines[2].replace("\\", "")
    assert "1 of 61" in lines[2]
    assert labels == [key.label for key in keys]


def test_a_person_is_shown_what_a_change_replaces_and_for_which_time(tmp_path: Path) -> None:
    """Of the rows that the change would close, the one that is valid where the failing row begins."""
    warehouse, menu = str(tmp_path), contract(tmp_path)

    def change(kind: str, price: str, begin: int, end: int | None, *, fails: bool = False) -> dict[str, Any]:
        moments = [None if second is None else f"2026-01-01T00:00:0{second}.000000Z" for second in (begin, end)]
        period = {"validFrom": moments[0], "validTo": moments[1]}
        row = json.dumps({"item": "curry", "price": 0} | period).replace('"price": 0', f'"price": {price}')
        return held(1, "curry", 1, fails=fails, change=kind, row=row)

    rows = [("close", "7.00", 0, 2), ("close", "8.00", 2, None), ("open", "7.00", 0, 1), ("open", "0.00", 4, 6, True)]
    enter(warehouse, *(change(*row[:4], fails=len(row) > 4) for row in rows))
    text, _ = approval.describe_keys(menu, approval.read_held_keys(bind(warehouse, menu)))
    cells = [cell.strip() for cell in text.splitlines()[2].replace("\\", "").split("|")][1:-1]
    assert cells == [
        *("menu", '{"item": "curry"}', "price 8.00 → 0.00", "from 2026-01-01 00:00:04 to 2026-01-01 00:00:06"),
        *("too cheap", "1 of 4", "menu, partition 0, offset 1"),
    ]
    hidden = contract(tmp_path, MENU.replace("    expect:", "    sensitive: [price]\n    expect:", 1))
    text, _ = approval.describe_keys(hidden, approval.read_held_keys(bind(warehouse, hidden)))
    assert "8" not in text.splitlines()[2].replace("2026", "")
    windows = '{"n":%d,"windowStart":"2026-01-01T00:00:00.000000Z","windowEnd":"2026-01-02T00:00:00.500000Z"}'
    assert held_change.find_replaced_row(windows % 2, [windows % 1]) == windows % 1
    assert held_change.describe_period(windows % 2) == "from 2026-01-01 00:00:00 to 2026-01-02 00:00:00.500000"
    assert held_change.describe_period('{"timestamp":"2026-01-01T00:00:00.000000Z"}') == "at 2026-01-01 00:00:00"


def test_an_event_replaces_the_row_of_its_record(tmp_path: Path) -> None:
    """Of events of one key and moment; of rows of one record (joined with several others) none is guessed."""
    warehouse, menu = str(tmp_path), contract(tmp_path)

    def event(kind: str, price: int, offset: int, *, fails: bool = False) -> dict[str, Any]:
        row = json.dumps({"item": "curry", "price": price, "timestamp": "2026-01-01T00:00:00.000000Z"})
        return held(1, "curry", 1, fails=fails, change=kind, row=row, offset=offset)

    enter(warehouse, event("close", 7, 1), event("close", 8, 2), event("open", 0, 2, fails=True))
    [key] = approval.read_held_keys(bind(warehouse, menu))
    assert json.loads(key.replaced or "{}")["price"] == 8
    enter(warehouse, event("close", 9, 2))
    [key] = approval.read_held_keys(bind(warehouse, menu))
    assert key.replaced is None


def test_a_form_is_small_whatever_is_held(tmp_path: Path) -> None:
    warehouse, menu, long = str(tmp_path), contract(tmp_path), "!" * 100_000
    items = ["curry", *(f"{long}{n}" for n in range(4)), *(f"z{n}{long[:400]}" for n in range(80))]
    enter(warehouse, *(held(1, item, n, reason=long, topic="menu") for n, item in enumerate(items)))
    keys = approval.read_held_keys(bind(warehouse, menu))
    text, labels = approval.describe_keys(menu, keys)
    *lines, _, more, _, cut = text.split("\n")
    assert 90_000 < len(text.encode()) < 101_000
    assert len(lines) == 2 + len(labels) < 2 + len(keys)
    assert more == f"... and {len(keys) - len(labels)} more keys: hindcast failing restaurant --held"
    assert cut == "Long texts are cut; this shows them whole: hindcast failing restaurant --held"
    assert max(map(len, labels)) < 400
    assert len({key.label for key in keys}) == len(keys), "though they begin with the same text"
    shown = T0 + timedelta(hours=1)
    for key in keys[:5]:
        assert approval.choose_keys(bind(warehouse, menu), shown, json.dumps([key.label])) == {"menu": [key.key]}
    assert approval.choose_keys(bind(warehouse, menu), shown, json.dumps(labels)) == {
        "menu": [key.key for key in keys[: len(labels)]]
    }


def test_what_a_later_run_entered_holds_whatever_the_clocks_showed(tmp_path: Path) -> None:
    warehouse, noon = str(tmp_path), T0 + timedelta(hours=12)

    def hold_again(item: str, first: tuple[int, int], then: tuple[int, int], entry: str) -> list[dict[str, Any]]:
        """A held row of a run and an hour, and what another run and hour made of it."""
        moments = [{"run": run, "at": T0 + timedelta(hours=hour)} for run, hour in (first, then)]
        return [{**held(1, item, 1), **moments[0]}, {**held(1, item, 1), **moments[1], "entry": entry}]

    enter(
        warehouse,
        *hold_again("released by a clock that is behind", (1, 12), (2, 6), "released"),
        *hold_again("held again by a clock that is behind", (2, 6), (1, 12), "released"),
        *hold_again("released in one run", (1, 6), (1, 12), "released"),
        *hold_again("rejected in one run", (1, 6), (1, 12), "rejected"),
        *hold_again("held again in one run", (1, 12), (1, 6), "released"),
    )
    entries = {
        json.loads(unit.key)["item"]: unit.entry
        for unit in held_changes._list_units(warehouse, "restaurant", held_changes._HELD_UNITS_QUERY, None)
    }
    assert entries == {
        "held again by a clock that is behind": "held",
        "held again in one run": "held",
        "rejected in one run": "rejected",
    }
    assert failing_rows.read_last_entry_time(warehouse, "restaurant") == noon


def test_the_rows_of_a_key_are_listed_in_the_order_of_their_records(tmp_path: Path) -> None:
    warehouse, places = str(tmp_path), [(1, 0), (0, 7), (0, 10), (1, 2), (0, 3)]
    enter(
        warehouse,
        *(
            held(1, "tea", 5, topic="t", partition=partition, offset=offset, change=change)
            for (partition, offset), change in zip(places, ("open", "open", "close", "open", "close"), strict=True)
        ),
    )
    for rows in (
        held_changes.read_held_rows(warehouse, "restaurant"),
        failing_rows.list_entries(warehouse, "restaurant"),
    ):
        assert [(row["partition"], row["offset"]) for row in rows.to_pylist()] == sorted(places)


def test_some_of_the_held_keys_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warehouse, menu, shown = str(tmp_path), contract(tmp_path), T0 + timedelta(hours=1)
    enter(warehouse, held(1, "curry", 1), held(1, "naan", 2))
    curry, naan = '{"item": "curry"}', '{"item": "naan"}'
    assert approval.choose_keys(
        bind(warehouse, menu), shown, f'["menu {naan.replace(chr(34), chr(92) + chr(34))}"]'
    ) == {"menu": [naan]}
    both = json.dumps([f"menu {curry}", f"menu {naan}"])
    assert approval.choose_keys(bind(warehouse, menu), shown, both) == {"menu": [curry, naan]}
    # Naan has got more since it was shown: it is not what the person has seen.
    enter(warehouse, held(2, "naan", 3))
    assert approval.choose_keys(bind(warehouse, menu), shown, json.dumps([f"menu {naan}"])) == {}
    assert f"menu {naan}: is no longer held as it was shown" in capsys.readouterr().out
    assert approval.choose_keys(bind(warehouse, menu), shown, both) == {"menu": [curry]}


def begin_forgetting(warehouse: str, state: str) -> None:
    moment, erasure = T0 + timedelta(days=1), Erasure("menu", "0")
    journal.append_entry(warehouse, bare_run("restaurant", 2, moment, state, run_id="forget__1", purpose=erasure))


def test_a_rejection_waits_for_a_forgetting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contract(tmp_path)
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path))
    monkeypatch.setenv("HINDCAST_WAREHOUSE", warehouse := str(tmp_path / "warehouse"))
    enter(warehouse, held(1, "curry", 1), held(1, "naan", 2), held(1, "anna", 3, table="orders"))
    begin_forgetting(warehouse, "planned")
    answer = "restaurant", (T0 + timedelta(hours=1)).isoformat(), "ann", '["menu {\\"item\\": \\"curry\\"}"]'
    assert not approval_tasks.reject(*answer).is_done
    assert "a rejection stops here: run 2 (forget__1) forgets something" in capsys.readouterr().out
    assert {row["entry"] for row in held_changes.read_held_rows(warehouse, "restaurant").to_pylist()} == {"held"}
    begin_forgetting(warehouse, "completed")
    assert approval_tasks.reject(*answer).is_done
    assert capsys.readouterr().out == "restaurant.menu: 1 key held, rejected by ann\n"
    entries = {row["key"]: row["entry"] for row in held_changes.read_held_rows(warehouse, "restaurant").to_pylist()}
    assert entries == {'{"item": "curry"}': "rejected", '{"item": "naan"}': "held", '{"item": "anna"}': "held"}
    assert approval_tasks.reject(*answer).is_done
    assert "what was held has changed meanwhile" in capsys.readouterr().out


def test_a_rejection_waits_for_a_release_of_the_same_keys_alone(tmp_path: Path) -> None:
    warehouse, until = str(tmp_path), T0 + timedelta(hours=1)
    curry, naan = '{"item": "curry"}', '{"item": "naan"}'
    enter(warehouse, held(1, "curry", 1), held(1, "naan", 2))
    release = Release({"menu": ReleasedKeys(until, (curry,), "ann")})
    journal.append_entry(warehouse, bare_run("restaurant", 2, until, "planned", run_id="release__1", purpose=release))
    with pytest.raises(BusyError, match=r"run 2 \(release__1\) publishes what was approved before"):
        held_changes.reject_keys(warehouse, "restaurant", {"menu": [curry, naan]}, "bob", until)
    assert held_changes.reject_keys(warehouse, "restaurant", {"menu": [naan]}, "bob", until) == {"menu": [naan]}


def test_a_rejection_says_nothing_of_what_is_not_held_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse, curry, naan = str(tmp_path), '{"item": "curry"}', '{"item": "naan"}'
    enter(warehouse, held(1, "curry", 1), held(1, "naan", 2), held(1, "soup", 3))
    post = notices.post_notice

    def post_late(*given: Any) -> Any:
        """Post a notice when a forgetting has just taken curry, and a run has found more of naan."""
        tables.open_table(failing_rows.failing_table(warehouse, "restaurant")).delete('key = \'{"item": "curry"}\'')  # type: ignore[union-attr]
        enter(warehouse, held(2, "naan", 4))
        return post(*given)

    monkeypatch.setattr(notices, "post_notice", post_late)
    asked = {"menu": [curry, naan, '{"item": "soup"}']}
    rejected = held_changes.reject_keys(warehouse, "restaurant", asked, "ann", T0 + timedelta(hours=1))
    assert rejected == {"menu": ['{"item": "soup"}']}
    entered = [(row["key"], row["by"]) for row in failing_rows.list_entries(warehouse, "restaurant").to_pylist()]
    assert [key for key, by in entered if by] == ['{"item": "soup"}']
    assert curry not in dict(entered)


@pytest.mark.parametrize("labels", ["", "null", "[]"])
def test_no_labels_are_not_all_keys(tmp_path: Path, labels: str) -> None:
    menu = contract(tmp_path, MENU)
    enter(str(tmp_path), held(1, "curry", 1, row="{}"))
    with pytest.raises(RequestError, match="the answer is about no keys"):
        approval.choose_keys(bind(str(tmp_path), menu), T0 + timedelta(hours=1), labels)


@pytest.mark.parametrize("labels", ['"menu"', "7", '{"menu": 1}', "[1]", '[["menu"]]'])
def test_labels_that_no_form_sends_are_refused(tmp_path: Path, labels: str) -> None:
    """Airflow's API takes other answers than its form gives."""
    menu = contract(tmp_path, MENU)
    enter(str(tmp_path), held(1, "curry", 1, row="{}"))
    with pytest.raises(RequestError, match="the chosen keys are no list of texts"):
        approval.choose_keys(bind(str(tmp_path), menu), T0 + timedelta(hours=1), labels)


def test_a_sensitive_key_is_chosen_by_its_record(tmp_path: Path) -> None:
    warehouse, menu = (
        str(tmp_path),
        contract(tmp_path, MENU.replace("    expect:", "    sensitive: true\n    expect:", 1)),
    )
    enter(warehouse, held(1, "curry", 1, row="{}"), held(1, "naan", 2, row="{}"))
    keys = approval.read_held_keys(bind(warehouse, menu))
    labels = [key.label for key in keys]
    assert [label.rsplit(" ", 1)[0] for label in labels] == [
        f"menu *** (topic menu, partition 0, offset {n})" for n in (1, 2)
    ]
    assert "curry" not in approval.describe_keys(menu, keys)[0]
    asked = json.dumps([keys[1].label])
    assert approval.choose_keys(bind(warehouse, menu), T0 + timedelta(hours=1), asked) == {"menu": ['{"item": "naan"}']}


def test_keys_that_are_hidden_since_they_were_shown_are_asked_about_again(tmp_path: Path) -> None:
    """An approval of them is not lost in silence, and no log shows them."""
    warehouse, menu = str(tmp_path), contract(tmp_path)
    enter(warehouse, held(1, "curry", 1))
    shown = json.dumps([key.label for key in approval.read_held_keys(bind(warehouse, menu))])
    menu = contract(tmp_path, MENU.replace("    expect:", "    sensitive: true\n    expect:", 1))
    with pytest.raises(RequestError, match="the keys of menu are hidden now, and were shown") as refused:
        approval.choose_keys(bind(warehouse, menu), T0 + timedelta(hours=1), shown)
    assert "curry" not in str(refused.value)


def test_entries_that_are_older_than_the_mark_of_a_column_do_not_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither to who lists them, nor to who is asked to approve; and nothing of a table that left the contract."""
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path))
    monkeypatch.setenv("HINDCAST_WAREHOUSE", warehouse := str(tmp_path / "warehouse"))
    enter(warehouse, held(1, "curry", 1, price=-7), held(1, "anna", 2, table="gone"))

    def list_failing(*options: str) -> list[tuple[Any, Any]]:
        assert main.main(["failing", "restaurant", "--format", "json", *options]) == 0
        return [(row["key"], row["row"]) for row in json.loads(capsys.readouterr().out)]

    for marked, key, row in (
        ("[price]", '{"item": "curry"}', '{"item":"curry"}'),
        ("[item]", "***", '{"price":-7}'),
        ("true", "***", "{}"),
    ):
        menu = contract(tmp_path, MENU.replace("    expect:", f"    sensitive: {marked}\n    expect:", 1))
        assert list_failing() == list_failing("--held") == [("***", None), (key, row)]
        assert [(found.shown, found.row) for found in approval.read_held_keys(bind(warehouse, menu))] == [(key, row)]
    contract(tmp_path)
    assert list_failing() == [("***", None), ('{"item": "curry"}', '{"item": "curry", "price": -7}')]
    contract(tmp_path, MENU.replace("price", "cost"))
    assert list_failing() == [("***", None), ('{"item": "curry"}', '{"item":"curry"}')], "price may have been marked"


def test_one_of_two_sensitive_keys_of_one_record_is_chosen_alone(tmp_path: Path) -> None:
    text = MENU.replace("    expect:", "    sensitive: true\n    expect:", 1)
    labels = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        warehouse, menu = str(tmp_path / folder), contract(tmp_path / folder, text)
        for topic, offset in (("menu", 1), (None, None)):
            its = {"topic": topic, "partition": offset and 0, "offset": offset}
            rows = [held(1, f"{item} {topic}", 1, row="{}") | its for item in ("curry", "naan")]
            enter(warehouse, *rows)
        keys = approval.read_held_keys(bind(warehouse, menu))
        assert len({key.label for key in keys}) == 4
        assert [key.label for key in approval.read_held_keys(bind(warehouse, menu))] == [key.label for key in keys]
        for key in keys:
            assert approval.choose_keys(bind(warehouse, menu), T0 + timedelta(hours=1), json.dumps([key.label])) == {
                "menu": [key.key]
            }
        labels += [key.label for key in keys]
    assert len({*labels}) == 8, "a label cannot be computed from a guess of its key"


def test_what_an_abandoned_run_published_counts_when_delta_has_forgotten_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse, text = str(tmp_path), contract(tmp_path)
    plan = Plan("restaurant", 2, "dies", T0, None, text.hash, {}, definition=definitions.list_unstored_fields([], text))
    run = Run(plan)
    journal.append_entry(warehouse, run)
    menu = Table(warehouse, "restaurant", "menu", "versions")
    nothing = table_creation.arrow_schema(failing_rows.SCHEMA).empty_table()
    made = CommitProperties(app_transactions=[Transaction(menu.app_id(""), 2)])
    write_deltalake(
        table_creation.ensure_table(menu, failing_rows.SCHEMA), nothing, mode="append", commit_properties=made
    )
    orders = [held(1, "curry", 1, table="orders"), held(2, "curry", 1, table="orders", entry="released")]
    enter(warehouse, held(1, "curry", 1), held(2, "curry", 1, entry="released"), *orders)
    planner.abandon_run(warehouse, run, "by a test")
    monkeypatch.setattr(commit_history, "read_notes", lambda *_: {})
    assert {row["table"] for row in held_changes.read_held_rows(warehouse, "restaurant").to_pylist()} == {"orders"}


def test_a_reader_has_seen_nothing_of_a_run_that_is_under_way(tmp_path: Path) -> None:
    warehouse, text = str(tmp_path), contract(tmp_path)
    enter(warehouse, held(1, "curry", 1))
    plan = Plan(
        "restaurant", 2, "a run", T0, None, text.hash, {}, definition=definitions.list_unstored_fields([], text)
    )
    journal.append_entry(warehouse, Run(plan))
    enter(warehouse, held(2, "soup", 2))  # what it enters of another table later has the same moment
    assert failing_rows.read_last_entry_time(warehouse, "restaurant") == T0 + timedelta(hours=1)
    journal.append_entry(warehouse, Run(plan, Completed({})))
    assert failing_rows.read_last_entry_time(warehouse, "restaurant") == T0 + timedelta(hours=2)


def test_what_was_rejected_is_released_by_its_name_alone(tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    enter(warehouse, held(1, "curry", 1), held(1, "soup", 2))
    held_changes.reject_keys(warehouse, "restaurant", {"menu": ['{"item": "curry"}']}, "ann", T0 + timedelta(hours=1))
    find = partial(held_changes.find_held_keys, warehouse, "restaurant", "menu")
    assert find([]) == ['{"item": "soup"}']
    assert find(["curry"]) == ['{"item": "curry"}']


def test_tables_of_which_all_is_rejected_hinder_no_release_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contract(tmp_path)
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path))
    monkeypatch.setenv("HINDCAST_WAREHOUSE", str(tmp_path))
    enter(
        str(tmp_path),
        held(1, "curry", 1),
        held(1, "ann", 2, table="orders", entry="rejected"),
        held(1, "ann", 2, table="orders"),
    )
    rejected = {"orders": ['{"item": "ann"}']}
    held_changes.reject_keys(str(tmp_path), "restaurant", rejected, "ann", T0 + timedelta(hours=1))
    assert main.main(["release", "restaurant", "--reject", "--by", "eve"]) == 0
    assert capsys.readouterr().out == "restaurant.menu: 1 key held, rejected by eve\n"


def test_entries_of_before_there_were_units_are_read(tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    table = failing_rows.failing_table(warehouse, "restaurant")
    fields = [field for field in failing_rows.SCHEMA.fields if field.name != "unit"]
    older = type(failing_rows.SCHEMA)(fields)
    found = table_creation.ensure_table(table, older)
    row = {name: held(1, "curry", 1).get(name) for name in older.names}
    write_deltalake(found, pa.Table.from_pylist([row], table_creation.arrow_schema(older)), mode="append")
    assert held_changes.find_held_keys(warehouse, "restaurant", "menu", ["curry"]) == ['{"item": "curry"}']
    enter(warehouse, held(2, "naan", 2))
    assert held_changes.count_held(warehouse, "restaurant", 2, 1)["menu"] == {
        "keys": 2,
        "rows": 2,
        "newly": 1,
        "grown": 0,
    }


@pytest.mark.parametrize(
    ("purpose", "command"),
    [
        (Replay(), "hindcast run restaurant"),
        (Replay("menu"), "hindcast run restaurant --only menu"),
        (
            Release({"menu": ReleasedKeys(T0, ('{"item":"curry"}',), "ann")}),
            """hindcast release restaurant.menu --key '{"item":"curry"}'""",
        ),
        (
            Release({"menu": ReleasedKeys(T0, tuple(map(str, range(9))), "ann")}),
            "hindcast release restaurant.menu",
        ),
        (
            Requeue(("menu",), reason="not a number", partition=0, offsets=(3, 5)),
            "hindcast requeue restaurant --topic menu --reason 'not a number' --partition 0 --offset 3 --offset 5",
        ),
        (Requeue(("menu", "orders")), "hindcast requeue restaurant"),
    ],
)
def test_a_report_says_which_command_does_it_again(tmp_path: Path, purpose: Purpose, command: str) -> None:
    plan = Plan("restaurant", 2, "r", T0, None, "", {}, purpose=purpose)
    told = report.build_report(str(tmp_path), contract(tmp_path), plan).as_json()
    assert told["again"] == command
    is_offered = not isinstance(purpose, Release)  # what was released needs no second release
    assert (f"again: {command}" in reports.format_report(told)) is is_offered


ROW = MENU.replace("    expect:", "    hold: row\n    expect:", 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (ROW.replace("        on_failure: quarantine\n", ""), "no gate under expect: holds anything back"),
        (
            ROW + "views:\n  dear: {table: menu, hold: row, expect: [{expect_column_values_to_not_be_null: "
            "{column: price}, on_failure: quarantine}]}\n",
            "hold: row on a view of versions",
        ),
        (ROW + "views:\n  live: {table: menu, semantics: kafka}\n", "Kafka Streams reads every record"),
        (ROW.replace("hold: row", "hold: rows"), "hold"),
    ],
)
def test_where_rows_cannot_be_held_the_contract_is_refused(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(ContractError, match=found):
        contract(tmp_path, text)


def test_what_is_held_back_changes_no_hash_of_contracts_without_it(tmp_path: Path) -> None:
    plain, row = contract(tmp_path), contract(tmp_path, ROW)
    explicit = contract(tmp_path, ROW.replace("hold: row", "hold: key"))
    assert plain.hash == explicit.hash != row.hash
    assert plain.topics["menu"].hash_decoding == row.topics["menu"].hash_decoding


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("1.10", ["1.10", "1.1", '{"k": 1.10}']),
        ("123456789012345678.250", ["123456789012345678.25"]),
        ("10.0", ["10", "10.0"]),
        ("100", ["100"]),
        ("1.0E10", ["1.0E10"]),
        ("true", ["true"]),
        ('"1.10"', ["1.10"]),
        ('"é"', ["é", r'{"k": "\u00e9"}']),
    ],
)
def test_a_key_is_named_as_people_write_it(value: str, texts: list[str]) -> None:
    named = held_changes.list_key_texts(f'{{"k":{value}}}')
    assert {*texts} <= named
    assert "1.1" not in named or value == "1.10", "a text is no number"
