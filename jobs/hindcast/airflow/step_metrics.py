"""The events of a step (common/step_events.py) as Airflow's metrics, for statsd, Datadog or OpenTelemetry.

Names begin with `hindcast.`. Tags are names of the contract, never a run, which would start a new series each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from hindcast.common.step_events import Event


class Metric(NamedTuple):
    """One number: a counter that rises by `value`, a gauge that is `value` now, or a timing of `value` seconds."""

    kind: Literal["counter", "gauge", "timing"]
    name: str
    value: float
    tags: dict[str, str]

    @property
    def dotted_name(self) -> str:
        """The name with the tags' values in it, for backends that have no tags.

        >>> Metric("counter", "records", 4, {"pipeline": "restaurant", "table": "menu", "fate": "accepted"}).dotted_name
        'restaurant.menu.records.accepted'
        """
        first = [self.tags[tag] for tag in ("pipeline", "table") if tag in self.tags]
        rest = [value for tag, value in self.tags.items() if tag not in ("pipeline", "table")]
        return ".".join([*first, self.name, *rest])


def list_metrics(event: Event) -> Iterator[Metric]:
    """Yield the metrics of a step that ended or failed; none of other events, and no counter that would rise by 0."""
    if event["event"] not in ("step ended", "step failed"):
        return
    pipeline = {"pipeline": event["pipeline"]}
    table = pipeline | ({"table": event["table"]} if "table" in event else {})
    step = table | {"step": event["step"]}
    yield Metric("timing", "step_duration", event["seconds"], step)
    if event["event"] == "step failed":
        yield Metric("counter", "steps_failed", 1, step | {"error": event["error"]})
    counts = {"opened": event.get("opened"), "closed": event.get("closed"), "corrected": event.get("corrected")}
    for kind, n in counts.items():
        if n:
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
    gauges = {"held": event.get("held"), "offsets_left": event.get("offsets_left")}
    for field, values in {**gauges, "lag_seconds": event.get("lag_seconds")}.items():
        for name, value in (values or {}).items():
            yield Metric("gauge", field, value, pipeline | {"table": name})


def send_event(event: Event) -> None:
    """Write an event to the log of Airflow's task, with its fields, and send its metrics.

    Like Airflow's own metrics, each is sent a second time under its dotted name, unless `legacy_names_on` in
    `[metrics]` is off.
    """
    import structlog
    from airflow.sdk.configuration import conf

    fields = {name: value for name, value in event.items() if name not in ("event", "level")}
    getattr(structlog.get_logger(logger_name="hindcast.steps"), event["level"])(event["event"], **fields)
    legacy_names = conf.getboolean("metrics", "legacy_names_on", fallback=True)
    for metric in list_metrics(event):
        _send_metric(f"hindcast.{metric.name}", metric, metric.tags)
        if legacy_names:
            _send_metric(f"hindcast.{metric.dotted_name}", metric, None)


def _send_metric(name: str, metric: Metric, tags: dict[str, str] | None) -> None:
    from airflow.sdk.observability import stats

    match metric.kind:
        case "counter":
            stats.incr(name, int(metric.value), tags=tags)
        case "gauge":
            stats.gauge(name, metric.value, tags=tags)
        case "timing":
            stats.timing(name, metric.value * 1000, tags=tags)
