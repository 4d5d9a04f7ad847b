"""Names of files that are no text, or more than a name: they are shown escaped, and take nobody down."""

from __future__ import annotations

import json
import os
import time
from itertools import permutations
from pathlib import Path

import pytest

from hindcast.airflow.pages import catalog
from hindcast.cli import main
from hindcast.common.errors import ContractError, SettingsError
from hindcast.common.settings import read_settings
from hindcast.contract import Contract, find, try_load_all
from hindcast.contract.names import can_stand_in, name_stand_ins
from test_contracts import GOOD
from test_dags import parsed
from warehouses import settings_of, shop

PAY = "pipeline: pay\nstart: 2026-01-01\ntopics:\n  {topic}: {{read: table, key: {{k: string}}, value: {{v: int}}}}\n"


@pytest.fixture
def schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "schemas"
    folder.mkdir()
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(folder))
    monkeypatch.setenv("HINDCAST_WAREHOUSE", str(tmp_path / "warehouse"))
    return folder


def write(folder: Path, name: bytes, text: str) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text(text)


def test_a_file_name_that_is_not_utf8_takes_no_dag_down(schemas: Path) -> None:
    write(schemas, b"restaurant.yaml", GOOD)
    write(schemas, b"caf\xe9.yaml", "x")
    dags = parsed(schemas)["dags"]
    assert json.dumps(dags, ensure_ascii=False).encode()  # as the processor gets them
    assert "restaurant" in dags
    assert r"caf\xe9.yaml:1: contains no contract" in dags["caf_"]["doc"]


