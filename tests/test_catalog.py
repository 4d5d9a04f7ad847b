"""Contracts as the pages know them: read once, and again when what they are made of has changed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from hindcast.airflow.pages import catalog
from hindcast.common.errors import ContractError
from hindcast.common.targets import NO_CHOICE, Choice
from hindcast.contract import Contract, try_load
from hindcast.contract.load import SlowContractError
from warehouses import settings_of

CONTRACT = """
pipeline: bakery
start: 2026-01-01
topics:
  loaves: {read: stream, key: {id: string}, value: {weight: long}, value_format: avro, value_schema: loaves.avsc}
"""
SCHEMA = {"type": "record", "name": "loaf", "fields": [{"name": "weight", "type": "long"}]}


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that are read from now on."""
    read: list[str] = []

    def read_now(path: Path, seconds: float, _: Choice) -> Contract | ContractError:
        read.append(path.name)
        return try_load(path, seconds)

    monkeypatch.setattr(catalog, "try_load", read_now)
    return read


def test_a_contract_is_read_again_when_its_avro_schema_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, schema = count_reads(monkeypatch), tmp_path / "loaves.avsc"
    (tmp_path / "bakery.yaml").write_text(CONTRACT, encoding="utf-8")
    assert "loaves.avsc" in str(catalog.load_contracts(settings_of(tmp_path))[1]["bakery"])
    schema.write_text(json.dumps(SCHEMA), encoding="utf-8")
    assert [*catalog.load_contracts(settings_of(tmp_path))[0]] == ["bakery"]
    schema.write_text("not JSON", encoding="utf-8")
    assert "is not JSON" in str(catalog.load_contracts(settings_of(tmp_path))[1]["bakery"])
    times = len(read)
    assert "is not JSON" in str(catalog.load_contracts(settings_of(tmp_path))[1]["bakery"])
    assert len(read) == times == 3, "a file that is as it was is not read again"


def test_a_change_of_another_file_reads_no_contract_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = count_reads(monkeypatch)
    (tmp_path / "bakery.yaml").write_text(CONTRACT, encoding="utf-8")
    (tmp_path / "loaves.avsc").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (tmp_path / "shop.yaml").write_text(CONTRACT.replace("bakery", "shop"), encoding="utf-8")
    assert [*catalog.load_contracts(settings_of(tmp_path))[0]] == ["bakery", "shop"]
    read.clear()
    for name in ("note.txt", "buns.avsc", ".#loaves.avsc", "broken.yaml"):
        (tmp_path / name).write_text(name, encoding="utf-8")
        assert [*catalog.load_contracts(settings_of(tmp_path))[0]] == ["bakery", "shop"]
    assert read == ["broken.yaml"]
    (tmp_path / "shop.yaml").write_text(CONTRACT.replace("bakery", "shops"), encoding="utf-8")
    assert [*catalog.load_contracts(settings_of(tmp_path))[0]] == ["bakery", "shops"]
    assert read == ["broken.yaml", "shop.yaml"]
    (tmp_path / "loaves.avsc").write_text(json.dumps(SCHEMA | {"name": "bun"}), encoding="utf-8")
    catalog.load_contracts(settings_of(tmp_path))
    assert sorted(read[2:]) == ["bakery.yaml", "shop.yaml"], "both name it"


def test_while_a_request_reads_a_file_others_get_what_it_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reading, may_end = tmp_path / "bakery.yaml", Event(), Event()
    path.write_text(CONTRACT, encoding="utf-8")
    assert "loaves.avsc" in str(catalog.load_contracts(settings_of(tmp_path))[1]["bakery"])

    def read_slowly(path: Path, seconds: float, _: Choice) -> Contract | ContractError:
        reading.set()
        assert may_end.wait(10)
        return try_load(path, seconds)

    monkeypatch.setattr(catalog, "try_load", read_slowly)
    (tmp_path / "loaves.avsc").write_text(json.dumps(SCHEMA), encoding="utf-8")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(catalog.load_contracts, settings_of(tmp_path))
        assert reading.wait(10)
        assert "loaves.avsc" in str(catalog.load_contracts(settings_of(tmp_path))[1]["bakery"]), (
            "without waiting for the first"
        )
        may_end.set()
        assert [*first.result()[0]] == ["bakery"]
    assert [*catalog.load_contracts(settings_of(tmp_path))[0]] == ["bakery"]


