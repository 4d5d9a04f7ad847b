"""Helpers that several commands use."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hindcast.common.errors import QueryError, escape_controls

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from hindcast.common.settings import Settings
    from hindcast.contract.bound import BoundContract
    from hindcast.plan.runs import Run


def open_session(settings: Settings, pipeline: str, *, small: bool = False) -> SparkSession:
    """Return a session for a pipeline: on the Spark Connect server of `hindcast up` if it runs, else in a new JVM.

    `small`: let a new JVM start faster, for few records.
    """
    from hindcast.common.session import open_session
    from hindcast.common.spark_connect import TOKEN_VARIABLE, read_token, token_path

    if "SPARK_REMOTE" not in os.environ and all(map(find_spec, LOCAL_STACK)):
        from hindcast_local import stack

        if url := stack.find_shared_spark(settings):
            os.environ.update({"SPARK_REMOTE": url, TOKEN_VARIABLE: read_token(token_path(settings))})
    return open_session(f"hindcast {pipeline}", small=small)


LOCAL_STACK = "hindcast_local", "psutil"
"""The modules that `hindcast up` needs besides the library."""


def load_contract(settings: Settings, pipeline: str) -> BoundContract:
    """Return the contract of a pipeline, bound to the settings; ContractError if there is none."""
    from hindcast.plan.marks import find_bound_contract

    return find_bound_contract(settings, pipeline)


def read_runs(settings: Settings, pipeline: str) -> list[Run]:
    """Return the runs of a pipeline, even if its contract is gone; ContractError if there is neither."""
    from hindcast.plan import journal

    past = journal.read_runs(settings.warehouse, pipeline)
    if not past:
        load_contract(settings, pipeline)
    return past


def parse_table_name(text: str) -> tuple[str, str]:
    """Return the pipeline and the table that PIPELINE.TABLE names; QueryError for a text without a dot."""
    pipeline, dot, name = text.partition(".")
    if not dot:
        raise QueryError(f"'{text}' does not name a table", fix="write PIPELINE.TABLE: restaurant.bills")
    return pipeline, name


def parse_moment(settings: Settings, pipeline: str, text: str) -> datetime:
    """Return the moment that a text names: an ISO 8601 time, or run:N of the pipeline."""
    from hindcast.query import read

    return read.moment_of(settings.warehouse, pipeline, text)


def parse_known_at(settings: Settings, pipeline: str, text: str | None) -> datetime:
    """Return the moment of knowledge that a text names (`parse_moment`); without one that of the last completed run."""
    from hindcast.query import read

    return parse_moment(settings, pipeline, text) if text else read.read_last_known_at(settings.warehouse, pipeline)


def refuse_close_as_time(*texts: str | None) -> None:
    """Raise QueryError if one of the texts for times names a close."""
    from hindcast.plan.closes import PREFIX

    if (close := next((text for text in texts if text is not None and text.startswith(PREFIX)), None)) is not None:
        fix = "write it after --known-at; its period is what is asked for unless a time is given"
        raise QueryError(f"a close is a state of knowledge, no time: {close}", fix=fix)


def find_user() -> str:
    """Return the name of the user of this process; raise QueryError if the system has none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise QueryError("it is not known who does it: this user has no name", fix="add --by NAME") from None


DEFAULT_LIMIT = 1_000
"""How many rows of a long list are shown as text, unless --limit says otherwise."""


def limit_rows(rows: pa.Table, format_: str, limit: int | None) -> tuple[pa.Table, str]:
    """Return the first rows of a list, and a note that others are left out, which is empty if none are.

    `limit` is the number of rows, 0 for all; None means `DEFAULT_LIMIT` as text, otherwise all.
    """
    most = (DEFAULT_LIMIT if format_ == "table" else 0) if limit is None else limit
    if most <= 0 or rows.num_rows <= most:
        return rows, ""
    return rows.slice(0, most), f"hindcast: {most:,} of {rows.num_rows:,} rows are shown; --limit 0 shows all"


def print_rows(rows: pa.Table, format_: str) -> None:
    """Print rows as aligned text (table), as JSON or as CSV; as text they fit the terminal."""
    from hindcast.query import show

    match format_:
        case "json":
            print(show.as_json(rows))
        case "csv":
            text = show.as_csv(rows)
            print(escape_controls(text) if sys.stdout.isatty() else text, end="")
        case _:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            print(show.format_aligned(rows, width))
