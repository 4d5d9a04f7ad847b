"""Tables that take DuckDB for ever to read."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from hindcast.store import duckdb_reader


def read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever table is read."""

    def register_slowly(engine: duckdb.DuckDBPyConnection, *arguments: Any) -> None:
        register(engine, *arguments)
        engine.execute("ALTER VIEW rows RENAME TO stored")
        times = "range(1000000) AS a, range(1000000) AS b LIMIT 1000000000000"  # so it computes all before it filters
        engine.execute(f"CREATE TEMP VIEW rows AS SELECT stored.* FROM stored, {times}")

    register = duckdb_reader.register_rows
    monkeypatch.setattr(duckdb_reader, "register_rows", register_slowly)
