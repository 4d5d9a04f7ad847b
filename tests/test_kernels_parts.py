"""The parts of kernels, and the commit of what they write, each alone."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from hindcast.common.errors import RunError
from hindcast.common.jit import NOTHING
from hindcast.contract import load
from hindcast.engine import aggregation, eligibility, integer_encoding, operators, sweeps, task, time_slices
from hindcast.engine.arrow_expressions import ColumnReference, Projection
from hindcast.engine.spec import AggregateSpec, JoinSpec, KernelInput, KernelOutput, TimeSlice
from hindcast.engine.sweeps import FOREVER
from hindcast.store import commit_history, delta_log, delta_rs_writer, files, table_creation, tables
from hindcast.store.files import DataFile
from hindcast.store.tables import Table
from pipelines import T0


def _table(folder: Path) -> Table:
    """A table of a view, empty."""
    table = Table(str(folder), "shop", "made", "versions", ("k",))
    moments = [StructField(name, TimestampType()) for name in ("validFrom", "validTo", "systemFrom", "systemTo")]
    table_creation.ensure_table(
        table, StructType([StructField("k", StringType()), *moments, StructField("_belief", StringType())])
    )
    return table


FILE = DataFile("_belief=open/none.parquet", "open", 1, 1, json.dumps({"numRecords": 1}))


def _named(number: int) -> DataFile:
    return replace(FILE, path=f"_belief=open/{number}.parquet")


def test_of_those_that_commit_at_once_one_does(tmp_path: Path) -> None:
    table = _table(tmp_path)
    assert delta_rs_writer.add_files([_named(1)], table, 3, {"run": 3}, after=0)
    assert not delta_rs_writer.add_files([_named(2)], table, 3, {"run": 3}, after=0)
    with pytest.raises(RunError, match="run 3 has written to the table since run 4 read it"):
        delta_rs_writer.add_files([_named(4)], table, 4, {"run": 4}, after=0)
    together = Barrier(4)

    def add(number: int) -> bool:
        together.wait()
        return delta_rs_writer.add_files([_named(number)], table, 5, {"run": 5}, after=3)

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(add, range(50, 54))) == [False, False, False, True]
    assert tables.count_rows(table) == 2
    assert tables.read_last_run(table) == 5


def test_a_commit_between_asking_and_committing_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the version was read: another property is passed over, another run is not."""
    table, others = _table(tmp_path), []
    now = delta_log.current_millis

    def meanwhile() -> int:
        if others:
            others.pop()()
        return now()

    def property_() -> None:
        DeltaTable(table.path).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})

    monkeypatch.setattr(delta_log, "current_millis", meanwhile)
    others.append(property_)
    assert delta_rs_writer.add_files([_named(1)], table, 1, {"run": 1}, after=0)
    others.append(lambda: delta_rs_writer.add_files([_named(2)], table, 2, {"run": 2}, after=1))
    with pytest.raises(RunError, match="run 2 has written to the table since run 3 read it"):
        delta_rs_writer.add_files([_named(3)], table, 3, {"run": 3}, after=1)
    others.append(lambda: delta_rs_writer.add_files([_named(4)], table, 4, {"run": 4}, after=2))
    assert not delta_rs_writer.add_files([_named(40)], table, 4, {"run": 4}, after=2)
    assert tables.count_rows(table) == 3
    assert sorted(commit_history.read_notes(table, dict)) == [1, 2, 4]


HOUR = timedelta(hours=1)
NO_OUTPUT = KernelOutput("", "versions", pa.schema([]), T0)


VIEWS = """\
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}}
  orders: {read: stream, key: {customer: string}, value: {item: string, paid: int}}
views:
  renamed: {table: menu, select: {cost: price}}
  paid: {stream: orders, where: paid > 0, key: {item: item}}
"""


def test_views_that_are_no_joins_are_none_of_a_kernel(tmp_path: Path) -> None:
    """However many rows they have."""
    path = tmp_path / "shop.yaml"
    path.write_text(VIEWS, encoding="utf-8")
    contract = load(path)
    for name in contract.views:
        assert eligibility.find_join(contract, name, {}, {}, NO_OUTPUT) is None


