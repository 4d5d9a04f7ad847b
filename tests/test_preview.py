"""A preview says what the next run then does, and writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast.building import preview
from hindcast.building.ages import AGES
from hindcast.errors import ContractError, RecordError, TableError
from pipelines import CORRECTION, RESTAURANT, SEED, pipeline, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_a_late_record_would_change(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        tell(p, SEED)
        p.run()

        tell(p, CORRECTION)
        versions, states = p.versions(), p.states()
        second = preview.preview(spark, p.name)
        assert (p.versions(), p.states()) == (versions, states)
        done = p.run()
        for name, table in done["tables"].items():
            expected = {count: table[count] for count in ("opened", "closed", "corrected")}
            assert {count: second["tables"][name][count] for count in expected} == expected
        bills = second["tables"]["bills"]
        assert sum(bills["ages"].values()) == bills["corrected"] == 1
        assert [(row["change"], row["customer"], row["amount"]) for row in bills["examples"]] == [
            ("close", "candace", "24.00"),
            ("open", "candace", "27.00"),
        ]
        told = preview.text(second)
        assert "1 past answer would change" in told
        assert "bills: 1 row to open, 1 to close" in told
        assert "nothing was written" in told
        assert second["topics"]["menu"] == {"offsets": 1, "fates": {"accepted": 1}, "stops": None}
        assert "menu: 1 offset: 1 accepted\norders: 0 offsets: nothing new" in told


@pytest.mark.long
def test_what_would_stop_a_run(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """Records that do not decode; columns or an expression of a new definition."""
    with pipeline(spark, broker, tmp_path) as p:
        tell(p, SEED)
        p.run()
        p.send("menu", ("naan", b"{", 9), ("curry", {"price": 9}, 9), ("soup", b"[", 9))
        stopped = preview.preview(spark, p.name)
        assert stopped["topics"]["menu"]["fates"] == {"accepted": 1, "malformed": 2}
        assert stopped["tables"]["menu"]["opened"] == 2
        told = preview.text(stopped)
        assert "menu: 3 offsets: 1 accepted, 2 malformed\nthe run would stop: topic" in told
        assert "2 of the run's records do not decode, 0 may; the first: the value is not a JSON object" in told
        strict = RESTAURANT.replace(
            '{price: "decimal(8,2)"}', '{price: "decimal(8,2)", note: string}\n    json: strict'
        )
        p.write(strict)
        with pytest.raises(RecordError, match=r"decoded before and does not now: .* offset \d+: ") as refused:
            preview.preview(spark, p.name)
        assert "or read them with json: typed: strict takes no record that lacks a column" in refused.value.mend

        p.write(RESTAURANT.replace("select:", "where: 1 / (quantity - quantity) > 0\n    select:"))
        with pytest.raises(ContractError, match=r"bills has a record on which .* fails"):
            preview.preview(spark, p.name)


@pytest.mark.long
def test_what_a_first_run_and_a_new_definition_would_change(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        tell(p, SEED)
        first = preview.preview(spark, p.name)
        assert first["tables"]["bills"] | {"gates": []} == {
            "opened": 3,
            "closed": 0,
            "corrected": 0,
            "ages": dict.fromkeys(AGES, 0),
            "examples": [],
            "gates": [],
        }
        assert p.states() == []
        p.run()
        tell(p, CORRECTION)
        p.run()

        p.write(RESTAURANT.replace("select:", "where: quantity > 1\n    select:"))
        changed = preview.preview(spark, p.name)["tables"]
        assert (changed["menu"]["opened"], changed["bills"]["opened"], changed["bills"]["corrected"]) == (0, 0, 1)

        p.write(RESTAURANT.replace("amount: quantity * price", "amount: cast(quantity * price AS string)"))
        with pytest.raises(TableError, match=r"amount changed from decimal\(19,2\) to string"):
            preview.preview(spark, p.name)
