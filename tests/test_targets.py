"""Variables of contracts, and targets: what is inserted where, as what, and what of it is refused."""

from __future__ import annotations

import ast
import json
import os
import re
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hindcast.airflow import dag_loading, pipelines
from hindcast.airflow.created_dags import CreatedDags
from hindcast.airflow.pages import catalog
from hindcast.cli.main import main
from hindcast.common import targets
from hindcast.common.errors import ContractError, SettingsError
from hindcast.common.settings import SCHEMAS_VARIABLE, TARGET_VARIABLE, read_settings, use_environment
from hindcast.common.targets import Choice
from hindcast.contract import Contract, find, list_contract_files, load
from hindcast.contract.folder import build_finder
from hindcast.contract.variables import is_expression, parse_value
from test_pages import client

JOBS = Path(__file__).parents[1] / "jobs" / "hindcast"

SHOP = """\
pipeline: shop
schedule: "@daily"
start: $(begin)
variables:
  region: {type: string, default: eu}
  least: {type: "decimal(8,2)", default: 9.5}
  begin: {type: date, default: 2026-01-01}
  delay: {type: duration, default: 30 days}
  lost: {type: int, default: -5}
  strict: {type: boolean, default: true}
topics:
  orders:
    topic: $(region).orders
    read: table
    key: {id: string}
    value: {amount: "decimal(8,2)", area: string}
    history_retention: $(delay)
    max_malformed: 10
    expect:
      - expect_column_values_to_be_between: {column: amount, min_value: $(least), row_condition: area = $(region)}
views:
  large:
    table: orders
    where: amount > $(least) and area = $(region) and $(strict)
    select: {amount: amount - $(lost), text: "'$$(region)'"}
"""

