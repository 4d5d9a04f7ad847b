"""What a step tells (telling.py), as Airflow's metrics: by statsd, Datadog or OpenTelemetry, as Airflow is configured.

Names begin with `hindcast.`. Tags are names of the contract, never a run: a run would be a new series each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from hindcast.telling import Event


class Metric(NamedTuple):
    """One number: a counter to be raised by `value`, a gauge that is `value` now, or a timing of `value` seconds."""

    kind: Literal["counter", "gauge", "timing"]
    name: str
    value: float
    tags: dict[str, str]

    @property
    def dotted(self) -> str:
        """The name with the tags' values in it, for backends that have no tags.

        >>> Metric("counter", "records", 4, {"pipeline": "restaurant", "table": "menu", "fate": "accepted"}).dotted
        'restaurant.menu.records.accepted'
        """
        first = [self.tags[tag] for tag in ("pipeline", "table") if tag in self.tags]
        rest = [value for tag, value in self.tags.items() if tag not in ("pipeline", "table")]
        return ".".join([*first, self.name, *rest])


def of(event: Event) -> Iterator[Metric]:
    """The metrics of an event; none of a step that has begun or waits, and no counter that would be raised by 0."""
    if event["event"] not in ("step ended", "step failed"):
        return
    pipeline = {"pipeline": event["pipeline"]}
    table = pipeline | ({"table": event["table"]} if "table" in event else {})
    step = table | {"step": event["step"]}
    yield Metric("timing", "step_duration", event["seconds"], step)
    if event["event"] == "step failed":
        yield Metric("counter", "steps_failed", 1, step | {"error": event["error"]})
    for kind in ("opened", "closed", "corrected"):
        if n := event.get(kind):
            yield Metric("counter", f"rows_{kind}", n, table)
    for outcome in ("failed", "error"):
        if n := event.get("gates", {}).get(outcome):
            yield Metric("counter", "gates_failed", n, table | {"outcome": outcome})
    for name, fates in event.get("records", {}).items():
        for fate, n in fates.items():
            if n:
                yield Metric("counter", "records", n, pipeline | {"table": name, "fate": fate})
    for name, n in event.get("late", {}).items():
        yield Metric("counter", "late", n, pipeline | {"table": name})
    for field in ("held", "offsets_left", "lag_seconds"):
        for name, n in event.get(field, {}).items():
            yield Metric("gauge", field, n, pipeline | {"table": name})


def in_airflow(event: Event) -> None:
    """Tells an event in a task of Airflow's: to the task's log with its fields, and as metrics.

    As Airflow does with its own metrics, each goes out a second time under its dotted name unless `legacy_names_on` in
    `[metrics]` says otherwise.
    """
    import structlog
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability import stats

    fields = {name: value for name, value in event.items() if name not in ("event", "level")}
    getattr(structlog.get_logger(logger_name="hindcast.steps"), event["level"])(event["event"], **fields)
    both = conf.getboolean("metrics", "legacy_names_on", fallback=True)
    for metric in of(event):
        _send(stats, f"hindcast.{metric.name}", metric, metric.tags)
        if both:
            _send(stats, f"hindcast.{metric.dotted}", metric, None)


def _send(stats: Any, name: str, metric: Metric, tags: dict[str, str] | None) -> None:
    match metric.kind:
        case "counter":
            stats.incr(name, int(metric.value), tags=tags)
        case "gauge":
            stats.gauge(name, metric.value, tags=tags)
        case "timing":
            stats.timing(name, metric.value * 1000, tags=tags)
