"""`hindcast test`: records beside a contract, whole runs on them without a broker, and what must be there then."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from hindcast.cli import main
from hindcast.common.errors import ContractError
from hindcast.contract import load, load_all
from hindcast.contract.contract_tests import ContractTest, list_test_files, load_tests
from hindcast.formats.encode import encode_part
from hindcast.kafka import produce
from hindcast.kafka.given_topics import GivenRecord, GivenTopics
from hindcast.kafka.produce import ProducerRecord
from hindcast.ops import contract_test_runs
from hindcast.ops.contract_test_rows import _pair_rows, compare_rows, is_equal
from hindcast.ops.new_project import create_project
from hindcast.store import row_reader
from hindcast.store.tables import Table
from pipelines import T0, at, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[1] / "docs" / "contract-tests.md"

MIXED = """
pipeline: mixed
start: 2026-01-01
topics:
  counts:
    read: table
    key: {id: bigint}
    key_format: primitive
    value: {n: int}
    value_format: primitive
  notes:
    pattern: mixed\\.notes-.*
    read: stream
    from: 2026-01-02
    key: {author: string}
    value: {note: string, source: string}
    headers: {source: origin}
    valid_time: date_trunc('hour', record_timestamp)
views:
  busy: {stream: notes, group_by: {author: author}, aggregate: {notes: count(*)}, window: {tumbling: 1 hour}}
"""

GATED = """
pipeline: gated
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    expect:
      - expect_column_values_to_be_between: {column: price, min_value: 1}