TARGETS = """\
dev:
  warehouse: var/dev
  schedule: null
  on_failure: warn
prod:
  warehouse: s3a://prices/warehouse
  reports: /srv/reports
  variables: {region: us}
  pipelines:
    shop:
      start: 2026-02-01
      variables: {least: "0.01"}
      topics: {orders: prod.orders}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.yaml").write_text(SHOP)
    (tmp_path / "targets.yaml").write_text(TARGETS)
    return tmp_path


def fields(contract: Contract) -> dict[str, object]:
    """Return the fields of SHOP in which values are inserted."""
    topic, view = contract.topics["orders"], contract.views["large"]
    kwargs = topic.expect[0].kwargs
    return {
        "schedule": contract.schedule,
        "start": contract.start.date().isoformat(),
        "topic": topic.topic,
        "least": kwargs["min_value"],
        "condition": kwargs["row_condition"],
        "on_failure": topic.expect[0].on_failure,
        "where": view.where,
        "select": view.select,
    }


AS_DECLARED = {
    "schedule": "@daily",
    "start": "2026-01-01",
    "topic": "eu.orders",
    "least": 9.5,
    "condition": "area = 'eu'",
    "on_failure": "stop",
    "where": "amount > CAST('9.5' AS DECIMAL(8,2)) and area = 'eu' and true",
    "select": {"amount": "amount - (-5)", "text": "'$(region)'"},
}


@pytest.mark.parametrize(
    ("choice", "other"),
    [
        (Choice(), {}),
        (Choice("dev"), {"schedule": None, "on_failure": "warn"}),
        (
            Choice("prod"),
            {
                "start": "2026-02-01",
                "topic": "prod.orders",
                "least": 0.01,
                "condition": "area = 'us'",
                "where": "amount > CAST('0.01' AS DECIMAL(8,2)) and area = 'us' and true",
            },
        ),
        (
            Choice("dev", (("region", 'it\'s \\ "q" $(least) -- x'),)),
            {
                "schedule": None,
                "on_failure": "warn",
                "topic": None,
                "condition": "area = 'it\\'s \\\\ \"q\" $(least) -- x'",
                "where": "amount > CAST('9.5' AS DECIMAL(8,2)) and area = 'it\\'s \\\\ \"q\" $(least) -- x' and true",
            },
        ),
    ],
    ids=["nothing chosen", "dev", "prod", "a hostile text"],
)
def test_values_and_changes_are_put_in(folder: Path, choice: Choice, other: dict[str, object]) -> None:
    text = SHOP if other.get("topic", "") is not None else SHOP.replace("    topic: $(region).orders\n", "")
    (folder / "shop.yaml").write_text(text)
    contract = find(folder, "shop", choice)
    assert fields(contract) == AS_DECLARED | other
    assert contract.topics["orders"].history_retention is not None
    assert contract.variables == {"region", "least", "begin", "delay", "lost", "strict"}
    assert [path.name for path in list_contract_files(folder)] == ["shop.yaml"]


def test_values_keep_their_meaning_where_the_batch_is_put_in(folder: Path) -> None:
    query = "    expect:\n      - unexpected_rows_expectation:\n"
    query += "          unexpected_rows_query: SELECT * FROM {batch} WHERE area = $(region)\n"
    (folder / "shop.yaml").write_text(
        SHOP.replace("    expect:\n", query, 1).replace(".orders", "orders").replace("$(region)o", "o")
    )
    gate = find(folder, "shop", Choice("", (("region", "a{batch}b{"),))).topics["orders"].expect[0]
    assert str(gate.kwargs["unexpected_rows_query"]).format(batch="v") == "SELECT * FROM v WHERE area = 'a{batch}b{'"


def test_values_are_bounded_together(folder: Path) -> None:
    many = "[" + ", ".join(["$(region)"] * 2_000) + "]"
    gate = f"      - expect_column_values_to_be_in_set: {{column: area, value_set: {many}}}\n"
    (folder / "shop.yaml").write_text(SHOP.replace("    expect:\n", f"    expect:\n{gate}", 1))
    assert len(find(folder, "shop").topics["orders"].expect) == 2
    with pytest.raises(ContractError, match="too large with its values"):
        find(folder, "shop", Choice("", (("region", "x" * 1_000),)))


def test_the_hash_is_that_of_the_values_written_out(folder: Path) -> None:
    first, other = load(folder / "shop.yaml"), load(folder / "shop.yaml", choice=Choice("", (("least", "1"),)))
    declared = SHOP[SHOP.index("variables:") : SHOP.index("topics:")]
    plain = SHOP.replace(declared, "")
    plain = (
        plain.replace("$(begin)", "2026-01-01").replace("$(region).orders", "eu.orders").replace("$(delay)", "30 days")
    )
    plain = (
        plain.replace("min_value: $(least)", "min_value: 9.5").replace("$(lost)", "(-5)").replace("$$(region)", "kept")
    )
    plain = (
        plain.replace("$(least)", "CAST('9.5' AS DECIMAL(8,2))")
        .replace("$(region)", "'eu'")
        .replace("$(strict)", "true")
    )
    (folder / "plain.yaml").write_text(plain.replace("kept", "$(region)"))
    assert load(folder / "plain.yaml").hash == first.hash != other.hash


FINE = "2026-01-01T00:00:00.1234567Z"
"""A timestamp that microseconds do not hold."""

REFUSED = [
    ("{type: string, default: eu}", "{type: array<int>}", Choice(), 5, "is not a type that a variable can have"),
    ("{type: string, default: eu}", "{type: string, defalt: eu}", Choice(), 5, "defalt"),
    ("{type: string, default: eu}", "{type: string, default: 5}", Choice(), 5, "'5' is not a text"),
    ("{type: string, default: eu}", "{type: string}", Choice(), 5, "the variable 'region' has no value"),
    ("default: 9.5", "default: 9.555", Choice(), 6, "9.555 does not fit in decimal(8,2)"),
    ("default: 9.5", "default: 1000000", Choice(), 6, "1000000 does not fit in decimal(8,2)"),
    ("default: -5", "default: 3000000000", Choice(), 9, "3000000000 does not fit in int"),
    ("default: true", "default: 1", Choice(), 10, "'1' is not a boolean"),
    ("default: true", "default: [true]", Choice(), 10, "a list is not a boolean"),
    ("pipeline: shop", "pipeline: shop$(region)", Choice(), 1, "a pipeline's name has no variables"),
    ("topic: $(region)", "topic: $(regoin)", Choice(), 13, "no variable 'regoin' is declared"),
    ("area = $(region) and $", "area = 'a-$(region)' and $", Choice(), 24, "is not a value of its own"),
    ("area = $(region) and $", "area = x$(region) and $", Choice(), 24, "not a value of its own"),
    ("area = $(region) and $", "orders.$(region) = '' and $", Choice(), 24, "not a value of its own"),
    ("area = $(region) and $", "area = `$(region)` and $", Choice(), 24, "not a value of its own"),
    ("area = $(region) and $", "area = 'x' -- $(region)\n      and $", Choice(), 24, "not a value of its own"),
    ("area = $(region) and $", "area = $(region)'b' and $", Choice(), 24, "not a value of its own"),
    ("amount: amount - $(lost)", "amount: struct(1 as $(lost))", Choice(), 25, "not a value of its own"),
    ("amount: amount - $(lost)", "amount: $(region)(amount)", Choice(), 25, "not a value of its own"),
    ("row_condition: area", "condition_parser: great_expectations, row_condition: area", Choice(), 20, "own syntax"),
    (
        "default: 9.5",
        "default: '99999999999999999999999999999999999999.9'",
        Choice(),
        6,
        "does not fit in decimal(8,2)",
    ),
    ("", "", Choice("", (("lost", " 5"),)), "--var lost", "' 5' is not a whole number"),
    ("", "", Choice("", (("least", "ten"),)), "--var least", "'ten' is not a decimal"),
    ("", "", Choice("", (("region", "a\x1bb"),)), "--var region", "contains the character U+001B"),
    ("", "", Choice("", (("regoin", "eu"),)), "", "--var regoin: no such variable is declared"),
    ("", "", Choice("", (("region", "it's"),)), 13, "topic: 'it's.orders' is not a valid topic name"),
    ("", "", Choice("test"), 1, "no target 'test'"),
    ("date, default: 2026-01-01", "date, default: 2026-W01-1", Choice(), 7, "'2026-W01-1' is not a date"),
    ("", "", Choice("", (("begin", "20260101"),)), "--var begin", "'20260101' is not a date"),
    *(
        ("date, default: 2026-01-01", f"timestamp, default: {text}", Choice(), 7, "is not a valid timestamp")
        for text in (FINE, f"'{FINE}'", "20260101T000000", "2026-W01-1")
    ),
    ("type: date", "type: timestamp", Choice("", (("begin", FINE),)), "--var begin", f"'{FINE}' is not a valid time"),
]


@pytest.mark.parametrize(("was", "now", "choice", "line", "found"), REFUSED, ids=[f"{c[4]}" for c in REFUSED])
def test_what_is_refused(folder: Path, was: str, now: str, choice: Choice, line: int | str, found: str) -> None:
    assert was in SHOP
    (folder / "shop.yaml").write_text(SHOP.replace(was, now, 1))
    with pytest.raises(ContractError) as refused:
        find(folder, "shop", choice)
    where = f"{folder}/shop.yaml:{line}" if isinstance(line, int) else line or str(folder)
    assert (refused.value.where, found in refused.value.found) == (where, True), str(refused.value)
    assert refused.value.fix


ODD_TARGETS = [
    ("dev: [1]", 1, "the target 'dev' cannot be read: the target must be a mapping"),
    ("dev:\n  warehose: x", 2, "the target 'dev' cannot be read: unknown field 'warehose' in the target"),
    ("dev:\n  warehouse: 5", 2, "warehouse is not a text"),
    ("dev:\n  pipelines: {shop: {topics: {orers: x}}}", 2, "is called 'orers'"),
    ("dev:\n  pipelines: {shop: {variables: {regoin: x}}}", 2, "is called 'regoin'"),
    ("dev:\n  variables: {least: x}", 2, "variable 'least': 'x' is not a decimal"),
    ("dev:\n  variables: {least: [1]}", 2, "a list or a mapping where one value"),
    ("dev:\n  on_failure: sotp", 2, "on_failure is 'sotp'"),
    ("dev: &a {}\nprod: *a", 2, "contains aliases"),
    ("dev:\n  warehouse: a%b", 2, "the warehouse is '/a%b', and has % in its path"),
    ("dev:\n  warehouse: s3a://ann:secret@shop/x", 2, "the warehouse has credentials in its address"),
    ("dev:\n  reports: ~nobody-there/x", 2, "reports is '~nobody-there/x', and this machine does not know that home"),
    ("dev:\n  variables: {least: 1:1:1:1:1}", 2, "'1:1:1:1:1' is the number 13179661 in YAML"),
    ("dev:\n  variables: {lost: 010}", 2, "'010' is the number 8 in YAML"),
    ("dev:\n  schedule: 1:30", 2, "'1:30' is the number 90 in YAML"),
    ("dev:\n  variables: {area: !!binary aGVsbG8=}", 2, "'aGVsbG8=' is not supported: it is tagged !!binary"),
    ("dev:\n  variables: {begin: " + FINE + "}", 2, "is not a valid timestamp"),
    ("dev:\n  warehouse: s4://shop/x", 2, "the warehouse begins with 's4://', and Spark and delta-rs know no such"),
    ("dev:\n  variables: {begin: 2026-02-30}", 2, "'2026-02-30' is not a valid timestamp"),
    ("dev:\n  variables: {begin: !!python/name:os.system x}", 2, "'x' is not one value"),
    ('dev: {warehouse: "a\\0b"}', 1, "warehouse is not a text"),
    ("dev: {}\ndev: {}", 2, "'dev' appears twice"),
    ("dev: {a", 1, "is not YAML"),
    ("", 1, "the target 'dev' cannot be read: the file must be a mapping"),
    ("dev: " + "[" * 30_000, 1, "nested too deep"),
    ("dev: " + "{a: " * 60_000, 1, "nested too deep"),
    ("dev: \0", 1, "is not YAML: control characters are not allowed"),
]


@pytest.mark.parametrize(("text", "line", "found"), ODD_TARGETS, ids=[case[2] for case in ODD_TARGETS])
def test_what_targets_cannot_be(folder: Path, text: str, line: int, found: str) -> None:
    (folder / "targets.yaml").write_text(text)
    with pytest.raises(ContractError) as refused:
        find(folder, "shop", Choice("dev"))
    assert refused.value.where == f"{folder}/targets.yaml:{line}"
    assert found in refused.value.found


GIVEN_ODDLY = [
    ("prod:\n  schedule: 5", 2, "schedule: 5 is not text"),
    ("prod:\n  start: tomorrow", 2, "start: 'tomorrow' is not a valid timestamp"),
    ("prod:\n  pipelines:\n    shop:\n      start: null", 4, "start: nothing is not a valid timestamp"),
    ("prod:\n  pipelines:\n    shop:\n      topics:\n        orders: a/b", 5, "'a/b' is not a valid topic name"),
    ("prod:\n  on_failure: null", 2, "on_failure is nothing"),
    ("prod:\n  on_failure: quarantine", 2, "on_failure: quarantine cannot be used in a kafka view"),
]


@pytest.mark.parametrize(("text", "line", "found"), GIVEN_ODDLY, ids=[case[2] for case in GIVEN_ODDLY])
def test_an_error_of_what_a_target_gives_has_its_place(folder: Path, text: str, line: int, found: str) -> None:
    kafka = "  live:\n    semantics: kafka\n    stream: views\n    expect:\n"
    kafka += "      - expect_column_values_to_not_be_null: {column: n}\n"
    views = "  views: {topic: views, read: stream, key: {id: string}, value: {n: int}}\n"
    (folder / "shop.yaml").write_text(SHOP.replace("views:\n", f"{views}views:\n", 1) + kafka)
    assert isinstance(find(folder, "shop"), Contract)
    (folder / "targets.yaml").write_text(text)
    with pytest.raises(ContractError) as refused:
        find(folder, "shop", Choice("prod"))
    assert refused.value.where == f"{folder}/targets.yaml:{line}"
    assert found in refused.value.found


def test_what_is_wrong_in_a_target_concerns_those_who_choose_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = (
        "typo: {schedul: x}\na/b: {}\ntwice: {}\ntwice: {}\n[a]: {}\nslow: {schedule: 1:1:1}\nodd: {warehouse: a%b}\n"
    )
    (folder / "targets.yaml").write_text(TARGETS + others)
    assert find(folder, "shop", Choice("dev")).schedule is None
    monkeypatch.setenv(SCHEMAS_VARIABLE, str(folder))
    monkeypatch.setenv(TARGET_VARIABLE, "dev")
    assert read_settings().target == "dev"
    for name in ("typo", "twice", "slow", "odd"):
        with pytest.raises(ContractError, match=f"the target '{name}' cannot be read: "):
            find(folder, "shop", Choice(name))
        with pytest.raises(ContractError, match=f"the target '{name}' cannot be read: "):
            read_settings({SCHEMAS_VARIABLE: str(folder), TARGET_VARIABLE: name})
    for files in ((), (str(folder / "targets.yaml"),)):
        assert main(["check", *files]) == 1
        said = capsys.readouterr().err
        first = TARGETS.count("\n") + 1
        for line, found in (
            (first, "the target 'typo' cannot be read: unknown field 'schedul' in the target"),
            (first + 1, "the target 'a/b' cannot be read: the name is not one for a target"),
            (first + 3, "the target 'twice' cannot be read: 'twice' appears twice in the file"),
            (first + 4, "a name in the file is not a text"),
            (first + 5, "the target 'slow' cannot be read: '1:1:1' is the number 3661 in YAML"),
            (first + 6, "the target 'odd' cannot be read: the warehouse is '/a%b', and has % in its path"),
        ):
            assert f"{folder}/targets.yaml:{line}: {found}" in said
    (folder / "targets.yaml").write_text("dev: {")
    monkeypatch.setenv(TARGET_VARIABLE, "")
    assert main(["check"]) == 1
    assert "the file is not YAML" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["1:" * 120_000 + "1", "0x" + "f" * 240_000, "9" * 101, "1:" * 120_000 + "1.5"])
def test_a_very_long_number_is_refused_at_once(folder: Path, number: str) -> None:
    (folder / "targets.yaml").write_text(f"dev: {{}}\nprod: {{variables: {{lost: {number}}}}}")
    begun = time.thread_time()
    assert isinstance(find(folder, "shop", Choice("dev")), Contract)
    with pytest.raises(ContractError) as refused:
        find(folder, "shop", Choice("prod"))
    assert time.thread_time() - begun < 1
    assert re.search("is not a (whole )?number", refused.value.found)
    assert len(str(refused.value)) < 500
    assert "put text in quotes" in refused.value.fix


LONG = "f" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        f"on_failure: {LONG}",
        f"schedule: {LONG}",
        f"start: {LONG}",
        f"? {LONG}\n  : 1",
        f"variables: {{least: {LONG}}}",
        f"variables: {{least: 1{'0' * 99}}}",
        f"pipelines: {{shop: {{? {LONG} : 1}}}}",
        f"pipelines: {{shop: {{topics: {{? {LONG} : 1}}}}}}",
        f"pipelines: {{shop: {{topics: {{orders: {LONG}}}}}}}",
        f"warehouse: '%{LONG}'",
    ],
)
def test_errors_do_not_show_long_values_whole(folder: Path, text: str) -> None:
    (folder / "targets.yaml").write_text(f"dev:\n  {text}\n? {LONG}\n: {{}}")
    with pytest.raises(ContractError) as refused:
        find(folder, "shop", Choice("dev"))
    with pytest.raises(ContractError) as unknown:
        find(folder, "shop", Choice("other"))
    assert max(len(str(refused.value)), len(str(unknown.value))) < 1_500


def test_targets_are_read_in_bounded_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipelines = ",".join(f"p{n}: {{}}" for n in range(20_000))
    (folder / "targets.yaml").write_text(f"dev: {{pipelines: {{{pipelines}}}}}")
    assert isinstance(find(folder, "shop", Choice("dev")), Contract)
    monkeypatch.setattr(targets, "SECONDS", 0.0)
    (folder / "targets.yaml").write_text(f"dev: {{pipelines: {{{pipelines}}}}} # changed")
    with pytest.raises(ContractError, match="the target 'dev' cannot be read: the file takes more than 0 s"):
        find(folder, "shop", Choice("dev"))


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        *(("int", "010", 8), ("int", "1:30", 90), ("int", "0b11", 3), ("int", "1_000", 1000), ("int", "0x1F", 31)),
        *(("double", "1:30.5", 90.5), ("double", "1_0.5", 10.5), ("decimal(8,2)", "-012", -10)),
    ],
)
def test_a_number_that_people_read_otherwise_is_refused(folder: Path, kind: str, text: str, number: float) -> None:
    def write(default: str) -> None:
        declared = f'other: {{type: "{kind}", default: {default}}}'
        (folder / "shop.yaml").write_text(SHOP.replace("variables:\n", f"variables:\n  {declared}\n", 1))

    write(text)
    with pytest.raises(ContractError) as refused:
        find(folder, "shop")
    assert refused.value.where == f"{folder}/shop.yaml:5"
    assert refused.value.found.removeprefix("variables.other.default: ") == f"'{text}' is the number {number} in YAML"
    assert f"write {number}, or the number that you mean" in refused.value.fix
    for plain in (str(number), '"10"', '"010"', "0", "+5", "-5"):
        write(plain)
        assert isinstance(find(folder, "shop"), Contract), plain


def test_a_file_of_targets_that_is_none_is_refused_at_once(folder: Path) -> None:
    path = folder / "targets.yaml"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ContractError, match="is not a regular file"):
        find(folder, "shop", Choice("dev"))
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(ContractError, match="is a link to a file outside its folder"):
        find(folder, "shop", Choice("dev"))
    path.unlink()
    path.write_bytes(b"dev: \xff")
    with pytest.raises(ContractError, match="is not UTF-8 text"):
        find(folder, "shop", Choice("dev"))


def test_the_severity_of_a_target_fits_every_contract(folder: Path) -> None:
    """One without views, one that holds back by rows, and one whose gates are malformed."""
    plain = SHOP[: SHOP.index("views:")]
    held = plain.replace("    expect:\n", "    hold: row\n    expect:\n").replace(
        "row_condition: area = $(region)}", "row_condition: area = $(region)}\n        on_failure: quarantine"
    )
    for text, loads in ((plain, True), (held, True), (plain + "      - expect_column_values_to_not_be_null\n", False)):
        (folder / "shop.yaml").write_text(text)
        if loads:
            topic = find(folder, "shop", Choice("dev")).topics["orders"]
            assert (topic.hold, [gate.on_failure for gate in topic.expect]) == ("key", ["warn"])
            continue
        with pytest.raises(ContractError, match=r"topics.orders.expect.*\(with target 'dev'\)"):
            find(folder, "shop", Choice("dev"))


def test_variables_of_the_command_line_are_not_those_of_other_contracts(folder: Path) -> None:
    other = "pipeline: other\nstart: 2026-01-01\nvariables:\n  least: {type: boolean, default: true}\n"
    other += "topics:\n  o: {read: stream, key: {id: string}, value: {n: int}}\n"
    (folder / "other.yaml").write_text(other)
    choice = Choice("", (("least", "12"),))
    assert isinstance(build_finder(choice)(folder, "other"), Contract)
    with pytest.raises(ContractError, match="'12' is not a boolean"):
        find(folder, "other", choice)


def test_a_contract_may_be_called_targets(folder: Path) -> None:
    (folder / "targets.yaml").write_text(SHOP.replace("pipeline: shop", "pipeline: targets"))
    assert [path.name for path in list_contract_files(folder)] == ["shop.yaml", "targets.yaml"]
    assert find(folder, "targets").pipeline == "targets"


def test_the_target_says_where_tables_and_reports_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {SCHEMAS_VARIABLE: str(folder), "HINDCAST_ROOT": "/srv/shop", "HINDCAST_WAREHOUSE": "/elsewhere"}
    for name in ("HINDCAST_WAREHOUSE", "HINDCAST_REPORTS"):
        monkeypatch.delenv(name, raising=False)
    plain = read_settings(env)
    dev, prod = read_settings(env | {TARGET_VARIABLE: "dev"}), read_settings(env | {TARGET_VARIABLE: "prod"})
    assert (plain.warehouse, str(plain.reports)) == ("/elsewhere", "/srv/shop/var/reports")
    assert (dev.warehouse, str(dev.reports)) == ("/srv/shop/var/dev", "/srv/shop/var/reports/dev")
    assert (prod.warehouse, str(prod.reports)) == ("s3a://prices/warehouse", "/srv/reports")
    assert read_settings(dev.environment) == dev, "a process that it starts reads the same"
    other = read_settings(dev.environment | {TARGET_VARIABLE: ""})
    assert (other.warehouse, str(other.reports)) == ("/srv/shop/var/warehouse", "/srv/shop/var/reports")
    (folder / "targets.yaml").write_text("dev: {warehouse: ~nobody-there/x}")
    with pytest.raises(
        ContractError, match="the target 'dev' cannot be read: warehouse is '~nobody-there/x', and this machine"
    ):
        read_settings(env | {TARGET_VARIABLE: "dev"})
    (folder / "targets.yaml").write_text(TARGETS)
    with pytest.raises(SettingsError, match="no target 'tset'"):
        read_settings(env | {TARGET_VARIABLE: "tset"})
    with pytest.raises(SettingsError, match=r"the target is 'dev', but .*targets.yaml cannot be read"):
        read_settings(env | {TARGET_VARIABLE: "dev", SCHEMAS_VARIABLE: str(folder / "none")})


@pytest.mark.filterwarnings("ignore:Passing a string to the row_condition")  # of Great Expectations
def test_the_command_takes_a_target_and_variables(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCHEMAS_VARIABLE, str(folder))
    monkeypatch.setenv(TARGET_VARIABLE, "")
    assert main(["check", "--target", "dev", "--var", "region=us"]) == 0
    assert "1 topic, 1 view, fine" in capsys.readouterr().out
    assert main(["check", "--var", "regoin=us"]) == 1
    assert "--var regoin: no such variable is declared" in capsys.readouterr().err
    (folder / "targets.yaml").write_text("dev: {variables: {regoin: x}, pipelines: {shpo: {schedule: null}}}")
    assert main(["check", "--target", "dev"]) == 1
    err = capsys.readouterr().err
    assert "targets.yaml:1: target 'dev': no pipeline 'shpo'" in err
    assert "targets.yaml:1: target 'dev': no contract has 'regoin'" in err
    monkeypatch.setenv(TARGET_VARIABLE, "")
    assert main(["--var", "least=ten", "check"]) == 1
    assert "--var least: variable 'least': 'ten' is not a decimal" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["check", "--var", "region"])
    assert "'region' is not NAME=VALUE" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Passing a string to the row_condition")  # of Great Expectations
def test_check_skips_the_targets_among_files(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TARGET_VARIABLE, "")
    targets = folder / "targets.yaml"
    assert main(["check", str(folder / "shop.yaml"), str(targets)]) == 0
    said = capsys.readouterr().out
    assert f"{targets}: the targets of this folder, no contract\n" in said
    assert f"{folder / 'shop.yaml'}: 1 topic, 1 view, fine\n" in said
    targets.write_text(SHOP.replace("pipeline: shop", "pipeline: targets"))
    assert main(["check", str(targets)]) == 0
    assert f"{targets}: 1 topic, 1 view, fine\n" in capsys.readouterr().out
    targets.unlink()
    assert main(["check", str(targets)]) == 1
    assert f"{targets}: cannot be read" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")  # Airflow's own
def test_dags_and_pages_load_the_contracts_of_a_target(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_VAR", str(folder / "var"))
    dev = pipelines(folder, target="dev")["shop"]
    assert dev.schedule is None
    task = dev.get_task("replay.orders")
    assert task.contract_environment == {SCHEMAS_VARIABLE: str(folder), TARGET_VARIABLE: "dev"}
    with use_environment(task.contract_environment):
        settings = read_settings()
        assert catalog.load_contract(settings, "shop", ["shop"]).schedule is None
        (folder / "targets.yaml").write_text(TARGETS.replace("null", "'@weekly'"))
        assert catalog.load_contract(settings, "shop", ["shop"]).schedule == "@weekly", "read again"
        (folder / "targets.yaml").write_text("dev: [")
        assert "targets.yaml:1" in str(catalog.load_contracts(settings)[1]["shop"])
    with pytest.raises(SettingsError, match="the folder of contracts is '~nobody-there/x', and this machine does not"):
        pipelines("~nobody-there/x")
    broken = pipelines(folder, target="dev")
    assert "broken contract" in broken["shop"].tags
    assert "targets.yaml:1" in str(broken["shop"].doc_md)
    (folder / "targets.yaml").write_text("prod: {}\ndev: {warehouse: a%b}")
    broken = pipelines(folder, target="dev")
    assert broken.keys() == {"shop"}, "no DAG looks whole, with assets of another warehouse"
    assert "targets.yaml:2: the target 'dev' cannot be read: the warehouse is" in str(broken["shop"].doc_md)
    created = CreatedDags()
    dag_loading.load_dags(read_settings({SCHEMAS_VARIABLE: str(folder)}), created)
    with pytest.raises(SettingsError, match="has DAGs of target '' already"):
        dag_loading.load_dags(settings, created)


@pytest.mark.parametrize("address", ["/quality", "/quality/shop", "/machine", "/ledger/shop", "/dag/shop/quality"])
def test_pages_say_that_the_target_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HINDCAST_VAR", str(folder / "var"))
    monkeypatch.setenv(SCHEMAS_VARIABLE, str(folder))
    monkeypatch.setenv(TARGET_VARIABLE, "dev")
    (folder / "targets.yaml").write_text("dev: {}\nprod: {schedul: x}")
    assert client("shop").get(address).status_code == 200
    (folder / "targets.yaml").write_text("dev: {schedul: x}\nprod: {}")
    page = client("shop").get(address)
    assert "The target &#39;dev&#39; cannot be read: unknown field &#39;schedul&#39; in the target</h1>" in page.text
    assert f"{folder}/targets.yaml:1" in page.text
    assert "did you mean &#39;schedule&#39;?" in page.text
    told = client("shop").get(f"{address}.json").json()["error"]
    assert told["found"].startswith("the target 'dev' cannot be read: ")


def test_every_call_that_loads_contracts_says_what_they_are_loaded_with() -> None:
    """Else it would load them without the target, and take its tables for those of another environment."""
    loads = {"find": 3, "try_find": 3, "try_load_all": 2, "build_finder": 1}
    missing = []
    for path in JOBS.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in loads:
                continue
            text = ast.unparse(call)
            if re.match(r"find\((0|1)\b", text) is None and "choice" not in text and "read_settings" not in text:
                missing.append(f"{path.name}: {text}")
    assert missing == []


def test_every_field_that_is_an_expression_is_known_as_one() -> None:
    """By the model's own words: whatever is described as an expression or a condition of Spark SQL."""
    schema = Contract.model_json_schema()
    named = {
        (part, name)
        for part, model in (("topics", "Topic"), ("views", "View"))
        for name, field in schema["$defs"][model]["properties"].items()
        if re.search(r"Spark SQL (expression|condition|aggregate)|as Spark SQL", json.dumps(field))
    }
    assert {name for _, name in named} >= {"where", "select", "key", "group_by", "aggregate"}
    for part, name in named:
        place = (part, "t", name) if is_expression((part, "t", name)) else (part, "t", name, "c")
        assert is_expression(place), place
    assert is_expression(("topics", "t", "valid_time"))
    assert is_expression(("views", "v", "join", "on", 0))
    assert not is_expression(("topics", "t", "key", "c"))


