"""Vectors of views of views: what Kafka Streams emits where a record reaches a view on several paths.

    PYTHONPATH=scripts .venv/bin/python tests/diamonds.py [COUNT [SEED]]

writes tests/conformance/views/*.json anew: of every shape `COUNT` scenarios, with what the test driver made of them;
and of as many random shapes as there are others two each.
`contract` says an operation as a contract: vectors of one shape are partitions of the same topics.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import drawing
from hindcast.streams import murmur2

Json = Any
FOLDER = Path(__file__).parent / "conformance" / "views"
KEYS = ("a", "b", "c")
STREAM = {"read": "stream"}
LATEST = {"read": "table", "versioned": False}
VERSIONED = {"read": "table", "versioned": True, "historyRetentionMs": 20}
SHORT = {"versioned": True, "historyRetentionMs": 10}
EVEN = {"type": "even"}
HOWS = ("inner", "left", "outer")


# Shapes


def view(name: str, op: str, *of: str, **more: Json) -> Json:
    return {"name": name, "op": op, "of": list(of), **more}


def count(name: str, of: str, **more: Json) -> Json:
    return view(name, "aggregate", of, aggregation="count", **more)


def total(name: str, of: str, **more: Json) -> Json:
    return view(name, "aggregate", of, aggregation="sum", **more)


def join(name: str, first: str, second: str, how: str = "inner", **more: Json) -> Json:
    return view(name, "join", first, second, join=how, **more)


def even(name: str, of: str) -> Json:
    return view(name, "filter", of, predicate=EVEN)


def times(name: str, of: str, by: int = 1) -> Json:
    return view(name, "map", of, multiplyBy=by)


def shape(topics: Mapping[str, Json], *views: Json) -> Json:
    return {"type": "views", "topics": dict(topics), "views": list(views)}


WITHIN = {"beforeMs": 5, "afterMs": 5, "graceMs": 5}
TABLES = {"latest": LATEST, "versioned": VERSIONED}


def shapes() -> Iterator[tuple[str, Json]]:
    """Every shape by its name: those of the issue, of Kafka's own tests, and what combines them."""
    s, t = {"s": STREAM}, TABLES
    for how in HOWS[:2]:
        yield f"streams/{how}-with-its-count", shape(s, count("n", "s"), join("s_n", "s", "n", how))
    yield (
        "streams/with-its-versioned-count",
        shape(s, count("n", "s", materialized=SHORT), join("s_n", "s", "n", "left")),
    )
    yield (
        "streams/with-its-versioned-count-and-grace",
        shape(s, count("n", "s", materialized=SHORT), join("s_n", "s", "n", "left", graceMs=3)),
    )
    yield (
        "streams/filtered-with-the-count-of-all",
        shape(s, even("e", "s"), count("n", "s"), join("e_n", "e", "n", "left")),
    )
    yield (
        "streams/all-with-the-count-of-the-filtered",
        shape(s, even("e", "s"), count("n", "e"), join("s_n", "s", "n", "left")),
    )
    yield (
        "streams/three-levels",
        shape(
            s,
            count("n", "s"),
            join("s_n", "s", "n", "left"),
            total("m", "s_n"),
            join("s_m", "s", "m", "left"),
            join("again", "s_m", "n", "left"),
        ),
    )
    yield (
        "streams/two-counts-joined",
        shape(
            s,
            count("one", "s"),
            even("e", "s"),
            total("other", "e"),
            join("both", "one", "other", "outer"),
            join("s_both", "s", "both", "left"),
        ),
    )
    yield (
        "streams/two-counts-of-different-depth-joined",
        shape(
            s,
            even("e", "s"),
            count("one", "s"),
            total("other", "e"),
            join("both", "one", "other", "left"),
            join("e_both", "e", "both", "left"),
            total("sum", "e_both"),
        ),
    )
    yield (
        "streams/within-a-window-of-its-filtered",
        shape(s, even("e", "s"), join("s_e", "s", "e", "left", **WITHIN), join("e_s", "e", "s", **WITHIN)),
    )
    yield (
        "streams/with-a-table-joined-with-its-count",
        shape(
            {**s, "t": LATEST},
            join("s_t", "s", "t", "left"),
            count("n", "s_t"),
            join("t_n", "t", "n", "outer"),
            join("s_t_n", "s", "t_n", "left"),
        ),
    )
    for kind, table in t.items():
        for how in HOWS:
            for other in HOWS:
                yield (
                    f"three_way/{how}-{other}-{kind}",
                    shape(
                        {"left": table, "right": table},
                        join("j", "left", "right", how),
                        join("again", "j", "right", other),
                    ),
                )
            yield (
                f"tables/{how}-with-its-own-filter-{kind}",
                shape({"t": table}, even("e", "t"), join("t_e", "t", "e", how)),
            )
            yield (
                f"tables/{how}-its-own-filter-with-it-{kind}",
                shape({"t": table}, even("e", "t"), join("e_t", "e", "t", how)),
            )
            yield (
                f"tables/{how}-with-itself-through-a-view-{kind}",
                shape({"t": table}, times("same", "t"), join("t_t", "t", "same", how)),
            )
        yield (
            f"tables/three-levels-{kind}",
            shape(
                {"left": table, "right": table},
                even("e", "left"),
                join("j", "left", "right", "left"),
                join("e_j", "e", "j", "outer"),
                times("m", "e_j", 3),
                join("m_right", "right", "m", "left"),
            ),
        )
        yield (
            f"tables/stored-{kind}",
            shape(
                {"left": table, "right": table},
                join("j", "left", "right", "left", materialized=SHORT),
                join("again", "j", "right", "left", materialized=SHORT),
                join("third", "left", "again", "left"),
            ),
        )
        yield (
            f"tables/aggregated-{kind}",
            shape({"t": table}, even("e", "t"), join("t_e", "t", "e", "left"), total("sum", "t_e", by=["a", "b"])),
        )
        yield (
            f"tables/filtered-join-of-itself-{kind}",
            shape(
                {"t": table},
                times("same", "t"),
                join("t_t", "t", "same"),
                even("e", "t_t"),
                total("sum", "e", by=["a", "b"]),
            ),
        )
        yield (
            f"tables/a-stream-with-its-diamond-{kind}",
            shape({**s, "t": table}, even("e", "t"), join("t_e", "t", "e", "left"), join("s_t_e", "s", "t_e", "left")),
        )
        yield (
            f"repartition/table-with-its-count-{kind}",
            shape({"t": table}, count("n", "t"), join("t_n", "t", "n", "left")),
        )
        yield (
            f"repartition/table-with-its-groups-{kind}",
            shape({"t": table}, total("n", "t", by=["a", "b"]), join("t_n", "t", "n", "left")),
        )
        yield (
            f"repartition/table-with-itself-on-a-foreign-key-{kind}",
            shape({"t": table}, times("same", "t"), join("t_t", "t", "same", "left", by=["a", "b", "c"])),
        )
        yield (
            f"repartition/its-filter-with-it-on-a-foreign-key-{kind}",
            shape({"t": table}, even("e", "t"), join("e_t", "e", "t", "inner", by=["a", "b", "c"])),
        )
    yield (
        "repartition/stream-with-its-groups",
        shape(s, count("n", "s", by=["a", "b"]), join("s_n", "s", "n", "left")),
    )
    yield (
        "repartition/stream-and-its-groups-on-one-key",
        shape(s, count("n", "s", by=["a", "b"]), join("s_n", "s", "n", "left", by=["a", "b"])),
    )
    yield (
        "repartition/a-diamond-above",
        shape(
            s, count("n", "s"), join("s_n", "s", "n", "left"), total("m", "s_n", by=["a", "b"]), join("s_m", "s", "m")
        ),
    )
    yield (
        "repartition/a-diamond-below",
        shape(
            s,
            count("n", "s", by=["a", "b"]),
            times("m", "n", 3),
            join("n_m", "n", "m", "left"),
            join("s_n_m", "s", "n_m", "left"),
        ),
    )


