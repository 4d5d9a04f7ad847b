"""Tables of older store formats are read as today's, and become tables of today's while they are read."""

from __future__ import annotations

import re
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

import crashes
import upgrades
from crashes import killed
from hindcast.cli import main
from hindcast.common.errors import BusyError, QueryError, RequestError, TableError
from hindcast.ops.upgrade import downgrade, upgrade
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import journal, notices, planner
from hindcast.query import spark_functions
from hindcast.runs import run_steps, shadow_table
from hindcast.store import files, row_reader, tables
from pipelines import RESTAURANT, Pipeline, at, pipeline, tell, wrong
from upgrades import ADOPTED, BILLS, HISTORY, RECORDS, StopError, ordered, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = {
    "latest": [("cake", 3, "?"), ("curry", 8, "?"), ("soup", 5, "?")],
    "timestamped": [("cake", 3, "?"), ("curry", 8, 0), ("soup", 5, 1)],
    "versioned": [("cake", 3, 1), ("curry", 10, 4)],
}
"""What is true now, before run 2."""


def adopted(spark: SparkSession, p: Pipeline, form: str, mode: str) -> None:
    """A table is adopted, and read as if it were of today."""
    upgrades.put(p, form)
    with pytest.raises(TableError, match="is a Delta table that Hindcast did not make") as caught:
        p.run()
    assert "hindcast upgrade restaurant.menu" in caught.value.fix
    if mode == "offline":
        upgrades.upgraded(spark, p, mode)
    else:
        upgrades.taken_over(spark, p, mode)
        assert tables.read_older_format(upgrades.opened(p)) is not None
    assert wrong(p) == []
    assert upgrades.asked(p) == NOW[form]
    assert upgrades.asked(p, as_of=at(-1)) == [row for row in NOW[form] if row[2] == "?"]
    assert ordered([row[:4] for row in upgrades.history(p)]) == ordered(ADOPTED[form])
    plain = upgrades.plainly(p, "item", "price", where="systemTo IS NULL AND validTo IS NULL")
    assert plain == [(item, float(price)) for item, price, _ in NOW[form]]
    spark_functions.register(spark, p.warehouse, p.contract)
    rows = spark.sql("SELECT item, int(price) FROM restaurant_menu_as_of() ORDER BY item").collect()
    assert [tuple(row) for row in rows] == [row[:2] for row in NOW[form]]


def upgraded_amid_runs(spark: SparkSession, p: Pipeline, form: str, mode: str) -> None:
    """An adopted table is written by a run before the rest is done."""
    adopted(spark, p, form, mode)
    tell(p, RECORDS)
    p.run("second")
    assert upgrades.history(p) == ordered(HISTORY[form])
    assert wrong(p) == []
    assert upgrades.asked(p, known_at=known(p, 1)) == NOW[form]
    if mode != "offline":
        upgrades.upgraded(spark, p, mode)
    assert tables.read_older_format(upgrades.opened(p)) is None
    assert upgrades.history(p) == ordered(HISTORY[form])
    assert upgrades.asked(p, known_at=known(p, 1)) == NOW[form]
    assert p.history("bills") == BILLS
    believed = upgrades.plainly(p, "item", "price", "validFrom", "validTo", where="systemTo IS NULL")
    assert believed == sorted(
        (
            (item, float(price), upgrades.SURROGATE if start == "?" else start, end)
            for item, price, start, end, _, closed in HISTORY[form]
            if closed is None
        ),
        key=str,
    )
    assert not upgrades.plainly(p, "item", where="systemFrom IS NULL OR _belief IS NULL OR validFrom IS NULL")
    p.run("third")
    assert upgrades.history(p) == ordered(HISTORY[form])
    assert wrong(p) == []
    based = Path(p.warehouse, p.name, "base/menu")
    based.rename(p.folder / "away")
    [lost] = verify_tables(p.contract).findings
    assert (lost.check, lost.table) == ("published", "base/menu")
    assert "is not there, and run 1 has published it" in lost.found
    (p.folder / "away").rename(based)
    before = DeltaTable(p.table("menu").path, version=0).to_pyarrow_table()
    assert (before.column_names, before.num_rows) == ([*upgrades.COLUMNS[form]], len(upgrades.PLAIN[form]))


def known(p: Pipeline, run: int) -> datetime:
    return next(it.known_at for it in journal.read_runs(p.warehouse, p.name) if it.number == run)


