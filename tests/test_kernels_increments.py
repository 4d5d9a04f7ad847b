"""Increments of kernels on random histories in memory: after each the view is what deriving it whole gives."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.bitemporal.intervals import LAST_MICROS
from hindcast.contract.shapes import PERIODS
from hindcast.engine import (
    aggregate_increments,
    arrow_expressions,
    hulls,
    increment_rows,
    increments,
    integer_encoding,
    late_events,
    operators,
    rejudged_events,
    session_operator,
    slice_reader,
    sweeps,
    task,
    version_increments,
    version_ties,
    window_operator,
)
from hindcast.engine.arrow_expressions import Call, ColumnReference, Constant, Expression, Projection
from hindcast.engine.increment_rows import ChangedRows
from hindcast.engine.spec import (
    AggregateIncrement,
    AggregateSpec,
    JoinIncrement,
    JoinSpec,
    KernelInput,
    KernelOutput,
    SessionSpec,
    SlidingSpec,
    TimeSlice,
    VersionIncrement,
    WindowIncrement,
    WindowSpec,
)

SEED = int(os.environ.get("HINDCAST_SEED", "1"))
HISTORIES = int(os.environ.get("HINDCAST_HISTORIES", "20"))
NOW, T0 = datetime(2026, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)
MOMENT, NUMBER = pa.timestamp("us", "UTC"), pa.int64()
KEYS, MOMENTS = ("a", "b", "c", None), 12
TEXT, PACKED = pa.string(), pa.dictionary(pa.int32(), pa.string())
PERIOD = {"validFrom": MOMENT, "validTo": MOMENT}
PLACE = {"timestamp": MOMENT, "_partition": pa.int32(), "_offset": NUMBER}
RIGHT_PLACE = {"_rightPartition": pa.int32(), "_rightOffset": NUMBER}
Row = dict[str, Any]
Kind = Literal["events", "versions"]


@dataclass
class History:
    """An input: of versions the value of each key and moment (None: a tombstone), of events what each is."""

    dice: random.Random
    kind: Kind
    records: dict[Any, Any] = field(default_factory=dict)

    def learn(self, most: int) -> None:
        """Some records more, anywhere in time; an event may also be replaced or go, as those of a view do."""
        for _ in range(self.dice.randint(0, most)):
            key, at = self.dice.choice(KEYS), self.dice.randrange(MOMENTS)
            named = self.dice.choice(KEYS)
            if self.kind == "versions":
                self.records[key, at] = self.dice.choice(((1, named), (2, named), None))
            else:
                count = len(self.records)
                offset = self.dice.choice((count, self.dice.randrange(count + 1)))
                self.records[offset] = self.dice.choice((None, *3 * [(key, self.dice.randint(1, 2), named, at)]))

    def rows(self) -> list[Row]:
        """The current rows, by their time."""
        if self.kind == "events":
            names = "k", "v", "named", "timestamp", "_partition", "_offset"
            found = [(*it, n % 2, n) for n, it in self.records.items() if it is not None]
            return sorted((dict(zip(names, row, strict=True)) for row in found), key=lambda row: row["timestamp"])
        ends = {
            (key, at): min((later for other, later in self.records if other == key and later > at), default=None)
            for key, at in self.records
        }
        rows = [
            {"k": place[0], "v": value[0], "named": value[1], "validFrom": place[1], "validTo": ends[place]}
            for place, value in self.records.items()
            if value is not None
        ]
        return sorted(rows, key=lambda row: row["validFrom"])


def table(rows: Sequence[Row], types: dict[str, pa.DataType]) -> pa.Table:
    """Rows as a kernel reads them."""
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()})


def list_rows(found: pa.Table) -> list[Row]:
    """Rows with their moments as numbers."""
    kinds = [NUMBER if field.type == MOMENT else field.type for field in found.schema]
    rows: list[Row] = found.cast(pa.schema(list(zip(found.column_names, kinds, strict=True)))).to_pylist()
    return rows


def strip(change: list[Row]) -> list[Row]:
    """The rows of a change."""
    return [{name: value for name, value in row.items() if name != "_change"} for row in change]


def count_rows(rows: list[Row]) -> Counter[Any]:
    """How often each row is there."""
    return Counter(tuple(sorted(row.items())) for row in rows)


def reader(rows: list[Row], types: dict[str, pa.DataType]) -> Callable[[tuple[int, int]], pa.Table]:
    """What reads those of the rows that touch a span, and no others; as if each row were in a file of its own."""
    kind: Any = next(kind for kind, columns in PERIODS.items() if columns[0] in types)
    first, last = PERIODS[kind][0], PERIODS[kind][-1]

    def is_among(row: Row, among: increment_rows.Among) -> bool:
        end = sweeps.FOREVER if row[last] is None else row[last]
        values = among.list_values(row[first], end)
        return values is not None and all(row[name] in those.to_pylist() for name, those in values if name in row)

    def read(span: tuple[int, int], *among: increment_rows.Among) -> pa.Table:
        near = [row for row in rows if row[first] <= span[1] and (row[last] is None or row[last] >= span[0])]
        return table([row for row in near if not among or any(is_among(row, some) for some in among)], types)

    return read


def changed_rows(
    old: list[Row], new: list[Row], types: dict[str, pa.DataType], add: Callable[[pa.Table], pa.Table]
) -> ChangedRows:
    """What became of an input's rows; `add` computes its other columns."""
    read = reader(new, types)
    gone, come = ([row for row in these if row not in those] for these, those in ((old, new), (new, old)))
    return ChangedRows(add(table(gone, types)), add(table(come, types)), lambda *near: add(read(*near)))


