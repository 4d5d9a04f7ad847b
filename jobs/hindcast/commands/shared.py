"""What commands share."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING

from hindcast.errors import QueryError
from hindcast.settings import settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from hindcast.contracts import Contract
    from hindcast.planning.journal import Run


def session_of(pipeline: str) -> SparkSession:
    """A session for a pipeline: on the Spark Connect server of `hindcast up` if it runs, else in a JVM of our own."""
    from hindcast.local import spark, stack
    from hindcast.remote import TOKEN
    from hindcast.session import session

    if "SPARK_REMOTE" not in os.environ and (url := stack.shared_spark(settings())):
        os.environ.update({"SPARK_REMOTE": url, TOKEN: spark.read_token(spark.token_file(settings()))})
    return session(f"hindcast {pipeline}")


def contract_of(pipeline: str) -> Contract:
    """The contract of a pipeline; ContractError if there is none."""
    from hindcast.contracts import find

    return find(settings().schemas, pipeline)


def runs_of(pipeline: str) -> list[Run]:
    """The runs of a pipeline, also of one whose contract is gone; ContractError where there never was one."""
    from hindcast.planning import journal

    past = journal.runs(settings().warehouse, pipeline)
    if not past:
        contract_of(pipeline)
    return past


def table_of(text: str) -> tuple[str, str]:
    """The pipeline and the table that PIPELINE.TABLE names."""
    pipeline, dot, name = text.partition(".")
    if not dot:
        raise QueryError(f"'{text}' does not name a table", mend="write PIPELINE.TABLE: restaurant.bills")
    return pipeline, name


def moment_of(pipeline: str, text: str) -> datetime:
    """The moment that a text names: a time, or run:N of the pipeline."""
    from hindcast import read

    return read.moment_of(settings().warehouse, pipeline, text)


MANY = 1_000
"""Of a list that can be very long, so many rows are shown as text, if nobody asks for another number."""


def cut(rows: pa.Table, format_: str, limit: int | None) -> tuple[pa.Table, str]:
    """Return the first rows of a list, and what to say of the others: nothing where there are none.

    `limit`: how many, 0 for all; if it is None `MANY` as text, and all as JSON.
    """
    most = (MANY if format_ == "table" else 0) if limit is None else limit
    if most <= 0 or rows.num_rows <= most:
        return rows, ""
    return rows.slice(0, most), f"hindcast: {most:,} of {rows.num_rows:,} rows are shown; --limit 0 shows all"


def show(rows: pa.Table, format_: str) -> None:
    """Prints rows as aligned text, or as JSON."""
    from hindcast import show

    print(show.as_json(rows) if format_ == "json" else show.aligned(rows))
