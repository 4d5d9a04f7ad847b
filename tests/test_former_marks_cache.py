"""Former contracts of a pipeline take little time of the pages of others, and are looked at again only if need be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warehouses
from hindcast.common.settings import Settings
from hindcast.contract import load
from hindcast.plan import definitions, former_marks, former_marks_cache, journal, marks
from hindcast.plan.runs import Abandoned, Run
from test_former_marks import open_web, plan_run
from test_pages import GUEST
from warehouses import SHOP, shop

LABELS = "  labels: {table: people, where: id > {n}, select: {label: name}}\n"
PAGES = ("machine/guest", "quality/guest", "changes/guest", "ledger/guest")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A reader of a table of `shop`, of which six runs by other contracts were abandoned."""
    monkeypatch.setattr(former_marks_cache, "_CACHES", type(former_marks_cache._CACHES)())
    with shop(tmp_path, GUEST) as now:
        path = now.schemas / "shop.yaml"
        for number in range(3, 9):
            path.write_text(warehouses.SHOP + LABELS.replace("{n}", str(number)))
            journal.append_entry(now.warehouse, Run(plan_run(now, load(path), number), Abandoned("by hand")))
        path.write_text(SHOP)
        yield now


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The former contracts that are parsed, by the text that differs; not the one of the completed runs."""
    parsed: list[str] = []
    parse = definitions.parse_stored_fields

    def count(fields: tuple[tuple[str, str], ...]) -> Any:
        parsed.extend(text for place, text in fields if place == "views.labels.where")
        return parse(fields)

    monkeypatch.setattr(former_marks.definitions, "parse_stored_fields", count)
    return parsed


@pytest.mark.usefixtures("settings")
def test_a_page_looks_at_former_contracts_of_others_once(parsed: list[str]) -> None:
    web = open_web("guest")
    assert web.get("/machine/guest.json").status_code == 200
    assert len({*parsed}) == 6
    parsed.clear()
    for page in PAGES:
        assert web.get(f"/{page}.json").status_code == 200
    assert parsed == []


@pytest.mark.parametrize(
    ("edit", "again"),
    [(("start: 2026-01-01", "start: 2026-01-02"), 0), ((" }", " }"), 0), (("sensitive: [name]", "sensitive: true"), 6)],
    ids=["start", "nothing", "marks"],
)
def test_after_an_edit_only_what_depends_on_it_is_looked_at_again(
    settings: Settings, parsed: list[str], edit: tuple[str, str], again: int
) -> None:
    web, path = open_web("guest"), settings.schemas / "shop.yaml"
    assert web.get("/machine/guest.json").status_code == 200
    parsed.clear()
    path.write_text(path.read_text().replace(*edit) + "  more: {table: prices, select: {p: price}}\n")
    assert web.get("/machine/guest.json").status_code == 200
    assert len(parsed) == again


@pytest.mark.usefixtures("settings")
def test_all_former_contracts_of_a_page_have_one_budget(parsed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former_marks_cache, "PAGE_SECONDS", 0.0)  # one is looked at, then nothing is left
    web = open_web("guest")
    for number in range(1, 4):
        assert web.get("/quality/guest.json").status_code == 200
        assert len(parsed) == number, "the next page goes on with the others"


def test_pages_stop_looking_at_a_pipeline_that_took_too_long(
    settings: Settings, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(former_marks_cache, "PAGE_SECONDS", 0.0)
    monkeypatch.setattr(former_marks_cache, "ALL_PAGES_SECONDS", 0.0)
    web = open_web("guest")
    for _ in range(4):
        assert web.get("/machine/guest.json").status_code == 200
    assert len(parsed) == 1
    with former_marks_cache.limit_page():
        contract = load(settings.schemas / "shop.yaml")
        assert marks.find_marked_columns(settings, contract, ["people"])["people"] == {"id", "name", "city"}, (
            "all hidden"
        )


def test_the_oldest_of_too_many_former_contracts_hide_all(
    settings: Settings, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = load(settings.schemas / "shop.yaml")
    assert marks.find_marked_columns(settings, contract, ["people"]) == {"people": {"name"}}
    parsed.clear()
    monkeypatch.setattr(former_marks_cache, "_CACHES", type(former_marks_cache._CACHES)())
    monkeypatch.setattr(former_marks, "MAX_CONTRACTS", 2)
    assert marks.find_marked_columns(settings, contract, ["people"])["people"] >= {"name", "city"}
    assert parsed == ["id > 7", "id > 8"]


@pytest.mark.parametrize("limit", ["PAGE_SECONDS", "MAX_CONTRACTS"])
def test_a_former_contract_without_marks_hides_all_if_it_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """What it derived from a column that is marked since is sensitive."""
    monkeypatch.setattr(former_marks_cache, "_CACHES", type(former_marks_cache._CACHES)())
    plain = SHOP.replace(", sensitive: [name]", "").replace(", sensitive: true", "")
    assert "sensitive" not in plain
    monkeypatch.setattr(warehouses, "SHOP", plain + "  labels: {table: people, select: {label: name}}\n")
    with shop(tmp_path) as now:
        path = now.schemas / "shop.yaml"
        marked = plain.replace("{name: string, city: string}", "{name: string, city: string}, sensitive: [name]")
        assert marked != plain
        path.write_text(marked + "  labels: {table: people, select: {label: city}}\n")
        module, most = (former_marks_cache, -1.0) if limit == "PAGE_SECONDS" else (former_marks, 0)
        monkeypatch.setattr(module, limit, most)
        with former_marks_cache.limit_page():
            hidden = marks.find_marked_columns(now, load(path), ["labels", "prices"])
        assert (hidden["labels"], "price" in hidden["prices"]) == ({"id", "label"}, True)


def test_an_edit_of_a_view_gives_pages_time_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former_marks_cache, "PAGE_SECONDS", 0.0)
    monkeypatch.setattr(former_marks_cache, "ALL_PAGES_SECONDS", 0.0)
    path, looked_at = settings.schemas / "shop.yaml", []
    for edit in ("", "", "  more: {table: prices, select: {p: price}}\n"):
        path.write_text(path.read_text() + edit)
        with former_marks_cache.limit_page():
            marks.find_marked_columns(settings, load(path), ["people"])
        (cache,) = former_marks_cache._CACHES.values()
        looked_at.append(len(cache._found))
    assert looked_at == [1, 1, 2]


def test_the_oldest_former_contracts_hide_nothing_where_nothing_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(former_marks, "MAX_CONTRACTS", 0)
    plain = SHOP.replace(", sensitive: [name]", "").replace(", sensitive: true", "")
    monkeypatch.setattr(warehouses, "SHOP", plain)
    with shop(tmp_path, GUEST) as now:
        path = now.schemas / "guest.yaml"
        warehouses.complete(now, load(path), 1)
        path.write_text(path.read_text().replace("start: 2026-01-01", "start: 2026-01-02"))
        contract = load(path)
        hidden = marks.find_marked_columns(now, contract, [*contract.topics, *contract.views])
        assert {*hidden.values()} == {frozenset()}