"""


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    """The contracts of a new project."""
    create_project(tmp_path / "exchange")
    return tmp_path / "exchange" / "schemas"


@pytest.fixture
def in_session(schemas: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    """Let `hindcast test` take the session of all tests, for these contracts and with no broker."""
    for name, value in {"SCHEMAS": schemas, "VAR": schemas.parent / "var", "KAFKA": "127.0.0.1:9"}.items():
        monkeypatch.setenv(f"HINDCAST_{name}", str(value))
    monkeypatch.setattr("hindcast.cli.commands.projects.open_session", lambda *_, **__: spark)


def write(schemas: Path, pipeline: str, tests: str, contract: str | None = None) -> Path:
    path = schemas / "tests" / f"{pipeline}.yaml"
    path.write_text(dedent(tests).lstrip(), encoding="utf-8")
    if contract is not None:
        (schemas / f"{pipeline}.yaml").write_text(contract, encoding="utf-8")
    return path


def read_tests(path: Path) -> list[ContractTest]:
    return load_tests(path, load(path.parents[1] / path.name))


def test_the_folder_of_tests_is_beside_the_contracts_and_not_one_of_them(schemas: Path) -> None:
    assert [*load_all(schemas)] == ["exchange"]
    assert [*list_test_files(schemas)] == ["exchange"]
    assert list_test_files(schemas / "tests") == {}


@pytest.mark.parametrize(
    ("line", "was", "now", "found"),
    [
        (1, "test: dear", "name: dear", "unknown field 'name'"),
        (1, "test: dear", "test: [dear]", "expected a name, found a list"),
        (2, "given: {rates", "given: {rate", "'rate' is not a topic of exchange"),
        (2, "timestamp: 2026-01-05", "timestamp: Monday", "timestamp: 'Monday' is not a valid timestamp"),
        (2, ", timestamp: 2026-01-05", "", "field 'timestamp' is missing"),
        (2, "key: EUR", "key: EUR, partition: -1", "partition: '-1' is not a partition"),
        (2, "key: EUR", "key: EUR, headers: {a: 1}", "these are not headers"),
        (2, "key: EUR", "key: EUR, topic: rates", "unknown field 'topic'"),
        (2, "key: EUR", "key: EUR, key: CHF", "'key' is defined twice"),
        (3, "then:", "when: 5\n  then:", "when: expected names with values, found '5'"),
        (4, "    dollars:", "    euros:", "there is no table 'euros'"),
        (5, "dollars: 5", "dollar: 5", "'dollars' has no column 'dollar'"),
        (5, "dollars: 5", "systemFrom: 5", "'dollars' has no column 'systemFrom'"),
        (6, "{payment: p2, dollars: 6}", "{payment: p2}", "a row of 'dollars' names payment"),
        (3, "    dollars:", "    error: no\n    dollars:", "a run that fails has no rows"),
        (4, "    dollars:", '    error: " "\n    dollars:', "then.error: an empty text is in every error"),
        (4, "    dollars:", "    refused: {}\n    dollars:", "then.refused: nothing is expected"),
        (2, "rate: 1.05", "2026-01-01: 1.05", "the name of a field is '2026-01-01', which YAML does not read as text"),
        (2, "rate: 1.05", "rate: [{1: 1.05}]", "given.rates.0.value.rate.0: the name of a field is '1'"),
        (2, "key: EUR", "key: {true: EUR}", "given.rates.0.key: the name of a field is true"),
    ],
)
def test_an_invalid_file_is_refused_with_its_line(schemas: Path, line: int, was: str, now: str, found: str) -> None:
    text = """
    - test: dear
      given: {rates: [{key: EUR, value: {rate: 1.05}, timestamp: 2026-01-05}]}
      then:
        dollars:
          - {payment: p1, dollars: 5}
          - {payment: p2, dollars: 6}
    """
    path = write(schemas, "exchange", text)
    assert [test.name for test in read_tests(path)] == ["dear"]
    path.write_text(path.read_text().replace(was, now))
    with pytest.raises(ContractError, match=re.escape(found)) as refused:
        read_tests(path)
    assert refused.value.where == f"{path}:{line}"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("{}", "no record of 'notes', which has a pattern"),
        ("{notes: [{value: {}, timestamp: 2026-01-01}]}", "field 'topic' is missing"),
        ("{notes: [{topic: notes, value: {}, timestamp: 2026-01-01}]}", "does not match 'notes'"),
    ],
)
def test_a_topic_with_a_pattern_has_records_that_name_one_that_it_matches(
    schemas: Path, given: str, found: str
) -> None:
    path = write(schemas, "mixed", f"- {{test: one, given: {given}, then: {{busy: []}}}}", MIXED)
    with pytest.raises(ContractError, match=found):
        read_tests(path)


def test_two_tests_of_one_name_and_a_file_beyond_the_bounds_of_a_contract_are_refused(schemas: Path) -> None:
    one = "- {test: one, given: {}, then: {dollars: []}}\n"
    assert len(read_tests(write(schemas, "exchange", one))) == 1
    with pytest.raises(ContractError, match="two tests are named 'one'"):
        read_tests(write(schemas, "exchange", one * 2))
    with pytest.raises(ContractError, match="contains no list of tests"):
        read_tests(write(schemas, "exchange", "test: one"))
    with pytest.raises(ContractError, match="nested more than 40 deep"):
        read_tests(write(schemas, "exchange", one.replace("[]", f"{'[' * 50}{']' * 50}")))


def test_a_second_file_of_tests_for_one_pipeline_is_refused(schemas: Path) -> None:
    path = write(schemas, "exchange", "- {test: one, given: {}, then: {dollars: []}}")
    path.with_suffix(".yml").write_text(path.read_text())
    for suffix, other in ((".yaml", "exchange.yml"), (".yml", "exchange.yaml")):
        with pytest.raises(ContractError, match=f"{other} is beside it, and both have tests of exchange") as refused:
            load_tests(path.with_suffix(suffix), load(schemas / "exchange.yaml"))
        assert refused.value.where == f"{path.with_suffix(suffix)}:1"


@pytest.mark.parametrize(
    ("key", "value", "kind", "given", "written"),
    [
        ("id: string", "json", "n: int", {"n": 1.5, "at": date(2026, 1, 31)}, b'{"n": 1.5, "at": "2026-01-31"}'),
        ("id: string", "json", "n: int", "no object", b'"no object"'),
        ("id: string", "string", "n: string", "text: é", "text: é".encode()),
        ("id: string", "string", "n: boolean", True, b"true"),
        ("id: string", "string", "n: timestamp", datetime(2026, 1, 31, tzinfo=UTC), b"2026-01-31T00:00:00+00:00"),
        ("id: string", "string", "n: int", {"n": 7}, b"7"),
        ("id: string", "primitive", "n: int", 42, b"\x00\x00\x00\x2a"),
        ("id: string", "primitive", "n: bigint", -1, b"\xff" * 8),
        ("id: string", "primitive", "n: boolean", False, b"\x00"),
        ("id: string", "primitive", "n: string", "x", b"x"),
        ("id: string", "primitive", "n: int", None, None),
        ("id: string", "primitive", "n: smallint", 40000, "'40000' is not a valid smallint"),
        ("id: string", "primitive", "n: int", True, "true is not a valid int"),
        ("id: string", "string", "n: int", {"m": 7}, "the value is string, found a mapping"),
        ("id: string", "avro", "n: int", {"n": 7}, "the value is Avro of a schema registry, which a test does not ask"),
    ],
)
def test_values_are_written_in_the_format_of_their_topic(
    tmp_path: Path, key: str, value: str, kind: str, given: Any, written: bytes | str | None
) -> None:
    path = tmp_path / "one.yaml"
    topic = f"{{read: stream, key: {{{key}}}, value: {{{kind}}}, value_format: {value}}}"
    path.write_text(f"pipeline: one\nstart: 2026-01-01\ntopics:\n  events: {topic}\n")
    entry = load(path).topics["events"]
    if isinstance(written, str):
        with pytest.raises(ValueError, match=written):
            encode_part(entry, "value", given)
    else:
        assert encode_part(entry, "value", given) == written
        assert encode_part(entry, "key", "k") == b"k"


FOUND = pa.table(
    {
        "id": pa.array(["a", "b", "b"]),
        "price": pa.array([Decimal("1.50"), None, None], pa.decimal128(8, 2)),
        "at": pa.array([T0, at(1), at(1)], pa.timestamp("us", "UTC")),
        "share": pa.array([0.1 + 0.2, 1.0, 1.0]),
        "part": pa.array([{"n": 1, "tags": ["x"]}, None, None]),
    }
)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([{"id": "b"}, {"id": "a"}, {"id": "b"}], None),
        ([{"id": "b", "price": None}, {"id": "a", "price": 1.5}, {"id": "b", "price": None}], None),
        ([{"at": "2026-01-01T00:00:01Z"}, {"at": at(1)}, {"at": date(2026, 1, 1)}], None),
        ([{"share": 0.3}, {"share": 1}, {"share": 1}], None),
        ([{"part": {"n": 1, "tags": ["x"]}}, {"part": None}, {"part": None}], None),
        ([{"id": "a"}, {"id": "b"}], "1 found row without a match"),
        ([{"id": "a"}, {"id": "b"}, {"id": "c"}], "1 expected row and 1 found row without a match"),
        ([], "3 found rows without a match"),
        ([{"part": {"n": 2}}], "1 expected row and 3 found rows without a match"),
        ([{"part": {"m": 2}}], "part has no field 'm'"),
        ([{"price": "dear"}], "'dear' is not a value of column price, which is decimal128(8, 2)"),
        ([{"id": 5}], "'5' is not a value of column id, which is string; put it in quotes"),
    ],
)
def test_rows_are_compared_in_any_order_each_once_by_the_columns_that_are_named(
    rows: list[dict[str, Any]], found: str | None
) -> None:
    difference = compare_rows("menu", tuple(rows), FOUND)
    assert (difference is None) == (found is None)
    assert difference is None or difference.startswith(f"menu: {found}")


def test_expected_and_found_rows_are_shown_side_by_side() -> None:
    difference = compare_rows(
        "menu", ({"id": "a", "price": 1.5}, {"id": "c", "price": 2}, {"id": "d", "price": 3}), FOUND
    )
    assert difference is not None
    assert difference.splitlines() == [
        "menu: 2 expected rows and 2 found rows without a match",
        "  expected     found",
        "  id  price    id  price",
        "  --  -----    --  -----",
        "  a   1.50     a   1.50",
        "! c   2.00     b   -",
        "! d   3.00     b   -",
    ]


def pair_one_by_one(expected: list[Any], found: list[Any]) -> list[Any]:
    """Each expected row with the first equal one that is left, by comparing it with all."""
    left, pairs = [*found], list[Any]()
    for row in expected:
        match = next((n for n, other in enumerate(left) if is_equal(row, other)), None)
        pairs.append((row, None if match is None else left.pop(match)))
    return [*pairs, *((None, row) for row in left)]


def test_rows_are_paired_as_if_each_was_compared_with_all() -> None:
    rng = Random(5)  # noqa: S311
    whole = [
        None,
        "a",
        1,
        2,
        Decimal("1.50"),
        Decimal("1.5"),
        T0,
        at(1),
        {"n": 1, "t": [1.0]},
        {"t": [1.0], "n": 1},
        b"",
    ]
    near = [x * (1 + n * 4e-10) for x in (1.0, -1.0, 0.3, 1e-310, 1e300) for n in range(-3, 4)]
    numbers = [*near, 0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, None]
    for _ in range(300):
        width = rng.choice([1, 2, 6])
        few = [
            (rng.choice(whole), *(rng.choice(numbers) for _ in range(width)), [*rng.sample(near, 2)]) for _ in range(6)
        ]
        expected, found = ([rng.choice(few) for _ in range(rng.randrange(12))] for _ in range(2))
        found += [(row[0], *(x * (1 + 6e-10) if isinstance(x, float) else x for x in row[1:])) for row in expected[:4]]
        assert repr(_pair_rows(expected, found)) == repr(pair_one_by_one(expected, found))


@pytest.mark.parametrize("constants", [0, 30])
def test_many_rows_are_paired_in_no_time(constants: int) -> None:
    count = 8_000
    columns = {"n": pa.array(range(count)), "share": pa.array([n / 7 for n in range(count)])}
    columns |= {f"c{n}": pa.array([1.0 / (n + 3)] * count) for n in range(constants)}
    found = pa.table(columns)
    for names in ([*columns], [name for name in columns if name != "n"], ["n"]):
        rows = tuple(found.select(names).to_pylist()[::-1])
        begun = time.process_time()
        assert compare_rows("t", rows, found) is None
        assert time.process_time() - begun < 10


def test_given_topics_answer_as_a_cluster_does() -> None:
    topics = GivenTopics(["a"], 2)
    topics.append_records("a", [GivenRecord(1, at(n), b"k", b"v") for n in (0, 500, 2, 3)])
    assert topics.list_topics() == {"a": [0, 1]}
    assert topics.read_offset_ranges("a") == {0: (0, 0), 1: (0, 4)}
    assert topics.find_offsets_for_time("a", at(2), at(100)) == {0: None, 1: 2}


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.usefixtures("in_session")
def test_a_contract_runs_on_the_records_of_its_tests_without_a_broker(
    schemas: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a new project pass; what the page has fails as it says if another amount is expected."""
    wrong = find_blocks("yaml")[0].replace("108.00", "105.00")
    (shown,) = find_blocks("text")
    path = schemas / "tests" / "exchange.yaml"
    path.write_text(f"{path.read_text()}\n{wrong}\n{NO_ERROR}")
    (schemas / "tests" / "unrelated.yaml").write_text("- not read, as other tests are asked for")
    assert main.main(["test", "exchange"]) == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    assert hide_seconds(printed.out) == [
        "passed  exchange: a payment has the rate that was valid when it was made",
        "passed  exchange: a late rate corrects the payments after it",
        *hide_seconds(shown),
        "failed  exchange: nothing fails",
        "    expected an error with the text 'it fails', but no run failed",
        "4 tests: 2 passed, 2 failed",
    ]
    assert not (schemas.parent / "var" / "warehouse").exists()


