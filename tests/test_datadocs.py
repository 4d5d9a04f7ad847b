"""Data Docs are built in the folder that is named, whatever its name, or it is said why not."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hindcast.airflow.pages import data_docs
from hindcast.common.errors import PlatformError
from hindcast.contract import Contract, load
from hindcast.quality import datadocs
from hindcast.quality.gate_results import GateResult
from test_contracts import GOOD, contract

GATE = {
    "gate": 0,
    "on_failure": "stop",
    "expectation": "expect_table_row_count_to_be_between",
    "kwargs": {"min_value": 1},
    "outcome": "passed",
    "detail": "",
    "failing": None,
    "checked": None,
    "observed": 5,
}


@pytest.fixture
def gated(tmp_path: Path) -> Contract:
    return load(contract(tmp_path, GOOD))


def build_site(gated: Contract, folder: Path, run_id: str = "first", gate: dict[str, Any] = GATE) -> Path:
    gates = {"menu": [GateResult.from_json(gate)], "orders": []}
    return datadocs.build_site(gated, run_id, datetime(2026, 2, 1, tzinfo=UTC), gates, folder)


@pytest.mark.parametrize("name", ["plain", "${env:PATH}", "$HOME", "${HOME}", r"a\$b", "not/yet/there"])
def test_the_folder_is_the_one_that_is_named(tmp_path: Path, gated: Contract, name: str) -> None:
    folder = tmp_path / "docs" / name
    assert build_site(gated, folder) == folder / "index.html"
    assert "restaurant.menu" in (folder / "index.html").read_text()
    assert [path.name for path in (tmp_path / "docs").iterdir()] == [Path(name).parts[0]]


@pytest.mark.parametrize("name", ["/dev/null", "/dev/null/docs"])
def test_what_is_no_folder_is_named(gated: Contract, name: str) -> None:
    with pytest.raises(PlatformError, match="is not a folder") as refused:
        build_site(gated, Path(name))
    assert refused.value.where == name


def test_folders_of_other_files_are_left_alone_and_data_docs_are_built_anew(tmp_path: Path, gated: Contract) -> None:
    with pytest.raises(PlatformError, match="has files other than Data Docs") as refused:
        build_site(gated, tmp_path)
    assert (refused.value.where, [path.name for path in tmp_path.iterdir()]) == (str(tmp_path), ["restaurant.yaml"])
    for run in ("first", "second"):
        page = build_site(gated, tmp_path / "docs", run)
        assert run in page.read_text()


def test_what_a_gate_says_of_itself_is_no_html(tmp_path: Path, gated: Contract) -> None:
    script = "<script>alert(8)</script>"
    asked = {"expectation": "unexpected_rows_expectation"}
    asked["kwargs"] = {
        "unexpected_rows_query": f"SELECT * FROM {{batch}} WHERE note = '{script}'",
        "description": script,
    }
    build_site(gated, tmp_path / "docs", gate={**GATE, **asked, "failing": 0, "checked": 1})
    pages = [path.read_text() for path in (tmp_path / "docs").rglob("*.html")]
    assert any("alert(8)" in text for text in pages)
    assert not any(script in text for text in pages)


@pytest.mark.parametrize("theme", ["dark", "light", None, '"><script>'])
def test_pages_have_our_look_and_list_their_results_without_a_script(
    tmp_path: Path, gated: Contract, theme: str | None
) -> None:
    """In the theme of what shows them, which their links keep."""
    first = build_site(gated, tmp_path / "docs")
    (results,) = (tmp_path / "docs" / "validations").rglob("*.html")
    link = f'href="{results.relative_to(first.parent)}'
    assert link not in first.read_text().partition("<script>")[0] + first.read_text().rpartition("</script>")[2]
    shown = {page: (data_docs.dress_page(page, "/hindcast/static", theme) or b"").decode() for page in (first, results)}
    asked = f"?theme={theme}" if theme in data_docs.THEMES else ""
    assert f'{link}{asked}">restaurant.menu</a>' in shown[first]
    for text in shown.values():
        assert '<link rel="stylesheet" href="/hindcast/static/data_docs.css"></head>' in text
        assert ("<html data-theme=" in text) == bool(asked)
    assert f'<a href="../../../../../index.html{asked}">Home</a>' in shown[results]
