"""`hindcast compare`: a replayed `kafka` view beside the output topic of a live application, on a real broker."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import write_deltalake

from bare_runs import bare_run
from hindcast.cli import main
from hindcast.common import step_events
from hindcast.common.errors import HindcastError, QueryError, RecordError, TopicError
from hindcast.common.settings import read_settings
from hindcast.contract import Contract, load
from hindcast.contract.bound import bind_contract
from hindcast.kafka import produce
from hindcast.kafka.topics import OffsetRange
from hindcast.ops.compare import Comparison, compare_view
from hindcast.ops.compare.outputs import TopicExtent
from hindcast.ops.compare.rules import ComparisonFacts, list_rules
from hindcast.plan import journal
from hindcast.store import tables
from hindcast.store.tables import Table
from pipelines import RESTAURANT, SEED, pipeline, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = datetime(2026, 1, 1, tzinfo=UTC)
KNOWN = [datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 2, 2, tzinfo=UTC)]
CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: "decimal(8,2)"}, history_retention: 1 hour}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
  menu_of_old: {read: table, key: {item: string}, value: {old: double}}
  stock: {read: table, key: {shop: string, item: string}, value: {n: int}}
  people: {read: table, key: {email: string}, value: {name: string, age: int}, sensitive: [email, name]}
views:
  bills:
    stream: orders
    join: {table: menu, on: item, how: left}
    select: {amount: quantity * price}
    semantics: kafka
  waited:
    stream: orders
    join: {table: menu, on: item, how: left}
    select: {amount: quantity * price}
    semantics: kafka
    wait: true
  cheap: {table: menu, where: price < 9, semantics: kafka}
  sold: {stream: orders, aggregate: {n: count(*), weight: sum(quantity * 0.1D)}, semantics: kafka}
  low: {table: stock, select: {n: n}, semantics: kafka}
  daily: {stream: orders, aggregate: {n: count(*)}, window: {tumbling: 1 day}, semantics: kafka}
  closed: {stream: orders, aggregate: {n: count(*)}, window: {tumbling: 1 day, emit: on_window_close}, semantics: kafka}
  visits: {stream: orders, aggregate: {n: count(*)}, window: {session: 1 minute}, semantics: kafka}
  priced: {table: menu, join: {table: menu_of_old, how: outer}, semantics: kafka}
  named: {table: stock, join: {table: menu, on: stock.item}, select: {n: n, price: price}, semantics: kafka}
  adults: {table: people, select: {name: name, age: age}, semantics: kafka}
  believed: {stream: orders, join: {table: menu, on: item}, select: {amount: quantity * price}}
"""
MONEY = {"amount": pa.decimal128(19, 2)}
COUNT = {"n": pa.int64()}
TYPES: Mapping[str, Mapping[str, pa.DataType]] = {
    "bills": {"customer": pa.string(), **MONEY},
    "waited": {"customer": pa.string(), **MONEY},
    "cheap": {"item": pa.string(), "price": pa.decimal128(8, 2)},
    "sold": {"customer": pa.string(), **COUNT, "weight": pa.float64()},
    "low": {"shop": pa.string(), "item": pa.string(), "n": pa.int32()},
    "daily": {"customer": pa.string(), **COUNT},
    "closed": {"customer": pa.string(), **COUNT},
    "visits": {"customer": pa.string(), **COUNT},
    "adults": {"email": pa.string(), "name": pa.string(), "age": pa.int32()},
}
KEYS = {"cheap": ("item",), "low": ("shop", "item"), "adults": ("email",)}
_numbers = itertools.count(1)

Result = tuple[Any, float, Any]
"""Key, second and value of a result; of one column as it is, null is a tombstone."""


def at(second: float) -> datetime:
    return T0 + timedelta(seconds=second)


def millis(second: float) -> int:
    return int(at(second).timestamp() * 1000)