NO_ERROR = '- {test: nothing fails, given: {}, then: {error: "it fails"}}'


def find_blocks(kind: str) -> list[str]:
    """The blocks of the page in a language."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def hide_seconds(text: str) -> list[str]:
    return re.sub(r" \(\d+\.\d s\)", "", text).splitlines()


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.usefixtures("in_session")
def test_formats_headers_partitions_patterns_and_from_are_as_in_a_run(
    schemas: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(schemas, "mixed", MIXED_TESTS, MIXED)
    assert main.main(["test", "mixed"]) == 0, capsys.readouterr().out


MIXED_TESTS = """
- test: all of it
  given:
    counts:
      - {key: 7, value: 1, timestamp: 2026-01-01}
      - {key: 7, value: 2, timestamp: 2026-01-03, partition: 1}
    notes:
      - {topic: mixed.notes-eu, key: ann, value: {note: too early}, timestamp: 2026-01-01}
      - {topic: mixed.notes-eu, key: ann, value: {note: hi}, timestamp: "2026-01-02T10:20:00Z", headers: {origin: shop}}
      - {topic: mixed.notes-us, key: bob, value: {note: ho}, timestamp: "2026-01-02T10:40:00Z"}
  when:
    - counts:
        - {key: 7, value: null, timestamp: 2026-01-05}
        - {value: 9, timestamp: 2026-01-05}
      notes: []
    - notes:
        - {topic: mixed.notes-us, key: ann, value: {note: again}, timestamp: "2026-01-02T10:59:00Z"}
  then:
    counts:
      - {id: 7, n: 2, validFrom: 2026-01-03, validTo: 2026-01-05}
      - {id: 7, n: 1, validFrom: 2026-01-01, validTo: 2026-01-03}
    notes:
      - {author: ann, note: hi, source: shop, timestamp: "2026-01-02T10:00:00Z"}
      - {author: ann, note: again, source: null, timestamp: "2026-01-02T10:00:00Z"}
      - {author: bob, note: ho, source: null, timestamp: "2026-01-02T10:00:00Z"}
    busy:
      - {author: ann, notes: 2, windowStart: "2026-01-02T10:00:00Z"}
      - {author: bob, notes: 1, windowStart: "2026-01-02T10:00:00Z"}
    refused:
      counts: [{partition: 0, offset: 2, fate: null_key}]