def input_types(kind: Kind) -> dict[str, pa.DataType]:
    """The columns of an input."""
    return {"k": PACKED, "v": NUMBER, "named": PACKED, **(PERIOD if kind == "versions" else PLACE)}


@dataclass(frozen=True)
class Case:
    """A join: the kinds of its inputs, its key columns on both sides, and how a key with nulls counts."""

    kinds: tuple[Kind, Kind]
    how: Literal["inner", "left", "outer"]
    on: str = "k"
    computed: Mapping[str, Expression] = field(default_factory=dict)
    reach: tuple[int, int] = (0, 0)

    @property
    def first(self) -> int:
        """How many records there are of an input at first, at most: enough for pairs of two streams."""
        return 14 if self.reach == (0, 0) else 20

    def form(self) -> JoinIncrement:
        """Its increment, with an expression and a condition."""
        is_table, is_pair = self.kinds[0] == "versions", self.kinds == ("events", "events")
        own: dict[str, Expression] = {
            "a": ColumnReference("l", NUMBER),
            "s": Call("add", (ColumnReference("l", NUMBER), ColumnReference("r", NUMBER)), NUMBER),
        }
        key: Expression = ColumnReference("lk", TEXT)
        if self.how == "outer":
            key = Call(
                "if",
                (Call("is_null", (ColumnReference("at", MOMENT),), pa.bool_()), ColumnReference("rk", TEXT), key),
                TEXT,
            )
        periods = PERIOD if is_table else {**PLACE, **RIGHT_PLACE} if is_pair else PLACE
        copied = {name: ColumnReference(name, kind) for name, kind in periods.items()}
        where = Call(
            "not_equal",
            (Call("coalesce", (ColumnReference("r", NUMBER), Constant(0, NUMBER)), NUMBER), Constant(2, NUMBER)),
            pa.bool_(),
        )
        types = pa.schema(
            [
                ("k", TEXT),
                ("a", NUMBER),
                ("s", NUMBER),
                *periods.items(),
                ("systemFrom", MOMENT),
                ("systemTo", MOMENT),
            ]
        )
        taken = {
            "lk": (0, "k"),
            "l": (0, "v"),
            "r": (1, "v"),
            "rk": (1, "k"),
            "at": (0, "validFrom" if is_table else "timestamp"),
        }
        taken |= {} if is_table else {name: (0, name) for name in PLACE if not is_pair or name != "timestamp"}
        taken |= dict(zip(RIGHT_PLACE, ((1, "_partition"), (1, "_offset")), strict=True)) if is_pair else {}
        inputs = [
            KernelInput("", 0, kind, (key,), ("k", "v", "named"), None, computed)
            for kind, key, computed in zip(self.kinds, (self.on, "k"), (self.computed, {}), strict=True)
        ]
        join = JoinSpec(
            "table_table" if is_table else "stream_stream" if is_pair else "stream_table",
            tuple(inputs),
            None if is_table and self.on == "k" else self.on != "k",
            self.how,
            taken,
            Projection({"k": key, **own, **copied}, where),
            KernelOutput("", self.kinds[0], types, NOW),
            self.reach,
        )
        columns = tuple(name for name in types.names if not name.startswith("system"))
        identity = ("k", "validFrom") if is_table else ("_partition", "_offset", *(RIGHT_PLACE if is_pair else ()))
        view = KernelInput("", 0, self.kinds[0], ("k",), columns, None)
        alike = {"sides": join.sides, "seen": (NOW, NOW), "view": view, "columns": columns, "identity": identity}
        return JoinIncrement(**alike, output=join.output, join=join, unit={"k": "k"})  # type: ignore[arg-type]

    def derive(self, form: Any, sides: list[pa.Table]) -> pa.Table:
        """All rows of the view."""
        return arrow_expressions.project_rows(form.join.projection, operators.join_sides(form.join, TimeSlice(), sides))


