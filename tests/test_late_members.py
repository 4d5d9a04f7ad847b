"""Explanations leave out the events that came too late for a window, as the rules of windows say (`reference.py`)."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import reference
from hindcast.contract import Window
from hindcast.query import late_members
from hindcast.query.explain_limits import NotExplainedError
from hindcast.query.late_members import WindowMembers
from hindcast.store import duckdb_reader

NAME = "orders"
COUNTS = f'"{NAME}"."customer" IS NOT NULL AND "{NAME}"."n" IS NOT NULL'
SCHEMA = pa.schema(
    [
        ("customer", pa.string()),
        ("n", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)
KINDS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"kind": "tumbling", "sizeMs": 10, "graceMs": 4}, {"tumbling": "10 ms", "grace": "4 ms"}),
    (
        {"kind": "hopping", "sizeMs": 10, "advanceMs": 4, "graceMs": 0},
        {"hopping": "10 ms", "advance": "4 ms", "grace": "0 ms"},
    ),
    ({"kind": "sliding", "timeDifferenceMs": 7, "graceMs": 3}, {"sliding": "7 ms", "grace": "3 ms"}),
    ({"kind": "session", "inactivityGapMs": 3, "graceMs": 2}, {"session": "3 ms", "grace": "2 ms"}),
    ({"kind": "session", "inactivityGapMs": 6, "graceMs": 0}, {"session": "6 ms", "grace": "0 ms"}),
]


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def make_log(seed: int) -> list[reference.Record]:
    """Events of two keys in two partitions, some without a key or a value, many of them late."""
    dice = random.Random(seed)  # noqa: S311
    return [
        reference.Record(
            "stream",
            dice.randrange(2),
            offset,
            dice.choice(["ann", "bob", "bob", None]),
            dice.choice([1, 2, 3, None]),
            100 + offset + dice.randrange(-25, 12),
            1,
        )
        for offset in range(40)
    ]


@pytest.mark.parametrize(("window", "written"), KINDS, ids=lambda it: it.get("kind", ""))
@pytest.mark.parametrize("seed", range(8))
def test_a_window_is_made_of_the_events_that_it_took(
    window: dict[str, Any], written: dict[str, str], seed: int
) -> None:
    log, late = make_log(seed), 0
    columns = [(e.key, e.value, at(e.timestamp), e.partition, e.offset) for e in log]
    rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in columns], schema=SCHEMA)
    with duckdb_reader.open_arrow_engine() as engine:
        engine.register("rows", rows)
        for key in ("ann", "bob"):
            for start, end, took in reference.windows(window, log, key):
                group = f'"{NAME}"."customer" = \'{key}\' AND {COUNTS}'
                members = WindowMembers(Window.model_validate(written), at(start), at(end), COUNTS, group)
                own = f'SELECT "_offset" FROM rows AS "{NAME}" WHERE {members.condition}'  # ours
                inside = {offset for (offset,) in engine.execute(own).fetchall()}
                left_out = set(members.find_late(engine, NAME, "true").column("_offset").to_pylist())
                assert left_out <= inside
                assert inside - left_out == {event.offset for event in took}
                late += len(left_out)
    assert late or seed, "some came too late"


def test_sessions_of_too_many_events_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_members, "MAX_SESSION_EVENTS", 1)
    rows = [{"customer": "bob", "n": 1, "timestamp": at(n), "_partition": 0, "_offset": n} for n in range(2)]
    window = Window.model_validate({"session": "3 ms"})
    members = WindowMembers(window, at(0), at(1), COUNTS, COUNTS)
    with duckdb_reader.open_arrow_engine() as engine:
        engine.register("rows", pa.Table.from_pylist(rows, schema=SCHEMA))
        with pytest.raises(NotExplainedError, match="are more than 1"):
            members.find_late(engine, NAME, "true")
