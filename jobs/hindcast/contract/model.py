"""The model of a contract: one pipeline. `topic`, `view` and `expectation` have its parts.

The objects are frozen and validated; `load.py` builds them from YAML, `check.py` checks the names between them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, PrivateAttr
from pydantic.main import IncEx

from hindcast.common.json_values import JsonObject
from hindcast.contract.bounds import DESCRIPTION
from hindcast.contract.closing import Closing
from hindcast.contract.expectation import RESTATEMENT_RULE, Expectation
from hindcast.contract.field_types import Widen
from hindcast.contract.routes import Routes
from hindcast.contract.task_options import AirflowOptions
from hindcast.contract.topic import Input, Topic
from hindcast.contract.types import ContractModel, ContractValue, Flag, Moment, Name
from hindcast.contract.view import View

_NOT_DEFINING = ("expect", "hold", "sensitive", "max_record_bytes", "keep", "widen", "arrival")
"""Fields of topics and views that are no part of how a view is derived."""
_UNHASHED = ("keep", "widen")
"""Fields of topics and views that are no part of a contract's hash."""
_FORMERLY_DEFINING = ("max_malformed", "on_gap", "max_time_skew")
"""Others, which older programs took for a part of it."""


class Contract(ContractModel):
    """One pipeline: one file, one DAG."""

    pipeline: Name = Field(description="The pipeline's name: that of its DAG and of its folder in the warehouse.")
    description: str = Field(
        "", max_length=DESCRIPTION, description="The pipeline's purpose, in Markdown; shown in Airflow."
    )
    schedule: str | None = Field(
        None,
        description="A cron expression or preset (@hourly); `inputs`: whenever one of `inputs` was published; started "
        "only by hand if left out.",
    )
    intervals: str | None = Field(
        None,
        description="In place of `schedule`: a cron expression or preset whose intervals a backfill "
        "runs, also before `start`; nothing runs by itself.",
    )
    start: Moment = Field(description="The first scheduled interval starts here (UTC).")
    catchup: Flag = Field(False, description="Whether Airflow runs the intervals between start and today by itself.")
    airflow: AirflowOptions = Field(
        default_factory=AirflowOptions, description="Owner, tags, retries, pool, queue and timeout of the tasks."
    )
    close: Closing | None = Field(
        None, description="The periods that `hindcast maintain` [closes](reading.md#closes); none if left out."
    )
    restatement: Literal["approve"] | None = Field(
        None,
        description="approve: what would change an answer about a [closed](reading.md#closes) period is held back "
        "until a person releases it, in all tables but kafka views. It is published if this is left out.",
    )
    topics: dict[Name, Topic] = Field(min_length=1)
    inputs: dict[Name, Input] = Field(default_factory=dict)
    views: dict[Name, View] = Field(default_factory=dict)
    _marks_of_others: Mapping[str, frozenset[str]] = PrivateAttr(default_factory=dict)
    _variables: frozenset[str] = PrivateAttr(default_factory=frozenset)

    @property
    def marks_of_others(self) -> Mapping[str, frozenset[str]]:
        """By input, the columns that the pipelines that it comes from call sensitive (plan/marks.py); in no hash."""
        return self._marks_of_others

    @property
    def variables(self) -> frozenset[str]:
        """The variables that its file declares; their values are in its fields."""
        return self._variables

    def with_variables(self, names: Iterable[str]) -> Self:
        """Return the contract with other `variables`."""
        contract = self.model_copy()
        contract._variables = frozenset(names)  # noqa: SLF001  # its own, of a copy
        return contract

    def with_marks(self, marks: Mapping[str, frozenset[str]]) -> Self:
        """Return the contract with other `marks_of_others`."""
        contract = self.model_copy()
        contract._marks_of_others = marks  # noqa: SLF001  # its own, of a copy
        return contract

    @property
    def hash(self) -> str:
        """The hash of the contract in a plan: SHA-256 of its canonical JSON, 16 hex digits.

        A field with its default counts as left out, so that new fields of a later Hindcast change no hash. `keep` and
        `widen` are not part of it, nor are `airflow`, `close` and `intervals`: they change no answer.
        """
        text = json.dumps(self._dump("json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def hashed_fields(self) -> Mapping[str, ContractValue]:
        """The fields that are part of `hash`, as Python objects."""
        return self._dump("python")

    def _dump(self, mode: Literal["json", "python"]) -> Mapping[str, ContractValue]:
        fields: IncEx = {"__all__": {*_UNHASHED}}
        excluded: IncEx = {"airflow": True, "close": True, "intervals": True, "topics": fields, "views": fields}
        return self.model_dump(mode=mode, exclude_defaults=True, exclude=excluded)

    def hash_definition(self, name: str, *, formerly: bool = False) -> str:
        """Return the hash of a view's definition, 16 hex digits: the view and everything upstream, without gates and
        other fields that decide nothing about records that are accepted; and whether these are processed depth first.

        `formerly`: with fields that older programs took for a part of it.
        """
        upstream, parts = self.list_upstream(name), {**self.topics, **self.views}
        definition: dict[str, JsonObject] = {
            n: parts[n].model_dump(
                mode="json",
                exclude_defaults=True,
                exclude={*_NOT_DEFINING, *(() if formerly else _FORMERLY_DEFINING)},
            )
            for n in parts
            if n in upstream
        }
        if name in Routes(self).depth_first:
            definition["depth first"] = {}
        return hashlib.sha256(json.dumps(definition).encode()).hexdigest()[:16]

    @property
    def ordered_views(self) -> tuple[str, ...]:
        """The views, each after those that it is derived from."""
        ordered: list[str] = []
        known, left = {*self.topics, *self.inputs}, dict(self.views)
        while left:
            ready = [name for name, view in left.items() if known.issuperset(view.inputs)]
            for name in ready:
                del left[name]
            known.update(ready)
            ordered += ready
        return tuple(ordered)

    def list_tables_before(self, name: str) -> tuple[str, ...]:
        """Return the tables that a run has when it gates this one: inputs, and what it replays and builds before."""
        order = (*self.topics, *self.ordered_views)
        return (*self.inputs, *order[: order.index(name)])

    def list_tables_below(self, name: str) -> frozenset[str]:
        """Return a table with every table that is derived from it, or whose gates look into one of these."""
        found, wider = {name}, {name}
        while wider:
            wider = {
                other
                for other in (*self.topics, *self.views)
                if other not in found
                and found.intersection(
                    (
                        *self.list_inputs(other),
                        *(gate.other_table for gate in self.expectations(other) if gate.other_table),
                    )
                )
            }
            found |= wider
        return frozenset(found)

    def list_inputs(self, name: str) -> tuple[str, ...]:
        """Return the topics, inputs and views that a table is derived from; none for a topic."""
        return self.views[name].inputs if name in self.views else ()

    def list_upstream(self, name: str) -> tuple[str, ...]:
        """Return a table and everything that it is derived from, directly or not, each once."""
        upstream = [name]
        for table in upstream:
            upstream += [source for source in self.list_inputs(table) if source not in upstream]
        return tuple(upstream)

    def find_first_source(self, name: str) -> str:
        """Return the topic, or input of another pipeline, whose partitions and offsets the rows of a table have."""
        while name in self.views:
            name = self.views[name].first_input
        return name

    def find_versioning(self, name: str) -> tuple[bool, timedelta | None]:
        """Return whether a `kafka` view reads a topic or `kafka` view as a versioned table, and its history retention.

        The retention is None if it has no limit or is not versioned. A transformation is as its input (KIP-914).
        """
        store = self.find_store_owner(name)
        if store in self.topics:
            topic = self.topics[store]
            return topic.versioned, topic.history_retention if topic.versioned else None
        retention = self.views[store].history_retention
        return retention is not None, retention

    def find_store_owner(self, name: str) -> str:
        """Return the topic or view in whose store Kafka Streams looks up a table's rows: a transformation has none."""
        while name in self.views and not self.views[name].has_store and self.views[name].suppress is None:
            name = self.views[name].first_input
        return name

    def find_widen(self, name: str) -> Widen:
        """Return what a run does if it has to widen columns of a topic's or view's table."""
        entry = self.topics.get(name) or self.views.get(name)
        return "refuse" if entry is None else entry.widen

    def kafka_topic(self, name: str) -> str:
        """Return the name in Kafka of a topic of the contract, or its pattern."""
        topic = self.topics[name]
        return topic.pattern or topic.topic or name

    def find_entries(self, kafka: str) -> list[str]:
        """Return the names in the contract of a topic in Kafka: several if several entries read it."""
        return [
            name for name in self.topics if self.kafka_topic(name) == kafka or self.topics[name].select_topics([kafka])
        ]

    def has_sensitive_entry(self, kafka: str) -> bool:
        """Return whether an entry of a topic in Kafka has sensitive columns: no message shows any of its records."""
        return any(self.topics[name].sensitive for name in self.find_entries(kafka))

    def expectations(self, table: str) -> tuple[Expectation, ...]:
        """Return the gates of a topic's table or of a view, last the one that `restatement: approve` adds."""
        gates, view = (self.topics.get(table) or self.views[table]).expect, self.views.get(table)
        is_guarded = any(gate.type == RESTATEMENT_RULE for gate in gates)
        if self.restatement is None or is_guarded or (view is not None and view.semantics == "kafka"):
            return gates
        return (*gates, Expectation(type=RESTATEMENT_RULE, on_failure="quarantine"))

    @property
    def has_arrivals(self) -> bool:
        """True if each topic says when its records arrived."""
        return all(topic.arrival is not None for topic in self.topics.values())

    @property
    def can_hold(self) -> bool:
        """True if a gate can hold changes back."""
        gates = (gate for name in (*self.topics, *self.views) for gate in self.expectations(name))
        return any(gate.on_failure == "quarantine" for gate in gates)
