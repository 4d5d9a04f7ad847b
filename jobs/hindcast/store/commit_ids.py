"""The transaction identifiers of the commits to a table: which run committed last, and which runs have ended.

commits.py and delta_rs_writer.py commit them with the rows; what else a commit says is in commit_notes.py.

| application id | version |
| --- | --- |
| `Table.app_id` | the run that committed last; or a run that ended without it, so that Delta makes no commit of it |
| the same with `:ended` | the last run that ended without such a commit |
| the same with `:before` | the run that had committed last by then |

Spark makes no commit whose version is not above that of its application id, whenever its transaction begins, and says
nothing. delta-rs does not ask: its commits are made upon a version of the table in which we did.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

from deltalake import DeltaTable

from hindcast.common.errors import RunError
from hindcast.store.commit_once import check_guard

ADDING, REWRITING, CONVERTING = "added", "columns", "rewrite"
"""The parts of a run's commits that add columns to a table; that write all its rows again with other columns, and from
an older store format.
"""

PARTS = ("", ADDING, REWRITING, CONVERTING)
"""The parts of the commits of runs to a table of their own (`Table.app_id`)."""


def read_version(delta_table: DeltaTable, app_id: str) -> int | None:
    """Return the version of an application id in a table; None if nobody has committed under it.

    delta-rs reads the log each time, so that an open table keeps what it was asked.
    """
    key = id(delta_table)
    if (kept := _VERSIONS.get(key)) is None or kept.table() is not delta_table or kept.at != delta_table.version():
        forget = weakref.ref(delta_table, lambda _: _VERSIONS.pop(key, None))
        kept = _VERSIONS[key] = _KeptVersions(forget, delta_table.version(), {})
    if app_id not in kept.versions:
        kept.versions[app_id] = delta_table.transaction_version(app_id)
    return kept.versions[app_id]


class _KeptVersions(NamedTuple):
    """The versions of application ids that were read from an open table while it was at a version."""

    table: weakref.ref[DeltaTable]
    at: int
    versions: dict[str, int | None]


_VERSIONS: dict[int, _KeptVersions] = {}
"""By the identity of the open tables, which have no hash."""


def read_last_run(delta_table: DeltaTable, app_id: str) -> int:
    """Return the number of the last run that committed to a table under an application id; 0 before the first."""
    last = read_version(delta_table, app_id) or 0
    before = read_version(delta_table, f"{app_id}:before")
    return before if before is not None and last == read_ended_run(delta_table, app_id) else last


def read_ended_run(delta_table: DeltaTable, app_id: str) -> int:
    """Return the number of the last run that ended without a commit under an application id; 0 before the first."""
    return read_version(delta_table, f"{app_id}:ended") or 0


def end_run(delta_table: DeltaTable, app_ids: Sequence[str], run: int) -> dict[str, int]:
    """Return the identifiers by which a run commits nothing more under application ids; none if they are all there."""
    ids: dict[str, int] = {}
    for app_id in app_ids:
        if (read_version(delta_table, app_id) or 0) < run:
            ids |= {f"{app_id}:before": read_last_run(delta_table, app_id), f"{app_id}:ended": run, app_id: run}
    return ids


def refuse_ended_run(delta_table: DeltaTable, app_id: str, run: int) -> None:
    """Raise what `guard_commits` raises, or RunError, if a run has ended and commits nothing more under an id."""
    if read_ended_run(delta_table, app_id) >= run:
        check_guard()
        raise RunError(
            f"run {run} has ended: it was abandoned, and can commit nothing more",
            where=delta_table.table_uri,
            fix="run the pipeline again",
        )