LITERALS = {
    "tinyint": [-128, 127, "5"],
    "smallint": [-32768, 32767],
    "int": [-2147483648, 2147483647, 0],
    "bigint": [-9223372036854775808, 9223372036854775807],
    "decimal(8,2)": ["-0.05", 123456.78, 7, "0.00"],
    "decimal(2,2)": [0, "0.00", 0.99, "-0.5"],
    "decimal(38,10)": ["1234567890123456789012345678.0123456789"],
    "double": [0.1, 1e300, -5, "2.5"],
    "boolean": [True, "false"],
    "string": [
        "",
        "it's",
        "a\\b",
        'q"q',
        "line\nbreak\ttab",
        "$(x)",
        "%_\\%",
        "é✓😀",
        "' or true or '",
        "{batch}",
        "--",
        "/*",
    ],
    "date": ["2026-01-31", "0001-01-01", "9999-12-31"],
    "timestamp": ["2026-01-31T06:00:00.123456Z", "2026-01-31T06:00:00+02:00", "0001-01-02"],
    "duration": ["0 ms", "1 ms", "36 hours", "1500 ms", "400 days"],
}


def test_literals_are_the_values_in_spark(spark: SparkSession) -> None:
    cases = [(kind, value, parse_value(kind, value)) for kind, values in LITERALS.items() for value in values]
    row = spark.sql(f"SELECT {', '.join(f'{case[2].literal} AS c{n}' for n, case in enumerate(cases))}")
    types = {kind: field.dataType.simpleString() for (kind, _, _), field in zip(cases, row.schema.fields, strict=True)}
    assert types == {kind: kind if kind != "duration" else "interval day to second" for kind in LITERALS}
    for (kind, value, bound), found in zip(cases, row.first() or (), strict=True):
        match kind:
            case "timestamp" | "date" | "duration":
                assert parse_value(kind, found if kind != "timestamp" else f"{found}Z").value == bound.value, value
            case "boolean":
                assert found is bound.value
            case "string":
                assert found == value
            case _:
                assert float(found) == float(bound.value if bound.value is not None else "nan"), value
