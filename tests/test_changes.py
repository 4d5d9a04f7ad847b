"""Changes of a table's answers between two moments of knowledge."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from bare_runs import bare_run
from hindcast.bitemporal.predicates import Question
from hindcast.cli import main
from hindcast.common.errors import ContractError, QueryError, UnknownError
from hindcast.contract import load
from hindcast.plan import journal
from hindcast.query import changes, read
from hindcast.query.changes import ChangeCounts, ChangeQuestion, Changes
from hindcast.runs import run_steps
from hindcast.store import tables
from warehouses import RUNS, T0, at, place, row, shop, version, write

BEFORE_FIRST = RUNS[0] - timedelta(microseconds=1)


@pytest.fixture(scope="module")
def bought(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with shop(tmp_path_factory.mktemp("shop")) as now:
        yield now


def found(settings: Any, name: str, earlier: Any, later: Any, **asked: Any) -> Changes:
    contract = load(settings.schemas / "shop.yaml")
    return changes.read_changes(settings.warehouse, contract, name, ChangeQuestion(earlier, later, **asked))


def test_a_late_price_changes_the_part_of_a_version_that_it_is_true_in(bought: Any) -> None:
    """The version that it splits is closed and opened again as it was: that is no change of an answer."""
    of = found(bought, "prices", RUNS[0], RUNS[1])
    [line] = of.lines.to_pylist()
    assert (line["key"]["item"], line["validFrom"], line["validTo"]) == ("naan", at(1), None)
    assert (line["before"]["price"], line["after"]["price"], line["change"]) == (3, 2.5, "changed")
    assert (line["source"], line["corrected"]) == ({"_partition": 0, "_offset": 2}, False)
    assert of.counts == ChangeCounts(1, 1, 0)


def test_a_run_changes_what_was_known_just_before_it(bought: Any) -> None:
    before = changes.find_moment_before(bought.warehouse, "shop", RUNS[1])
    assert before == RUNS[1] - timedelta(microseconds=1)
    assert found(bought, "prices", before, RUNS[1]).lines == found(bought, "prices", RUNS[0], RUNS[1]).lines
    assert found(bought, "prices", RUNS[1], RUNS[1]).counts == ChangeCounts(0, 0, 0)
    first = found(bought, "prices", BEFORE_FIRST, RUNS[0])
    assert [line["change"] for line in first.lines.to_pylist()] == ["added", "added"]


def test_events_and_windows_are_compared_by_what_identifies_them(bought: Any) -> None:
    [bill] = found(bought, "bills", RUNS[0], RUNS[1]).lines.to_pylist()
    assert (bill["before"]["amount"], bill["after"]["amount"], bill["corrected"]) == (6, 5, True)
    assert (bill["key"]["customer"], bill["timestamp"]) == ("dave", at(2))
    for name in ("orders", "met", "daily"):
        assert found(bought, name, RUNS[0], RUNS[1]).counts == ChangeCounts(0, 0, 0)
        [line] = found(bought, name, BEFORE_FIRST, RUNS[1]).lines.to_pylist()
        assert (line["change"], line["before"], line["corrected"]) == ("added", None, False)


def test_moments_that_cannot_be_answered_are_refused(bought: Any) -> None:
    with pytest.raises(QueryError, match="is not known yet"):
        found(bought, "prices", RUNS[0], RUNS[1] + timedelta(days=9000))
    with pytest.raises(UnknownError, match="no table 'price'"):
        found(bought, "price", RUNS[0], RUNS[1])


def test_a_table_that_a_run_has_not_changed_has_no_lines(bought: Any) -> None:
    """Also if no file of it can have rows of the time between."""
    before = changes.find_moment_before(bought.warehouse, "shop", RUNS[1])
    for name in ("orders", "met", "daily", "people", "cities"):
        assert found(bought, name, before, RUNS[1]).counts == ChangeCounts(0, 0, 0)
        assert found(bought, name, T0, at(5)).counts == ChangeCounts(0, 0, 0)
    assert found(bought, "prices", RUNS[1], RUNS[0]) == found(bought, "prices", RUNS[0], RUNS[1]), "in either order"
    first = datetime.min.replace(tzinfo=UTC)
    assert changes.find_moment_before(bought.warehouse, "shop", first) == first


def test_an_event_that_is_dated_otherwise_is_removed_and_added(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        moved = [
            row(1, 2, customer="eve", item="naan", quantity=2, timestamp=at(2), **place(9)),
            row(2, None, customer="eve", item="naan", quantity=2, timestamp=at(7), **place(9)),
        ]
        write(settings, load(settings.schemas / "shop.yaml"), "orders", moved)
        lines = found(settings, "orders", RUNS[0], RUNS[1]).lines.to_pylist()
        assert [(line["timestamp"], line["change"]) for line in lines] == [(at(2), "removed"), (at(7), "added")]


@pytest.mark.parametrize("order", ["size", "time"])
def test_events_of_one_moment_are_on_one_page_each(tmp_path: Path, order: Any) -> None:
    with shop(tmp_path) as settings:
        rows = [row(2, customer="dave", item="", quantity=1, timestamp=at(3), **place(n)) for n in range(3000)]
        random.Random(1).shuffle(rows)  # noqa: S311  # no secret
        write(settings, load(settings.schemas / "shop.yaml"), "orders", rows)
        pages = [
            found(settings, "orders", *RUNS, order=order, first=first, most=500).lines.to_pylist()
            for first in range(0, 3000, 500)
        ]
    assert [line["source"]["_offset"] for page in pages for line in page] == [*range(3000)]


def test_columns_may_have_the_names_of_ours(tmp_path: Path) -> None:
    text = (
        "pipeline: moves\nstart: 2026-01-01\ntopics:\n  t:\n    read: table\n"
        "    key: {change: string, before: string, source: string}\n"
        "    value: {after: string, corrected: string, k: string, v: string, p0: string, i: string}\n"
    )
    names = ("change", "before", "source", "after", "corrected", "k", "v", "p0", "i")
    with shop(tmp_path) as settings:
        (settings.schemas / "shop.yaml").write_text(text)
        for state in ("planned", "completed"):
            journal.append_entry(settings.warehouse, bare_run("moves", 1, RUNS[0], state))
        rows = [version(1, None, 0, None, **dict.fromkeys(names, "x"), **place(1))]
        write(settings, load(settings.schemas / "shop.yaml"), "t", rows)
        lines = found(settings, "t", BEFORE_FIRST, RUNS[0]).lines
        assert changes.describe_lines(lines).column_names == [
            *("change", "before", "source", "validFrom", "validTo", "change_"),
            *names[3:],
        ]
        (flat,) = changes.flatten_lines(lines).to_pylist()
        assert (flat["change"], flat["change_"], flat["after_after"], flat["k_before"]) == ("x", "added", "x", None)


def test_a_column_that_was_dropped_is_no_change(tmp_path: Path) -> None:
    """The row that replaces another has no value there; neither answer has the column."""
    with shop(tmp_path) as settings:
        path = settings.schemas / "shop.yaml"
        path.write_text(
            "pipeline: shop\nstart: 2026-01-01\ntopics:\n  e: {read: table, key: {c: string}, value: {d: double}}\n"
        )
        contract = load(path)
        rows = [
            version(1, 2, 0, None, c="a", d=1.0, gone="old", **place(0)),
            version(2, None, 0, 5, c="a", d=1.0, gone=None, **place(0)),
            version(2, None, 5, None, c="a", d=2.0, gone=None, **place(1)),
        ]
        write(settings, contract, "e", rows)
        dropped = json.dumps({"dropped": {"gone": RUNS[0].isoformat()}})
        opened = DeltaTable(tables.locate_table(settings.warehouse, contract, "e").path)
        opened.alter.set_table_properties({tables.EVOLUTION: dropped}, raise_if_not_exists=False)
        (line,) = found(settings, "e", RUNS[0], RUNS[1]).lines.to_pylist()
        assert (line["validFrom"], line["before"], line["after"]) == (at(5), {"d": 1.0}, {"d": 2.0})


MOVES = """
pipeline: moves
start: 2026-01-01
topics:
  towns: {read: table, key: {id: int}, value: {city: string, n: int}}
