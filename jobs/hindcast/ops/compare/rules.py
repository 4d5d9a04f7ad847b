"""Name the rule of Kafka Streams, or of how an application is run, that a difference is likely due to. Pure: SQL text.

Nobody can know for sure from outside: a rule says what the difference looks like. `compare` gives each difference the
columns below, and the first rule that holds is named.

| column | |
| --- | --- |
| kind | missing, extra, different, time, order |
| dead, our_dead | true if the topic's record, the replayed one, is a tombstone |
| head, tail | before the first, after the last equal record of its partition; the other side has nothing there |
| repeated | the same record is on the other side as well, once less |
| later | a later record of the key is equal |
| follows | it is not the first difference of its key |
| expired | the replay refused a record of this timestamp as too old |
| lag | how many ms before stream time the record was that it was emitted for; if missing, any of its timestamp |
| unmet, our_unmet | a column is null in the topic, in the replay, and not on the other side |
| near | numbers differ as they do if they are added in another order |
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from hindcast.contract import Contract, View
from hindcast.ops.compare.outputs import TopicExtent


class ComparisonFacts(NamedTuple):
    """What is known of both sides as a whole."""

    extent: TopicExtent
    compacted: bool
    runs: int


class DifferenceRule(NamedTuple):
    """What a difference is likely due to: the name of the rule, its SQL condition, what it means, what to do."""

    name: str
    condition: str
    likely: str
    fix: str


def list_rules(contract: Contract, name: str, facts: ComparisonFacts) -> list[DifferenceRule]:
    """Return the rules for differences of a view, in the order in which they are tried; the last one always holds."""
    view, pipeline = contract.views[name], contract.pipeline
    rules = [*_topic_rules(facts), *_boundary_rules(view, pipeline), *_operator_rules(contract, view)]
    return [*rules, _order_rule(contract, name, facts), _FALLBACK_RULE]


def _topic_rules(facts: ComparisonFacts) -> list[DifferenceRule]:
    rules = []
    if facts.extent.broker_times:
        rules.append(
            DifferenceRule(
                "Timestamps",
                "kind = 'time'",
                "the topic has the broker's timestamps (message.timestamp.type=LogAppendTime), not the results'",
                "set CreateTime on the topic and let the application write it again; its timestamps are not comparable",
            )
        )
    if facts.compacted:
        rules.append(
            DifferenceRule(
                "Compaction",
                "kind = 'extra' AND later",
                "the topic is compacted: it need not keep earlier records of a key",
                "compare with a topic whose cleanup.policy is delete",
            )
        )
    if any(offsets.start for offsets in facts.extent.offsets.values()):
        rules.append(
            DifferenceRule(
                "Retention of the topic",
                "kind = 'extra' AND head",
                "the topic has lost its first records to retention",
                "compare with a topic that still has all of them (retention.ms=-1), or ignore it",
            )
        )
    return [
        *rules,
        DifferenceRule(
            "At least once",
            "kind = 'missing' AND repeated",
            "the application wrote the record again after a failure",
            "run it with processing.guarantee=exactly_once_v2, or ignore it",
        ),
    ]


def _boundary_rules(view: View, pipeline: str) -> list[DifferenceRule]:
    interval = (view.window and view.window.emit == "on_window_close") or (
        view.join and view.join.stream and view.join.how != "inner"
    )
    waits = (
        ", or waits for its emit interval (1000 ms of wall-clock time, and only when a record comes)"
        if interval
        else ""
    )
    return [
        DifferenceRule(
            "Not yet emitted",
            "kind = 'extra' AND tail",
            f"the application has not come that far: it is behind{waits}",
            "compare again when its consumers have no lag",
        ),
        DifferenceRule(
            "Not yet replayed",
            "kind = 'missing' AND tail",
            "the application has read records that no completed run has replayed",
            f"hindcast run {pipeline}, and compare again",
        ),
        DifferenceRule(
            "Where it began",
            "kind = 'extra' AND head",
            "the application began with later records (auto.offset.reset=latest, or its inputs had lost others)",
            "reset it to the inputs' beginning (kafka-streams-application-reset), or compare what comes after",
        ),
        DifferenceRule(
            "Where it began",
            "kind = 'missing' AND head",
            "the application had read records that the replay has not: its inputs have lost them, or from: leaves "
            "them out",
            "replay from the inputs' beginning (from: in the contract), or compare what comes after",
        ),
    ]


def _operator_rules(contract: Contract, view: View) -> list[DifferenceRule]:
    sums = view.aggregate is not None
    dead = "((kind = 'missing' AND dead) OR (kind = 'extra' AND our_dead) OR (kind = 'different' AND dead <> our_dead))"
    rules = [
        DifferenceRule(
            "History retention",
            "kind = 'missing' AND expired",
            "the replay refused a record of this timestamp: it was older than stream time minus the table's "
            "history_retention; the application's store goes further back",
            "give the topic the history_retention that the application gives its versioned store",
        )
    ]
    if sums:
        rules.append(
            DifferenceRule(
                "Aggregation",
                "follows",
                "an aggregate goes on from the one before: this follows from the first difference of its key",
                "look at that one first",
            )
        )
        rules.append(
            DifferenceRule(
                "Floating point",
                "kind = 'different' AND near",
                "sums of floating point numbers depend on the order of addition",
                "make the column a decimal in both",
            )
        )
    if view.where is not None and view.table is not None:
        rules.append(
            DifferenceRule(
                "Filters and tombstones",
                dead,
                "a filter leaves a tombstone out where the old value is known and did not pass; it is known where the "
                "table has a store that is not versioned, or an operator further down asks for one",
                "give the topic the versioned: that its table has in the application",
            )
        )
    if view.window is not None and view.window.session is not None:
        rules.append(
            DifferenceRule(
                "Sessions",
                dead,
                "a tombstone is emitted for each session that is merged into another; one that the store no longer "
                "keeps is not found, nor merged",
                "give the window the gap, grace and store_retention of the application",
            )
        )
    if sums or view.table is not None:
        rules.append(
            DifferenceRule(
                "Record caches",
                "kind = 'extra' AND (later OR our_dead)",
                "the application's record caches drop intermediate updates, and tombstones of what was never forwarded",
                "run the application with statestore.cache.max.bytes=0, or compare what both amount to",
            )
        )
    if view.join is not None and view.join.table is not None and view.table is not None:
        rules.append(
            DifferenceRule(
                "Table-table join" if not view.join.on else "Foreign-key join",
                dead,
                "a join of tables emits a tombstone whether or not there was a result before, except for some kinds "
                "of join",
                "compare how: of the join, and versioned: of both tables, with the application",
            )
        )
    rules += [*_lookup_rules(contract, view), *_lateness_rules(view)]
    return [
        *rules,
        DifferenceRule(
            "Timestamps",
            "kind = 'time'",
            _TIMESTAMP_CAUSES["aggregate" if sums else "tables" if view.join and view.table else "other"],
            "compare the join's kind, versioned: of its tables and the timestamp extractor with the application",
        ),
    ]


def _lookup_rules(contract: Contract, view: View) -> list[DifferenceRule]:
    if view.join is None or view.join.table is None or view.join.table in contract.inputs:
        return []
    versioned, retention = contract.find_versioning(view.join.table)
    if not versioned:
        return []
    past = "" if retention is None else f" OR lag > {retention // timedelta(milliseconds=1)}"
    bound = "without limit" if retention is None else retention
    return [
        DifferenceRule(
            "History retention",
            f"kind IN ('missing', 'extra', 'different') AND (unmet OR our_unmet{past})",
            f"a look-up from before stream time minus history retention (here {bound}) finds the latest version or "
            "none",
            f"give {view.join.table} the history_retention that the application gives its versioned store",
        )
    ]


def _lateness_rules(view: View) -> list[DifferenceRule]:
    """Return the rules for results whose record came late."""
    if view.window is not None:
        return [
            DifferenceRule(
                "Grace",
                "kind = 'extra' AND lag > 0",
                "the record came late: the application's window had closed, or its store no longer kept it",
                "give the window the grace and store_retention of the application",
            )
        ]
    return [
        DifferenceRule(
            "Out of order",
            "kind IN ('missing', 'extra', 'different') AND lag > 0",
            "the record came late: a versioned table goes by its timestamp, another takes it for the latest",
            "give each table the versioned: and history_retention, and the join the grace, of the application",
        )
    ]


def _order_rule(contract: Contract, name: str, facts: ComparisonFacts) -> DifferenceRule:
    """Return the rule for the order, which is not fixed: between topics, or partitions of a topic keyed again."""
    view = contract.views[name]
    runs = f"; {facts.runs} runs have cut the log, too" if facts.runs > 1 and not view.wait else ""
    return DifferenceRule(
        "Processing order",
        "true" if len(find_source_topics(contract, name)) > 1 else "kind = 'order'",
        f"the order between topics and between partitions is not fixed in a running application{runs}",
        "ignore it: another start of the application can give another order"
        if view.wait
        else "replay with wait: true, the order of an application that always has records of all (max.task.idle.ms)",
    )


def find_source_topics(contract: Contract, name: str) -> set[str]:
    """Return the topics that a view is made of, at any remove."""
    if name in contract.topics:
        return {name}
    return {topic for made_of in contract.list_inputs(name) for topic in find_source_topics(contract, made_of)}


_TIMESTAMP_CAUSES = {
    "aggregate": "an aggregate's timestamp is the later of the record's and the stored aggregate's of its group",
    "tables": "a result's timestamp is the later of both rows'; where a right record triggers a foreign-key join, "
    "the right record's",
    "other": "a result has the timestamp of the record that it is emitted for",
}
_FALLBACK_RULE = DifferenceRule(
    "No rule fits",
    "true",
    "the application does not do what the contract says",
    "compare the view with the application's topology, at the first of these records",
)