def drawn(rng: Random) -> Json:
    """A random shape: views of two or three topics and of each other, at least one of them a join.

    Without what contracts refuse, and without what docs/kafka-parity.md names as not so here: a filter of an aggregate
    of a stream, and a look-up in a join of a table with itself that has no store.
    """
    topics = {"s": STREAM, "t": rng.choice((LATEST, VERSIONED)), "u": rng.choice((LATEST, VERSIONED))}
    views: list[Json] = [join("v0", "s", rng.choice("tu"), "left"), join("v1", "t", "u", rng.choice(HOWS))]
    aggregates, unread = set[str](), set[str]()
    for number in range(2, rng.randint(4, 6)):
        name, first, second = f"v{number}", *rng.sample(["s", "t", "u", *(it["name"] for it in views)], 2)
        if unread & {first, second}:
            continue
        operation = shape(topics, *views)
        of_streams = [is_stream(operation, it) for it in (first, second)]
        by = {"by": ["a", "b", "c"]} if rng.random() < 0.25 else {}
        stored = {"materialized": SHORT} if not by and rng.random() < 0.25 else {}
        match rng.choice(("filter", "map", "aggregate", "join", "join", "join")):
            case "filter" if first not in aggregates:
                views.append(even(name, first))
            case "map":
                views.append(times(name, first, 3))
                aggregates |= {name} if first in aggregates else set()
            case "aggregate":
                views.append(rng.choice((count, total))(name, first, **by))
                aggregates.add(name)
            case "join" if all(of_streams):
                views.append(join(name, first, second, rng.choice(HOWS), **WITHIN))
                unread.add(name)
            case "join" if of_streams[0]:
                views.append(join(name, first, second, rng.choice(HOWS[:2]), **by))
            case "join" if not of_streams[1]:
                views.append(join(name, first, second, rng.choice(HOWS[1:2] if by else HOWS[1:]), **by, **stored))
    return shape(topics, *views)


