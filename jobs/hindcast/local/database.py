"""How Airflow connects to its SQLite database. A module of its own, as each of Airflow's processes imports it."""

from __future__ import annotations

CONNECT = {"timeout": 60}
"""So many seconds a write waits for others. With SQLite's own five, `airflow backfill create` failed beside a busy
scheduler.
"""
