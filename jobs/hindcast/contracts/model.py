"""What a user writes: one pipeline. `topic`, `view` and `expectation` have its parts.

The objects are frozen and validated; `load.py` makes them from YAML, `check.py` checks the names between them.
"""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any, Literal

from pydantic import Field

from hindcast.contracts.expectation import Expectation
from hindcast.contracts.routes import Routes
from hindcast.contracts.topic import Input, Topic
from hindcast.contracts.types import Flag, Model, Moment, Name
from hindcast.contracts.view import View


class Contract(Model):
    """One pipeline: one file, one DAG."""

    pipeline: Name = Field(description="The pipeline's name: that of its DAG and of its folder in the warehouse.")
    description: str = Field("", description="What it is for, in Markdown; shown in Airflow.")
    schedule: str | None = Field(
        None,
        description="A cron expression or preset (@hourly); `inputs`: whenever one of `inputs` was published; only by "
        "hand if left out.",
    )
    start: Moment = Field(description="The first scheduled interval starts here (UTC).")
    catchup: Flag = Field(False, description="Whether Airflow runs the intervals between start and today by itself.")
    topics: dict[Name, Topic] = Field(min_length=1)
    inputs: dict[Name, Input] = Field(default_factory=dict)
    views: dict[Name, View] = Field(default_factory=dict)

    @property
    def hash(self) -> str:
        """What the plan remembers of the contract: SHA-256 of its canonical JSON, 16 hex digits.

        A field with its default is as if left out: a new version of Hindcast with new fields changes no contract. How
        long history is kept is no part of it, nor is `widen`: they change no answer.
        """
        text = json.dumps(self._dump("json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def hashed_fields(self) -> dict[str, Any]:
        """Return the fields that decide about `hash`, as Python's objects."""
        return self._dump("python")

    def _dump(self, mode: Literal["json", "python"]) -> dict[str, Any]:
        kept: dict[str, Any] = {part: {"__all__": {"keep", "widen"}} for part in ("topics", "views")}
        return self.model_dump(mode=mode, exclude_defaults=True, exclude=kept)

    def definition(self, name: str) -> str:
        """What a view is computed by, as 16 hex digits: it and all it is made of, without what guards or hides it; and
        that its records are processed depth first, if they are.
        """
        upstream, parts = self.upstream(name), {**self.topics, **self.views}
        told = {
            n: parts[n].model_dump(
                mode="json",
                exclude_defaults=True,
                exclude={"expect", "hold", "sensitive", "max_record_bytes", "keep", "widen"},
            )
            for n in parts
            if n in upstream
        }
        if name in Routes(self).depth_first:
            told["depth first"] = {}
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]

    @property
    def ordered(self) -> tuple[str, ...]:
        """The views, each after those that it is made of."""
        found: list[str] = []
        there, left = {*self.topics, *self.inputs}, dict(self.views)
        while left:
            ready = [name for name, view in left.items() if there.issuperset(view.inputs)]
            for name in ready:
                del left[name]
            there.update(ready)
            found += ready
        return tuple(found)

    def before(self, name: str) -> tuple[str, ...]:
        """The tables that a run has when it gates this one: the inputs, and what it replays and builds before."""
        order = (*self.topics, *self.ordered)
        return (*self.inputs, *order[: order.index(name)])

    def below(self, name: str) -> frozenset[str]:
        """A topic, input or view with every table that is made of it, or whose gates look into one of these."""
        found, wider = {name}, {name}
        while wider:
            wider = {
                other
                for other in (*self.topics, *self.views)
                if other not in found
                and found.intersection(
                    (*self.made_of(other), *(gate.refers_to for gate in self.expectations(other) if gate.refers_to))
                )
            }
            found |= wider
        return frozenset(found)

    def made_of(self, name: str) -> tuple[str, ...]:
        """The topics, inputs and views that a table is made of; a topic's is made of none."""
        return self.views[name].inputs if name in self.views else ()

    def upstream(self, name: str) -> tuple[str, ...]:
        """A table and all that it is made of, and these are made of, each once."""
        found = [name]
        for one in found:
            found += [i for i in self.made_of(one) if i not in found]
        return tuple(found)

    def versioned(self, name: str) -> tuple[bool, timedelta | None]:
        """Whether a `kafka` view meets a topic or `kafka` view as a versioned table, and that one's history retention.

        None: without limit, or not versioned. A transformation is what its input is (KIP-914).
        """
        store = self.store(name)
        if store in self.topics:
            topic = self.topics[store]
            return topic.versioned, topic.history_retention if topic.versioned else None
        retention = self.views[store].history_retention
        return retention is not None, retention

    def store(self, name: str) -> str:
        """The topic or view in whose store Kafka Streams looks a row of a table up: a transformation keeps none."""
        while name in self.views and not self.views[name].stored and self.views[name].suppress is None:
            name = self.views[name].first
        return name

    def can_widen(self, name: str) -> bool:
        """Return whether a run may widen columns of a topic's or view's table, which locks out other readers."""
        entry = self.topics.get(name) or self.views.get(name)
        return entry is not None and entry.widen == "spark_only"

    def kafka_topic(self, name: str) -> str:
        """The name in Kafka of a topic of the contract, or the pattern of names."""
        topic = self.topics[name]
        return topic.pattern or topic.topic or name

    def entry(self, kafka: str) -> str | None:
        """The name in the contract of a topic of Kafka, None of one that it does not name."""
        names = (name for name in self.topics if self.kafka_topic(name) == kafka or self.topics[name].matches(kafka))
        return next(names, None)

    def expectations(self, table: str) -> tuple[Expectation, ...]:
        """The gates of a topic's table or of a view."""
        return (self.topics.get(table) or self.views[table]).expect

    @property
    def can_hold(self) -> bool:
        """Whether a gate can hold changes back."""
        gates = (gate for name in (*self.topics, *self.views) for gate in self.expectations(name))
        return any(gate.on_failure == "quarantine" for gate in gates)
