"""Ties: records of one key and timestamp that say different things, within a partition and across partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindcast.bitemporal import ties
from relations import records, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN = float("nan")
EARLIER = [(1, "late", 8, 0), (1, "same", 7, 0), (0, "mine", 1, 0), (0, "wins", 1, 0), (-1, "adopted", 1, 0)]
NEW = [
    (0, "late", 9, 0),  # a correction that loses to the larger number of its partition's rival
    (0, "same", 7, 0),  # says the same: nothing is lost
    (0, "adopted", 2, 0),  # what a table had before it was adopted comes before all records
    (0, "mine", 2, 0),  # in order: its own partition's later record
    (1, "wins", 2, 0),  # holds, though nobody can tell that it is the later one
    (0, "twice", 1, 0),
    (0, "twice", 2, 0),  # replaces what came with it
    (0, "gone", None, 0),
    (1, "gone", 5, 0),
    (0, "nan", NAN, 0),
    (1, "nan", NAN, 0),
    (0, "apart", 1, 0),
    (1, "apart", 2, 1),  # in two partitions, at two times
    (2, "agreed", 1, 0),
    (2, "agreed", 2, 0),
    (3, "agreed", 2, 0),  # both partitions say 2 in the end
]
TOLD = [
    ("adopted", 2.0, False, False, None),
    ("agreed", 1.0, False, True, 3),
    ("agreed", 2.0, False, False, None),
    ("agreed", 2.0, False, False, None),
    ("apart", 1.0, False, False, None),
    ("apart", 2.0, False, False, None),
    ("gone", 5.0, True, False, None),
    ("gone", None, True, False, 1),
    ("late", 9.0, True, False, 1),
    ("mine", 2.0, False, False, None),
    ("nan", NAN, False, False, None),
    ("nan", NAN, False, False, None),
    ("same", 7.0, False, False, None),
    ("twice", 1.0, False, True, 0),
    ("twice", 2.0, False, False, None),
    ("wins", 2.0, True, False, None),
]
"""Of each new record: key, value; whether its tie is unordered, whether it was replaced; the winner's partition."""


def test_a_tie_is_ordered_within_a_partition_and_not_across(spark: SparkSession) -> None:
    log = records(spark, [*EARLIER, *NEW])
    new, earlier = (log.where(f"offset {which} {len(EARLIER)}") for which in (">=", "<"))
    found = ties.find_ties(new, earlier).persist()
    told = rows(found.where("new"), "key.k", "value.v", "unordered", "replaced", "winner.partition")
    assert sorted(map(str, told)) == sorted(map(str, TOLD))
    (counted,) = ties.count_ties(found).collect()
    assert counted["ties"]["scattered"] == 7, "late, same, wins, gone, nan, apart, agreed"
    assert (counted["ties"]["lost"], counted["ties"]["replaced"]) == (2, 2)
    assert tuple(counted["ties"]["loser"]) == (0, 0, len(EARLIER))
    assert tuple(counted["ties"]["winner"]) == (0, 1, 0)
    found.unpersist()


def test_another_epoch_is_later_and_neighbours_tell_of_partitions_alone(spark: SparkSession) -> None:
    new = records(spark, [(0, "a", 1, 5), (1, "b", 1, 5)])
    moved = new.selectExpr("key", "value", "timestamp", "struct(1 AS epoch, 2 AS partition, 0L AS offset) AS position")
    around = records(spark, [(0, "b", 9, 5), (0, "a", 9, 5)])
    (counted,) = ties.count_ties(
        ties.find_ties(new.unionByName(moved, allowMissingColumns=True), None, around)
    ).collect()
    assert counted["ties"].asDict() | {"loser": None, "winner": None} == {
        "scattered": 1,  # b: its neighbour lies in partition 0; partitions of another epoch are others
        "lost": 0,
        "replaced": 0,
        "loser": None,
        "winner": None,
    }