# Vectors


def vectors(name: str, operation: Json, count: int, seed: int = 0) -> Iterator[Json]:
    """Vectors of a shape without what is expected."""
    for place in range(count):
        called = f"{name}/{seed}-{place:02d}"
        yield {
            "name": called,
            "operation": operation,
            "records": records(operation, Random(zlib.crc32(called.encode()))),  # noqa: S311
        }


def records(operation: Json, rng: Random) -> list[Json]:
    """Random records, in the order in which a task that always has the next one of each topic processes them."""
    topics = operation["topics"]
    keys, names = drawing.few_keys(rng), list(topics)
    keys = [key for key in keys if key in KEYS] or KEYS
    drawn = []
    for time in drawing.timestamps(rng, operation, rng.randint(8, 24)):
        topic = rng.choice(names)
        is_gone = topics[topic]["read"] == "table" and rng.random() < 0.25
        value = None if is_gone else rng.randint(1, 9)
        drawn.append({"topic": topic, "key": rng.choice(keys), "value": value, "timestamp": time})
    reached = dict.fromkeys(names, -1)
    placed = []
    for number, record in enumerate(drawn):
        reached[record["topic"]] = max(reached[record["topic"]], record["timestamp"])
        placed.append((reached[record["topic"]], names.index(record["topic"]), number))
    return [drawn[number] for *_, number in sorted(placed)]


def load(folder: Path = FOLDER) -> dict[str, list[Json]]:
    """The vectors of every shape, by its name."""
    found: dict[str, list[Json]] = {}
    for path in sorted(folder.glob("*.json")):
        for one in json.loads(path.read_text(encoding="utf-8")):
            found.setdefault(one["name"].rpartition("/")[0], []).append(one)
    return found


# Contracts


