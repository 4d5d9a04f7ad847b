"""Which closes a table can answer: those whose rows each of its trims has kept, whatever the journal says."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from hindcast.bitemporal.predicates import Question
from hindcast.common.errors import QueryError, TableError
from hindcast.ops import close_periods, retention
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import closes, horizon, journal
from hindcast.plan.closes import Close
from hindcast.query import read, spark_functions
from hindcast.runs import row_counts
from hindcast.store import commits
from pipelines import Pipeline, cloned, pipeline, wrong
from test_closes import SHOP, TABLES, ask, moment, sold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
__all__ = ["sold"]


REFUSED: dict[str, list[dict[str, Any]] | None] = dict.fromkeys(TABLES)


DROP = "hindcast closes shop --drop first --reason TEXT"


def build_close(p: Pipeline, name: str, end: int = 8) -> Close:
    """A close of some seconds, as the first run knew them; each table has rows from before."""
    known_at = journal.read_runs(p.warehouse, "shop")[0].known_at
    return Close(name, moment(4), moment(end), known_at, known_at, "eva")


def store(p: Pipeline, name: str, end: int = 8) -> Close:
    """Store a close that nobody has looked at: its process died, or the journal is an older copy."""
    return closes.add_close(p.warehouse, "shop", build_close(p, name, end))


def ask_all(p: Pipeline, close: Close) -> dict[str, list[dict[str, Any]] | None]:
    """The answers of all tables about a close; None of one that refuses it."""
    found = dict[str, list[dict[str, Any]] | None](REFUSED)
    for table in TABLES:
        with suppress(QueryError):
            found[table] = ask(p, close, table)
    return found


def list_findings(p: Pipeline) -> list[tuple[str, str, str]]:
    return [(it.table, it.found, it.fix) for it in verify_tables(p.contract).findings]


def test_a_close_that_a_trim_did_not_keep_is_refused_and_found(
    spark: SparkSession, sold: Pipeline, tmp_path: Path
) -> None:
    """It was dropped before the trim, and the journal is an older copy since."""
    p = cloned(sold, tmp_path)
    first = store(p, "first")
    before = ask_all(p, first)
    version = DeltaTable(journal.runs_table(p.warehouse, "shop").path).version()
    retention.trim_pipeline(spark, p.contract)
    assert ask_all(p, first) == before
    assert list_findings(p) == []
    stored = DeltaTable(p.table("menu").path).metadata().configuration
    assert "first" in stored[horizon.PROPERTY] + stored[row_counts.PROPERTY]
    assert "eva" not in stored[horizon.PROPERTY] + stored[row_counts.PROPERTY], "only the journal says who it was"
    closes.drop_close(p.warehouse, "shop", "first", "eva", "no")
    assert ask_all(p, first) == REFUSED
    retention.trim_pipeline(spark, p.contract)
    DeltaTable(journal.runs_table(p.warehouse, "shop").path).restore(version)
    assert closes.list_kept(p.warehouse, "shop") == (first,)
    assert ask_all(p, first) == REFUSED
    assert [(table, fix) for table, _, fix in list_findings(p)] == [
        (table, "ask the tables that have it; or give it up in all of them: " + DROP) for table in TABLES
    ]
    with pytest.raises(QueryError, match="the close 'first' cannot be answered: the table was trimmed up to"):
        close_periods.close_period(p.contract, "first", moment(4), moment(8), first.known_at, "eva")
    assert closes.list_kept(p.warehouse, "shop") == (first,), "it was not this call that added it"
    spark_functions.register(spark, p.warehouse, p.contract)
    for asked in ("shop_menu(close => 'first')", "shop_sold_as_of(close => 'first')"):
        with pytest.raises(Exception, match="is not kept: the history of"):
            spark.sql(f"SELECT * FROM {asked}").collect()
    retention.trim_pipeline(spark, p.contract)
    assert ask_all(p, first) == REFUSED


def test_an_older_release_that_trims_leaves_no_close(spark: SparkSession, sold: Pipeline, tmp_path: Path) -> None:
    """It writes its horizon, which may be the same, and nothing of closes."""
    p = cloned(sold, tmp_path)
    close = store(p, "q")
    retention.trim_pipeline(spark, p.contract)
    table = p.table("menu")
    before, at = ask_all(p, close), horizon.read_horizon(table)
    assert at is not None
    commits.set_properties(spark, table, {horizon.PROPERTY: horizon.Horizon(at.moment).text})
    assert ask_all(p, close) == before | {"menu": None}
    retention.trim_pipeline(spark, p.contract)
    assert ask_all(p, close) == before | {"menu": None}
    assert [table for table, *_ in list_findings(p)] == ["menu"]


def test_a_trim_that_is_killed_at_any_step_leaves_no_wrong_answer(
    spark: SparkSession, sold: Pipeline, tmp_path: Path
) -> None:
    """Of closes from before it, from between its horizons and its removals, and from between its removals."""
    p = cloned(sold, tmp_path)
    early = store(p, "early")
    right, longer, longest = (ask_all(p, build_close(p, "q", end)) for end in (8, 9, 10))
    set_properties, delete_rows = commits.set_properties, commits.delete_rows

    def trim_until(step: int) -> None:
        """Trim as far as this commit: five horizons, then of each table what is removed, the counts, and the rows."""
        left = [step]

        def fail_at_last(real: Any, *args: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise TableError("killed")
            return real(*args)

        with (
            patch.object(commits, "set_properties", lambda *args: fail_at_last(set_properties, *args)),
            patch.object(commits, "delete_rows", lambda *args: fail_at_last(delete_rows, *args)),
            pytest.raises(TableError, match="killed"),
        ):
            retention.trim_pipeline(spark, p.contract)

    for step in (1, 5):
        trim_until(step)
        assert ask_all(p, early) == right
    between = store(p, "between", 9)
    assert ask_all(p, between) == longer, "nothing has been removed"
    for step in (6, 7):
        trim_until(step)
        late = store(p, f"late-{step}", 10)
        assert (ask_all(p, early), ask_all(p, between)) == (right, longer)
        assert ask_all(p, late) == longest | {"menu": None}
        closes.drop_close(p.warehouse, "shop", late.name, "eva", "no")
    late = store(p, "late", 10)
    retention.trim_pipeline(spark, p.contract)
    assert (ask_all(p, early), ask_all(p, between)) == (right, longer)
    assert ask_all(p, late) == longest | {"menu": None}
    assert [table for table, *_ in list_findings(p)] == ["menu"]


def test_a_window_that_reaches_over_the_horizon_stays_as_it_was_last_known(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, SHOP) as p:
        p.send("orders", *(("ann", {"item": "tea", "quantity": 1}, second) for second in range(40)))
        p.send("menu", ("tea", {"price": 1}, 0), ("tea", {"price": 2}, 39))
        p.run()
        questions = [Question(from_time=moment(37), to_time=moment(50)), Question(from_time=moment(40))]
        before = [read.query(p.warehouse, p.contract, "sold", question).to_pylist() for question in questions]
        assert [[row["sum"] for row in rows] for rows in before] == [[4], [4]], "the window [36, 40)"
        trimmed = retention.trim_pipeline(spark, p.contract).tables["sold"]
        assert trimmed.horizon is not None
        assert (trimmed.horizon.moment, trimmed.removed) == (moment(37), 9)

        def ask_again() -> list[list[dict[str, Any]]]:
            return [read.query(p.warehouse, p.contract, "sold", question).to_pylist() for question in questions]

        assert ask_again() == before
        p.send("orders", ("ann", {"item": "tea", "quantity": 5}, 38), ("ann", {"item": "tea", "quantity": 6}, 36))
        p.run()
        assert [[row["sum"] for row in rows] for rows in ask_again()] == [[4], [4]], "it is frozen"
        assert wrong(p) == []
        assert not verify_tables(p.contract, spark=lambda: spark, whole=True).findings