@dataclass(frozen=True)
class Aggregate:
    """An aggregate over time of an input, by its key or by another column."""

    kind: Kind
    group: str = "k"
    first: ClassVar[int] = 14

    @property
    def kinds(self) -> tuple[Kind]:
        """The kind of the input."""
        return (self.kind,)

    def form(self) -> AggregateIncrement:
        """Its increment, with a condition."""
        types = pa.schema(
            [
                *(("g", TEXT), ("n", NUMBER), ("s", NUMBER), ("m", NUMBER)),
                *(*PERIOD.items(), ("systemFrom", MOMENT), ("systemTo", MOMENT)),
            ]
        )
        output = KernelOutput("", "versions", types, NOW)
        start, *end = ("validFrom", "validTo") if self.kind == "versions" else ("timestamp",)
        other = Call("if", (Call("equal", (_V, Constant(1, NUMBER)), pa.bool_()), Constant(None, NUMBER), _V), NUMBER)
        own: dict[str, Expression] = {"g": ColumnReference(self.group, TEXT), "n": other, "s": other, "m": other}
        own |= {"validFrom": ColumnReference(start, MOMENT), **{name: ColumnReference(name, MOMENT) for name in end}}
        member = {"_member0": "k"} if self.kind == "versions" else {"_member0": "_partition", "_member1": "_offset"}
        own |= {name: ColumnReference(of, input_types(self.kind)[of]) for name, of in member.items()}
        where = Call(
            "not_equal", (Call("coalesce", (_NAMED, Constant("", TEXT)), TEXT), Constant("c", TEXT)), pa.bool_()
        )
        measures = {"n": "count", "s": "sum", "m": "max"}
        columns = tuple(name for name in types.names if not name.startswith("system"))
        return AggregateIncrement(
            sides=(KernelInput("", 0, self.kind, ("k",), ("k", "v", "named"), None),),
            seen=(NOW,),
            view=KernelInput("", 0, "versions", ("g",), columns, None),
            columns=columns,
            identity=("g", "validFrom"),
            output=output,
            aggregate=AggregateSpec("of_table" if end else "of_stream", ("g",), True, measures, output),
            projection=Projection(own, where),
            member=tuple(member),
        )

    def derive(self, form: Any, sides: list[pa.Table]) -> pa.Table:
        """All rows of the view."""
        return operators.aggregate_rows(form.aggregate, aggregate_increments.list_members(form, sides[0])).rows


_V, _NAMED = ColumnReference("v", NUMBER), ColumnReference("named", TEXT)


NEXT = Call("if", (Call("equal", (_NAMED, Constant("a", TEXT)), pa.bool_()), Constant("b", TEXT), _NAMED), TEXT)
"""A key that is computed."""

CASES: dict[str, Case | Aggregate] = {
    "stream-table": Case(("events", "versions"), "inner"),
    "stream-table, left": Case(("events", "versions"), "left"),
    "stream-table, on": Case(("events", "versions"), "left", "named"),
    "tables": Case(("versions", "versions"), "inner"),
    "tables, left": Case(("versions", "versions"), "left"),
    "tables, outer": Case(("versions", "versions"), "outer"),
    "foreign key": Case(("versions", "versions"), "inner", "named"),
    "aggregate of a table": Aggregate("versions"),
    "aggregate of a table, regrouped": Aggregate("versions", "named"),
    "aggregate of a stream": Aggregate("events"),
    "aggregate of a stream, regrouped": Aggregate("events", "named"),
    "stream-table, on an expression": Case(("events", "versions"), "left", "on", {"on": NEXT}),
    "foreign key, an expression": Case(("versions", "versions"), "left", "on", {"on": NEXT}),
    "streams": Case(("events", "events"), "inner", reach=(5, 4)),
    "streams, left": Case(("events", "events"), "left", reach=(0, 3)),
    "streams, outer": Case(("events", "events"), "outer", reach=(3, 1)),
    "foreign key, left": Case(("versions", "versions"), "left", "named"),
}


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("name", CASES)
def test_a_view_after_increments_is_what_deriving_it_whole_gives(name: str) -> None:
    print(f"HINDCAST_SEED={SEED}")
    case, dice = CASES[name], random.Random(f"{SEED}/{name}")  # noqa: S311  # histories, not secrets
    form = case.form()
    inputs = [input_types(kind) for kind in case.kinds]
    output = dict(zip(form.columns, (form.output.types.field(c).type for c in form.columns), strict=True))
    adding = [partial(slice_reader.add_computed_columns, side) for side in form.sides]
    closed = 0
    for _ in range(HISTORIES):
        histories = [History(dice, kind) for kind in case.kinds]
        before: list[list[Row]] = [[] for _ in case.kinds]
        view: list[Row] = []
        for turn in range(4):
            for history in histories:
                history.learn(9 if turn == 0 else 3)
            after = [history.rows() for history in histories]
            sources = [
                changed_rows(*pair, types, add) for *pair, types, add in zip(before, after, inputs, adding, strict=True)
            ]
            read_view = reader(view, output | {form.view.key[0]: PACKED})
            change = list_rows(increments.find_change(form, sources, read_view).rows)
            check_units(form, sources, read_view, change)
            gone = [row for row in change if row["_change"] == "close"]
            new = [row for row in change if row["_change"] == "open"]
            view = [row for row in view if row not in strip(gone)] + strip(new)
            sides = [add(table(rows, types)) for rows, types, add in zip(after, inputs, adding, strict=True)]
            wanted = list_rows(case.derive(form, sides).select(form.columns))
            assert count_rows(view) == count_rows(wanted), (before, after)
            before, closed = after, closed + len(gone)
    assert closed > HISTORIES / 10