COLLATED = """\
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {kind: string}}
views:
  plain: {table: menu, group_by: {kind: upper(kind)}, aggregate: {last: max(kind)}}
  by_collation: {table: menu, group_by: {kind: "collate(kind, 'UTF8_LCASE')"}, aggregate: {many: count(*)}}
  last_by_collation: {table: menu, aggregate: {last: "max(collate(kind, 'UTF8_LCASE'))"}}
"""


def test_texts_with_a_collation_are_not_compared_by_a_kernel(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(COLLATED, encoding="utf-8")
    contract = load(path)
    menu = spark.createDataFrame([], "item string, kind string, validFrom timestamp, validTo timestamp")
    able = [name for name in contract.views if aggregation.plan_aggregate(contract, name, menu, NO_OUTPUT)]
    assert able == ["plain"]


def test_slices_tile_time_and_have_about_as_many_rows() -> None:
    dice = random.Random(5)  # noqa: S311
    for _ in range(200):
        starts = [T0 + dice.randrange(500) * HOUR for _ in range(dice.randrange(1, 9))]
        some = [(low, low + dice.choice((0, 1, 90)) * HOUR, dice.choice((0, 1, 1000))) for low in starts]
        wanted = dice.randrange(1, 7)
        spans = time_slices.split_time(some, wanted)
        assert 1 <= len(spans) <= wanted
        assert spans[0].start is None
        assert spans[-1].end is None
        assert [span.end for span in spans[:-1]] == [span.start for span in spans[1:]]
        inner = [span.start for span in spans[1:]]
        assert inner == sorted(set(inner))
    even = time_slices.split_time([(T0, T0 + 100 * HOUR, 1000), (T0 + 100 * HOUR, T0 + 200 * HOUR, 1000)], 4)
    assert [(span.start - T0) / HOUR for span in even[1:] if span.start] == pytest.approx([50, 100, 150], abs=5)
    assert time_slices.split_time([(T0, T0, 10**7)], 4) == [TimeSlice()], "one moment is not cut"


def test_a_topics_table_is_cut_where_its_log_has_about_as_many_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tables.log_table(str(tmp_path), "p", "t")
    assert time_slices.find_cuts(log, 4) == [], "no log"
    table_creation.ensure_table(log, StructType([StructField("timestamp", TimestampType())]))
    assert time_slices.find_cuts(log, 4) == [], "no record"
    moments = [1_000_000 * n for n in (*range(800), *[5] * 8)]
    random.Random(1).shuffle(moments)  # noqa: S311
    for part in (moments[:300], moments[300:]):
        write_deltalake(
            log.path, pa.table({"timestamp": pa.array([*part, None], pa.timestamp("us", "UTC"))}), mode="append"
        )
    cuts = time_slices.find_cuts(log, 4)
    assert [round(cut / 1e6) for cut in cuts] == pytest.approx([200, 400, 600], abs=9)
    assert time_slices.find_cuts(log, 1) == []
    monkeypatch.setattr(time_slices, "_SAMPLE", 100)
    assert [round(cut / 1e6) for cut in time_slices.find_cuts(log, 4)] == pytest.approx([200, 400, 600], abs=90)


def test_files_without_times_in_deltas_log_are_not_cut(tmp_path: Path) -> None:
    table = _table(tmp_path)
    side = KernelInput(table.path, 0, "versions", ("k",), (), None)
    form = JoinSpec("table_table", (side, side), False, "inner", {}, None, NO_OUTPUT)
    assert time_slices.plan_join_slices(form, [DeltaTable(table.path)] * 2, 4) == [TimeSlice()], "no file is no work"
    told = {
        "minValues": {"validFrom": "2026-01-01T00:00:00.000Z"},
        "maxValues": {"validFrom": "2026-01-02T00:00:00.000Z"},
    }
    bounded = replace(FILE, statistics=json.dumps({"numRecords": 10**6, **told}))
    delta_rs_writer.add_files([bounded], table, 1, {}, after=0)
    whole = time_slices.plan_join_slices(form, [DeltaTable(table.path)] * 2, 4)
    assert whole is not None
    assert len(whole) == 4
    delta_rs_writer.add_files([replace(_named(2), belief="superseded")], table, 2, {}, after=1)
    assert time_slices.plan_join_slices(form, [DeltaTable(table.path)] * 2, 4) == whole, "nobody believes those rows"
    delta_rs_writer.add_files([_named(3)], table, 3, {}, after=2)
    assert time_slices.plan_join_slices(form, [DeltaTable(table.path)] * 2, 4) is None
    beyond = {**told, "maxValues": {"validFrom": "+10000-01-01T00:00:00.000Z"}}
    (tmp_path / "far").mkdir()
    far = _table(tmp_path / "far")
    delta_rs_writer.add_files([replace(FILE, statistics=json.dumps({"numRecords": 9, **beyond}))], far, 1, {}, after=0)
    assert time_slices.plan_join_slices(form, [DeltaTable(far.path)] * 2, 4) is None, "Python has no such year"


def test_keys_are_equal_numbers_where_they_are_equal() -> None:
    kinds = pa.schema([("a", pa.string()), ("b", pa.int32())])
    one = pa.table({"a": ["x", "x", None, None, "y"], "b": [1, None, 1, None, 2]}, kinds)
    packed = pa.chunked_array([pa.array(["q", "y"]).dictionary_encode(), pa.array(["x", None]).dictionary_encode()])
    other = pa.table({"a": packed, "b": pa.chunked_array([[2, 2, 1, None]], pa.int32())})
    key = ("a", "b")
    (left, right), count = integer_encoding.encode_keys([one.cast(kinds), other.cast(kinds)], [key, key], whole=False)
    assert left[3] == right[3] == NOTHING, "nothing of it is there"
    assert left[4] == right[1]
    assert left[0] == right[2]
    assert len({*left, *right}) == 6
    assert count > max(*left, *right)
    (left, right), _ = integer_encoding.encode_keys([one, other.cast(kinds)], [key, key], whole=True)
    assert [n == NOTHING for n in left] == [False, True, True, True, False]
    assert [n == NOTHING for n in right] == [False, False, False, True]
    (left, right), _ = integer_encoding.encode_keys([one, other.cast(kinds)], [key, key], whole=None)
    assert left[3] == right[3] not in {*left[:3], left[4], NOTHING}, "nothing is a value"
    none = kinds.empty_table()
    (left, right), count = integer_encoding.encode_keys(
        [none, pa.Table.from_batches([], kinds)], [key, key], whole=True
    )
    assert len(left) == len(right) == 0


def test_hashes_are_equal_where_keys_are_however_their_columns_are_stored() -> None:
    plain = pa.table({"a": ["x", None, "", "y"], "b": pa.array([1, None, 0, None], pa.int32())})
    numbers = pa.Array.from_buffers(  # what is below a null does not count
        pa.int32(), 4, [pa.py_buffer(b"\x05"), pa.array([1, 77, 0, 78], pa.int32()).buffers()[1]]
    )
    packed = pa.chunked_array([pa.array(["x", None]).dictionary_encode(), pa.array(["", "y"]).dictionary_encode()])
    sliced = pa.concat_tables([plain.slice(1), plain]).combine_chunks().slice(3)
    wanted = integer_encoding.hash_keys(plain, ["a", "b"]).tolist()
    assert len({*wanted}) == 4
    for rows in (pa.table({"a": packed, "b": numbers}), sliced, pa.concat_tables([plain.slice(0, 3), plain.slice(3)])):
        assert integer_encoding.hash_keys(rows, ["a", "b"]).tolist() == wanted
    assert integer_encoding.hash_keys(plain.slice(0, 0), ["a", "b"]).tolist() == []
    halves = [Decimal("0.01"), Decimal("184467440737095516.17"), Decimal("-0.01"), None]
    amounts = pa.table({"a": pa.array([Decimal(1), *halves], pa.decimal128(38, 2))}).slice(1)
    of_amounts = integer_encoding.hash_keys(amounts, ["a"]).tolist()
    assert len({*of_amounts}) == 4
    one_by_one = [integer_encoding.hash_keys(amounts.slice(n, 1), ["a"])[0] for n in range(4)]
    assert one_by_one == of_amounts
    # not those of this process alone
    assert wanted[:2] == [17903164694718703372, 13904693342708126660]


def test_keys_of_many_columns_are_numbers_that_fit() -> None:
    dice = np.random.default_rng(3)
    rows = pa.table({f"c{n}": dice.integers(0, 900, 1000) for n in range(9)})
    (found,), count = integer_encoding.encode_keys([rows], [tuple(rows.column_names)], whole=False)
    same = {}
    for number, row in zip(
        found.tolist(), zip(*(rows.column(n).to_pylist() for n in range(9)), strict=True), strict=True
    ):
        assert same.setdefault(number, row) == row
    assert len(same) == len({*same.values()}) <= count


def test_the_first_of_each_number_passes_over_nothing() -> None:
    assert integer_encoding.find_first_rows(np.array([NOTHING, 2, 0, 2, NOTHING, 0]), 3).tolist() == [2, NOTHING, 1]
    assert integer_encoding.find_first_rows(np.array([], np.int64), 2).tolist() == [NOTHING, NOTHING]


MOST, LEAST = 2**63 - 1, -(2**63)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [MOST, LEAST, -1, 0, 1, 2**32, -(2**32), 2**32 - 1]),
        (pa.int64(), [MOST, MOST, LEAST, LEAST, 1]),
        (pa.int16(), [-32768, 32767, None]),
        (
            pa.decimal128(18, 4),
            [Decimal("-99999999999999.9999"), Decimal("99999999999999.9999"), Decimal("-0.0001"), None],
        ),
        (pa.decimal128(18, 4), [Decimal("-99999999999999.9999")] * 50),
    ],
)
def test_halves_add_up_exactly(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.chunked_array([pa.array([None, *values], kind).slice(1)])  # which does not begin where its buffers do
    high, low = integer_encoding.split_halves(column)
    whole, none = pa.decimal128(28, 4) if pa.types.is_decimal(kind) else pa.int64(), np.array([False, True])
    total = sum(value for value in values if value is not None)
    made = integer_encoding.combine_halves(np.array([high.sum(), 0]), np.array([low.sum(), 0]), whole, none)
    assert made.to_pylist() == [total, None]
    each = integer_encoding.combine_halves(high, low, whole, np.zeros(len(values), bool))
    assert each.to_pylist() == [value or 0 for value in values]


@pytest.mark.parametrize("values", [[MOST, 1], [LEAST, -1], [MOST] * 5, [LEAST] * 4])
def test_a_sum_that_is_no_bigint_is_told(values: list[int]) -> None:
    high, low = integer_encoding.split_halves(pa.chunked_array([pa.array(values)]))
    with pytest.raises(OverflowError):
        integer_encoding.combine_halves(np.array([high.sum()]), np.array([low.sum()]), pa.int64(), np.array([False]))


LARGE = [
    [1_700_000_000_000_000_000] * 6,
    [LEAST, LEAST, -1],
    [MOST] * 3,
    [2**53, 1],
    [2**53, 3],
    [-(2**53), -1, 2**32],
    [MOST, 1025, -(2**62)],
]


@pytest.mark.parametrize("values", LARGE, ids=str)
def test_an_average_is_the_exact_sum_by_the_count(values: list[int]) -> None:
    high, low = integer_encoding.split_halves(pa.chunked_array([pa.array([*values, None])]))
    counts = np.array([len(values), 0])
    sums = (np.array([half.sum(), 0]) for half in (high, low))
    found = operators.compute_measure("avg", counts, *sums, pa.float64())
    assert found.to_pylist() == [float(sum(values)) / len(values), None]


def test_a_sum_of_any_size_is_rounded_to_the_nearest_double() -> None:
    dice = random.Random(5)  # noqa: S311
    uppers = [0, -1, 2**53, 2**53 + 1, 2**54 + 2, -(2**53) - 1, *(dice.randrange(-(2**61), 2**61) for _ in range(200))]
    lowers = [0, 1, 2**31, 2**32 - 1, *(dice.randrange(2**45) for _ in range(20))]
    pairs = list(itertools.product(uppers, lowers))
    high, low = (np.array(half) for half in zip(*pairs, strict=True))
    found = integer_encoding.round_halves(high, low, np.zeros(len(pairs), bool))
    assert found.to_pylist() == [float((upper << 32) + lower) for upper, lower in pairs]


def test_texts_that_are_too_long_for_one_array_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.2 GB as Arrow counts them, in one piece of memory."""
    column = pa.chunked_array([pa.array(["x" * 1000] * 50_000)] * 44)
    moments = pa.array(np.arange(len(column))).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"k": pa.nulls(len(column), pa.int32()), "s": column, "timestamp": moments})
    versions = pa.table({"k": rows.column("k"), "s": column, "validFrom": moments, "validTo": moments})
    from hindcast.engine import slice_reader

    monkeypatch.setattr(operators, "MAX_BYTES", 1 << 40)
    monkeypatch.setattr(slice_reader, "read_slice", lambda side, _: rows if side.kind == "events" else versions)
    sides = tuple(KernelInput("", 0, kind, ("k",), ("s",), None) for kind in ("events", "versions"))
    projection = Projection({"s": ColumnReference("s", pa.string())}, None)
    form = JoinSpec("stream_table", sides, True, "left", {"s": (1, "s")}, projection, NO_OUTPUT)  # type: ignore[arg-type]
    with pytest.raises(task.RefusalError, match="offset overflow"):
        list(task.write_slice(form, TimeSlice()))


def _swept(*numbers_: Sequence[int | None]) -> list[np.ndarray[Any, Any]]:
    return [np.array([FOREVER if n is None else n for n in some], np.int64) for some in numbers_]


def test_an_event_meets_the_version_that_is_valid_at_its_moment() -> None:
    on, at_, key, start, end = _swept(
        [0, 0, 0, 1, NOTHING, 0], [1, 3, 4, 4, 4, 9], [0, NOTHING, 0], [2, 2, 4], [4, None, 8]
    )
    assert sweeps.find_valid_versions(on, at_, key, start, end, 2).tolist() == [
        NOTHING,
        0,
        2,
        NOTHING,
        NOTHING,
        NOTHING,
    ]


def test_events_are_near_as_far_as_the_reach_goes() -> None:
    dice = random.Random(7)  # noqa: S311
    for _ in range(300):
        counts = dice.randrange(6), dice.randrange(8)
        keys, others = (np.array([dice.choice((0, 1, NOTHING)) for _ in range(n)], np.int64) for n in counts)
        at, other_at = (np.array(sorted(dice.randrange(9) for _ in range(n)), np.int64) for n in counts)
        before, after = dice.randrange(4), dice.randrange(4)
        grouped = sweeps.group_by_key(others, 2)
        low, high = sweeps.find_near_events(keys, at, grouped, other_at, before, after)
        for n, (key, moment) in enumerate(zip(keys, at, strict=True)):
            near = [o for o in range(counts[1]) if others[o] == key and -before <= other_at[o] - moment <= after]
            assert grouped[0][low[n] : high[n]].tolist() == (near if key != NOTHING else [])


def test_more_pairs_than_memory_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred events at one moment have ten thousand pairs."""
    monkeypatch.setattr(operators, "MAX_PAIRS", 9_999)
    rows = pa.table({"k": [1] * 100, "timestamp": pa.array([0] * 100).cast(pa.timestamp("us", "UTC"))})
    side = KernelInput("", 0, "events", ("k",), (), None)
    form = JoinSpec("stream_stream", (side, side), False, "inner", {"k": (0, "k")}, None, NO_OUTPUT)
    with pytest.raises(OverflowError, match="10,000 pairs"):
        operators.join_sides(form, TimeSlice(), [rows, rows])
    few, every = rows.slice(0, 99), np.ones(100, np.bool_)
    assert operators.join_sides(form, TimeSlice(), [rows, few]).num_rows == 9_900
    monkeypatch.setattr(operators, "MAX_ROWS_HERE", 9_899)
    with pytest.raises(OverflowError, match="9,900 pairs"):
        operators.join_streams(form, [rows, few], [every, every[1:]], is_here=True)


def test_joined_rows_that_memory_has_no_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MAX_BYTES", 9_999)
    moment = pa.timestamp("us", "UTC")
    sides = tuple(KernelInput("", 0, kind, ("k",), ("k", "t"), None) for kind in ("events", "versions"))
    form = JoinSpec("stream_table", sides, None, "left", {"t": (1, "t")}, None, NO_OUTPUT)
    period = {"validFrom": pa.array([0], moment), "validTo": pa.array([None], moment)}
    versions = pa.table({"k": ["a"], "t": ["x" * 1_000], **period})
    events = pa.table({"k": ["a"] * 10, "timestamp": pa.array([1] * 10, moment)})
    assert operators.join_sides(form, TimeSlice(), [events.slice(1), versions]).num_rows == 9
    with pytest.raises(OverflowError, match="10 joined rows of about 1,00"):
        operators.join_sides(form, TimeSlice(), [events, versions])
    for limit, most in (("MAX_BYTES_HERE", 8_999), ("MAX_ROWS_HERE", 8)):
        assert operators.join_stream_table(form, events.slice(1), versions, is_here=True).num_rows == 9
        with monkeypatch.context() as patch:
            patch.setattr(operators, limit, most)
            with pytest.raises(OverflowError, match="9 joined rows"):
                operators.join_stream_table(form, events.slice(1), versions, is_here=True)


def test_a_text_that_no_array_holds_is_refused() -> None:
    with pytest.raises(task.RefusalError), task.refuse_too_large():
        raise pa.ArrowCapacityError("more than 2147483646 bytes")


def test_versions_are_divided_where_their_partners_start_and_end() -> None:
    """Of each slice of time those pieces that start in it, whatever the slices: no piece is cut, none is lost."""
    left, right = (
        _swept([0, 1, NOTHING, 2], [0, 5, 5, 3], [8, None, None, None]),
        _swept([0, 0, 1, 0, NOTHING], [2, 4, 5, 6, 6], [4, 5, 6, None, None]),
    )
    pairs = [(0, 0, 2, 4), (0, 1, 4, 5), (1, 2, 5, 6), (0, 3, 6, 8)]
    gaps = [(0, -1, 0, 2), (3, -1, 3, FOREVER), (0, -1, 5, 6), (2, -1, 5, FOREVER), (1, -1, 6, FOREVER)]

    def pieces(since: int, until: int, *kept: bool) -> list[tuple[int, ...]]:
        there = [n for n in range(5) if right[1][n] < until and (right[2][n] >= since)]
        some = [column[there] for column in right]
        later = np.full(3, FOREVER)
        for key, start in zip(*right[:2], strict=True):
            if start >= until and key != NOTHING:
                later[key] = min(later[key], start)
        mine = [n for n in range(4) if left[1][n] < until and left[2][n] >= since]
        grouped = sweeps.group_by_key(some[0], 3)
        sides = [column[mine] for column in left], grouped, some[1:], later
        found = sweeps.find_pieces(*sides[0], sides[1], *sides[2], sides[3], since, until, *kept).tolist()
        return [(mine[v], there[o] if o != NOTHING else -1, start, end) for v, o, start, end in found]

    for kept, expected in (((True, False), pairs), ((True, True), [*pairs, *gaps]), ((False, True), gaps)):
        assert sorted(pieces(-FOREVER, FOREVER, *kept)) == sorted(expected)
        for cuts in itertools.combinations(range(9), 2):
            spans = itertools.pairwise((-FOREVER, *cuts, FOREVER))
            every = [piece for span in spans for piece in pieces(*span, *kept)]
            assert sorted(every) == sorted(expected), cuts


def test_steps_add_up_what_is_there() -> None:
    key, start, end = _swept([0, 0, 1, 0], [0, 4, 4, 8], [8, 8, 4 + 1, None])
    by_end = np.array([2, 0, 1])
    counted, high, low = np.array([[1, 0, 1, 1]]), np.array([[1, 2, 3, 4]]), np.array([[10, 20, 30, 40]])
    of, since, until, counts, highs, lows = sweeps.sum_steps(key, start, end, by_end, counted, high, low, 2)
    steps = zip(
        of.tolist(),
        since.tolist(),
        until.tolist(),
        counts[0].tolist(),
        highs[0].tolist(),
        lows[0].tolist(),
        strict=True,
    )
    assert sorted(steps) == [(0, 0, 4, 1, 1, 10), (0, 4, 8, 1, 3, 30), (0, 8, FOREVER, 1, 4, 40), (1, 4, 5, 1, 3, 30)]


def test_the_first_version_in_an_order_is_found_for_each_step() -> None:
    """Against all versions of each step, one by one; 300 histories of up to 8 versions of 2 keys."""
    dice = random.Random(7)  # noqa: S311
    for _ in range(300):
        starts = sorted(dice.randrange(9) for _ in range(dice.randrange(1, 9)))
        ends = [dice.choice((None, at + dice.randrange(1, 6))) for at in starts]
        key, start, end = _swept([dice.randrange(2) for _ in starts], starts, ends)
        by_end = np.argsort(end, kind="stable")[: np.count_nonzero(end != FOREVER)]
        none = np.zeros((1, len(key)), np.int64)
        of, since, until, *_ = sweeps.sum_steps(key, start, end, by_end, none, none, none, 2)
        order = np.array(dice.sample(range(len(key)), dice.randrange(len(key) + 1)), np.int64)
        found = sweeps.find_extremes(order, key, start, end, sweeps.group_by_key(of, 2), since)
        for step, (its, at) in enumerate(zip(of, since, strict=True)):
            valid = [v for v in order if key[v] == its and start[v] <= at < end[v]]
            assert found[step] == (valid[0] if valid else NOTHING)
            assert all(until[step] <= end[v] for v in valid)


def test_what_has_no_group_or_no_value_is_in_no_step() -> None:
    """One version after the other, at t=0, 1, ..., each without an end; given from the last to the first."""
    groups = ["a", "a", None, "b", "a"]
    amounts, prices = [2**40 + 1, None, 7, None, 2**33 - 1], [Decimal("0.01"), None, None, None, Decimal("-2.50")]
    moments = pa.array([T0 + timedelta(seconds=n) for n in range(5)], pa.timestamp("us", "UTC"))
    measures = {
        "rows": ("count", [1] * 5, pa.int64()),
        "known": ("count", amounts, pa.int64()),
        "n": ("sum", amounts, pa.int64()),
        "d": ("sum", prices, pa.decimal128(18, 2)),
        "mean": ("avg", amounts, pa.float64()),
        "least": ("min", prices, pa.decimal128(8, 2)),
        "most": ("max", ["x", None, "z", None, "\U0001f600"], pa.string()),
    }

    def steps(*names: str) -> tuple[list[tuple[Any, ...]], int, int]:
        """Group, second, then the measures; and what is in no step."""
        types = {name: pa.decimal128(8, 2) if name in ("d", "least") else None for name in names}
        rows = pa.table(
            {"g": groups, "validFrom": moments, "validTo": pa.nulls(5, moments.type)}
            | {name: pa.array(measures[name][1], types[name]) for name in names}
        )
        output = KernelOutput("", "versions", pa.schema({name: measures[name][2] for name in names}), T0)
        form = AggregateSpec("of_table", ("g",), False, {name: measures[name][0] for name in names}, output)
        made = operators.aggregate_rows(form, rows.take([4, 3, 2, 1, 0]))
        told = [
            (it["g"], (it["validFrom"] - T0).seconds, *(it[name] for name in names)) for it in made.rows.to_pylist()
        ]
        return told, made.no_key, made.no_value

    first, last = 2**40 + 1, 2**40 + 2**33
    assert steps(*measures) == (
        [
            ("a", 0, 1, 1, first, Decimal("0.01"), float(first), Decimal("0.01"), "x"),
            ("a", 1, 2, 1, first, Decimal("0.01"), float(first), Decimal("0.01"), "x"),
            ("b", 3, 1, 0, None, None, None, None, None),
            ("a", 4, 3, 2, last, Decimal("-2.49"), last / 2, Decimal("-2.50"), "\U0001f600"),
        ],
        1,
        0,
    )
    assert steps("n", "d") == (
        [("a", 0, first, Decimal("0.01")), ("a", 4, last, Decimal("-2.49"))],
        1,
        2,
    ), "a version without any value is no member"


@pytest.mark.parametrize(("whole", "groups", "no_key"), [(True, [("a", 1)], 2), (False, [("a", 1), ("a", None)], 1)])
def test_of_a_group_of_two_columns_one_may_be_null(
    whole: bool, groups: list[tuple[str, int | None]], no_key: int
) -> None:
    moments = pa.array([T0] * 3, pa.timestamp("us", "UTC"))
    rows = pa.table({"g": ["a", "a", None], "h": [1, None, None], "n": [5, 6, 7], "validFrom": moments})
    output = KernelOutput("", "versions", pa.schema({"n": pa.int64()}), T0)
    found = operators.aggregate_rows(AggregateSpec("of_stream", ("g", "h"), whole, {"n": "sum"}, output), rows)
    assert sorted(((it["g"], it["h"]) for it in found.rows.to_pylist()), key=str) == groups
    assert (found.no_key, found.rows.column("validTo").null_count) == (no_key, len(groups))


def test_a_sum_of_decimals_of_more_than_64_bits_is_refused() -> None:
    moments = pa.array([T0, T0], pa.timestamp("us", "UTC"))
    for most, is_refused in ((2**63 - 1, False), (2**63, True)):
        values = pa.array([Decimal(-(2**63)), Decimal(most)], pa.decimal128(20))
        rows = pa.table({"g": ["a", "a"], "d": values, "validFrom": moments, "validTo": pa.nulls(2, moments.type)})
        output = KernelOutput("", "versions", pa.schema({"d": pa.decimal128(30)}), T0)
        form = AggregateSpec("of_table", ("g",), False, {"d": "sum"}, output)
        if is_refused:
            with pytest.raises(OverflowError, match="64 bits"):
                operators.aggregate_rows(form, rows)
        else:
            assert operators.aggregate_rows(form, rows).rows.column("d").to_pylist() == [Decimal(-1)]


def test_what_the_log_is_told_of_a_file() -> None:
    far = pa.array([T0, None], pa.timestamp("us", "UTC"))
    beyond = pa.array([2**62, None], pa.int64()).cast(far.type)
    columns = {
        "at": pa.array([T0 + timedelta(microseconds=1999), None], far.type),
        "before": pa.array([datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), T0]),
        "beyond": beyond,
        "money": pa.array([Decimal("-1.50"), Decimal("999999.99")], pa.decimal128(8, 2)),
        "exact": pa.array([Decimal("1" * 30), None], pa.decimal128(38, 2)),
        "nan": pa.array([1.0, float("nan")]),
        "long": pa.array(["x" * 5000, "y"]),
        "text": pa.array(["é", "\U0010ffff"]).dictionary_encode(),
        "none": pa.nulls(2, pa.string()),
        "left_out": pa.array([1, 2]),
    }
    rows, collected = pa.table(columns), []
    with pq.ParquetWriter(BytesIO(), rows.schema, metadata_collector=collected) as writer:
        writer.write_table(rows, row_group_size=1)
    told = json.loads(files.format_statistics(collected[0], [*rows.column_names[:-1], "absent"]))
    assert told["numRecords"] == 2
    assert told["nullCount"] == {n: rows.column(n).null_count for n in rows.column_names[:-1]}
    bounds = {
        "at": ("2026-01-01T00:00:00.001Z",) * 2,
        "before": ("1969-12-31T23:59:59.999Z", "2026-01-01T00:00:00.000Z"),
        "money": (-1.5, 999999.99),
        "text": ("é", "\U0010ffff"),
    }
    assert {n: (told["minValues"][n], told["maxValues"][n]) for n in told["minValues"]} == bounds


