"""Answers of a schema registry, read up to a size: whatever answers at its address could send without end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from httpx2 import Response

MOST_BYTES = 16 << 20
"""The most bytes of an answer. Confluent's registry takes schemas of a megabyte, and a list of subjects is longer."""


class AnswerError(Exception):
    """An answer that is not read to its end: what is wrong with it."""


def bound_answers(client: SchemaRegistryClient) -> None:
    """Have a client raise AnswerError for an answer of more than `MOST_BYTES`, or of a compressed one of any size."""
    session = client._rest_client.session  # noqa: SLF001  # the client itself has no such setting
    session.headers["Accept-Encoding"] = "identity"
    session.event_hooks = {"response": [_read_bounded]}


def _read_bounded(response: Response) -> None:
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise AnswerError(f"is compressed ({encoding[:20]}), which was not asked for")
    body = bytearray()
    for part in response.iter_raw():
        body += part
        if len(body) > MOST_BYTES:
            raise AnswerError(f"has more than {MOST_BYTES:,} bytes")
    response._content = bytes(body)  # noqa: SLF001  # what the client reads from then on