@pytest.mark.parametrize("most", [5_000_000, 0])
def test_groups_with_too_many_islands_are_read_in_their_hulls(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """What lies between the islands of a group is read too if its hull is derived."""
    monkeypatch.setattr(hulls, "MAX_PAIRS", most)
    case = Aggregate("versions", "named")
    form, types = case.form(), input_types("versions")
    output = dict(zip(form.columns, (form.output.types.field(c).type for c in form.columns), strict=True))

    def row(key: str, start: int, end: int, value: int) -> Row:
        own = {"k": key, "v": value, "named": "x", "validFrom": start, "validTo": end}
        return dict.fromkeys(types) | own | {"systemFrom": 0}

    kept = [row("a", 0, 30, 2), row("b", 12, 15, 2)]
    before, after = [*kept, row("c", 1, 2, 2)], [*kept, row("c", 1, 2, 5), row("d", 25, 26, 2)]
    add = partial(slice_reader.add_computed_columns, form.sides[0])
    view, wanted = (
        list_rows(case.derive(form, [add(table(rows, types))]).select(form.columns)) for rows in (before, after)
    )
    sources = [changed_rows(before, after, types, add)]
    change = list_rows(increments.find_change(form, sources, reader(view, output | {form.view.key[0]: PACKED})).rows)
    gone = strip([row for row in change if row["_change"] == "close"])
    new = strip([row for row in change if row["_change"] == "open"])
    assert count_rows([row for row in view if row not in gone] + new) == count_rows(wanted)


def check_units(form: Any, sources: list[ChangedRows], read_view: Any, change: list[Row]) -> None:
    """The keys that a change concerns are each there once: those of all affected rows, and of all changed ones."""
    compared, key = increments.refresh_view(form, sources, read_view), form.view.key[0]
    rows = list_rows(increment_rows.list_affected_rows(form, compared))
    units = [row[key] for row in rows if row[increment_rows.SIDE] == "unit"]
    assert len(units) == len({*units})
    assert {*units} >= {row[key] for row in (*rows, *change)}
    if isinstance(form, JoinIncrement):
        changed = [row["k"] for part in sources[0][:2] for row in part.to_pylist()]
        assert {*units} >= {*changed}
        of_any = compared._replace(units=[(part, ()) for part, _ in compared.units])
        nameless = list_rows(increment_rows.list_affected_rows(replace(form, unit={}), of_any))
        assert sum(row[increment_rows.SIDE] == "unit" for row in nameless) == bool(units), "one stands for any"


@dataclass(frozen=True)
class Windows:
    """An aggregate in windows of events that come in the order of their offsets."""

    group: str = "k"
    size: int = 0
    advance: int = 0
    difference: int = 0
    gap: int = 0
    grace: int = 0

    def form(self) -> WindowIncrement:
        """Its increment, with a condition."""
        bounds = {"windowStart": MOMENT, "windowEnd": MOMENT}
        types = pa.schema(
            [("g", TEXT), ("n", NUMBER), ("m", NUMBER), *bounds.items(), ("systemFrom", MOMENT), ("systemTo", MOMENT)]
        )
        output = KernelOutput("", "events", types, NOW)
        other = Call("if", (Call("equal", (_V, Constant(1, NUMBER)), pa.bool_()), Constant(None, NUMBER), _V), NUMBER)
        own: dict[str, Expression] = {"g": ColumnReference(self.group, TEXT), "n": other, "m": other}
        own |= {name: ColumnReference(name, kind) for name, kind in PLACE.items()}
        is_wanted = Call(
            "not_equal", (Call("coalesce", (_NAMED, Constant("", TEXT)), TEXT), Constant("c", TEXT)), pa.bool_()
        )
        side = KernelInput("", 0, "events", ("k",), ("k", "v", "named", *PLACE), None)
        alike = {
            "side": side,
            "key": ("g",),
            "whole": True,
            "measures": {"n": "count", "m": "max"},
            "projection": Projection(own, is_wanted),
            "grace": self.grace,
            "late": late_events.NO_LATE_EVENTS,
            "output": output,
        }
        events: SessionSpec | SlidingSpec | WindowSpec
        if self.gap:
            events = SessionSpec(**alike, gap=self.gap)  # type: ignore[arg-type]
        elif self.difference:
            events = SlidingSpec(**alike, difference=self.difference, tick=1)  # type: ignore[arg-type]
        else:
            events = WindowSpec(**alike, size=self.size, advance=self.advance)  # type: ignore[arg-type]
        columns = tuple(name for name in types.names if not name.startswith("system"))
        return WindowIncrement(
            sides=(side,),
            seen=(NOW,),
            view=KernelInput("", 0, "windows", ("g",), columns, None),
            columns=columns,
            identity=("g", "windowStart"),
            output=output,
            events=events,
            ends={},
        )

    def derive(self, form: WindowIncrement, rows: pa.Table) -> operators.KernelRows:
        """All rows of the view, and all that it leaves out."""
        members = arrow_expressions.project_rows(form.events.projection, rows)  # type: ignore[arg-type]
        members = integer_encoding.decode_dictionaries(members, form.events.measures)
        events = replace(form.events, late=late_events.judge_events(form.events, members))
        if isinstance(events, SessionSpec):
            return session_operator.aggregate_sessions(events, members)
        return window_operator.aggregate_windows(events, TimeSlice(), members)


WINDOWS = pytest.mark.parametrize(
    "case",
    [
        pytest.param(Windows(size=4, advance=4), id="tumbling"),
        pytest.param(Windows(size=4, advance=4, grace=3), id="tumbling with grace"),
        pytest.param(Windows("named", size=5, advance=2, grace=1), id="hopping, regrouped"),
        pytest.param(Windows(difference=3), id="sliding"),
        pytest.param(Windows("named", difference=2, grace=2), id="sliding with grace, regrouped"),
        pytest.param(Windows(gap=1), id="sessions"),
        pytest.param(Windows("named", gap=2, grace=2), id="sessions with grace, regrouped"),
        pytest.param(Windows(gap=3, grace=20), id="sessions, all taken"),
    ],
)


@WINDOWS
def test_windows_after_increments_are_those_of_all_events(case: Windows) -> None:
    print(f"HINDCAST_SEED={SEED}")
    dice, form = random.Random(f"{SEED}/{case}"), case.form()  # noqa: S311  # histories, not secrets
    types, output = input_types("events"), {name: form.output.types.field(name).type for name in form.columns}
    closed = late = 0
    for _ in range(HISTORIES):
        events: list[Row] = []
        view: list[Row] = []
        before = Counter[str]()
        reached: dict[int, int] = {}
        for _ in range(4):
            new = [_event(dice, len(events) + n) for n in range(dice.randint(0, 6))]
            events = sorted(events + new, key=lambda row: row["timestamp"])
            new = sorted(new, key=lambda row: row["timestamp"])
            source = ChangedRows(table([], types), table(new, types), reader(events, types))
            found = increments.find_change(form, [source], reader(view, output | {"g": PACKED}))
            change = list_rows(found.rows)
            gone = [row for row in change if row["_change"] == "close"]
            view = [row for row in view if row not in strip(gone)]
            view += strip([row for row in change if row["_change"] == "open"])
            wanted = case.derive(form, table(events, types))
            assert count_rows(view) == count_rows(list_rows(wanted.rows.select(form.columns))), events
            before.update({kind: getattr(found.left_out, kind) for kind in _KINDS})
            assert before == {kind: getattr(wanted, kind) for kind in _KINDS}, events
            for partition, at in (found.left_out.reached or {}).items():
                reached[partition] = max(at, reached.get(partition, at))
            assert reached == wanted.reached
            check_units(form, [source], reader([], output | {"g": PACKED}), [])
            closed, late = closed + len(gone), late + found.left_out.too_late
    assert closed > HISTORIES / 10
    assert bool(late) == (case.grace < 20)


_KINDS = ("no_key", "no_value", "too_late")


def _event(dice: random.Random, offset: int) -> Row:
    at = min(MOMENTS * 2, max(0, offset + dice.randint(-14, 3)))
    own = {"k": dice.choice(KEYS), "v": dice.choice((1, 2, 3)), "named": dice.choice(KEYS), "timestamp": at}
    return own | {"_partition": offset % 2, "_offset": offset}


@WINDOWS
def test_windows_of_events_that_change_are_those_of_all_events(case: Windows) -> None:
    """Events change their values and come back at offsets before others; only the latest of a partition never goes."""
    print(f"HINDCAST_SEED={SEED}")
    dice, form = random.Random(f"{SEED}/{case}/changed"), case.form()  # noqa: S311  # histories, not secrets
    types, output = input_types("events"), {name: form.output.types.field(name).type for name in form.columns}
    refused, done, rejudged = 0, 0, 0
    reasons = set[str]()
    for _ in range(HISTORIES):
        events: list[Row] = []
        every: list[Row] = []
        view: list[Row] = []
        before = Counter[str]()
        ends: dict[int, int] = {}
        for _ in range(4):
            every += [_event_ahead(dice, len(every) + n) for n in range(dice.randint(0, 8))]
            latest = {row["_partition"]: row for row in events} if dice.random() < 0.9 else {}
            kept, back = dice.choice(((0.6, 0.7), (0.9, 0.9)))
            now = [_change_event(dice, row) for row in events if dice.random() < kept or row in latest.values()]
            now += [row for row in every if row not in events and dice.random() < back and not _has_place(now, row)]
            now = sorted(now, key=lambda row: row["timestamp"])
            sides = [row for row in events if row not in now], [row for row in now if row not in events]
            source = ChangedRows(*(table(rows, types) for rows in sides), reader(now, types))
            own = replace(form, ends=ends)
            try:
                found = increments.find_change(own, [source], reader(view, output | {"g": PACKED}))
            except task.RefusalError as error:
                reasons.add(str(error).partition(" of partition")[0])
                refused += 1
                break
            done += 1
            change = list_rows(found.rows)
            gone = [row for row in change if row["_change"] == "close"]
            view = [row for row in view if row not in strip(gone)]
            view += strip([row for row in change if row["_change"] == "open"])
            wanted = case.derive(form, table(now, types))
            assert count_rows(view) == count_rows(list_rows(wanted.rows.select(form.columns))), (events, now)
            before.update({kind: getattr(found.left_out, kind) for kind in _KINDS})
            assert {kind: before[kind] for kind in _KINDS} == {kind: getattr(wanted, kind) for kind in _KINDS}
            rejudged += _find_rejudged(own, source, table(events, types))
            events, ends = now, {partition: len(every) for partition in range(2)}
    assert reasons == {"the latest event"}
    assert done > HISTORIES
    assert refused
    assert rejudged or case.grace > 2


def test_a_session_that_comes_back_takes_late_events_far_from_it() -> None:
    """The event at 5 is near the one at 12 alone, which is late, and in a session if there is one at 19."""
    case, types = Windows(gap=10), input_types("events")
    form = replace(case.form(), ends={0: 4})
    moments = [("a", 19), ("b", 25), ("a", 12), ("a", 5)]
    rows = [
        {"k": key, "v": 2, "named": key, "timestamp": at, "_partition": 0, "_offset": offset}
        for offset, (key, at) in enumerate(moments)
    ]
    before, now = (sorted(some, key=lambda row: row["timestamp"]) for some in (rows[1:], rows))
    output = {name: form.output.types.field(name).type for name in form.columns} | {"g": PACKED}
    view = list_rows(case.derive(form, table(before, types)).rows.select(form.columns))
    source = ChangedRows(table([], types), table(rows[:1], types), reader(now, types))
    found = increments.find_change(form, [source], reader(view, output))
    wanted = case.derive(form, table(now, types))
    assert count_rows(view + strip(list_rows(found.rows))) == count_rows(list_rows(wanted.rows.select(form.columns)))
    assert (found.left_out.too_late, wanted.too_late) == (-2, 0)


def _find_rejudged(form: WindowIncrement, source: ChangedRows, events: pa.Table) -> int:
    """How many events are found that are judged otherwise: exactly those of which all events tell it."""
    closed, opened, before, now = (
        rejudged_events.list_members(form, rows)
        for rows in (source.closed, source.opened, events, source.read_near((-sweeps.FOREVER, sweeps.FOREVER)))
    )
    gone, new = (rejudged_events.select_counted_events(form, rows) for rows in (closed, opened))
    moved = rejudged_events.find_moved_events(form, gone, new)
    found = rejudged_events.find_rejudged_events(form, moved, gone, new, source.read_near)
    every = list_rows(late_events.find_judged_otherwise(form.events, before, now))
    changed = [(row["_partition"], row["_offset"]) for rows in (closed, opened) for row in list_rows(rows)]
    wanted = {(row["_partition"], row["_offset"]) for row in every}.difference(changed)
    assert {(row["_partition"], row["_offset"]) for row in list_rows(found)} == wanted
    return found.num_rows


def _event_ahead(dice: random.Random, offset: int) -> Row:
    """An event that may be ahead of those that follow it."""
    row = _event(dice, offset)
    return row | {"timestamp": min(MOMENTS * 2, offset + dice.randint(3, 8))} if dice.random() < 0.3 else row


def _change_event(dice: random.Random, row: Row) -> Row:
    return row | {"v": dice.choice((1, 2, 3)), "named": dice.choice(KEYS)} if dice.random() < 0.2 else row


def _has_place(rows: Sequence[Row], row: Row) -> bool:
    return any(it["_offset"] == row["_offset"] for it in rows)


@pytest.mark.parametrize("ttl", [None, 3])
def test_versions_after_increments_are_those_of_all_records(ttl: int | None) -> None:
    print(f"HINDCAST_SEED={SEED}")
    dice = random.Random(f"{SEED}/versions/{ttl}")  # noqa: S311  # histories, not secrets
    types, form = OF_VERSIONS, _versions_form(ttl)
    closed, tied = 0, version_ties.TiesOfKeys()
    for _ in range(HISTORIES):
        records: list[Row] = []
        view: list[Row] = []
        for _ in range(4):
            new = [_record(dice, len(records) + n) for n in range(dice.randint(0, 4))]
            times = {row["timestamp"] for row in new}
            hidden = [row | {"_isNew": False} for row in records if row["_isTombstone"] or row["timestamp"] in times]
            given = table(new + hidden, OF_RECORDS)
            compared = version_increments.refresh_versions(form, given, reader(view, types | {"k": PACKED}))
            change = list_rows(increment_rows.diff_rows(form, compared, with_kept=True))
            gone = [row for row in change if row["_change"] == "close"]
            ties = version_ties.count_ties_of_increment(form, given, compared.current)
            assert ties == _count_ties(new, hidden, list_rows(compared.current)), (new, hidden)
            tied += ties
            assert all(row in view for row in strip([row for row in change if row["_change"] == "keep"]))
            opened = strip([row for row in change if row["_change"] == "open"])
            repeated = count_rows(without_place(strip(gone))) & count_rows(without_place(opened))
            assert not repeated, "a record that repeats a row changes nothing"
            view = [row for row in view if row not in strip(gone)] + opened
            records, closed = records + new, closed + len(gone)
            assert count_rows(without_place(view)) == count_rows(_whole_versions(records, ttl)), records
    assert closed > HISTORIES / 10
    assert min(tied.scattered, tied.lost, tied.replaced) > HISTORIES / 100


def _count_ties(new: list[Row], hidden: list[Row], current: list[Row]) -> version_ties.TiesOfKeys:
    """The ties of new records, by the definition (bitemporal/ties.py)."""
    keys, times = {row["k"] for row in new}, {row["timestamp"] for row in new}
    rows = new + [row for row in hidden if row["k"] in keys and row["timestamp"] in times]
    partitions: dict[Any, set[int]] = {}
    for row in rows + ([] if any(row["_epoch"] for row in new) else [row | {"_epoch": 0} for row in current]):
        partitions.setdefault((row["k"], row["_epoch"]), set()).add(row["_partition"])
    scattered = {key for (key, _), of_key in partitions.items() if len(of_key) > 1}
    replaced, lost = 0, []
    for record in new:
        same = sorted(
            (row for row in rows if (row["k"], row["timestamp"]) == (record["k"], record["timestamp"])), key=_find_place
        )
        last = {row["_partition"]: row["v"] for row in same if row["_epoch"] == record["_epoch"]}
        is_replaced, winner = last[record["_partition"]] != record["v"], same[-1]
        replaced += is_replaced
        is_beaten = winner["v"] != record["v"] and winner["_partition"] != record["_partition"]
        if is_beaten and not is_replaced and len({*last.values()}) > 1:
            lost.append((_find_place(record), _find_place(winner)))
    return version_ties.TiesOfKeys(len(scattered), len(lost), replaced, min(lost, default=None))


def _find_place(record: Row) -> list[int]:
    return [record["_epoch"], record["_partition"], record["_offset"]]


OF_VERSIONS = {"k": TEXT, "v": NUMBER, **PERIOD, "_partition": pa.int32(), "_offset": NUMBER}
OF_RECORDS = {name: kind for name, kind in OF_VERSIONS.items() if name not in PERIOD} | {
    "timestamp": MOMENT,
    "_epoch": pa.int32(),
    "_isTombstone": pa.bool_(),
    "_isNew": pa.bool_(),
}


def _versions_form(ttl: int | None) -> VersionIncrement:
    columns = tuple(OF_VERSIONS)
    types = pa.schema([*OF_VERSIONS.items(), ("systemFrom", MOMENT), ("systemTo", MOMENT)])
    return VersionIncrement(
        sides=(),
        seen=(),
        view=KernelInput("", 0, "versions", ("k",), columns, None),
        columns=columns,
        identity=("k", "validFrom"),
        output=KernelOutput("", "versions", types, NOW),
        ttl=ttl,
    )


def test_a_version_that_would_end_after_all_time_does_not_end() -> None:
    places = {"_partition": 0, "_offset": 0, "_epoch": 0, "_isTombstone": False, "_isNew": True}
    given = [{"k": key, "v": 1, "timestamp": at, **places} for key, at in (("a", 0), ("b", LAST_MICROS - 9))]
    found = version_increments.derive_versions(
        _versions_form(10), version_increments.sort_records(table(given, OF_RECORDS), np.array([0, 1]))
    )
    assert [row["validTo"] for row in list_rows(found.select(["k", "validTo"]))] == [10, None]


def _record(dice: random.Random, number: int) -> Row:
    value = dice.choice((1, 2, None))
    place = {"_partition": number % 2, "_offset": number, "_epoch": number // 5}
    marks = {"_isTombstone": value is None, "_isNew": True}
    return {"k": dice.choice(("a", None)), "v": value, "timestamp": dice.randrange(6), **place, **marks}


def without_place(rows: list[Row]) -> list[Row]:
    """Rows without their lineage, which is not compared: a record that repeats a row changes nothing."""
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


def _whole_versions(records: list[Row], ttl: int | None) -> list[Row]:
    """The versions of all records, by the definition."""
    found = []
    for record in records:
        own = [other for other in records if other["k"] == record["k"]]
        place = [(other["_epoch"], other["_partition"], other["_offset"]) for other in own]
        rivals = [it for other, it in zip(own, place, strict=True) if other["timestamp"] == record["timestamp"]]
        if record["v"] is None or max(rivals) != (record["_epoch"], record["_partition"], record["_offset"]):
            continue
        ends = [other["timestamp"] for other in own if other["timestamp"] > record["timestamp"]]
        ends += [record["timestamp"] + ttl] if ttl is not None else []
        found.append(
            {"k": record["k"], "v": record["v"], "validFrom": record["timestamp"], "validTo": min(ends, default=None)}
        )
    return found


@pytest.mark.parametrize("as_of", [None, 6])
def test_what_changed_since_a_moment_is_what_was_current_then_or_is_now(tmp_path: Path, as_of: int | None) -> None:
    dice = random.Random(f"{SEED}/changes")  # noqa: S311  # histories, not secrets
    rows: list[Row] = []
    for number in range(200):
        began, start = dice.randrange(10), dice.randrange(MOMENTS)
        ended = dice.choice((None, began + dice.randint(1, 4)))
        rows.append({"k": number, "validFrom": start, "validTo": None, "systemFrom": began, "systemTo": ended})
    types = {"k": NUMBER, **PERIOD, "systemFrom": MOMENT, "systemTo": MOMENT}
    for part in range(4):  # files of their own
        write_deltalake(tmp_path, table([row for row in rows if row["k"] % 4 == part], types), mode="append")
    at = None if as_of is None else T0 + timedelta(microseconds=as_of)
    side = KernelInput(str(tmp_path), DeltaTable(tmp_path).version(), "versions", ("k",), ("k",), at)

    def is_current(row: Row, moment: int) -> bool:
        return bool(row["systemFrom"] <= moment and (row["systemTo"] is None or row["systemTo"] > moment))

    for since in range(8 if as_of is None else as_of):
        now = 99 if as_of is None else as_of
        closed, opened = slice_reader.read_changes(side, T0 + timedelta(microseconds=since))
        was, is_ = ({row["k"] for row in rows if is_current(row, moment)} for moment in (since, now))
        assert sorted(closed.column("k").to_pylist()) == sorted(was - is_)
        assert sorted(opened.column("k").to_pylist()) == sorted(is_ - was)