"""


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.usefixtures("in_session")
def test_a_gate_that_stops_a_run_and_malformed_records_are_outcomes(
    schemas: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(schemas, "gated", GATED_TESTS, GATED)
    assert main.main(["test", "gated"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in lines if not line.startswith(" ")] == ["passed", "passed", "failed", "3 test"]
    assert "a run failed: gated.menu" in "\n".join(lines)


GATED_TESTS = """
- test: a free lassi stops the run
  given: {menu: [{key: naan, value: {price: 3}, timestamp: 2026-01-01}]}
  when: {menu: [{key: lassi, value: {price: 0}, timestamp: 2026-01-01}]}
  then: {error: "1 of 1 rows fail"}
- test: a price that is no number
  given: {menu: [{key: naan, value: {price: dear}, timestamp: 2026-01-01}]}
  then: {error: "the limit is 0"}
- test: an error that nobody expects
  given: {menu: [{key: lassi, value: {price: 0}, timestamp: 2026-01-01}]}
  then: {menu: []}
"""


@pytest.mark.long
def test_given_records_become_the_rows_that_a_brokers_become(
    spark: SparkSession, broker: str, tmp_path: Path, schemas: Path
) -> None:
    records: list[tuple[str | None, Any, int]] = [("EUR", {"rate": 1.05}, 0), ("EUR", "?", 1), (None, {"rate": 1}, 2)]
    records += [("EUR", {"rate": 1.1}, 9), ("EUR", None, 20), ("CHF", {"rate": 2}, 9_999_999_999)]
    contract = (schemas / "exchange.yaml").read_text().replace("read: table", "read: table\n    max_malformed: 1")
    with pipeline(spark, broker, tmp_path, contract.replace("topic: exchange.", "topic: broker.")) as p:
        produce.create_topics(broker, "broker.rates", "broker.payments")
        sent = [ProducerRecord(k and k.encode(), _bytes(v), at(s)) for k, v, s in records]
        produce.send_records(broker, "broker.rates", sent[:3])
        p.run()
        produce.send_records(broker, "broker.rates", sent[3:])
        p.run()
        given = [
            tuple(("broker.rates", GivenRecord(0, at(s), k and k.encode(), _bytes(v))) for k, v, s in part)
            for part in (records[:3], records[3:])
        ]
        alone = replace(p.settings, warehouse=str(tmp_path / "given"), kafka="127.0.0.1:9")
        contract_test_runs._execute_runs(spark, alone, p.contract, given)

        def read_rows(warehouse: str, table: str) -> list[str]:
            found = row_reader.load_rows(spark, Table(warehouse, p.name, table, "log")).toArrow()
            kept = [name for name in found.column_names if name not in ("topicId", "systemFrom", "systemTo")]
            rows = sorted(map(repr, found.select(kept).to_pylist()))
            return [re.sub(r"dated after \S+", "dated after its known-at", row) for row in rows]

        for table in ("logs/rates", "rates", "quarantine"):
            assert read_rows(p.warehouse, table) == read_rows(alone.warehouse, table) != [], table


def _bytes(value: Any) -> bytes | None:
    return None if value is None else json.dumps(value).encode()


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["exchang"], "there are no tests of 'exchang'"),
        (["reader"], "it reads menu, a table of another pipeline"),
        (["avro"], "value: the value is Avro of a schema registry"),
    ],
)
@pytest.mark.usefixtures("in_session")
def test_what_cannot_be_tested_is_refused(
    schemas: Path, capsys: pytest.CaptureFixture[str], asked: list[str], found: str
) -> None:
    topic = "topics: {events: {read: stream, key: {id: string}, value: {n: int}%s}}"
    head = "pipeline: %s\nstart: 2026-01-01\n"
    table = "\ninputs: {menu: {table: other.menu, key: {id: string}, value: {n: int}}}\n"
    tests = "- {test: one, given: {events: [{value: {n: 1}, timestamp: 2026-01-01}]}, then: {events: []}}"
    write(schemas, "reader", tests, f"{head % 'reader'}{topic % ''}{table}")
    write(schemas, "avro", tests, f"{head % 'avro'}{topic % ', value_format: avro'}\n")
    assert main.main(["test", *asked]) == 1
    printed = capsys.readouterr()
    assert found in printed.out + printed.err


@pytest.mark.usefixtures("in_session")
def test_tests_that_cannot_be_loaded_fail_and_those_of_other_pipelines_run(
    schemas: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong: a test, its records, its contract, or that it reads tables of other pipelines."""
    one = "- {test: one, given: {}, then: {menu: []}}"
    write(schemas, "exchange", "- {test: fine, given: {}, then: {dollars: []}}")
    write(schemas, "gated", one, GATED)
    write(schemas, "broken", "- {test: one, given: {}}", GATED.replace("gated", "broken"))
    write(schemas, "invalid", one, "pipeline: invalid")
    inputs = "inputs: {other: {table: gated.menu, key: {item: string}, value: {price: int}}}"
    write(schemas, "reader", one, f"{GATED.replace('gated', 'reader')}{inputs}\n")
    (schemas / "tests" / "gated.yml").write_text(one)

    def pass_test(_: Any, __: Any, prepared: contract_test_runs.PreparedTest) -> contract_test_runs.ContractTestResult:
        return contract_test_runs.ContractTestResult(prepared.contract.pipeline, prepared.test.name, (), 0.0)

    monkeypatch.setattr(contract_test_runs, "run_test", pass_test)
    assert main.main(["test"]) == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = [line for line in hide_seconds(printed.out) if not line.startswith("    ")]
    broken = [f"failed  {name}: its tests cannot be loaded" for name in ("broken", "gated", "invalid", "reader")]
    assert lines == [*broken, "passed  exchange: fine", "5 tests: 1 passed, 4 failed"]
    assert f"    {schemas / 'tests' / 'broken.yaml'}:1: field 'then' is missing\n      what to do: add" in printed.out
    assert "    reader: its tests cannot run: it reads other, a table of another pipeline" in printed.out


def test_the_page_has_tests_that_load(schemas: Path) -> None:
    first, *entries = find_blocks("yaml")
    assert [test.name for test in read_tests(write(schemas, "exchange", first))] == ["a late rate corrects a payment"]
    for entry in entries:
        assert read_tests(write(schemas, "exchange", f"- test: one\n  given: {{}}\n{entry}"))