@pytest.mark.long
@pytest.mark.ci
def test_a_table_of_latest_values_is_adopted_and_read_and_takes_what_a_run_brings(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, RESTAURANT.partition("  orders:")[0]) as p:
        adopted(spark, p, "latest", "in-place")
        p.send("menu", *RECORDS["menu"])
        p.run("second")
        assert upgrades.history(p) == ordered(HISTORY["latest"])
        before = row_reader.load_current_rows(spark, p.table("menu")).count()
        p.send("menu", ("tea", {"price": 2}, 9))
        p.run("third")
        assert upgrades.plainly(p, "item", "_belief", where="item = 'tea'") == [("tea", "open")], "it closes nothing"
        assert row_reader.load_current_rows(spark, p.table("menu")).count() == before + 1
        with pytest.MonkeyPatch.context() as patch:  # as earlier versions wrote
            patch.setattr(files, "is_plain", lambda _: True)
            p.send("menu", ("milk", {"price": 1}, 9))
            p.run("fourth")
        assert upgrades.plainly(p, "item", "_belief", where="item = 'milk'") == [("milk", None)]
        assert row_reader.load_current_rows(spark, p.table("menu")).count() == before + 2
        p.run("fifth")
        upgrades.upgraded(spark, p, "in-place")
        assert upgrades.plainly(p, "item", "_belief", where="item = 'milk'") == [("milk", "open")]
        assert row_reader.load_current_rows(spark, p.table("menu")).count() == before + 2
        assert wrong(p) == []


@pytest.mark.long
@pytest.mark.parametrize("mode", ["in-place", "roll-over", "offline"])
@pytest.mark.parametrize("form", ["latest", "timestamped", "versioned"])
def test_a_table_of_any_older_format_becomes_todays_in_any_mode(
    spark: SparkSession, broker: str, tmp_path: Path, form: str, mode: str
) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        upgraded_amid_runs(spark, p, form, mode)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["in-place", "roll-over", "offline"])
def test_an_upgrade_that_fails_at_every_boundary_is_finished_by_the_same_command(
    spark: SparkSession, broker: str, tmp_path: Path, mode: str
) -> None:
    seen: list[str] = []

    def fail(place: str) -> None:
        if place not in seen:
            seen.append(place)
            raise StopError(place)

    with pipeline(spark, broker, tmp_path) as p:
        upgrades.put(p, "versioned")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HINDCAST_CHUNK", "2")
            watched(fail, patch.setattr)
            while not done(spark, p, mode):
                answered(p)
        assert len([place for place in seen if place.startswith("before")]) >= PLACES[mode], "\n".join(seen)
        assert ordered([row[:4] for row in upgrades.history(p)]) == ordered(ADOPTED["versioned"])
        tell(p, RECORDS)
        p.run("second")
        assert upgrades.history(p) == ordered(HISTORY["versioned"])
        assert wrong(p) == []
        bills = [(*row[:-2], row[-1]) for row in p.history("bills")]
        assert bills == [(*row[:-2], row[-1]) for row in BILLS]


PLACES = {"in-place": 10, "roll-over": 17, "offline": 10}
"""At least so many commits an upgrade makes: it is stopped before and after each."""


TWO = RESTAURANT.replace(
    "  orders:\n",
    '  costs:\n    read: table\n    key: {item: string}\n    value: {price: "decimal(8,2)"}\n  orders:\n',
).replace(
    "views:\n",
    "views:\n  gains:\n    table: menu\n    join: {table: costs}\n    select: {gain: menu.price - costs.price}\n",
)


@pytest.mark.long
def test_of_several_plain_tables_each_is_adopted_by_an_upgrade_of_its_own(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, TWO) as p:
        upgrades.put(p, "latest", [("curry", 8)])
        shutil.copytree(p.table("menu").path, p.table("costs").path)
        told = upgrade.upgrade_table(spark, p.contract, "menu", "offline")
        assert "but costs has to be upgraded too, before runs go on" in told
        assert upgrades.asked(p) == [("curry", 8, "?")]
        assert tables.open_table(p.table("gains")) is None
        with pytest.raises(TableError, match="costs: is a Delta table that Hindcast did not make"):
            p.run()
        assert not any(
            "to be upgraded too" in line for line in upgrade.upgrade_table(spark, p.contract, "costs", "in-place")
        )
        assert [(row["item"], int(row["gain"])) for row in p.raw("gains")] == [("curry", 0)]
        assert p.states() == [(1, "completed"), (2, "completed")]
        assert wrong(p) == []