@dataclass
class Shop:
    """A pipeline that has been run, and a live application's topics."""

    folder: Path
    broker: str

    @property
    def warehouse(self) -> str:
        return str(self.folder / "warehouse")

    @property
    def contract(self) -> Contract:
        return load(self.folder / "schemas" / "shop.yaml")

    def replayed(self, view: str, *results: Result, epoch: int = 0, run: int = 1, first: int = 0) -> None:
        """What a run has emitted; each result for the record of the same offset of `orders`."""
        types = TYPES[view]
        key = KEYS.get(view, ("customer",))
        rows = []
        for offset, (told, second, value) in enumerate(results, first):
            named, start, end = told if view in ("daily", "closed", "visits") else (told, None, None)
            row = {
                **_columns(key, named),
                **_columns([c for c in types if c not in key], value),
                "timestamp": at(second),
                "_epoch": epoch,
                "_partition": 0,
                "_offset": offset,
                "_tombstone": value is None,
                "_causeTopic": "orders",
                "_causePartition": 0,
                "_causeOffset": offset,
                "_run": run,
                "systemFrom": KNOWN[run - 1],
            }
            rows.append(row | ({"windowStart": at(start), "windowEnd": at(end)} if start is not None else {}))
        moments = ["timestamp", *(["windowStart", "windowEnd"] if view in ("daily", "closed", "visits") else [])]
        schema = pa.schema(
            [
                *types.items(),
                *((name, pa.timestamp("us", "UTC")) for name in (*moments, "systemFrom")),
                *((name, pa.int32()) for name in ("_epoch", "_partition", "_causePartition")),
                *((name, pa.int64()) for name in ("_offset", "_causeOffset", "_run")),
                ("_tombstone", pa.bool_()),
                ("_causeTopic", pa.string()),
            ]
        )
        self.write(Table(self.warehouse, "shop", f"emitted/{view}", "emitted", key), pa.Table.from_pylist(rows, schema))

    def logged(self, topic: str, *records: tuple[float, float | None, str]) -> None:
        """The log of a topic: the second of each record, that of stream time before it, and its fate."""
        rows = [
            {"partition": 0, "offset": n, "timestamp": at(second), "streamTime": reached and at(reached), "fate": fate}
            for n, (second, reached, fate) in enumerate(records)
        ]
        moment = pa.timestamp("us", "UTC")
        schema = pa.schema(
            [
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", moment),
                ("streamTime", moment),
                ("fate", pa.string()),
            ]
        )
        self.write(tables.log_table(self.warehouse, "shop", topic), pa.Table.from_pylist(rows, schema))

    def write(self, table: Table, rows: pa.Table) -> None:
        write_deltalake(
            table.path, rows, mode="append", name=f"{table.pipeline}.{table.name}", description=table.description
        )

    def live(self, *results: Result, config: Mapping[str, str] | None = None) -> str:
        """A topic with what an application has written: keys as they are, values as JSON of `n` or as they are."""
        name = f"compare.{next(_numbers)}"
        produce.create_topics(self.broker, name, config=config)
        produce.send_records(
            self.broker, name, [produce.ProducerRecord(_sent(k), _sent(v), at(second)) for k, second, v in results]
        )
        return name

    def compared(self, view: str, topic: str, **asked: Any) -> Comparison:
        contract = bind_contract(self.contract, replace(read_settings({}), warehouse=self.warehouse))
        return compare_view(self.warehouse, self.broker, contract, view, topic, **asked)


