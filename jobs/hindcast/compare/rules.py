"""Which rule of Kafka Streams, or of the way an application is run, a difference is likely due to. Pure: SQL as text.

Nobody can tell for sure from outside: a rule is what the difference looks like. `compare` gives each the columns below,
and the first rule that holds is named.

| column | |
| --- | --- |
| kind | missing, extra, different, time, order |
| dead, our_dead | whether the topic's record, the replayed one, is a tombstone |
| head, tail | before the first, after the last equal record of its partition; the other side has nothing there |
| repeated | the same record is on the other side as well, once less |
| later | a later record of the key is equal |
| follows | it is not the first difference of its key |
| expired | the replay refused a record of this timestamp, as too old |
| lag | how many ms before stream time the record was that it was emitted for; of a missing one, any of its timestamp |
| unmet, our_unmet | a column is null in the topic, in the replay, and not on the other side |
| near | numbers differ by what adding in another order does |
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from hindcast.compare.outputs import Extent
from hindcast.contracts import Contract, View


class Facts(NamedTuple):
    """What is known of both sides as a whole."""

    extent: Extent
    compacted: bool
    runs: int


class Rule(NamedTuple):
    """What a difference is likely due to: the name of the rule, the SQL condition, what it means, what to do."""

    name: str
    when: str
    likely: str
    mend: str


def rules(contract: Contract, name: str, facts: Facts) -> list[Rule]:
    """The rules that a difference of a view can be due to, in the order in which they are tried; the last one holds."""
    view, pipeline = contract.views[name], contract.pipeline
    found = [*_of_the_topic(facts), *_of_ends(view, pipeline), *_of_meaning(contract, view)]
    return [*found, _of_order(contract, name, facts), _UNKNOWN]


def _of_the_topic(facts: Facts) -> list[Rule]:
    found = []
    if facts.extent.broker_times:
        found.append(
            Rule(
                "Timestamps",
                "kind = 'time'",
                "the topic has the broker's timestamps (message.timestamp.type=LogAppendTime), not the results'",
                "set CreateTime on the topic and let the application write it anew; the timestamps cannot be compared",
            )
        )
    if facts.compacted:
        found.append(
            Rule(
                "Compaction",
                "kind = 'extra' AND later",
                "the topic is compacted: of earlier records of a key it keeps none for sure",
                "compare with a topic whose cleanup.policy is delete",
            )
        )
    if any(offsets.start for offsets in facts.extent.offsets.values()):
        found.append(
            Rule(
                "Retention of the topic",
                "kind = 'extra' AND head",
                "the topic has lost its first records to retention",
                "compare with a topic that still has all of them (retention.ms=-1), or let it be",
            )
        )
    return [
        *found,
        Rule(
            "At least once",
            "kind = 'missing' AND repeated",
            "the application wrote the record again after a failure",
            "run it with processing.guarantee=exactly_once_v2, or let it be",
        ),
    ]


def _of_ends(view: View, pipeline: str) -> list[Rule]:
    interval = (view.window and view.window.emit == "on_window_close") or (
        view.join and view.join.stream and view.join.how != "inner"
    )
    waits = (
        ", or waits for its emit interval (1000 ms of wall-clock time, and only when a record comes)"
        if interval
        else ""
    )
    return [
        Rule(
            "Not yet emitted",
            "kind = 'extra' AND tail",
            f"the application has not come so far: it is behind{waits}",
            "compare again when its consumers have no lag",
        ),
        Rule(
            "Not yet replayed",
            "kind = 'missing' AND tail",
            "the application has read records that no completed run has replayed",
            f"hindcast run {pipeline}, and compare again",
        ),
        Rule(
            "Where it began",
            "kind = 'extra' AND head",
            "the application began with later records (auto.offset.reset=latest, or its inputs had lost others)",
            "reset it to the inputs' beginning (kafka-streams-application-reset), or compare what comes after",
        ),
        Rule(
            "Where it began",
            "kind = 'missing' AND head",
            "the application had read records that the replay has not: its inputs have lost them, or from: leaves "
            "them out",
            "replay from the inputs' beginning (from: in the contract), or compare what comes after",
        ),
    ]


def _of_meaning(contract: Contract, view: View) -> list[Rule]:
    sums = view.aggregate is not None
    dead = "((kind = 'missing' AND dead) OR (kind = 'extra' AND our_dead) OR (kind = 'different' AND dead <> our_dead))"
    found = [
        Rule(
            "History retention",
            "kind = 'missing' AND expired",
            "the replay refused a record of this timestamp: it was older than stream time minus the table's "
            "history_retention; the application's store goes further back",
            "give the topic the history_retention that the application gives its versioned store",
        )
    ]
    if sums:
        found.append(
            Rule(
                "Aggregation",
                "follows",
                "an aggregate goes on from the one before: this follows from the first difference of its key",
                "look at that one first",
            )
        )
        found.append(
            Rule(
                "Floating point",
                "kind = 'different' AND near",
                "sums of floating point numbers depend on the order of addition",
                "make the column a decimal in both",
            )
        )
    if view.where is not None and view.table is not None:
        found.append(
            Rule(
                "Filters and tombstones",
                dead,
                "a filter leaves a tombstone out where the old value is known and did not pass; it is known where the "
                "table has a store that is not versioned, or an operator further down asks for one",
                "give the topic the versioned: that its table has in the application",
            )
        )
    if view.window is not None and view.window.session is not None:
        found.append(
            Rule(
                "Sessions",
                dead,
                "a tombstone is emitted for each session that is merged into another; one that is out of the store's "
                "reach is not found, nor merged",
                "give the window the gap, grace and store_retention of the application",
            )
        )
    if sums or view.table is not None:
        found.append(
            Rule(
                "Record caches",
                "kind = 'extra' AND (later OR our_dead)",
                "the application's record caches keep intermediate updates to themselves, and tombstones of what was "
                "never forwarded",
                "run the application with statestore.cache.max.bytes=0, or compare what both amount to",
            )
        )
    if view.join is not None and view.join.table is not None and view.table is not None:
        found.append(
            Rule(
                "Table-table join" if not view.join.on else "Foreign-key join",
                dead,
                "a join of tables emits a tombstone whether or not there was a result before, unless it is told "
                "otherwise by the kind of the join",
                "compare how: of the join, and versioned: of both tables, with the application",
            )
        )
    found += [*_of_lookups(contract, view), *_of_late(view)]
    return [
        *found,
        Rule(
            "Timestamps",
            "kind = 'time'",
            _TIMES["aggregate" if sums else "tables" if view.join and view.table else "other"],
            "compare the join's kind, versioned: of its tables and the timestamp extractor with the application",
        ),
    ]


def _of_lookups(contract: Contract, view: View) -> list[Rule]:
    if view.join is None or view.join.table is None or view.join.table in contract.inputs:
        return []
    versioned, retention = contract.versioned(view.join.table)
    if not versioned:
        return []
    past = "" if retention is None else f" OR lag > {retention // timedelta(milliseconds=1)}"
    bound = "without limit" if retention is None else retention
    return [
        Rule(
            "History retention",
            f"kind IN ('missing', 'extra', 'different') AND (unmet OR our_unmet{past})",
            f"a look-up from before stream time minus history retention (here {bound}) finds the latest version onone",
            f"give {view.join.table} the history_retention that the application gives its versioned store",
        )
    ]


def _of_late(view: View) -> list[Rule]:
    """Of results whose record came late."""
    if view.window is not None:
        return [
            Rule(
                "Grace",
                "kind = 'extra' AND lag > 0",
                "the record came late: the application's window had closed, or was out of the reach of its store",
                "give the window the grace and store_retention of the application",
            )
        ]
    return [
        Rule(
            "Out of order",
            "kind IN ('missing', 'extra', 'different') AND lag > 0",
            "the record came late: a versioned table goes by its timestamp, another takes it for the latest",
            "give each table the versioned: and history_retention, and the join the grace, of the application",
        )
    ]


def _of_order(contract: Contract, name: str, facts: Facts) -> Rule:
    """Between topics the order is not fixed; of one topic that is keyed anew, between its partitions."""
    view = contract.views[name]
    runs = f"; {facts.runs} runs have cut the log besides" if facts.runs > 1 and not view.wait else ""
    return Rule(
        "Processing order",
        "true" if len(upstream(contract, name)) > 1 else "kind = 'order'",
        f"the order between topics and between partitions is not fixed in a running application{runs}",
        "let it be: another start of the application can give another order"
        if view.wait
        else "replay with wait: true, the order of an application that always has records of all (max.task.idle.ms)",
    )


def upstream(contract: Contract, name: str) -> set[str]:
    """The topics that a view is made of, at any remove."""
    if name in contract.topics:
        return {name}
    return {topic for made_of in contract.made_of(name) for topic in upstream(contract, made_of)}


_TIMES = {
    "aggregate": "an aggregate's timestamp is the later of the record's and the stored aggregate's of its group",
    "tables": "a result's timestamp is the later of both rows'; where a right record triggers a foreign-key join, "
    "the right record's",
    "other": "a result has the timestamp of the record that it is emitted for",
}
_UNKNOWN = Rule(
    "No rule fits",
    "true",
    "the application says something else than the contract",
    "compare the view with the application's topology, at the first of these records",
)