"""


def write_history(settings: Any, dice: random.Random, keys: int, runs: int) -> None:
    """A table as so many runs leave it, each of which derives some keys anew; every key's rows tile its time."""
    contract, rows, current = load(settings.schemas / "shop.yaml"), list[dict[str, Any]](), dict[int, list[Any]]()
    for run in range(1, runs + 1):
        for key in dice.sample(range(keys), keys // 2):
            for believed in current.get(key, ()):
                believed |= {"systemTo": RUNS[0] + timedelta(hours=run), "_belief": "superseded"}
            cuts = sorted(dice.sample(range(12), dice.randrange(0, 6)))
            ends = [*cuts[1:], None] if dice.random() < 0.7 else cuts[1:]
            current[key] = [
                version(1, None, start, end, id=key, city=dice.choice("ab"), n=dice.randrange(3), **place(run))
                for start, end in zip(cuts, ends, strict=False)
            ]
            for opened in current[key]:
                opened["systemFrom"] = RUNS[0] + timedelta(hours=run)
            rows += current[key]
        for state in ("planned", "completed"):
            entry = bare_run("moves", run, RUNS[0] + timedelta(hours=run), state)
            journal.append_entry(settings.warehouse, entry)
    write(settings, contract, "towns", rows)


def test_lines_say_at_every_moment_what_two_answers_say(tmp_path: Path) -> None:
    """Against the answers themselves: before and after at each minute, of each key."""
    with shop(tmp_path) as settings:
        (settings.schemas / "shop.yaml").write_text(MOVES)
        contract, dice = load(settings.schemas / "shop.yaml"), random.Random(7)  # noqa: S311
        write_history(settings, dice, 40, 8)
        compared = 0
        for earlier, later in [(0, 1), (3, 4), (1, 7), (2, 8), (0, 8), (5, 5)]:
            moments = [RUNS[0] + timedelta(hours=n) for n in (earlier, later)]
            lines = found(settings, "towns", *moments).lines.to_pylist()
            for minute in range(-1, 13):
                answers = [
                    {row["id"]: {"city": row["city"], "n": row["n"]} for row in rows.to_pylist()}
                    for rows in (
                        read.query(settings.warehouse, contract, "towns", Question(as_of=at(minute), known_at=known))
                        for known in moments
                    )
                ]
                differing = {
                    key: (answers[0].get(key), answers[1].get(key))
                    for key in range(40)
                    if answers[0].get(key) != answers[1].get(key)
                }
                true = [it for it in lines if it["validFrom"] <= at(minute) < (it["validTo"] or at(99))]
                assert {it["key"]["id"]: (it["before"], it["after"]) for it in true} == differing
                assert len(true) == len(differing)
                compared += len(differing)
        assert compared > 500
        every = found(settings, "towns", T0, RUNS[0] + timedelta(hours=8))
        pages = [found(settings, "towns", T0, RUNS[0] + timedelta(hours=8), first=n, most=7) for n in range(0, 99, 7)]
        assert [line for page in pages for line in page.lines.to_pylist()] == every.lines.to_pylist()
        sizes = [
            abs((line["after"] or {"n": 0})["n"] - (line["before"] or {"n": 0})["n"])
            for line in every.lines.to_pylist()
        ]
        assert sizes == sorted(sizes, reverse=True)


def test_a_consumer_of_the_diff_makes_the_later_answers_of_the_earlier_ones(tmp_path: Path) -> None:
    """It cuts the period of each line out of what it has of the key, and puts what the line says there."""
    with shop(tmp_path) as settings:
        (settings.schemas / "shop.yaml").write_text(MOVES)
        contract, dice = load(settings.schemas / "shop.yaml"), random.Random(8)  # noqa: S311
        write_history(settings, dice, 40, 8)
        for earlier, later in [(0, 1), (3, 4), (1, 7), (0, 8)]:
            moments = [RUNS[0] + timedelta(hours=n) for n in (earlier, later)]
            before, after = (read_pieces(settings, contract, known) for known in moments)
            lines = found(settings, "towns", *moments).lines.to_pylist()
            dice.shuffle(lines)
            for line in lines:
                before[line["key"]["id"]] = replace_piece(before.get(line["key"]["id"], []), line)
            assert join_pieces(before) == join_pieces(after)
            assert lines


Piece = tuple[datetime, datetime, dict[str, Any]]


def read_pieces(settings: Any, contract: Any, known: datetime) -> dict[int, list[Piece]]:
    question = Question(from_time=at(-1), to_time=at(99), known_at=known)
    pieces: dict[int, list[Piece]] = {}
    for it in read.query(settings.warehouse, contract, "towns", question).to_pylist():
        values = {"city": it["city"], "n": it["n"]}
        pieces.setdefault(it["id"], []).append((it["validFrom"], it["validTo"] or at(99), values))
    return pieces


def replace_piece(pieces: list[Piece], line: dict[str, Any]) -> list[Piece]:
    start, end = line["validFrom"], line["validTo"] or at(99)
    kept = [(since, min(until, start), it) for since, until, it in pieces if since < start]
    kept += [(max(since, end), until, it) for since, until, it in pieces if until > end]
    return kept + ([(start, end, line["after"])] if line["after"] is not None else [])


def join_pieces(pieces: dict[int, list[Piece]]) -> dict[int, list[Piece]]:
    """The pieces in order; those that meet and say the same are one."""
    joined: dict[int, list[Piece]] = {}
    for key, own in pieces.items():
        for since, until, values in sorted(own, key=lambda piece: piece[0]):
            last = joined.setdefault(key, [])
            if last and last[-1][1] == since and last[-1][2] == values:
                last[-1] = last[-1][0], until, values
            else:
                last.append((since, until, values))
    return {key: own for key, own in joined.items() if own}


def test_the_command_line_says_what_a_run_changed(
    bought: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(bought.schemas))
    monkeypatch.setenv("HINDCAST_WAREHOUSE", bought.warehouse)
    assert main.main(["diff", "shop.prices", "--run", "2"]) == 0
    assert [line.split("  ") for line in re.sub(" {2,}", "  ", capsys.readouterr().out).splitlines()] == [
        ["item", "validFrom", "validTo", "change", "price", "note"],
        ["----", "-------------------", "-------", "-------", "------------", "----------"],
        ["naan", "2026-01-01 00:01:00", "-", "changed", "3.00 -> 2.50", '"" -> late'],
        ["(1 row)"],
    ]
    assert main.main(["diff", "shop.prices", "--from", "run:1", "--to", "run:2", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "item,validFrom,validTo,change,price_before,price_after,note_before,note_after",
        'naan,2026-01-01T00:01:00+00:00,,changed,3.00,2.50,"",late',
    ]
    assert main.main(["diff", "shop.prices", "--run", "2", "--corrections"]) == 0
    assert "(0 rows)" in capsys.readouterr().out
    assert main.main(["diff", "shop.people", "--run", "1"]) == 0
    capsys.readouterr()
    early = ["--valid-from", "2026-01-01", "--valid-to", "2026-01-01T00:01"]
    assert main.main(["diff", "shop.prices", "--run", "2", *early]) == 0
    assert "(0 rows)" in capsys.readouterr().out
    assert main.main(["diff", "shop.prices", "--run", "2", *early[:2], "--valid-to", "2026-01-01T00:01:01"]) == 0
    assert "2026-01-01 00:01:01  changed" in capsys.readouterr().out
    for keys, count in (
        (["--key", "naan"], 1),
        (["--key", "rice"], 0),
        (["--from-key", "n", "--to-key", "o"], 1),
        (["--to-key", "m"], 0),
    ):
        assert main.main(["diff", "shop.prices", "--run", "2", *keys, "--format", "json"]) == 0
        assert len(json.loads(capsys.readouterr().out)) == count
    assert main.main(["diff", "shop", "--run", "2", "--key", "naan"]) == 1
    assert "have different keys" in capsys.readouterr().err
    for wrong, why in ((early[:2], "half a period"), ([*early[:2], "--valid-to", "2025-01-01"], "is not before")):
        assert main.main(["diff", "shop.prices", "--run", "2", *wrong]) == 1
        assert why in capsys.readouterr().err
    assert main.main(["diff", "shop.prices", "--run", "2", "--to", "run:1"]) == 1
    assert "--run" in capsys.readouterr().err


def test_the_command_line_counts_the_changes_of_a_pipeline(
    bought: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(bought.schemas))
    monkeypatch.setenv("HINDCAST_WAREHOUSE", bought.warehouse)
    assert main.main(["diff", "shop", "--run", "2", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines() == ["table,changes,keys,pastAnswers", "prices,1,1,0", "bills,1,1,1"]
    assert main.main(["diff", "shop", "--run", "2", "--corrections", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines() == ["table,changes,keys,pastAnswers", "bills,1,1,1"]
    assert main.main(["diff", "shop", "--from", "run:2", "--to", "run:2"]) == 0
    assert capsys.readouterr().out == "nothing has changed in 9 tables of shop\n"
    assert main.main(["diff", "shop", "--from", "run:2", "--to", "run:2", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines() == ["table,changes,keys,pastAnswers"]


def test_a_key_that_the_contract_has_changed_is_told_before_anything_is_read_or_planned(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        path = settings.schemas / "shop.yaml"
        path.write_text(path.read_text().replace("key: {item: string}", "key: {article: string}"))
        contract = load(path)
        for ask in (
            lambda: read.query(settings.warehouse, contract, "prices"),
            lambda: read.history(settings.warehouse, contract, "prices"),
            lambda: found(settings, "prices", RUNS[0], RUNS[1]),
        ):
            with pytest.raises(QueryError, match=r"its key is .*, and the contract's is article"):
                ask()
        with pytest.raises(ContractError, match="the table prices cannot become what the contract says") as refused:
            run_steps.plan_run(settings, "shop", "again")
        assert "shop.yaml:" in refused.value.where
        assert "to start over, remove the pipeline's folder" in refused.value.fix
        assert [run.number for run in journal.read_runs(settings.warehouse, "shop")] == [1, 2]
