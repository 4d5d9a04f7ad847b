"""Contracts as the pages know them: read once, and again when what they are made of has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hindcast.airflow.pages import catalog

CONTRACT = """
pipeline: bakery
start: 2026-01-01
topics:
  loaves: {read: stream, key: {id: string}, value: {weight: long}, value_format: avro, value_schema: loaves.avsc}
"""
SCHEMA = {"type": "record", "name": "loaf", "fields": [{"name": "weight", "type": "long"}]}


def test_a_contract_is_read_again_when_its_avro_schema_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, schema = [], tmp_path / "loaves.avsc"
    monkeypatch.setattr(
        catalog,
        "try_load",
        lambda path, seconds, read_now=catalog.try_load: read.append(path) or read_now(path, seconds),
    )
    (tmp_path / "bakery.yaml").write_text(CONTRACT, encoding="utf-8")
    assert "loaves.avsc" in str(catalog.load_contracts(tmp_path)[1]["bakery"])
    schema.write_text(json.dumps(SCHEMA), encoding="utf-8")
    assert [*catalog.load_contracts(tmp_path)[0]] == ["bakery"]
    schema.write_text("not JSON", encoding="utf-8")
    assert "is not JSON" in str(catalog.load_contracts(tmp_path)[1]["bakery"])
    times = len(read)
    assert "is not JSON" in str(catalog.load_contracts(tmp_path)[1]["bakery"])
    assert len(read) == times == 3, "a file that is as it was is not read again"


def test_a_link_to_nowhere_hides_no_change_of_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "bakery.yaml").write_text(CONTRACT, encoding="utf-8")
    lock = tmp_path / ".#loaves.avsc"
    lock.symlink_to("baker@host.123:456")  # as Emacs locks a file that one edits
    for name in ("loaf", "bun", "roll"):
        (tmp_path / "loaves.avsc").write_text(json.dumps(SCHEMA | {"name": name}), encoding="utf-8")
        assert f'"name": "{name}"' in str(catalog.load_contracts(tmp_path)[0]["bakery"].topics["loaves"])
    lock.unlink()
    lock.symlink_to(lock.name)
    (tmp_path / "loaves.avsc").unlink()
    assert "loaves.avsc" in str(catalog.load_contracts(tmp_path)[1]["bakery"])
