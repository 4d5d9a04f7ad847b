"""How Airflow connects to its SQLite database. A small module of its own: each of Airflow's processes imports it."""

from __future__ import annotations

CONNECT = {"timeout": 60}
"""How long a write waits for others, in seconds. With SQLite's default of five, `airflow backfill create` fails beside
a busy scheduler.
"""