def done(spark: SparkSession, p: Pipeline, mode: str) -> bool:
    """Whether the command has come to its end this time."""
    try:
        upgrades.upgraded(spark, p, mode)
    except StopError:
        return False
    return True


@pytest.mark.long
def test_a_table_is_built_anew_if_vacuum_took_the_version_it_was_built_from(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    def fail(place: str) -> None:
        if place.startswith("after commits.append_rows rollover/menu"):
            raise StopError(place)

    with pipeline(spark, broker, tmp_path) as p:
        upgrades.put(p, "versioned")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HINDCAST_CHUNK", "2")
            watched(fail, patch.setattr)
            assert not done(spark, p, "roll-over")
        tell(p, RECORDS)
        p.run("second")
        path = p.table("menu").path
        spark.sql(f"OPTIMIZE delta.`{path}`").collect()
        assert DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
        upgrades.upgraded(spark, p, "roll-over")
        assert tables.read_older_format(upgrades.opened(p)) is None
        assert upgrades.history(p) == ordered(HISTORY["versioned"])


@pytest.mark.long
def test_a_table_that_was_built_and_differs_is_built_again_by_the_same_command(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, RESTAURANT.partition("  orders:")[0]) as p:
        upgrades.put(p, "versioned")
        with pytest.MonkeyPatch.context() as patch:
            totals = iter([(5, 1), (4, 1)])
            patch.setattr(shadow_table, "_count_and_hash", lambda _: next(totals))
            with pytest.raises(TableError, match="the new table has 4 rows, the current one 5"):
                upgrades.upgraded(spark, p, "roll-over")
        upgrades.upgraded(spark, p, "roll-over")
        assert tables.read_older_format(upgrades.opened(p)) is None


@pytest.mark.long
@pytest.mark.parametrize("place", ["before commits.commit_change menu 2", "before lazy_migration.migrate_chunk 0"])
def test_runs_and_the_background_do_not_disturb_each_other(
    spark: SparkSession, broker: str, tmp_path: Path, place: str
) -> None:
    """All rows get today's form while a run is about to publish; or a run comes amid that."""
    met: list[str] = []
    with pipeline(spark, broker, tmp_path) as p, pytest.MonkeyPatch.context() as patch:
        upgrades.put(p, "versioned")
        upgrades.taken_over(spark, p, "in-place")
        tell(p, RECORDS)

        def meanwhile(here: str) -> None:
            if here == place and not met:
                met.append(here)
                if "commit_change" in place:
                    upgrade.migrate_rows(spark, p.table("menu"), p.settings.chunk)
                else:
                    p.run("second")

        watched(meanwhile, patch.setattr)
        if "commit_change" in place:
            p.run("second")
        else:
            upgrades.upgraded(spark, p, "in-place")
        assert met
        assert tables.read_older_format(upgrades.opened(p)) is None
        assert upgrades.history(p) == ordered(HISTORY["versioned"])


@pytest.mark.long
def test_an_upgrade_that_is_given_up_leaves_a_table_that_the_next_run_takes_as_it_is(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    def fail(place: str) -> None:
        if place == "after commits.set_properties: mark":
            raise StopError(place)

    with pipeline(spark, broker, tmp_path) as p:
        upgrades.put(p, "versioned")
        with pytest.MonkeyPatch.context() as patch:
            watched(fail, patch.setattr)
            assert not done(spark, p, "in-place")
        planner.abandon_run(p.warehouse, journal.read_runs(p.warehouse, p.name)[-1], "by hand")
        tell(p, RECORDS)
        p.run("second")
        assert upgrades.history(p) == ordered(HISTORY["versioned"])
        assert p.history("bills") == BILLS
        assert wrong(p) == []
        upgrades.upgraded(spark, p, "in-place")
        assert upgrades.history(p) == ordered(HISTORY["versioned"])
        assert wrong(p) == []


def answered(p: Pipeline) -> None:
    """A question amid an upgrade has the right answer; or, as before it, none."""
    marked = tables.read_marks(DeltaTable(p.table("menu").path))
    completed = journal.read_completed_runs(p.warehouse, p.name)
    if journal.read_runs(p.warehouse, p.name):
        assert verify_tables(p.contract).findings == []
    plain = upgrades.plainly(p, "item", "price")
    assert plain == ordered([(item, float(price)) for item, price, *_ in upgrades.PLAIN["versioned"]])
    if marked is not None and completed:
        assert upgrades.asked(p) == NOW["versioned"]
        assert upgrades.asked(p, as_of=at(3)) == [("cake", 3, 1), ("curry", 8, 0), ("soup", 6, 3)]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["in-place", "roll-over", "offline"])
def test_an_upgrade_whose_process_is_killed_is_finished_by_the_same_command(
    broker: str, spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Killed after every commit; there and back."""
    with pipeline(spark, broker, tmp_path) as p:
        upgrades.put(p, "timestamped")
        seen, kills = tmp_path / "seen", 0
        seen.touch()
        while killed(upgrades.started(p, mode, seen)):
            kills += 1
        assert 8 < kills == len(seen.read_text().splitlines())
        assert ordered([row[:4] for row in upgrades.history(p)]) == ordered(ADOPTED["timestamped"])
        while killed(upgrades.started(p, "timestamped", seen)):
            kills += 1
        assert upgrades.plainly(p, "item", "price") == [("cake", 3.0), ("curry", 8.0), ("soup", 5.0)]
        assert upgrades.asked(p) == NOW["timestamped"]


@pytest.mark.long
def test_a_downgrade_that_is_stopped_is_finished_by_the_same_command_or_undone_by_an_upgrade(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    def fail(place: str) -> None:
        if place.startswith("before commits.rewrite_table menu"):
            raise StopError(place)

    with pipeline(spark, broker, tmp_path) as p:
        tell(p, {"menu": [("curry", {"price": 8}, 0), ("cake", {"price": 3}, 1)], "orders": []})
        p.run("first")
        whole = upgrades.history(p)
        for again in (downgraded, upgrades.upgraded):
            with pytest.MonkeyPatch.context() as patch:
                watched(fail, patch.setattr)
                with pytest.raises(StopError):
                    downgraded(spark, p, "versioned")
            assert upgrades.history(p) == whole
            with pytest.raises(TableError, match="has the older store format versioned"):
                p.run()
            again(spark, p, "versioned" if again is downgraded else "offline")
            assert upgrades.history(p) == whole
            if again is downgraded:
                assert {f.name for f in upgrades.opened(p).schema().fields} == {*upgrades.COLUMNS["versioned"]}
                upgrades.upgraded(spark, p, "roll-over")
        assert upgrades.history(p) == whole
        p.run("last")
        assert upgrades.history(p) == whole


def test_a_downgrade_and_a_run_at_the_same_time_lose_nothing(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "BEAT", 0.05)
    planned, real_mark, real_losses = list[int](), downgrade.mark_older_format, downgrade.describe_losses

    with pipeline(spark, broker, tmp_path, RESTAURANT.partition("  orders:")[0]) as p:

        def mark(*arguments: Any) -> None:
            if planned:
                real_mark(*arguments)
                return
            planned.append(run_steps.plan_run(p.settings, p.name, "amid"))

            def mark_late(place: str) -> None:
                if place == "before committing to menu in run 2":
                    real_mark(*arguments)

            with pytest.MonkeyPatch.context() as patch:
                crashes.watched(mark_late, patch.setattr)
                with pytest.raises(TableError, match="has the older store format versioned"):
                    run_steps.execute_run(spark, p.settings, p.name, planned[0])

        def losses(*arguments: Any) -> list[str]:
            with pytest.raises(TableError, match="has the older store format versioned"):
                p.run("refused")
            with pytest.raises(BusyError, match="the downgrade of menu of the same tables is under way"):
                downgraded(spark, p, "latest")
            return real_losses(*arguments)

        monkeypatch.setattr(downgrade, "mark_older_format", mark)
        monkeypatch.setattr(downgrade, "describe_losses", losses)
        p.send("menu", ("curry", {"price": 8}, 0))
        p.run("first")
        p.send("menu", ("curry", {"price": 9}, 2))
        with pytest.raises(BusyError, match=r"run 2 \(amid\) has not ended"):
            downgraded(spark, p, "versioned")
        run_steps.execute_run(spark, p.settings, p.name, planned[0])
        whole = [("curry", 8, 0, 2, 2, None), ("curry", 8, 0, None, 1, 2), ("curry", 9, 2, None, 2, None)]
        assert upgrades.history(p) == ordered(whole)
        with pytest.raises(RequestError, match="has no room for 1 rows that are no longer current"):
            downgraded(spark, p, "versioned")
        assert upgrades.history(p) == ordered(whole)
        assert tables.read_older_format(upgrades.opened(p)) is None
        assert p.run("last")["state"] == "completed"
        assert wrong(p) == []


def downgraded(spark: SparkSession, p: Pipeline, form: str) -> list[str]:
    return downgrade.downgrade_table(spark, p.contract, "menu", form)


def there_and_back(spark: SparkSession, p: Pipeline, form: str, mode: str) -> None:
    """Adopted, given back as it was, and taken over again; then, once runs have changed it, only with `lose`."""
    upgrades.put(p, form)
    before = DeltaTable(p.table("menu").path).to_pyarrow_table().sort_by([(c, "ascending") for c in ("item", "price")])
    upgrades.upgraded(spark, p, mode)
    adopted = upgrades.history(p)
    downgrade.downgrade_table(spark, p.contract, "menu", form)
    after = DeltaTable(p.table("menu").path).to_pyarrow_table().sort_by([(c, "ascending") for c in ("item", "price")])
    [again] = downgrade.downgrade_table(spark, p.contract, "menu", form)
    assert again.startswith(f"the store format is {form}"), "a repeat finds nothing to do"
    assert after.select(before.column_names) == before.cast(after.schema)
    assert after.column_names == before.column_names
    assert upgrades.asked(p) == NOW[form]
    aside = f"menu and what is made of it: it has the older store format {form}, until hindcast upgrade"
    assert wrong(p) == [f"{aside} restaurant.menu"]
    with pytest.raises(TableError, match=f"has the older store format {form}") as caught:
        p.run()
    assert "hindcast upgrade restaurant.menu" in caught.value.fix
    upgrades.upgraded(spark, p, mode)
    assert upgrades.history(p) == adopted
    tell(p, RECORDS)
    p.run("second")
    assert upgrades.history(p) == ordered(HISTORY[form])
    with pytest.raises(RequestError, match="has no room for") as lost:
        downgrade.downgrade_table(spark, p.contract, "menu", form)
    assert "--lose" in lost.value.fix
    downgrade.downgrade_table(spark, p.contract, "menu", form, lose=True)
    with pytest.raises(QueryError, match="a downgrade dropped what was known before"):
        upgrades.asked(p, known_at=known(p, 1))
    spark_functions.register(spark, p.warehouse, p.contract)
    assert spark.sql("SELECT * FROM restaurant_menu()").count()
    with pytest.raises(PySparkException, match="a downgrade dropped what was known before"):
        spark.sql("SELECT * FROM restaurant_menu(run => 1)").collect()
    upgrades.upgraded(spark, p, mode)
    assert wrong(p) == []
    believed = [row[:4] for row in HISTORY[form] if row[-1] is None]
    assert sorted((row[:4] for row in upgrades.history(p) if row[-1] is None), key=str) == sorted(believed, key=str)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["in-place", "roll-over", "offline"])
@pytest.mark.parametrize("form", ["latest", "timestamped", "versioned"])
def test_there_and_back_from_any_format_in_any_mode(
    spark: SparkSession, broker: str, tmp_path: Path, form: str, mode: str
) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        there_and_back(spark, p, form, mode)


@pytest.mark.long
def test_the_page_walks_through_each_path(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of docs/upgrading.md, in its order."""
    assert spark.version
    page = (Path(__file__).parent.parent / "docs" / "upgrading.md").read_text(encoding="utf-8")
    *walks, back = re.findall(r"^###? (?:From `(\w+)`|(Back)).*\n((?:(?!^#).*\n)*)", page, re.MULTILINE)
    assert [form for form, *_ in walks] == [*upgrades.COLUMNS]
    away, lossy = _commands(back[2])
    for form, _, text in walks:
        (folder := tmp_path / form).mkdir()
        with pipeline(spark, broker, folder) as p:
            upgrades.put(p, form)
            tell(p, RECORDS)
            for command in _commands(text):
                assert main.main(command) == 0, command
            shown = capsys.readouterr().out
            assert "the store format is bitemporal" in shown
            assert ("unknown" in shown) == (form != "versioned")
            assert main.main(away) == 1
            assert "has no room for" in capsys.readouterr().err
            assert main.main(lossy) == 0
            assert "the store format is latest; runs refuse" in capsys.readouterr().out


def _commands(text: str) -> list[list[str]]:
    return [line.split()[1:] for line in text.splitlines() if line.startswith("    hindcast ")]