def contract(operation: Json, pipeline: str, size: int) -> Json:
    """A contract of an operation's views, of topics of `size` partitions, one for each vector."""
    return {
        "pipeline": pipeline,
        "start": "2026-01-01",
        "topics": {name: _topic(spec) for name, spec in operation["topics"].items()},
        "views": {it["name"]: {"semantics": "kafka", **_view(operation, it, size)} for it in operation["views"]},
    }


@cache
def key(name: str, partition: int, size: int) -> str:
    """A key of this name that Kafka sends to a partition."""
    tried = [f"{name}.{number}" for number in range(20 * size)]
    sent = murmur2.assign_partitions(pa.array([text.encode() for text in tried]), size).to_pylist()
    return tried[sent.index(partition)]


def _topic(spec: Json) -> Json:
    said = {"read": spec["read"], "key": {"k": "string"}, "value": {"n": "bigint"}}
    if spec["read"] == "table":
        said["versioned"] = spec["versioned"]
    if spec.get("versioned"):
        said["history_retention"] = f"{spec['historyRetentionMs']} ms"
    return said


def _view(operation: Json, it: Json, size: int) -> Json:
    first, *second = it["of"]
    said: Json = {"stream" if is_stream(operation, first) else "table": first}
    kept = it.get("materialized")
    more = {"history_retention": f"{kept['historyRetentionMs']} ms"} if kept else {}
    match it["op"]:
        case "filter":
            return {**said, "where": "n % 2 = 0"}
        case "map":
            return {**said, "select": {"n": f"n * {it['multiplyBy']}"}}
        case "aggregate":
            group = {"group_by": {"k": _named(it, first, size)}} if "by" in it else {}
            return {
                **said,
                **group,
                "aggregate": {"n": {"count": "count(*)", "sum": "sum(n)"}[it["aggregation"]]},
                **more,
            }
    joined: Json = {"how": it["join"], "stream" if is_stream(operation, second[0]) else "table": second[0]}
    joined |= {"on": _named(it, first, size)} if "by" in it else {}
    joined |= {name.removesuffix("Ms"): f"{length} ms" for name, length in it.items() if name.endswith("Ms")}
    value = f"100 * coalesce({first}.n, 0) + coalesce({second[0]}.n, 0)"
    return {**said, "join": joined, "select": {"n": value}, **more}


def is_stream(operation: Json, name: str) -> bool:
    if name in operation["topics"]:
        return bool(operation["topics"][name]["read"] == "stream")
    it = next(one for one in operation["views"] if one["name"] == name)
    return it["op"] != "aggregate" and is_stream(operation, it["of"][0])


def _named(it: Json, first: str, size: int) -> str:
    """The key that a value names: it goes to the partition of the vector, which the row's own key tells."""

    def texts(names: Sequence[str]) -> list[str]:
        return [", ".join(f"'{key(name, number, size)}'" for name in names) for number in range(size)]

    every = ", ".join(f"array({told})" for told in texts(it["by"]))
    own = ", ".join(f"array({told})" for told in texts(KEYS))
    found = f"array_position(transform(array({own}), x -> array_contains(x, {first}.k)), true)"
    place = f"cast(nullif({found}, 0) as int)"  # without a value there is no key
    return f"element_at(element_at(array({every}), {place}), cast({first}.n % {len(it['by'])} as int) + 1)"


def _main(count: int = 5, seed: int = 0) -> None:
    import oracle

    FOLDER.mkdir(parents=True, exist_ok=True)
    named = list(shapes())
    every = [one for name, operation in named for one in vectors(name, operation, count, seed)]
    for number in range(len(named)):
        operation = drawn(Random(f"{seed} {number}"))  # noqa: S311
        every += vectors(f"random/{number:02d}", operation, 2, seed)
    families: dict[str, list[str]] = {}
    for one in oracle.expected(every):
        families.setdefault(one["name"].partition("/")[0], []).append(json.dumps(one))
    for family, lines in families.items():
        (FOLDER / f"{family}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
