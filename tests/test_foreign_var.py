"""HINDCAST_VAR is another user's: each command says which folder that is, whose, and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from test_read_only import do_lines
from warehouses import shop

NOBODY = 65534


def give_away(folder: Path, mode: int) -> str:
    """Leave a folder to another user, as far as we can, with these rights; return its owner."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, -1)
    folder.chmod(mode)
    return f"it belongs to uid {folder.stat().st_uid}, this is uid {os.geteuid()}"


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("mode", [0, 0o555])
def test_up_down_and_what_asks_for_spark_name_the_folder_and_its_owner(tmp_path: Path, mode: int) -> None:
    with shop(tmp_path) as now:
        var = tmp_path / "other"
        owner = give_away(var, mode)
        try:
            lines = ["down", "up", *(["trim shop"] if mode == 0 else [])]
            said = dict(do_lines(lines, now.environment | {"HINDCAST_VAR": str(var)}))
        finally:
            var.chmod(0o755)
    for line, text in said.items():
        first, fix, end = text.splitlines()
        assert end == "exit 1"
        done = "read" if line == "trim shop" else "written"
        assert first == f"hindcast: {var}: cannot be {done}: Permission denied ({owner})"
        assert fix.startswith(f"  what to do: chown -R {os.geteuid()} {var}, or let uid {os.geteuid()} ")


TABLES = [
    *("runs shop", "ledger", "report shop", "quarantine shop", "failing shop", "abandon shop", "query shop.prices"),
    *("history shop.prices", "maintain shop", "sql shop", "release shop"),
]


def test_a_warehouse_of_another_is_named_with_its_owner_and_contracts_are_checked_without_it(tmp_path: Path) -> None:
    with shop(tmp_path) as now:
        warehouse = Path(now.warehouse)
        owner = give_away(warehouse, 0)
        try:
            said = dict(do_lines([*TABLES, "check"], now.environment))
        finally:
            warehouse.chmod(0o755)
    checked = said.pop("check")
    assert "shop.yaml: 5 topics, 4 views, fine" in checked
    assert checked.splitlines()[-1] == "exit 0"
    for text in said.values():
        first, fix, end = text.splitlines()
        assert (first, end) == (f"hindcast: {warehouse}: cannot be read: Permission denied ({owner})", "exit 1")
        assert fix.startswith(f"  what to do: chown -R {os.geteuid()} {warehouse}, or let uid ")
