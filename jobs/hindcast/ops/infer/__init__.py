"""A draft of a contract from what Kafka has: `reader` reads a sample of each topic; what a draft is made of is pure.

    reader -> sample -> part_formats -> part_columns (fields, avro_columns, envelope_rows) -> fitting -> topic_draft
    -> joins -> contract_text

No value of a record is shown. Ranges of small numbers are, unless their column looks sensitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from hindcast.common.errors import ContractError, RecordError
from hindcast.contract import load_text
from hindcast.ops.infer.columns import DraftColumn
from hindcast.ops.infer.contract_text import choose_names, write_contract
from hindcast.ops.infer.joins import propose_joins, split_joins
from hindcast.ops.infer.sample import TopicSample
from hindcast.ops.infer.topic_draft import TopicDraft, draft_topic


def infer_contract(samples: Sequence[TopicSample], pipeline: str | None, now: datetime) -> str:
    """Return the text of a contract that reads what these samples have; RecordError for one that no contract can read.

    `pipeline`: its name, by default after the topics; `now`: the start of its schedule, and what future dates are
    after. If the contract is not valid, it is written without joins, and then with nested columns as JSON text.
    """
    name, entries = choose_names([sample.topic for sample in samples], pipeline)
    topics = [draft_topic(sample, entries[sample.topic], now) for sample in samples]
    joins, left_out = split_joins(propose_joins(topics))
    text = write_contract(name, topics, joins, now, left_out)
    problem = _find_problem(text)
    for drafts in (topics, [_keep_nested_as_text(topic) for topic in topics]):
        if problem is None:
            return text
        text = write_contract(name, drafts, (), now, [*joins, *left_out])
        problem = _find_problem(text)
    if problem is None:
        return text
    if len(topics) == 1:
        fix = "this is a bug of Hindcast: report it, with the types of the topic's fields"
    else:
        fix = "infer the topics one at a time, and put those together that you need"
    raise RecordError(f"infer wrote an invalid contract: {problem}", fix=fix)


def _keep_nested_as_text(topic: TopicDraft) -> TopicDraft:
    """Return a draft whose nested columns of JSON are text."""
    settings = {setting.text for setting in topic.settings}

    def convert(columns: Sequence[DraftColumn]) -> list[DraftColumn]:
        reason = "kept as their JSON text, as the contract would be too large"
        return [replace(it, kind="string", reason=f"{it.reason}; {reason}") if "<" in it.kind else it for it in columns]

    key = topic.key if "key_format: avro" in settings else convert(topic.key)
    return replace(topic, key=key, value=topic.value if "value_format: avro" in settings else convert(topic.value))


def _find_problem(text: str) -> str | None:
    """Return why `hindcast check` would refuse the text of a contract; None if it is valid."""
    try:
        load_text(text)
    except ContractError as error:
        return error.found
    return None


__all__ = ["infer_contract"]