@pytest.fixture
def shop(broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The contract and the journal of two runs: the first completed, the second under way."""
    made = Shop(tmp_path, broker)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "shop.yaml").write_text(CONTRACT, encoding="utf-8")
    for name, value in {"WAREHOUSE": made.warehouse, "SCHEMAS": str(tmp_path / "schemas"), "KAFKA": broker}.items():
        monkeypatch.setenv(f"HINDCAST_{name}", value)
    for run, state in ((1, "planned"), (1, "completed"), (2, "planned")):
        journal.append_entry(made.warehouse, bare_run("shop", run, KNOWN[run - 1], state))
    return made


def told(compared: Comparison) -> list[tuple[str, str, int]]:
    return [(it.kind, it.rule.name, it.count) for it in compared.differences]


def amount(text: str) -> dict[str, float]:
    return {"amount": float(text)}


# --------------------------------------------------------------------------------------------- what is a difference

ANNA = ("anna", 1, "8.00")
BOB = ("bob", 2, "16.00")
CANDACE = ("candace", 3, "24.00")
DAN = ("dan", 4, None)
"""Of a stream: a null value."""


def of(*results: Result) -> list[Result]:
    """Bills as the application writes them."""
    return [(k, second, None if v is None else amount(v)) for k, second, v in results]


DIFFERENCES: list[tuple[str, list[Result], list[Result], dict[str, int]]] = [
    ("the same records are equal", [ANNA, BOB, DAN], [ANNA, BOB, DAN], {}),
    ("keys may be interleaved otherwise", [ANNA, BOB, CANDACE], [CANDACE, ANNA, BOB], {}),
    ("in the topic alone", [ANNA, BOB, CANDACE], [ANNA, CANDACE], {"missing": 1}),
    ("in the replay alone", [ANNA, CANDACE], [ANNA, BOB, CANDACE], {"extra": 1}),
    ("a value", [ANNA, BOB], [ANNA, ("bob", 2, "17.00")], {"different": 1}),
    ("a tombstone and a value", [ANNA, ("bob", 2, None)], [ANNA, BOB], {"different": 1}),
    ("a timestamp", [ANNA, ("bob", 3, "16.00")], [ANNA, BOB], {"time": 1}),
    ("value and timestamp are two records", [ANNA, ("bob", 3, "1.00")], [ANNA, BOB], {"missing": 1, "extra": 1}),
    ("key by key", [ANNA, ("bob", 1, "8.00")], [ANNA, ("eve", 1, "8.00")], {"missing": 1, "extra": 1}),
    ("the order of a key", [ANNA, ("anna", 2, "9.00")], [("anna", 2, "9.00"), ANNA], {"order": 1}),
    ("as often as it is there", [ANNA, ANNA, ANNA], [ANNA], {"missing": 2}),
    ("one that is not there shifts no other", [ANNA, BOB, ANNA, CANDACE], [ANNA, ANNA, CANDACE], {"missing": 1}),
]


def test_what_is_a_difference(shop: Shop) -> None:
    def keyed(rule: str, results: list[Result]) -> list[Result]:
        return [(f"{rule}: {key}", second, value) for key, second, value in results]

    live = [result for rule, results, _, _ in DIFFERENCES for result in keyed(rule, results)]
    replayed = [result for rule, _, results, _ in DIFFERENCES for result in keyed(rule, results)]
    shop.replayed("bills", *replayed)
    found = shop.compared("bills", shop.live(*of(*live)), limit=100)
    kinds = [(it.key["customer"].partition(": ")[0], it.kind) for it in found.examples]
    for rule, _, _, counts in DIFFERENCES:
        assert Counter(kind for it, kind in kinds if it == rule) == counts, rule
    assert found.equal == len(replayed) - sum(found.count(kind) for kind in ("extra", "different", "time", "order"))
    assert (found.held, found.replayed) == (len(live), len(replayed))


def test_nothing_equals_nothing(shop: Shop) -> None:
    shop.replayed("bills")
    assert told(shop.compared("bills", shop.live())) == []


def test_progress_is_told_in_offsets_of_the_topic(shop: Shop) -> None:
    shop.replayed("bills")
    topic = shop.live(("a", 1, amount("1")), ("b", 2, amount("1")))
    events: list[step_events.Event] = []
    with step_events.send_events_to(events.append):
        shop.compared("bills", topic)
    (event,) = events
    assert (event["step"], event["table"], event["offsets_done"], event["offsets_planned"]) == (
        "compare",
        "bills",
        2,
        2,
    )


def test_only_the_last_epoch_and_completed_runs_count(shop: Shop) -> None:
    shop.replayed("bills", BOB, epoch=0)
    shop.replayed("bills", ANNA, epoch=1)
    shop.replayed("bills", CANDACE, epoch=2, run=2)
    found = shop.compared("bills", shop.live(*of(ANNA)))
    assert (found.equal, found.epoch, found.known_at, told(found)) == (1, 1, KNOWN[0], [])


def test_records_of_an_aborted_transaction_are_not_in_the_topic(shop: Shop) -> None:
    shop.replayed("bills", ANNA, BOB)
    topic = shop.live(*of(ANNA))
    producer = Producer({"bootstrap.servers": shop.broker, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(20)
    for key, commit in ((b"eve", False), (b"bob", True)):
        producer.begin_transaction()
        producer.produce(topic, b'{"amount": 16}', key, timestamp=millis(2))
        producer.flush(20)
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
    assert (shop.compared("bills", topic).equal, shop.compared("bills", topic).held) == (2, 2)


def test_partitions_of_the_topic_need_not_be_those_of_the_replay(shop: Shop) -> None:
    name = f"compare.{next(_numbers)}"
    produce.create_topics(shop.broker, name, partitions=3)
    results = [(f"key {n % 7}", n, f"{n}.00") for n in range(1, 50)]
    shop.replayed("bills", *results)
    produce.send_records(
        shop.broker, name, [produce.ProducerRecord(_sent(k), _sent(v), at(s)) for k, s, v in of(*results)]
    )
    found = shop.compared("bills", name)
    assert (found.equal, told(found)) == (49, [])


# ------------------------------------------------------------------------------------------- how records are written

PAIR = {"shop": "north", "item": "tea"}
DAY = 86_400


def session(key: str, start: float, end: float) -> bytes:
    return key.encode() + millis(end).to_bytes(8, "big") + millis(start).to_bytes(8, "big")


def windowed(key: str, start: float) -> bytes:
    return key.encode() + millis(start).to_bytes(8, "big")


WRITTEN: list[tuple[str, Result, Any, Any]] = [
    ("bills", ("anna", 1, "8.00"), "anna", '{"amount": 8}'),
    ("bills", ("bob", 1, "8.00"), "bob", ' {"amount": "8.0", "currency": "EUR"}'),
    ("bills", ("candace", 1, "12345678901234567.89"), "candace", '{"amount": 12345678901234567.89}'),
    ("bills", (None, 1, "8.00"), None, '{"amount": 8.00}'),
    ("bills", ("\u00e4\n{", 1, "8.00"), "\u00e4\n{", '{"amount": 8.00}'),
    ("bills", ("dan", 1, (None,)), "dan", "{}"),
    ("low", (("north", "tea"), 1, 3), PAIR, {"n": 3}),
    ("sold", ("anna", 1, (2, 0.3)), "anna", {"n": 2, "weight": 0.3}),
    ("sold", ("anna", 2, (2, float("nan"))), "anna", '{"n": 2, "weight": "NaN"}'),
    ("daily", (("anna", 0, DAY), 1, 2), windowed("anna", 0), {"n": 2}),
    ("daily", (("bob", 0, DAY), 1, 2), {"key": "bob", "start": millis(0), "end": millis(DAY)}, {"n": 2}),
    ("daily", (("5", 0, DAY), 1, 2), {"key": "5", "start": millis(0)}, {"n": 2}),
    ("daily", (('{"key', 0, DAY), 1, 2), windowed('{"key', 0), {"n": 2}),
    ("daily", (("", 0, DAY), 1, 2), windowed("", 0), {"n": 2}),
    ("visits", (("anna", 1, 61), 61, 2), session("anna", 1, 61), {"n": 2}),
    ("visits", (("bob", 1, 61), 61, 2), {"key": "bob", "start": millis(1), "end": millis(61)}, {"n": 2}),
]


@pytest.mark.parametrize("view", ["bills", "low", "sold", "daily", "visits"])
def test_how_records_are_written(shop: Shop, view: str) -> None:
    shop.replayed(view, *(result for it, result, _, _ in WRITTEN if it == view))
    live = [(key, result[1], value) for it, result, key, value in WRITTEN if it == view]
    found = shop.compared(view, shop.live(*live))
    assert (found.equal, found.examples) == (len(live), [])


def test_windowed_keys_are_as_kafka_streams_writes_them() -> None:
    """What TimeWindowedSerializer and SessionWindowedSerializer of Kafka Streams 4.3.1 made of these."""
    assert windowed("anna", 0).hex() == "616e6e610000019b76daa800"
    assert session("anna", 0, 60).hex() == "616e6e610000019b76db92600000019b76daa800"


@pytest.mark.parametrize(
    ("view", "replayed", "value"),
    [
        ("bills", ("anna", 1, "8.01"), '{"amount": 8.0099999999999998}'),
        ("bills", ("anna", 1, "8.00"), '{"amount": null}'),
        ("sold", ("anna", 1, (2, 0.3)), '{"n": 2, "weight": 0.30000000000000004}'),
        ("visits", (("anna", 1, 61), 61, 2), None),
    ],
)
def test_values_that_are_nearly_the_same_are_not(shop: Shop, view: str, replayed: Result, value: Any) -> None:
    shop.replayed(view, replayed)
    key = session("anna", 1, 61) if view == "visits" else "anna"
    assert shop.compared(view, shop.live((key, replayed[1], value))).count("different") == 1


def test_windows_with_other_bounds_are_other_keys(shop: Shop) -> None:
    shop.replayed("visits", (("anna", 1, 61), 61, 2))
    found = shop.compared("visits", shop.live((session("anna", 2, 61), 61, {"n": 2})))
    assert (found.count("missing"), found.count("extra")) == (1, 1)


def test_the_format_of_the_key_can_be_told(shop: Shop) -> None:
    shop.replayed("bills", ANNA)
    topic = shop.live(({"customer": "anna"}, 1, amount("8.00")))
    assert shop.compared("bills", topic).equal == 0
    assert shop.compared("bills", topic, key_format="json").equal == 1


def test_fields_that_the_view_does_not_have_are_named(shop: Shop) -> None:
    shop.replayed("bills", ANNA)
    topic = shop.live(("anna", 1, {"amount": 8, "tax": 1, "customer": "anna"}))
    assert shop.compared("bills", topic).not_compared == ("tax",)


@pytest.mark.parametrize(
    ("view", "key", "value", "found"),
    [
        ("bills", "anna", "8.00", "the value is not a JSON object of amount decimal(19,2): 8.00"),
        ("bills", "anna", '{"amount": "much"}', "the value is not a JSON object of amount decimal(19,2)"),
        ("bills", "anna", "[8]", "the value is not a JSON object"),
        ("bills", "anna", "null", "the value is not a JSON object"),
        ("bills", b"\xff", '{"amount": 8}', "the key is not the text of customer varchar: 0xFF"),
        ("sold", "anna", '{"n": 1.5}', "the value is not a JSON object of n bigint, weight double"),
        ("low", "north", '{"n": 1}', "the key is not a JSON object of shop varchar, item varchar: north"),
        ("daily", "anna", '{"n": 1}', "the key is not the text of customer varchar with a time window: anna"),
        ("visits", windowed("anna", 0), '{"n": 1}', "with a session window"),
        ("adults", "ann@x.org", '{"age": "ann@x.org"}', "hidden: the table has sensitive columns"),
    ],
)
def test_a_topic_of_another_form_cannot_be_compared(shop: Shop, view: str, key: Any, value: str, found: str) -> None:
    shop.replayed(view)
    topic = shop.live((key, 1, value))
    with pytest.raises(RecordError) as caught:
        shop.compared(view, topic)
    assert found in caught.value.found
    assert caught.value.where == f"topic {topic}, partition 0, offset 0"


# ------------------------------------------------------------------------------------------------- the likely rules

SUM = [("anna", n, (n, n / 10)) for n in range(1, 6)]


def counts(*results: Result) -> list[Result]:
    return [(k, second, {"n": n, "weight": weight}) for k, second, (n, weight) in results]


def menu(*results: Result) -> list[Result]:
    return [(k, second, None if v is None else {"price": float(v)}) for k, second, v in results]


def nothing(_: Shop) -> None:
    """The logs have nothing to tell."""


def refused(shop: Shop) -> None:
    shop.logged("menu", (2, 9000, "expired"))


def late(shop: Shop) -> None:
    """The records of 1, 2 and 3 s; stream time was 9 s before the second of them."""
    shop.logged("orders", (1, None, "accepted"), (2, 9, "accepted"), (3, 9, "accepted"))


Rule = tuple[str, str, list[Result], list[Result], Callable[[Shop], None], dict[str, str], list[tuple[str, str]]]

RULES: list[Rule] = [
    ("the replay refused the record", "bills", of(ANNA, BOB, CANDACE), [ANNA, CANDACE], refused, {},
     [("missing", "History retention")]),
    ("the look-up found nothing", "bills", [*of(ANNA), ("bob", 2, {"amount": None})],
     [ANNA, BOB], nothing, {}, [("different", "History retention")]),
    ("the record came late", "sold", counts(SUM[0], SUM[2]), SUM[:3], nothing, {}, [("extra", "Record caches")]),
    ("the record came late", "bills", of(ANNA, CANDACE), [ANNA, BOB, CANDACE], late, {}, [("extra", "Out of order")]),
    ("written again", "bills", of(ANNA, ANNA, BOB), [ANNA, BOB], nothing, {}, [("missing", "At least once")]),
    ("the end", "bills", of(ANNA), [ANNA, BOB, CANDACE], nothing, {}, [("extra", "Not yet emitted")]),
    ("the end of the replay", "bills", of(ANNA, BOB), [ANNA], nothing, {}, [("missing", "Not yet replayed")]),
    ("the end of both is no end", "bills", of(ANNA, ("bob", 9, "1")), [ANNA, BOB], nothing, {},
     [("missing", "Processing order"), ("extra", "Processing order")]),
    ("the beginning", "bills", of(CANDACE), [ANNA, BOB, CANDACE], nothing, {}, [("extra", "Where it began")]),
    ("the beginning of the replay", "bills", of(ANNA, BOB), [BOB], nothing, {}, [("missing", "Where it began")]),
    ("only the last of a key", "bills", of(("eve", 1, "1"), ("anna", 5, "9.00")),
     [("eve", 1, "1"), ANNA, ("anna", 5, "9.00")], nothing, {"cleanup.policy": "compact"}, [("extra", "Compaction")]),
    ("the broker's clock", "bills", of(ANNA), [ANNA], nothing, {"message.timestamp.type": "LogAppendTime"},
     [("time", "Timestamps")]),
    ("another order", "bills", of(ANNA, ("anna", 2, "9.00")), [("anna", 2, "9.00"), ANNA], nothing, {},
     [("order", "Processing order")]),
    ("a filter's tombstone", "cheap", menu(("tea", 1, 3), ("tea", 3, 4)),
     [("tea", 1, "3"), ("tea", 2, None), ("tea", 3, "4")], nothing, {}, [("extra", "Filters and tombstones")]),
    ("a filter's tombstone, live", "cheap", menu(("tea", 1, 3), ("tea", 2, None), ("tea", 3, 4)),
     [("tea", 1, "3"), ("tea", 3, "4")], nothing, {}, [("missing", "Filters and tombstones")]),
    ("what an aggregate misses, the later ones miss", "sold",
     counts(("anna", 1, (1, 0.1)), ("anna", 3, (2, 0.4)), ("anna", 4, (3, 0.8))),
     [("anna", 1, (1, 0.1)), ("anna", 2, (2, 0.3)), ("anna", 3, (3, 0.6)), ("anna", 4, (4, 1.0))], late, {},
     [("extra", "Out of order"), ("different", "Aggregation")]),
    ("sums in another order", "sold", counts(SUM[0], ("anna", 2, (2, 0.20000000000000004))), SUM[:2], nothing, {},
     [("different", "Floating point")]),
    ("a session's tombstone", "visits",
     [(session("anna", 1, 1), 1, {"n": 1}), (session("anna", 1, 2), 2, {"n": 2})],
     [(("anna", 1, 1), 1, 1), (("anna", 1, 1), 1, None), (("anna", 1, 2), 2, 2)], nothing, {}, [("extra", "Sessions")]),
    ("a window that had closed", "daily",
     [(windowed("anna", 0), 1, {"n": 1}), (windowed("bob", 0), 3, {"n": 1})],
     [(("anna", 0, DAY), 1, 1), (("anna", 0, DAY), 2, 2), (("bob", 0, DAY), 3, 1)], late, {}, [("extra", "Grace")]),
    ("nobody knows", "low", [(PAIR, 1, {"n": 1})], [(("north", "tea"), 1, 2)], nothing, {},
     [("different", "No rule fits")]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "view", "live", "replayed", "before", "config", "expected"), RULES)
def test_the_likely_rule_is_named(
    shop: Shop,
    rule: str,
    view: str,
    live: list[Result],
    replayed: list[Result],
    before: Callable[[Shop], None],
    config: dict[str, str],
    expected: list[tuple[str, str]],
) -> None:
    before(shop)
    shop.replayed(view, *replayed)
    found = shop.compared(view, shop.live(*live, config=config))
    assert [(kind, name) for kind, name, _ in told(found)] == expected, rule
    assert all(it.rule.likely and it.rule.fix for it in found.differences)


def test_an_emit_interval_is_named_where_there_is_one(shop: Shop) -> None:
    shop.replayed("closed", (("anna", 0, DAY), 1, 1), (("bob", 0, DAY), 2, 1))
    found = shop.compared("closed", shop.live((windowed("anna", 0), 1, {"n": 1})))
    assert [(it.rule.name, "emit interval" in it.rule.likely) for it in found.differences] == [
        ("Not yet emitted", True)
    ]


def test_a_topic_that_has_lost_its_beginning(shop: Shop) -> None:
    shop.replayed("bills", ANNA, BOB)
    topic = shop.live(*of(ANNA, BOB))
    delete_before(shop.broker, topic, 1)
    assert told(shop.compared("bills", topic)) == [("extra", "Retention of the topic", 1)]


def test_with_wait_the_replay_is_not_to_be_mended(shop: Shop) -> None:
    for view, fix in (("bills", "wait: true"), ("waited", "ignore it")):
        shop.replayed(view, ("anna", 2, "9.00"), ANNA)
        (found,) = shop.compared(view, shop.live(*of(ANNA, ("anna", 2, "9.00")))).differences
        assert (found.rule.name, fix in found.rule.fix) == ("Processing order", True)


def test_the_docs_tell_every_rule(shop: Shop) -> None:
    extent = TopicExtent({0: OffsetRange(1, 2)}, broker_times=True, extra_fields=())
    views = shop.contract.views
    names = {
        rule.name
        for view in views
        for rule in list_rules(shop.contract, view, ComparisonFacts(extent, compacted=True, runs=2))
    }
    page = (Path(__file__).parent.parent / "docs" / "compare.md").read_text(encoding="utf-8")
    section = page.split("## What a difference is likely due to")[1].split("\n## ")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")]
    assert names == {name for row in rows[2:] for name in row.split(", ")}


# -------------------------------------------------------------------------------------------------------- for real


@pytest.mark.long
def test_what_a_run_has_emitted_is_compared(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """The seed's bills, as an application whose tables are versioned emits them."""
    bills = [("anna", 1, 8), ("bob", 5, 20), ("candace", 3, 24)]
    with pipeline(spark, broker, tmp_path, f"{RESTAURANT}    semantics: kafka\n") as p:
        tell(p, SEED)
        p.run()
        live = Shop(tmp_path, broker)
        topic = live.live(*((k, second, {"item": "curry", "amount": n}) for k, second, n in bills))
        found = compare_view(p.warehouse, broker, p.contract, "bills", topic)
        assert (found.equal, found.replayed, told(found)) == (3, 3, [])
        topic = live.live(*((k, second, {"item": "curry", "amount": 10 * n}) for k, second, n in bills))
        (first, *_) = compare_view(p.warehouse, broker, p.contract, "bills", topic).examples
        assert first.cause == ("orders", 0, 0)


# ------------------------------------------------------------------------------------------------------ the command


def hindcast(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main.main(arguments)
    return (code, *capsys.readouterr())


def test_the_exit_code_tells(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.replayed("bills", ANNA, BOB)
    code, out, err = hindcast(capsys, "compare", "shop.bills", "--topic", shop.live(*of(ANNA, BOB)))
    assert (code, err) == (0, "")
    assert "equal                2  in both" in out
    code, _, err = hindcast(capsys, "compare", "shop.bills", "--topic", shop.live(*of(BOB, ANNA, CANDACE)))
    assert (code, err) == (1, "")
    code, out, err = hindcast(capsys, "compare", "shop.bills", "--topic", "nowhere")
    assert (code, out) == (2, "")
    assert "the topic does not exist" in err


def test_the_text_tells_places_values_and_what_to_do(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.replayed("bills", ANNA, ("bob", 2, "17.00"), CANDACE, first=5)
    topic = shop.live(*of(ANNA, BOB, CANDACE))
    _, out, _ = hindcast(capsys, "compare", "shop.bills", "--topic", topic)
    assert "different: the same key and timestamp, another value\n  1 likely Processing order: " in out
    assert "\n    what to do: replay with wait: true" in out
    *_, names, _, row, counted = out.splitlines()
    assert names.split("  ")[0] == "key"
    for part in ('{"customer": "bob"}', "0:1", '{"amount": "16.00"}', "0:6", '{"amount": "17.00"}', "orders 0:6"):
        assert part in row
    assert counted == "(1 row)"


def test_json_has_counts_and_as_many_examples_as_asked_for(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.replayed("bills", *((f"key {n}", n, "1.00") for n in range(1, 8)))
    topic = shop.live(*of(*((f"key {n}", n, "2.00") for n in range(1, 8))))
    asked = ["compare", "shop.bills", "--topic", topic, "--format", "json", "--limit", "2"]
    code, out, _ = hindcast(capsys, *asked)
    found = json.loads(out)
    assert (code, found["counts"]["different"], found["records"]) == (1, 7, {"topic": 7, "replayed": 7})
    assert found["examples"][0] == {
        "kind": "different",
        "rule": "Processing order",
        "key": {"customer": "key 1"},
        "windowStart": None,
        "windowEnd": None,
        "topic": {"partition": 0, "offset": 0, "timestamp": at(1).isoformat(), "value": {"amount": "2.00"}},
        "replayed": {"partition": 0, "offset": 0, "timestamp": at(1).isoformat(), "value": {"amount": "1.00"}},
        "cause": {"topic": "orders", "partition": 0, "offset": 0},
    }
    assert [it["key"]["customer"] for it in found["examples"]] == ["key 1", "key 2"]


def test_sensitive_columns_are_not_shown(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.replayed("adults", ("ann@x.org", 1, ("Ann", 30)))
    topic = shop.live(("ann@x.org", 1, {"name": "Anna", "age": 31}))
    for format_ in ("table", "json"):
        _, out, err = hindcast(capsys, "compare", "shop.adults", "--topic", topic, "--format", format_)
        assert "Ann" not in out + err
        assert "x.org" not in out + err
        assert all(part in out for part in ("***", "30", "31"))


@pytest.mark.parametrize(
    ("view", "error", "found", "fix"),
    [
        ("bils", QueryError, "no view 'bils'", "did you mean 'bills'?"),
        ("believed", QueryError, "the view has the corrected reading", "semantics: kafka"),
        ("menu", QueryError, "no view 'menu'", "known here: "),
        ("cheap", QueryError, "nothing of the view has been replayed yet", "hindcast run shop"),
        ("bills", TopicError, "the topic does not exist", "create it"),
    ],
)
def test_what_cannot_be_compared(shop: Shop, view: str, error: type[HindcastError], found: str, fix: str) -> None:
    shop.replayed("bills", ANNA)
    with pytest.raises(error) as caught:
        shop.compared(view, "nowhere")
    assert found in caught.value.found
    assert fix in caught.value.fix


def delete_before(broker: str, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    asked = TopicPartition(topic, 0, offset)
    admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
    admin.delete_records([asked])[asked].result(20)


def _columns(names: Any, values: Any) -> dict[str, Any]:
    """Values by the names of their columns; null is null in all of them."""
    told = values if isinstance(values, tuple) else (values,) * len(names) if values is None else (values,)
    return {
        name: Decimal(value) if isinstance(value, str) and name in ("amount", "price") else value
        for name, value in zip(names, told, strict=True)
    }


def _sent(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()
