"""The records that a requeue left malformed, as a report shows them: without reasons that quote what is sensitive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hindcast.common.json_values import JsonObject, list_objects, parse_object
from hindcast.contract import Contract
from hindcast.contract.sensitive import REDACTED
from hindcast.plan import definitions
from hindcast.plan.runs import Run
from hindcast.report.run_report import TopicReport


def mask_reasons(topic: TopicReport, contract: Contract, past: Sequence[Run], run: Run) -> TopicReport:
    """Return what one of the `past` runs did with a topic, without the reasons that may quote sensitive values.

    As in the quarantine (`quarantine.mask_refused`): today's contract or that of the run hides them, and so does a
    topic that the contract no longer has. Of a pattern, the topic of each record counts too.
    """
    still = parse_object(topic.still)
    if not (first := list_objects(still.get("first"))):
        return topic

    def is_hidden(kafka: str) -> bool:
        is_marked = contract.has_sensitive_entry(kafka) or not contract.find_entries(kafka)
        return is_marked or definitions.has_marked_entry(past, run.plan.contract, kafka)

    def mask_record(record: JsonObject) -> JsonObject:
        names = {str(topic.topic), str(record.get("topic") or topic.topic)}
        return {**record, "reason": REDACTED} if record.get("reason") and any(map(is_hidden, names)) else record

    return replace(topic, still={**still, "first": [mask_record(record) for record in first]})
