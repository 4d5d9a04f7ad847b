"""`hindcast why`: the answer that a key has, with the rows of the inputs that it was made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hindcast.cli import main
from warehouses import shop


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main.main(words)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_why_a_joined_row_is_what_it_is_now_and_as_known_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with shop(tmp_path):
        asked = ("why", "shop.bills", "--key", "dave")
        code, now, _ = run_command(capsys, *asked)
        _, before, _ = run_command(capsys, *asked, "--known-at", "run:1", "--as-of", "2026-01-01T00:02")
        _, as_json, _ = run_command(capsys, *asked, "--format", "json")
    assert code == 0
    assert now.splitlines() == [
        "customer dave, item naan, amount 5.00, timestamp 2026-01-01 00:02, systemFrom 2026-02-02 00:00:00.654321",
        (
            "  One event of orders looked up prices by orders.item: item = naan, valid at 2026-01-01 00:02, as known "
            "at 2026-02-02 00:00:00.654321. It found one version of prices."
        ),
        (
            "  orders  customer dave, item naan, quantity 2, timestamp 2026-01-01 00:02, systemFrom 2026-02-01 "
            "00:00:00.123456  (orders, partition 0, offset 0)"
        ),
        (
            "  prices  item naan, price 2.50, note late, validFrom 2026-01-01 00:01, systemFrom 2026-02-02 "
            "00:00:00.654321  (shop.prices, partition 0, offset 2)"
        ),
    ]
    assert before.startswith("customer dave, item naan, amount 6.00, ")
    assert "prices  item naan, price 3.00, note '', validFrom 2026-01-01, " in before
    (answer,) = json.loads(as_json)
    assert answer["records"] == [{"topic": "orders", "partition": 0, "offset": 0}]
    assert [part["name"] for part in answer["inputs"]] == ["orders", "prices"]


def test_why_shows_nothing_sensitive_and_says_when_nothing_was_true(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with shop(tmp_path):
        code, text, _ = run_command(capsys, "why", "shop.cities", "--key", "Rome")
        assert code == 0
        assert "people  id 1, name ***, city Rome, " in text
        assert "Ann" not in text
        _, text, _ = run_command(capsys, "why", "shop.people", "--key", "1")
        assert text.splitlines()[1] == "  It comes from the record in people, partition 0, offset 0."
        assert "Ann" not in text
        code, _, error = run_command(capsys, "why", "shop.bills", "--key", "dave", "--as-of", "2025-12-31")
        assert code == 1
        assert "nothing was true of the key at 2025-12-31, as known at 2026-02-02 00:00:00.654321" in error
        code, _, error = run_command(capsys, "why", "shop.bills", "--key", "nobody")
        assert (code, "never had a row of this key" in error) == (1, True)
