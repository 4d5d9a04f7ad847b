"""The report tab of a preview shows its answer, as far as it may be shown, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.common.settings import Settings
from hindcast.contract import load
from hindcast.plan.definitions import ContractChange, FieldChange
from hindcast.report import preview_files
from hindcast.runs.change_statistics import ChangeStatistics
from hindcast.runs.run_preview import RunPreview, TablePreview, TopicPreview
from warehouses import T0, shop

EXAMPLES = [
    {
        "key": {"item": "naan"},
        "validFrom": "2026-01-01T00:01:00+00:00",
        "validTo": None,
        "change": "changed",
        "before": {"price": "3.00", "note": ""},
        "after": {"price": "2.50", "note": ""},
    }
]


def client() -> TestClient:
    access = PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))  # noqa: ARG005
    return TestClient(build_app(access))


def answer(settings: Settings, run_id: str, *, corrected: int = 1, stops: str | None = None) -> None:
    """Write the answer of a preview, as its task does."""
    statistics = ChangeStatistics(1, 1, corrected, {"older than a day": corrected})
    prices = TablePreview(statistics, 0, EXAMPLES if corrected else [], [], {"note": ("date", "timestamp")})
    topics = {"prices": TopicPreview(1, {"accepted": 1}, stops)}
    changed = ContractChange(1, (FieldChange("views.bills.where", None, "true"),))
    found = RunPreview("shop", T0, None, None, changed, topics, {"prices": prices})
    preview_files.write_preview(settings, load(settings.schemas / "shop.yaml"), run_id, found.as_json())


@pytest.mark.parametrize("address", ["/dag/shop__preview/run/preview__m/report", "/dag/shop/run/m/report"])
def test_the_report_tab_of_a_preview_shows_what_a_run_would_change(tmp_path: Path, address: str) -> None:
    with shop(tmp_path) as settings:
        answer(settings, "preview__m")
        page = client().get(address)
    assert page.status_code == 200
    assert "A run would change 1 past answer." in page.text
    assert "<del>3.00</del> → <ins>2.50</ins>" in page.text
    assert "from 2026-01-01 00:01:00<" in page.text
    assert "prices would be widened: note from date to timestamp." in page.text
    assert "the contract was changed since run 1:;   views.bills.where added: true" in page.text
    assert "verdict passed" in page.text, "it is no alarm"


@pytest.mark.parametrize(
    ("corrected", "stops", "sentence"),
    [(0, None, "A run would add new answers, and change no past answer."), (1, "10 malformed", "A run would stop.")],
)
def test_a_preview_is_a_sentence(tmp_path: Path, corrected: int, stops: str | None, sentence: str) -> None:
    with shop(tmp_path) as settings:
        answer(settings, "p", corrected=corrected, stops=stops)
        assert sentence in client().get("/dag/shop__preview/run/p/report").text


def test_an_answer_is_not_shown_once_more_is_sensitive(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        answer(settings, "p")
        path = settings.schemas / "shop.yaml"
        path.write_text(path.read_text().replace("note: string}}", "note: string}, sensitive: [price]}"))
        page = client().get("/dag/shop__preview/run/p/report").text
    assert "2.50" not in page
    assert "This preview has no answer to show" in page


def test_an_answer_of_another_form_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop(tmp_path) as settings:
        monkeypatch.setattr(preview_files, "_FORM", 1)
        answer(settings, "p")
        monkeypatch.undo()
        page = client().get("/dag/shop__preview/run/p/report").text
    assert "This preview has no answer to show" in page


def test_few_answers_are_kept_and_none_after_an_erasure(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        for n in range(preview_files.MAX_FILES + 2):
            answer(settings, f"p{n}")
        folder = settings.reports / "shop"
        assert len(list(folder.glob("preview-*"))) == preview_files.MAX_FILES
        preview_files.remove_previews(folder)
        assert not list(folder.glob("preview-*"))
