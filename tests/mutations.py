"""Deliberate wrong readings of the operators, each of which a vector, a generated history or a test must catch.

`python tests/mutations.py [WORDS]` applies each (or those that WORDS are in) to the real code (a textual patch, loaded
in place of the module) and prints what caught it. Those of the `kafka` reading (kafka_mutations.py) are held to its
vectors and tests, those of when a record is true (valid_time_mutations.py) to theirs, those of `corrected` and of
kernels (kernel_mutations.py) to the vectors of the operations concerned, then to generated histories, or to the tests
of their parts. It exits with 1 if a wrong reading survives or if its text is no longer in the code.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numba
from pyspark.sql import SparkSession

import histories
import kernel_mutations
import kernels
import trials
from hindcast.common.session import ROWS_PER_SLICE, override_conf
from hindcast_conformance import Vector, load_vectors, run_vectors
from kafka_mutations import WRONG
from valid_time_mutations import WRONG as MISDATED

VECTORS = Path(__file__).parent / "conformance"
TABLES = ("table_transform",)
WINDOWS = ("windowed_aggregate",)
TIMED = ("table_table_join",)
_USED_BY = {
    "bitemporal.aggregates": ("bitemporal.windows",),
    "bitemporal.affected_periods": ("bitemporal.incremental", "hindcast_conformance.relations"),
}
"""Modules that hold functions of another by name."""


class Mutation(NamedTuple):
    """A wrong reading: what is misread, the module, the right text, the wrong one, and operations that must notice."""

    reading: str
    module: str
    right: str
    wrong: str
    operations: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "a record at stream time - retention expires",
        "bitemporal.acceptance",
        "> history_retention",
        ">= history_retention",
        TABLES,
    ),
    Mutation(
        "stream time of a table is reset by each record",
        "bitemporal.acceptance",
        "Window.unboundedPreceding, -1)",
        "-1, -1)",
        TABLES,
    ),
    Mutation(
        "records without a key move stream time",
        "bitemporal.acceptance",
        'F.when(F.col("fate").isNull(), F.col("timestamp"))',
        'F.col("timestamp")',
        TABLES,
    ),
    Mutation(
        "stream time of all partitions together",
        "bitemporal.acceptance",
        'partitionBy("partition")',
        'partitionBy("partition.vector", "partition.s", "partition.topic")',
        TABLES,
    ),
    Mutation(
        "nothing ever expires",
        "bitemporal.acceptance",
        'too_old, F.lit("expired")',
        'F.lit(False), F.lit("expired")',
        TABLES,
    ),
    Mutation(
        "windows: stream time without the event itself",
        "bitemporal.acceptance",
        "Window.unboundedPreceding, Window.currentRow",
        "Window.unboundedPreceding, -1",
        WINDOWS,
    ),
    Mutation(
        "windows: events without a value move stream time",
        "bitemporal.acceptance",
        'counts = F.col("key").isNotNull() & F.col("value").isNotNull()',
        'counts = F.col("key").isNotNull()',
        WINDOWS,
    ),
    Mutation(
        "windows: stream time of all partitions together",
        "bitemporal.acceptance",
        'partitionBy("position.partition")',
        'partitionBy("position.partition.vector", "position.partition.s")',
        WINDOWS,
    ),
    Mutation(
        "of equal timestamps the first wins",
        "bitemporal.plane",
        'orderBy("timestamp", "position")',
        'orderBy("timestamp", F.col("position").desc())',
        TABLES,
    ),
    Mutation("of equal timestamps both stay", "bitemporal.plane", ' & ~F.col("_lost")', "", TABLES),
    Mutation(
        "tombstones are ignored",
        "bitemporal.plane",
        "records.select(*columns",
        'records.where("value IS NOT NULL").select(*columns',
        TABLES,
    ),
    Mutation(
        "the latest version in order of arrival",
        "bitemporal.plane",
        'orderBy("timestamp", "position")',
        'orderBy("position")',
        TABLES,
    ),
    Mutation("ttl lengthens versions", "bitemporal.plane", "F.least(following", "F.greatest(following", TABLES),
    Mutation("ttl is ignored", "bitemporal.plane", "following if ttl is None else", "following if True else", TABLES),
    Mutation(
        "a look-up at the very start of a version misses it",
        "bitemporal.joins",
        'F.lit(1).alias("_turn"),\n        F.struct("key"',
        'F.lit(-1).alias("_turn"),\n        F.struct("key"',
        ("stream_table_join",),
    ),
    Mutation(
        "a version is still valid at its end",
        "bitemporal.joins",
        "end.isNull() | (end > moment)",
        "end.isNull() | (end >= moment)",
        ("stream_table_join",),
    ),
    Mutation(
        "a look-up does not see that a version has ended",
        "bitemporal.joins",
        '_valid_version(F.col("_version"), F.col("_at"))',
        'F.col("_version")',
        ("stream_table_join",),
    ),
    Mutation(
        "a left join drops events without a version",
        "bitemporal.joins",
        'if how == "inner":\n        met',
        "if True:\n        met",
        ("stream_table_join",),
    ),
    Mutation(
        "an event without a value gives a row",
        "bitemporal.joins",
        'points = events.where(F.col("value").isNotNull())',
        "points = events",
        ("stream_table_join",),
    ),
    Mutation(
        "the latest version at all, not at the event",
        "bitemporal.joins",
        "sweep.rowsBetween(Window.unboundedPreceding, 0)",
        "sweep.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)",
        ("stream_table_join", "foreign_key_join"),
    ),
    Mutation(
        "absence is not a boundary",
        "bitemporal.joins",
        "F.explode(F.array(start, end))",
        "F.explode(F.array(start))",
        ("table_table_join",),
    ),
    Mutation(
        "an ended side is still joined",
        "bitemporal.joins",
        '_valid_version(F.col(side), F.col("validFrom"))',
        "F.col(side)",
        ("table_table_join",),
    ),
    Mutation(
        "a left join of tables keeps what is right only",
        "bitemporal.joins",
        '"left": F.col("left").isNotNull(),',
        '"left": F.col("left").isNotNull() | F.col("right").isNotNull(),',
        ("table_table_join",),
    ),
    Mutation(
        "an outer join of tables loses what is right only",
        "bitemporal.joins",
        '"outer": F.col("left").isNotNull() | F.col("right").isNotNull()',
        '"outer": F.col("left").isNotNull()',
        ("table_table_join",),
    ),
    Mutation(
        "bounds at one moment give a row each",
        "bitemporal.joins",
        '.where(~F.col("validTo").eqNullSafe(F.col("validFrom")) & wanted',
        ".where(wanted",
        ("table_table_join",),
    ),
    Mutation(
        "a foreign-key row starts with the left version",
        "bitemporal.joins",
        'F.greatest("validFrom", start)',
        'F.coalesce("validFrom", start)',
        ("foreign_key_join",),
    ),
    Mutation(
        "a foreign-key row ends with the left version only",
        "bitemporal.joins",
        'F.least("validTo", end)',
        'F.col("validTo")',
        ("foreign_key_join",),
    ),
    Mutation(
        "no null right before the first right version",
        "bitemporal.joins",
        "F.array(present, absence)",
        'F.array(present, F.when(F.col("_from").isNotNull(), absence))',
        ("foreign_key_join",),
    ),
    Mutation(
        "only the first right version of a left one",
        "bitemporal.joins",
        'F.sequence("_first", "_last")',
        'F.sequence("_first", "_first")',
        ("foreign_key_join",),
    ),
    Mutation(
        "a stream-stream window without its upper bound",
        "bitemporal.joins",
        '.between(F.col("_low"), F.col("_high"))',
        '.between(F.col("_low"), F.col("_high") - 1)',
        ("stream_stream_join",),
    ),
    Mutation(
        "a stream-stream window turned round",
        "bitemporal.joins",
        '- F.col("_before"), F.col("_micros") + F.col("_after")',
        '- F.col("_after"), F.col("_micros") + F.col("_before")',
        ("stream_stream_join",),
    ),
    Mutation(
        "a pair's time is the left event's",
        "bitemporal.joins",
        'F.greatest("_left_at", "_right_at")',
        'F.coalesce("_left_at", "_right_at")',
        ("stream_stream_join",),
    ),
    Mutation(
        "an event with a pair also stands alone",
        "bitemporal.joins",
        '"left_anti"',
        '"left_outer"',
        ("stream_stream_join",),
    ),
    Mutation(
        "sliced: a version without an end does not last into later slices",
        "bitemporal.skew",
        "end.isNull() | (cut < end)",
        "end.isNotNull() & (cut < end)",
        ("stream_table_join", "table_table_join"),
    ),
    Mutation(
        "sliced: a row lasts over the next slice",
        "bitemporal.skew",
        'F.get("_cuts", number)',
        'F.get("_cuts", number + 1)',
        ("table_table_join", "table_aggregate"),
    ),
    Mutation(
        "sliced: versions do not start anew in later slices",
        "bitemporal.joins",
        "F.when(is_start, skew.last_slice_before(end)).otherwise(first)",
        "first",
        ("table_table_join",),
    ),
    Mutation(
        "sliced: a group begins each slice without members",
        "bitemporal.aggregates",
        'carried.where("_slice > 0")',
        'carried.where("_slice < 0")',
        ("table_aggregate",),
    ),
    Mutation(
        "members that end are not taken out of their group",
        "bitemporal.aggregates",
        'F.lit(-1).alias("_sign")',
        'F.lit(0).alias("_sign")',
        ("table_aggregate",),
    ),
    Mutation(
        "a group without members has a row",
        "bitemporal.aggregates",
        ' & (F.col("_members") > 0)',
        "",
        ("table_aggregate",),
    ),
    Mutation(
        "versions without a value to aggregate are members",
        "bitemporal.aggregates",
        "versions.where(has_value_to_aggregate(measures))",
        "versions",
        ("table_aggregate",),
    ),
    Mutation(
        "sums add what ends",
        "bitemporal.aggregates",
        "otherwise(-argument)",
        "otherwise(argument)",
        ("table_aggregate",),
    ),
    Mutation(
        "min and max forget the left end of a stretch",
        "bitemporal.aggregates",
        "x.low % 2 = 1",
        "x.low % 2 = 0",
        ("table_aggregate",),
    ),
    Mutation(
        "min and max one step too long",
        "bitemporal.aggregates",
        'F.when(ended, F.max("_step"))',
        'F.when(ended, F.max("_step") + 1)',
        ("table_aggregate",),
    ),
    Mutation(
        "an average without its count",
        "bitemporal.aggregates",
        'columns[0].cast("double") / columns[1]',
        'columns[0].cast("double")',
        ("table_aggregate", "stream_aggregate"),
    ),
    Mutation(
        "events of one timestamp give a row each",
        "bitemporal.aggregates",
        ').where(~F.col("validTo").eqNullSafe(F.col("validFrom")))\n\n\ndef aggregate_rows',
        ")\n\n\ndef aggregate_rows",
        ("stream_aggregate",),
    ),
    Mutation(
        "a hopping window refuses what comes in its last millisecond",
        "bitemporal.windows",
        "_micros_past(end) < interval_micros(window.grace)",
        "_micros_past(end) < interval_micros(window.grace) - 1000",
        WINDOWS,
    ),
    Mutation(
        "a hopping window that has closed takes what another takes",
        "bitemporal.windows",
        "F.greatest(begun, still_open, F.lit(0))",
        "F.greatest(begun, F.lit(0))",
        WINDOWS,
    ),
    Mutation(
        "hopping windows before time 0",
        "bitemporal.windows",
        "F.greatest(begun, still_open, F.lit(0))",
        "F.greatest(begun, still_open)",
        WINDOWS,
    ),
    Mutation(
        "a window holds its end",
        "bitemporal.windows",
        "begun = _floor(_event_micros() - size, advance) + advance",
        "begun = _floor(_event_micros() - size - 1, advance) + advance",
        WINDOWS,
    ),
    Mutation(
        "sliding: lateness by the event's time alone",
        "bitemporal.windows",
        "_micros_past(_event_micros() + interval_micros(window.difference)) <=",
        "_micros_past(_event_micros()) <=",
        WINDOWS,
    ),
    Mutation(
        "sliding: no window just after an event",
        "bitemporal.windows",
        'F.col("_t") + tick)\n',
        'F.col("_t"))\n',
        WINDOWS,
    ),
    Mutation(
        "sliding: windows without their end",
        "bitemporal.windows",
        'F.col("_t").between(start, end)',
        'F.col("_t").between(start, end - 1)',
        WINDOWS,
    ),
    Mutation(
        "sessions: neighbours nearer than the gap only",
        "bitemporal.windows",
        "_event_micros() - previous > interval_micros",
        "_event_micros() - previous >= interval_micros",
        WINDOWS,
    ),
    Mutation(
        "sessions: lateness by the event, not by its session",
        "bitemporal.windows",
        'F.when(high >= event["oldest"]',
        'F.when(event["t"] >= event["oldest"]',
        WINDOWS,
    ),
    Mutation(
        "sessions: none is refused",
        "bitemporal.windows",
        'F.when(high >= event["oldest"]',
        "F.when(F.lit(True)",
        WINDOWS,
    ),
    Mutation(
        "sessions: partitions judge together",
        "bitemporal.windows",
        '.withColumn("_log", F.col("position.partition"))',
        '.withColumn("_log", F.lit(0))',
        WINDOWS,
    ),
    Mutation(
        "increments: a version that only ends elsewhere changes nothing",
        "bitemporal.affected_periods",
        "F.when(same, F.least(*ends))",
        "F.when(same, F.greatest(*ends))",
        TIMED,
    ),
    Mutation(
        "increments: an island begins a millisecond late",
        "bitemporal.affected_periods",
        'start.alias("start"), F.greatest(*ends)',
        """(start + F.expr("INTERVAL '0.001' SECOND")).alias("start"), F.greatest(*ends)""",
        TIMED,
    ),
    Mutation(
        "increments: an island ends a millisecond early",
        "bitemporal.affected_periods",
        'F.greatest(*ends).alias("end")',
        """(F.greatest(*ends) - F.expr("INTERVAL '0.001' SECOND")).alias("end")""",
        TIMED,
    ),
    Mutation(
        "increments: islands that touch stay apart",
        "bitemporal.affected_periods",
        '(F.col("start") > reached)',
        '(F.col("start") >= reached)',
        TIMED,
    ),
    Mutation(
        "increments: islands are merged with the last one only",
        "bitemporal.affected_periods",
        'F.max("end").over(in_time',
        'F.last("end").over(in_time',
        (*TIMED, "table_aggregate"),
    ),
    Mutation(
        "increments: the scope does not grow by the rows it touches",
        "bitemporal.affected_periods",
        "merge_periods(learnt.unionByName(met))",
        "merge_periods(learnt)",
        TIMED,
    ),
    Mutation(
        "increments: rows that only touch an island are not looked at",
        "bitemporal.affected_periods",
        'touch = (F.col("validFrom") <= F.col("_end")) & (F.col("_start") <= end_moment("validTo"))',
        'touch = (F.col("validFrom") < F.col("_end")) & (F.col("_start") < end_moment("validTo"))',
        TIMED,
    ),
    Mutation(
        "increments: results are not clipped to the scope",
        "bitemporal.affected_periods",
        '.withColumns({"validFrom": start, "validTo": F.when(end < end_of_time(), end)})',
        "",
        TIMED,
    ),
    Mutation(
        "increments: tombstones of the log are forgotten",
        "bitemporal.incremental",
        "value IS NULL OR _timestamp IS NOT NULL",
        "_timestamp IS NOT NULL",
        TABLES,
    ),
    Mutation(
        "increments: rivals of equal timestamps are forgotten",
        "bitemporal.incremental",
        "value IS NULL OR _timestamp IS NOT NULL",
        "value IS NULL",
        TABLES,
    ),
    Mutation(
        "increments: a late record splits nothing but the open row",
        "bitemporal.incremental",
        'end_moment("validTo") > F.col("_start")',
        'F.col("validTo").isNull()',
        TABLES,
    ),
    Mutation(
        "increments: what a foreign key names may change unseen",
        "bitemporal.incremental",
        'merge_periods(own.unionByName(intersect_periods(lefts, other, F.col("_named"), "key")))',
        "merge_periods(own)",
        ("foreign_key_join",),
    ),
    Mutation(
        "increments: events that look into an island are passed over",
        "bitemporal.incremental",
        'keep(opened.unionByName(looking.drop("_named")).dropDuplicates(["position"]))',
        "keep(opened)",
        ("stream_table_join",),
    ),
    Mutation(
        "increments: an event changes its own instant only",
        "bitemporal.incremental",
        'F.min("timestamp").alias("start")).withColumn("end", end_of_time())\n    same',
        'F.min("timestamp").alias("start"), F.max("timestamp").alias("end"))\n    same',
        ("stream_aggregate",),
    ),
    Mutation(
        "increments: whether a match has other matches is not looked up",
        "bitemporal.incremental",
        "windows_around(1), windows_around(2)",
        "windows_around(1), windows_around(1)",
        ("stream_stream_join",),
    ),
    Mutation(
        "increments: windows hold what came with the run only",
        "bitemporal.incremental",
        "needed = merge_periods(periods_around(concerned, length + _clock_tick(), length + _clock_tick()))",
        "needed = merge_periods(periods_around(concerned, _zero_interval(), _zero_interval()))",
        WINDOWS,
    ),
    Mutation(
        "increments: sessions are not joined with those that were",
        "bitemporal.incremental",
        "return merge_periods(sessions.unionByName(periods_around(concerned, _zero_interval(), window.gap)))",
        "return merge_periods(periods_around(concerned, _zero_interval(), window.gap))",
        WINDOWS,
    ),
)


OF_KERNELS = tuple(Mutation(*told) for told in kernel_mutations.WRONG)


def main() -> int:
    """Try every mutation and print what caught it."""
    tried = [*_by_trials(*sys.argv[1:]), *_of_corrected(*sys.argv[1:])]
    print(f"{sum(tried)} of {len(tried)} wrong readings caught")
    return 0 if all(tried) else 1


def _by_trials(words: str = "") -> Iterator[bool]:
    """Whether each is caught. Before Spark is started: each is tried in a copy of this process."""
    chosen = [wrong for wrong in (*WRONG, *MISDATED, *kernel_mutations.OF_PARTS) if words in wrong.reading]
    failed = trials.caught(None) if chosen else None
    if failed is not None:
        raise SystemExit(f"fails with nothing misread: {failed}")
    for number, wrong in enumerate(chosen, 1):
        yield _told(number, wrong, trials.caught(wrong))


def _of_corrected(words: str = "") -> Iterator[bool]:
    chosen = [mutation for mutation in (*MUTATIONS, *OF_KERNELS) if words in mutation.reading]
    if not chosen:
        return
    from hindcast.common.session import open_session

    numba.config.DISABLE_JIT = True  # type: ignore[attr-defined]  # machine code would be a mutation's own each time

    spark = open_session("hindcast-mutate", small=True)
    spark.conf.set("spark.sql.maxPlanStringLength", "1000")
    vectors = [vector for vector in load_vectors(VECTORS) if vector.semantics == "corrected"]
    cases = histories.histories(1, 1_500)
    random.Random(1).shuffle(vectors)  # noqa: S311 - any order does
    for number, mutation in enumerate(chosen, 1):
        yield _told(number, mutation, _caught(spark, mutation, vectors, cases))


def _told(number: int, mutation: Mutation | trials.Wrong, caught: str | None) -> bool:
    print(f"{number:3} {mutation.module:21} {mutation.reading:72} {caught or 'SURVIVED'}", flush=True)
    return caught is not None


def _caught(spark: SparkSession, mutation: Mutation, vectors: list[Vector], cases: list[Vector]) -> str | None:
    """The first vector or history that fails under a mutation."""
    sliced = {ROWS_PER_SLICE: "1"} if mutation.reading.startswith("sliced") else {}
    by_kernels = kernels.instead() if mutation in OF_KERNELS else nullcontext()
    with _applied(mutation), override_conf(spark, sliced), by_kernels:
        for kind, candidates in (("vector", vectors), ("history", cases)):
            concerned = [one for one in candidates if one.operation["type"] in mutation.operations][:150]
            for outcome in run_vectors(spark, concerned):
                if outcome.state != "passed":
                    how = " (does not run)" if outcome.state == "declined" else ""
                    return f"{kind} {outcome.vector.name}{how}"
    return None


@contextmanager
def _applied(mutation: Mutation) -> Iterator[None]:
    module = importlib.import_module(trials.full_name(mutation.module))
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    if mutation.right not in text:
        raise SystemExit(f"no longer in {mutation.module}.py: {mutation.right!r}")
    users = [importlib.import_module(trials.full_name(name)) for name in _USED_BY.get(mutation.module, ())]
    try:
        _load(module, text.replace(mutation.right, mutation.wrong))
        _reload(users)
        yield
    finally:
        _load(module, text)
        _reload(users)


def _reload(modules: list[ModuleType]) -> None:
    for module in modules:
        _load(module, Path(str(module.__file__)).read_text(encoding="utf-8"))


def _load(module: ModuleType, text: str) -> None:
    exec(compile(text, str(module.__file__), "exec"), vars(module))  # noqa: S102 - that is what mutating is


if __name__ == "__main__":
    sys.exit(main())