def test_a_contract_that_takes_long_is_no_error_while_its_change_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bakery.yaml"
    (tmp_path / "loaves.avsc").write_text(json.dumps(SCHEMA), encoding="utf-8")

    def need_three_seconds(path: Path, seconds: float, _: Choice) -> Contract | ContractError:
        return try_load(path) if seconds > 3 else SlowContractError("takes too long", where=str(path))

    monkeypatch.setattr(catalog, "try_load", need_three_seconds)
    for text in (CONTRACT, f"{CONTRACT}# changed"):
        path.write_text(text, encoding="utf-8")
        assert [*catalog.load_contracts(settings_of(tmp_path))[0]] == ["bakery"]
    path.write_text(f"{CONTRACT}# changed again", encoding="utf-8")
    assert isinstance(catalog._read_contract(path, 1.0, NO_CHOICE), SlowContractError), (
        "so that it is read again with more time"
    )
    former = catalog._find_cached_file(path, NO_CHOICE).last
    assert former is not None
    assert isinstance(former.result, Contract), "what other requests get meanwhile"
    assert isinstance(catalog._read_contract(path, 5.0, NO_CHOICE), Contract)


def test_a_folder_of_very_many_files_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def count(path: Path, seconds: float, _: Choice) -> Contract | ContractError:
        read.append(path)
        return ContractError("none", where=f"{path}:{seconds}")

    monkeypatch.setattr(catalog, "try_load", count)
    for number in range(1_000):
        (tmp_path / f"{number}.yaml").touch()
    assert len(catalog.load_contracts(settings_of(tmp_path))[1]) == 1_000
    assert len(catalog.load_contracts(settings_of(tmp_path))[1]) == len(read) == 1_000
    (tmp_path / "7.yaml").unlink()
    catalog.load_contracts(settings_of(tmp_path))
    assert len(read) == 1_000
    assert sum(path.parent == tmp_path for path, _ in catalog._FILES) == 999, "what is gone is forgotten"


def test_a_file_that_took_too_long_is_read_again_only_with_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, allowed = tmp_path / "bakery.yaml", []
    path.write_text(CONTRACT, encoding="utf-8")

    def expire(path: Path, seconds: float, _: Choice) -> Contract | ContractError:
        allowed.append(seconds)
        return SlowContractError("takes too long", where=str(path))

    monkeypatch.setattr(catalog, "try_load", expire)
    for seconds in (1.0, 0.5, 1.0, 5.0, 5.0):
        assert isinstance(catalog._read_contract(path, seconds, NO_CHOICE), SlowContractError)
    assert allowed == [1.0, 5.0]


def test_a_link_to_nowhere_hides_no_change_of_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "bakery.yaml").write_text(CONTRACT, encoding="utf-8")
    lock = tmp_path / ".#loaves.avsc"
    lock.symlink_to("baker@host.123:456")  # as Emacs locks a file that one edits
    for name in ("loaf", "bun", "roll"):
        (tmp_path / "loaves.avsc").write_text(json.dumps(SCHEMA | {"name": name}), encoding="utf-8")
        assert f'"name": "{name}"' in str(catalog.load_contracts(settings_of(tmp_path))[0]["bakery"].topics["loaves"])
    lock.unlink()
    lock.symlink_to(lock.name)
    (tmp_path / "loaves.avsc").unlink()
    assert "loaves.avsc" in str(catalog.load_contracts(settings_of(tmp_path))[1]["bakery"])
