"""A topic's `archive`: a folder of files with the records that Kafka no longer has, as a sink of Kafka Connect wrote
them. archives/archived_topics.py reads them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from hindcast.contract.types import ContractModel, ContractValue, ExactText, Flag, format_value

_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "file")

ArchiveFormat = Literal["parquet", "avro", "json"]


def _parse_folder(value: ContractValue) -> ContractValue:
    """Return the path of a folder unchanged; raise ValueError for one that depends on where a process runs, or in a
    store that is not read.
    """
    if isinstance(value, str) and not (value.startswith("/") or "://" in value):
        raise ValueError(f"{format_value(value)} is not a whole path; write /archive/topics or s3://bucket/topics")
    if isinstance(value, str) and "://" in value and (scheme := value.partition("://")[0]) not in _SCHEMES:
        raise ValueError(f"a path that begins with {scheme!r:.40} is not read; write one of {', '.join(_SCHEMES)}")
    return value


class Archive(ContractModel):
    """Files with the records of a topic that came before those that Kafka still has."""

    path: Annotated[str, BeforeValidator(_parse_folder)] = Field(
        description="The folder, also one above it: /archive/topics, s3://bucket/topics. All files below it that are "
        "named TOPIC+PARTITION+OFFSET, or TOPIC-PARTITION-OFFSET, are read."
    )
    format: ArchiveFormat = Field(description="The format of the files; json: an object on each line.")
    rows: Literal["record", "value"] = Field(
        "record",
        description="record: each row has the fields `key`, `value`, `offset`, `timestamp` and `headers`, or some of "
        "them. value: each row is a value, which becomes JSON if it is no text.",
    )
    offset: ExactText | None = Field(
        None,
        description="With `rows: value`: the field that has the record's offset. If left out, it is the first offset, "
        "in the file's name, plus the number of rows before.",
    )
    timestamp: ExactText | None = Field(
        None,
        description="With `rows: value`: the field that has Kafka's timestamp. The records have none if left out.",
    )
    key_in_value: Flag = Field(
        False, description="With `rows: value`: the value's fields with the names of the key's columns are the key."
    )
    keys: ArchiveFormat | None = Field(
        None, description="With `rows: value`: the format of files beside, named `...keys...`, with the keys."
    )
    headers: ArchiveFormat | None = Field(
        None, description="With `rows: value`: the format of files beside, named `...headers...`, with the headers."
    )
    base64: tuple[Literal["key", "value", "headers"], ...] = Field(
        (), description="What is in base64 where the files have it as text."
    )
    timestamp_type: Literal["CreateTime", "LogAppendTime"] = Field(
        "CreateTime", description="Whose timestamps they are: the producers' or the broker's."
    )