def test_delta_reads_bounds_as_they_are(tmp_path: Path) -> None:
    texts = pa.table({"k": ["😀", 'a"b\\', "\U0010ffff" * 2]})
    collected: list[Any] = []
    with pq.ParquetWriter(BytesIO(), texts.schema, metadata_collector=collected) as writer:
        writer.write_table(texts)
    table = _table(tmp_path)
    delta_rs_writer.add_files(
        [replace(FILE, statistics=files.format_statistics(collected[0], ["k"]))], table, 1, {}, after=0
    )
    (told,) = pa.table(DeltaTable(table.path).get_add_actions(flatten=True)).to_pylist()
    assert (told["min.k"], told["max.k"], told["null_count.k"]) == ('a"b\\', "\U0010ffff" * 2, 0)


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.string(), pa.int8(), pa.int64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.binary()),
        *(pa.decimal128(8, 2), pa.decimal128(38, 0), pa.float32(), pa.float64()),
    ],
    ids=str,
)
def test_keys_of_every_type_are_encoded_beside_a_side_without_rows(kind: pa.DataType) -> None:
    through = {pa.date32(): pa.int32(), pa.timestamp("us", "UTC"): pa.int64(), pa.binary(): pa.string()}
    full = pa.table({"k": pa.array([1, None, 1]).cast(through.get(kind, pa.int8())).cast(kind)})
    for form in (kind, pa.dictionary(pa.int32(), kind)):
        empty = pa.Table.from_batches([], pa.schema([("k", form)]))
        (none,), _ = integer_encoding.encode_keys([empty], [["k"]], whole=None)
        assert none.tolist() == []
        (none, some), count = integer_encoding.encode_keys([empty, full], [["k"], ["k"]], whole=None)
        assert (none.tolist(), some[0] == some[2], some[0] != some[1]) == ([], True, True)
        assert max(some) < count
