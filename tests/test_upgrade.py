"""Tables of older store formats are read as today's, and become tables of today's while they are read."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import upgrades
from hindcast import journal, tables
from hindcast.errors import TableError
from pipelines import Pipeline, at, pipeline, tell
from upgrades import ADOPTED, BILLS, HISTORY, RECORDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = {
    "latest": [("cake", 3, "?"), ("curry", 8, "?"), ("soup", 5, "?")],
    "timestamped": [("cake", 3, "?"), ("curry", 8, 0), ("soup", 5, 1)],
    "versioned": [("cake", 3, 1), ("curry", 10, 4)],
}
"""What is true now, before run 2."""


def upgraded_amid_runs(spark: SparkSession, p: Pipeline, form: str, mode: str) -> None:
    """A table is adopted, read, and written by a run, before the rest is done."""
    upgrades.put(p, form)
    with pytest.raises(TableError, match="is a Delta table that Hindcast did not make") as caught:
        upgrades.asked(p)
    assert "hindcast upgrade restaurant.menu" in caught.value.mend
    if mode == "offline":
        upgrades.upgraded(spark, p, mode)
    else:
        upgrades.taken_over(spark, p, mode)
        assert tables.older(tables.opened(p.table("menu"))) is not None
    assert upgrades.asked(p) == NOW[form]
    assert upgrades.asked(p, as_of=at(-1)) == [row for row in NOW[form] if row[2] == "?"]
    assert [row[:4] for row in upgrades.history(p)] == ADOPTED[form]
    plain = upgrades.plainly(p, "item", "price", where="systemTo IS NULL AND validTo IS NULL")
    assert plain == [(item, float(price)) for item, price, _ in NOW[form]]
    tell(p, RECORDS)
    p.run("second")
    assert upgrades.history(p) == HISTORY[form]
    assert upgrades.asked(p, known_at=known(p, 1)) == NOW[form]
    if mode != "offline":
        upgrades.upgraded(spark, p, mode)
    found = tables.opened(p.table("menu"))
    assert found is not None
    assert tables.older(found) is None
    assert upgrades.history(p) == HISTORY[form]
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
    assert upgrades.history(p) == HISTORY[form]


def known(p: Pipeline, run: int) -> datetime:
    return next(it.known_at for it in journal.runs(p.warehouse, p.name) if it.number == run)


def test_a_table_of_latest_values_becomes_todays_while_runs_go_on(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        upgraded_amid_runs(spark, p, "latest", "in-place")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["in-place", "roll-over", "offline"])
@pytest.mark.parametrize("form", ["latest", "timestamped", "versioned"])
def test_a_table_of_any_older_format_becomes_todays_in_any_mode(
    spark: SparkSession, broker: str, tmp_path: Path, form: str, mode: str
) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        upgraded_amid_runs(spark, p, form, mode)
