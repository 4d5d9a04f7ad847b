"""Failures in Spark as errors of ours: a record of the log, Kafka, the disk, or Spark's own first line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from hindcast.common import time_limits
from hindcast.common.errors import ContractError, PlatformError, RecordError, RunError, describe_cause
from hindcast.contract import Contract, locate_complaint, valid_time
from hindcast.contract.bound import BoundContract
from hindcast.contract.sensitive import REDACTED, has_sensitive_columns, redact_message
from hindcast.contract.shapes import FieldPath
from hindcast.ingest import topic_log
from hindcast.runs.expression_errors import explain_slow_patterns
from hindcast.store import table_creation
from hindcast.streams.join_processors import NULL_KEY, NULL_KEY_FIX

_MEMORY = r"java\.lang\.OutOfMemoryError: [A-Za-z ]+|Failure allocating buffer|Memory required for vector is"
"""What Java says, or Arrow in it, when memory is too small."""


@contextmanager
def explain_spark_errors(contract: BoundContract, name: str) -> Iterator[None]:
    """Raise a failure of Spark on a table as an error of ours, in one line; also a full or read-only disk."""
    where = f"{contract.pipeline}.{name}"
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # some errors of the JVM are not converted
        text = str(error)
        if topic_log.DISPUTED_MESSAGE in text:
            found = text[text.index(topic_log.DISPUTED_MESSAGE) :].split("SQLSTATE", maxsplit=1)[0].strip()
            if has_sensitive_columns(contract, name):
                found = f"{_cut_reason(found)}: {REDACTED}"
            raise RecordError(found, where=where, fix=_describe_fix(contract, name)) from None
        if (refused := re.search(rf"{NULL_KEY}: (\d+), (\d+), (\d+)", text)) is not None:
            number, partition, offset = refused.groups()
            topic = contract.kafka_topic(list(contract.topics)[int(number)])
            found = f"{NULL_KEY}: topic {topic}, partition {partition}, offset {offset}; Kafka Streams fails on it"
            raise RecordError(found, where=where, fix=NULL_KEY_FIX) from None
        if time_limits.TOO_SLOW in text and (slow := _find_slow_time(contract, name)) is not None:
            raise slow from None
        if (memory := re.search(_MEMORY, text)) is not None:
            raise PlatformError(
                f"Spark's memory is too small for this ({memory[0]})",
                where=where,
                fix="set HINDCAST_SPARK_MEMORY to more, then `make down` and `make up`. One record of hundreds of MB "
                "(it may come in a compressed batch of some KB) takes several times its size: docs/topics/poison.md",
            ) from None
        if (
            gone := re.search(r"FAILED_READ_FILE\.FILE_NOT_EXIST\].* file (\S+)\. File does not exist", text)
        ) is not None:
            raise RunError(
                f"a file was removed while it was read: {gone[1]}",
                where=where,
                fix="retry; if that happens again, another program's VACUUM keeps old files for too short a time: let "
                "it keep them for longer than a run takes",
            ) from None
        unwritten = table_creation.explain_write_error(error, where)
        if isinstance(unwritten, PlatformError):
            raise unwritten from None
        what = redact_message(contract, name, describe_cause(error))
        raise RunError(f"Spark failed: {what}", where=where) from (None if REDACTED in what else error)


def _cut_reason(found: str) -> str:
    """Return a message about a record that no longer decodes up to the record's offset: its value may follow."""
    place = re.match(rf"{topic_log.DISPUTED_MESSAGE}: topic [\w.-]+ partition \d+ offset \d+(?=: )", found)
    return place[0] if place else topic_log.DISPUTED_MESSAGE


def _find_slow_time(contract: BoundContract, name: str) -> ContractError | None:
    """Return the error for a topic's `valid_time` or `arrival` if its patterns have a limit of time."""
    if (topic := contract.topics.get(name)) is None:
        return None
    found = {field: valid_time.resolve_time(topic, field) for field in get_args(valid_time.TimeField)}
    texts: dict[FieldPath, str] = {("topics", name, field): text for field, text in found.items() if text is not None}
    complaint = explain_slow_patterns(contract, name, texts) if texts else None
    return None if complaint is None else locate_complaint(contract.settings.schemas, contract.pipeline, complaint)


def _describe_fix(contract: Contract, name: str) -> str:
    """Return the fix for records of a log, of a topic or behind a view, that no longer decode."""
    view = contract.views.get(name)
    topics = [contract.topics[source] for source in (view.inputs if view else (name,)) if source in contract.topics]
    files = [file.file for topic in topics for file in (topic.key_schema, topic.value_schema) if file is not None]
    fix = "restore the column's type in the contract"
    if any(topic.as_json == "strict" for topic in topics):
        fix = "restore the columns, or read them with json: typed: strict accepts no record that lacks a column"
    if files:
        fix = f"restore the former {' and '.join(files)}: records name no schema, so one file applies to all of them"
    return f"{fix}; or give the topic's entry another name (a new table)"