def test_control_characters_of_a_file_name_do_not_reach_the_terminal(
    schemas: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(schemas, b"a\x1b[31mRED.yaml", GOOD)
    write(schemas, b"b\nhindcast: all fine.yaml", "x")
    write(schemas, b"caf\xe9.yaml", "x")
    write(schemas, b"d\xe2\x80\xae.yaml", GOOD)
    assert main.main(["check"]) == 1
    told = capsys.readouterr()
    assert r"a\x1b[31mRED.yaml: 2 topics" in told.out
    lines = told.err.splitlines()
    assert [line.partition("/schemas/")[2] for line in lines if line.startswith("hindcast: ")] == [
        r"b\nhindcast: all fine.yaml:1: contains no contract",
        r"caf\xe9.yaml:1: contains no contract",
        rf"d\u202e.yaml:1: pipeline 'restaurant' is already used in {schemas}/a\x1b[31mRED.yaml",
    ]


def test_of_yml_beside_yaml_every_reader_takes_yaml(schemas: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(schemas, b"a.yaml", PAY.format(topic="first"))
    write(schemas, b"pay.yaml", PAY.format(topic="right"))
    write(schemas, b"pay.yml", PAY.format(topic="wrong"))
    found = {path.name: it for path, it in try_load_all(schemas).items()}
    assert [name for name, it in found.items() if isinstance(it, Contract)] == ["pay.yaml"]
    assert [*find(schemas, "pay").topics, *catalog.load_contracts(settings_of(schemas))[0]["pay"].topics] == [
        "right",
        "right",
    ]
    assert "replay.right" in parsed(schemas)["dags"]["pay"]["tasks"]
    for files in ([], sorted(map(str, schemas.iterdir()), reverse=True)):
        assert main.main(["check", *files]) == 1
        assert "pay.yaml: 1 topic, 0 views, fine" in capsys.readouterr().out
    (schemas / "pay.yaml").unlink()
    assert [*find(schemas, "pay").topics, *catalog.load_contracts(settings_of(schemas))[0]["pay"].topics] == [
        "wrong",
        "wrong",
    ]


LONG = "x" * 300
COMMANDS = (
    *("runs", "ledger", "report", "failing", "quarantine", "abandon", "run", "preview", "verify --quick", "maintain"),
    *("query", "history", "sql", "release", "requeue", "upgrade", "forget --key k", "trim"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_arguments_that_can_name_no_pipeline_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with shop(tmp_path):
        for name, found in {
            LONG: f"'{'x' * 50}...' is too long",
            f"shop.{LONG}": "is too long",
            "\udc80": r"'\x80' is not UTF-8 text",
            "shop.\udc80": r"'shop.\x80' is not UTF-8 text",
            "shop\nhindcast: fake": r"hindcast: 'shop\nhindcast: fake' has a line break or a control character",
            "shop.\x1b[31m": r"'shop.\x1b[31m' has a line break or a control character",
        }.items():
            capsys.readouterr()
            assert main.main([*command.split(), name]) in (1, 2)
            assert found in capsys.readouterr().err


def test_a_reason_that_fills_lists_of_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with shop(tmp_path):
        for command in (["release", "shop"], ["run", "shop"], ["forget", "shop.people", "--key", "k"]):
            assert main.main([*command, "--reason", "x" * 1_001]) == 1
            assert "the reason has 1,001 characters" in capsys.readouterr().err


def test_a_table_that_is_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with shop(tmp_path):
        for option in ([], ["--held"]):
            assert main.main(["failing", "shop", "--table", "\udc80", *option]) == 1
            assert r"'\x80' is not UTF-8 text" in capsys.readouterr().err


@pytest.mark.parametrize("option", [[], ["--held"]])
def test_an_unknown_table_has_not_simply_no_failing_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    with shop(tmp_path):
        assert main.main(["failing", "shop", "--table", "price", *option]) == 1
        assert "no table 'price'\n  what to do: did you mean 'prices'?" in capsys.readouterr().err
        assert main.main(["failing", "shop", "--table", "prices", *option]) == 0


@pytest.mark.parametrize("password", ["hunter2", "hunter%2F2", "hunter/2", "hunter#2", "hunter2\n", "hunter2\udc80"])
def test_a_warehouse_with_a_password_in_its_address_is_refused_without_it(password: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"HINDCAST_WAREHOUSE": f"s3a://ann:{password}@shop/tables"})
    assert ("AWS_SECRET_ACCESS_KEY" in str(caught.value), "hunter" in str(caught.value)) == (True, False)


@pytest.mark.parametrize(
    "warehouse",
    [
        *("s3a://shop/tables@home", "file:///ann@home/tables", "/a:b/ann@home"),
        *("hdfs://name:8020/user/foo@bar/tables", "hdfs://home:1/ann@home"),
        *("abfss://tables@shop.dfs.core.windows.net/warehouse", "abfs://tables@shop.blob.core.windows.net"),
    ],
)
def test_an_at_sign_in_the_path_of_a_warehouse_is_no_password(warehouse: str) -> None:
    assert read_settings({"HINDCAST_WAREHOUSE": warehouse}).warehouse == warehouse


def test_a_pipeline_of_any_length_is_looked_for(schemas: Path) -> None:
    write(schemas, b"restaurant.yaml", GOOD)
    with pytest.raises(ContractError, match="no pipeline 'xxx"):
        find(schemas, LONG)


def test_a_file_that_is_named_like_a_dag_stands_in_under_its_own_name() -> None:
    files = [Path("a b.yaml"), Path("a_b.yaml"), Path("a?b.yaml")]
    for listed in permutations(files):
        assert name_stand_ins(listed, {})["a_b"] == Path("a_b.yaml")
    assert [*name_stand_ins(files, {})] == ["a_b", "a_b__broken", "a_b__broken_2"]


def test_any_number_of_files_that_do_not_load_have_ids_that_airflow_takes() -> None:
    """Each can be told from the id of its DAG, as when its task starts."""
    stems = ["\u4e00", "x" * 260, "hindcast_maintenance__" + "y" * 200, "broken__z"]
    files = [Path(f"{stem}{chr(0x4E00 + n)}.yaml") for stem in stems for n in range(200)]
    begun = time.process_time()
    named = name_stand_ins(files, {"_", "__broken"})
    assert time.process_time() - begun < 0.2
    assert sorted(named.values()) == sorted(files)
    assert max(map(len, named)) < 250
    assert all(can_stand_in(dag_id, file) for dag_id, file in named.items())
