"""A contract's copy for another pipeline is there as a whole, or not at all."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hindcast.common.errors import RequestError
from hindcast.contract import find, load_all
from hindcast.ops import contract_copies, replacement
from warehouses import SHOP, settings_of


class KilledError(BaseException):
    """Stands for the death of the process: nothing of ours handles it."""


def _die(*_: object, **__: object) -> None:
    raise KilledError


@pytest.mark.parametrize("moment", ["writing", "written"])
def test_one_that_is_killed_leaves_no_half_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    settings = settings_of(tmp_path)
    (tmp_path / "shop.yaml").write_text(SHOP, encoding="utf-8")
    opened = Path.open

    def open_to_write_half(path: Path, mode: str = "r", *others: object, **more: object) -> object:
        if mode not in ("x", "w"):
            return opened(path, mode, *others, **more)  # type: ignore[call-overload]
        path.write_bytes(SHOP.encode()[:40])
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", _die)
        patch.setattr(*((Path, "open", open_to_write_half) if moment == "writing" else (os, "link", _die)))
        with pytest.raises(KilledError):
            contract_copies.copy_contract(settings, "shop", "then")
    assert load_all(tmp_path).keys() == {"shop"}
    assert contract_copies.copy_contract(settings, "shop", "then") == tmp_path / "then.yaml"
    assert find(tmp_path, "then").topics == find(tmp_path, "shop").topics


def test_one_replaces_no_file_and_leaves_none_of_its_own(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    for name, text in (("shop", SHOP), ("then", SHOP.replace("pipeline: shop", "pipeline: third"))):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match="exists, and is not the contract of then"):
        contract_copies.copy_contract(settings, "shop", "then")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shop.yaml", "then.yaml"]
    assert "pipeline: third" in (tmp_path / "then.yaml").read_text(encoding="utf-8")
    contract_copies.copy_contract(settings, "shop", "later")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["later.yaml", "shop.yaml", "then.yaml"]


TARGETS = """
prod:
  variables: {{region: us}}
  pipelines:
    shop: {{schedule: null, {given}}}
    then: {{schedule: "@daily", {other}}}
"""
DECLARED = "variables: {region: {type: string, default: eu}}\ntopics:"


@pytest.mark.parametrize(
    ("given", "other", "found"),
    [
        ("variables: {region: asia}", "", "variable region"),
        ("topics: {orders: prod.orders}", "topics: {orders: orders}", "topic of orders"),
        ("on_failure: warn", "", "on_failure"),
        ("variables: {region: us}", "", ""),
        ("topics: {orders: prod.orders}", "topics: {orders: prod.orders}", ""),
    ],
)
def test_a_contract_is_copied_only_if_its_target_leaves_it_the_same_by_the_other_name(
    tmp_path: Path, given: str, other: str, found: str
) -> None:
    """Nor does a pipeline take the place of another whose target makes another contract of it."""
    settings = replace(settings_of(tmp_path), target="prod", warehouse=str(tmp_path / "warehouse"))
    (tmp_path / "shop.yaml").write_text(SHOP.replace("topics:", DECLARED, 1), encoding="utf-8")
    (tmp_path / "targets.yaml").write_text(TARGETS.format(given=given, other=other), encoding="utf-8")
    if not found:
        assert contract_copies.copy_contract(settings, "shop", "then") == tmp_path / "then.yaml"
        with pytest.raises(RequestError, match="has no completed run"):
            replacement.replace_pipeline(settings, "shop", "then")
        return
    with pytest.raises(RequestError, match=f"target 'prod' gives shop and then different values: {found}\n"):
        contract_copies.copy_contract(settings, "shop", "then")
    assert not (tmp_path / "then.yaml").exists()
    (tmp_path / "then.yaml").write_text(contract_copies.rename_pipeline(tmp_path / "shop.yaml", "then"), "utf-8")
    assert contract_copies.copy_contract(settings, "shop", "then") is None, "it is taken as it is"
    with pytest.raises(RequestError, match=f"target 'prod' gives shop and then different values: {found}\n"):
        replacement.replace_pipeline(settings, "shop", "then")


def test_two_processes_at_once_make_the_same_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, link = settings_of(tmp_path), os.link
    (tmp_path / "shop.yaml").write_text(SHOP, encoding="utf-8")

    def copy_before(*paths: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        assert contract_copies.copy_contract(settings, "shop", "then") == tmp_path / "then.yaml"
        link(*paths)

    monkeypatch.setattr(os, "link", copy_before)
    assert contract_copies.copy_contract(settings, "shop", "then") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shop.yaml", "then.yaml"]


def test_a_file_system_without_links_has_copies_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    test_one_replaces_no_file_and_leaves_none_of_its_own(tmp_path)


_TABLES = "start: 2026-01-01\ntopics:\n  t: {read: table, key: {k: string}, value: {n: int}}\n"


@pytest.mark.parametrize(
    ("text", "copy"),
    {
        "a byte order mark": ("\ufeffpipeline: some\n", "\ufeffpipeline: then\n"),
        "a block": ("pipeline: >- # why\n  some\n", "pipeline: then\n"),
        "an anchor": ("pipeline: &n some\n", "pipeline: &n then\n"),
        "an alias": ("description: &n some\npipeline: *n\n", "description: &n some\npipeline: then\n"),
        "a tag": ("pipeline: !!str some\r\n", "pipeline: !!str then\r\n"),
        "quotes": ("# \U0001f600\n'pipeline': \"some\" # why\n", "# \U0001f600\n'pipeline': \"then\" # why\n"),
    }.values(),
    ids=lambda text: repr(text.partition(":")[2]),
)
def test_nothing_but_the_name_of_its_pipeline_differs(tmp_path: Path, text: str, copy: str) -> None:
    (tmp_path / "some.yaml").write_bytes((text + _TABLES).encode())
    written = contract_copies.copy_contract(settings_of(tmp_path), "some", "then")
    assert written is not None
    assert written.read_bytes().decode() == copy + _TABLES
    assert find(tmp_path, "then").topics == find(tmp_path, "some").topics


def test_a_name_that_another_field_repeats_is_not_replaced(tmp_path: Path) -> None:
    """The topic would be another one."""
    text = _TABLES.replace("{read: table", "{topic: *n, read: table")
    (tmp_path / "some.yaml").write_text(f"pipeline: &n some\n{text}", encoding="utf-8")
    with pytest.raises(RequestError, match="another field of it is an alias"):
        contract_copies.copy_contract(settings_of(tmp_path), "some", "then")


def test_one_that_does_not_load_is_to_be_made_by_hand(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(SHOP, encoding="utf-8")
    with pytest.raises(RequestError, match="cannot be copied by itself: pipeline: no text is given") as refused:
        contract_copies.copy_contract(settings_of(tmp_path), "shop", "null")
    assert refused.value.where == str(tmp_path / "shop.yaml")
    assert "copy it to null.yaml by hand" in refused.value.fix
    assert [path.name for path in tmp_path.iterdir()] == ["shop.yaml"]
