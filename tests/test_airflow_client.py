"""The client of Airflow's API: what it does where Airflow's SQLite is busy."""

from __future__ import annotations

from typing import Any

import pytest

from hindcast.common.errors import PlatformError
from hindcast_local import api
from hindcast_local.api import AirflowClient

DAYS = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> tuple[AirflowClient, list[str], set[int]]:
    """A client whose backfills are refused with the answers of a list, one after the other; then they begin."""
    client, answers, begun = AirflowClient.__new__(AirflowClient), list[str](), {3}

    def call(method: str, path: str, _: Any = None) -> Any:
        if method == "GET":
            return {"backfills": [{"id": number} for number in begun]}
        if answers:
            raise PlatformError(f"Airflow answers {answers.pop(0)} to {method} {path}", where="there")
        return {"id": 9}

    monkeypatch.setattr(client, "_call", call, raising=False)
    monkeypatch.setattr(api, "POLL_SECONDS", 0)
    return client, answers, begun


def test_a_backfill_is_asked_for_until_it_begins(busy: tuple[AirflowClient, list[str], set[int]]) -> None:
    client, answers, _ = busy
    answers += ["503", "503"]
    assert client.begin_backfill("fares", *DAYS) == 9


def test_a_backfill_that_began_although_it_was_refused_is_taken(
    busy: tuple[AirflowClient, list[str], set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, answers, begun = busy
    answers += ["503"]
    monkeypatch.setattr(api.time, "sleep", lambda _: begun.add(7))
    assert client.begin_backfill("fares", *DAYS) == 7


def test_what_is_refused_otherwise_is_not_asked_for_again(busy: tuple[AirflowClient, list[str], set[int]]) -> None:
    client, answers, _ = busy
    answers += ["409", "503"]
    with pytest.raises(PlatformError, match="409"):
        client.begin_backfill("fares", *DAYS)
    with pytest.raises(PlatformError, match="503"):
        client.begin_backfill("fares", *DAYS, seconds=-1)
