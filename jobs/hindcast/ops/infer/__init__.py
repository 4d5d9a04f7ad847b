"""A draft of a contract from what Kafka has: `reader` reads a sample of each topic, everything else is pure.

    reader -> sample -> part_formats -> part_columns (fields, avro_columns, envelope_rows) -> topic_draft -> joins
    -> contract_text

No value of a record is shown. Ranges of small numbers are, unless their column looks sensitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hindcast.ops.infer.contract_text import choose_names, write_contract
from hindcast.ops.infer.joins import propose_joins
from hindcast.ops.infer.sample import TopicSample
from hindcast.ops.infer.topic_draft import draft_topic


def infer_contract(samples: Sequence[TopicSample], pipeline: str | None, now: datetime) -> str:
    """Return the text of a contract that reads what these samples have; RecordError for one that no contract can read.

    `pipeline`: its name, by default after the topics; `now`: the start of its schedule, and what future dates are
    after.
    """
    name, entries = choose_names([sample.topic for sample in samples], pipeline)
    topics = [draft_topic(sample, entries[sample.topic], now) for sample in samples]
    return write_contract(name, topics, propose_joins(topics), now)


__all__ = ["infer_contract"]
