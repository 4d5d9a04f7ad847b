"""What fails in Spark, told in our words: a record of the log, Kafka, the disk, or Spark's own first line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from hindcast.contracts import Contract
from hindcast.contracts.sensitive import NOT_TOLD, discreet
from hindcast.delta import making
from hindcast.emits.joining import NULL_KEY, NULL_KEY_MEND
from hindcast.errors import PlatformError, RecordError, RunError, TopicError, cause
from hindcast.kafka import gaps, refusals
from hindcast.kafka.security import security
from hindcast.replay import logs
from hindcast.settings import settings


@contextmanager
def told(contract: Contract, name: str) -> Iterator[None]:
    """Spark's failures over a table in one line of our own, and a disk that is full or read-only as what it is."""
    where = f"{contract.pipeline}.{name}"
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # some of the JVM's come as they are
        text = str(error)
        if logs.DISPUTED in text:
            found = text[text.index(logs.DISPUTED) :].split("SQLSTATE", maxsplit=1)[0].strip()
            found = found if discreet(contract, name, "") == "" else f"{found.rpartition(': ')[0]}: {NOT_TOLD}"
            raise RecordError(found, where=where, mend=_mend(contract, name)) from None
        if (refused := re.search(rf"{NULL_KEY}: (\d+), (\d+), (\d+)", text)) is not None:
            number, partition, offset = refused.groups()
            topic = contract.kafka_topic(list(contract.topics)[int(number)])
            found = f"{NULL_KEY}: topic {topic}, partition {partition}, offset {offset}; Kafka Streams fails on it"
            raise RecordError(found, where=where, mend=NULL_KEY_MEND) from None
        if gaps.LOST in text:
            raise TopicError("Kafka lost offsets while they were read", where=where, mend=gaps.LOST_MEND) from None
        servers = settings().kafka
        if (access := refusals.of_spark(text, where, servers, security(servers))) is not None:
            raise access from None
        if (memory := re.search(r"java\.lang\.OutOfMemoryError: [A-Za-z ]+", text)) is not None:
            raise PlatformError(
                f"Spark's memory is too small for this ({memory[0]})",
                where=where,
                mend="set HINDCAST_SPARK_MEMORY to more, then `make down` and `make up`. One record of hundreds of MB "
                "(it may come in a compressed batch of some KB) takes several times its size: docs/topics/poison.md",
            ) from None
        unwritten = making.unwritten(error, where)
        if isinstance(unwritten, PlatformError):
            raise unwritten from None
        what = discreet(contract, name, cause(error))
        raise RunError(f"Spark failed: {what}", where=where) from (None if NOT_TOLD in what else error)


def _mend(contract: Contract, name: str) -> str:
    """What takes the records of a topic's log again, or of a view's topics."""
    view = contract.views.get(name)
    topics = [contract.topics[it] for it in (view.inputs if view else (name,)) if it in contract.topics]
    files = [file.file for it in topics for file in (it.key_schema, it.value_schema) if file is not None]
    ways = ["put the column's type in the contract back"]
    if any(it.as_json == "strict" for it in topics):
        ways = ["put the columns back, or read them with json: typed: strict takes no record that lacks a column"]
    if files:
        ways = [f"put what {' and '.join(files)} said back: records name no schema, so one file is for all of them"]
    return f"{ways[0]}; or give the topic's entry another name (a new table)"
