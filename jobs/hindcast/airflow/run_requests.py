"""What the form, the interval and the triggering events of a DAG run ask for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from hindcast.airflow.given_texts import mend_text
from hindcast.common.errors import RequestError, suggest_nearest
from hindcast.plan.purposes import ArrivalInterval

if TYPE_CHECKING:
    from airflow.sdk import Context

CLOCK_TOLERANCE = timedelta(minutes=1)
"""How far the clock of Airflow's scheduler may be ahead of ours."""

REHEARSAL = "rehearsal"
"""The value of the form's field `replay` with which the run's interval is rehearsed."""

RUN_FIELDS = ("replay", "earlier", "until", "only", "preview", "reason")
"""The fields of the form that triggers a run (airflow/dag_factory.py); their names in a run's `conf`."""

PREVIEW_FIELDS = ("until", "only")
"""The fields of the form that triggers a preview alone."""


class RunRequest(NamedTuple):
    """What to run: records up to `until`, None for all; all tables, or `only` one with everything downstream.

    Or an interval of arrival that is `rehearsed`, of a first one with what arrived `earlier`.
    """

    until: datetime | None = None
    only: str | None = None
    reason: str | None = None
    rehearsed: ArrivalInterval | None = None
    earlier: bool = False

    def format_rehearsal(self) -> str:
        """Return what is asked of `rehearsal.plan_requested_run`, as JSON."""
        interval = self.rehearsed.as_json() if self.rehearsed is not None else {}
        return json.dumps({**interval, "earlier": self.earlier, "reason": self.reason})


def read_run_request(context: Context, now: datetime) -> RunRequest:
    """Return what a DAG run asks for; RequestError if its form or its interval is invalid."""
    from hindcast.airflow import assets

    params, dag = context["params"], context["dag_run"].dag_id
    _refuse_unknown_fields(params, RUN_FIELDS, dag)
    start, end = _plain_datetime(context.get("data_interval_start")), _plain_datetime(context.get("data_interval_end"))
    if start and end and end < start:
        found = f"the interval ends at {end.isoformat()}, before it starts at {start.isoformat()}"
        raise RequestError(found, where=dag, fix="trigger it with a later end, or with an empty logical date")
    until = _read_until(params["until"], dag)
    reason = mend_text(params["reason"]) if params["reason"] else None
    if params["replay"] == REHEARSAL:
        if not start or not end or start == end:
            fix = "create a backfill: each of its runs has an interval; or give an interval to a run that you trigger"
            raise RequestError("the run has no interval to rehearse", where=dag, fix=fix)
        others = [name for name in ("until", "only", "preview") if params[name]]
        if others:
            fix = f"leave {', '.join(others)} out: a rehearsed run is of its interval, and of all tables"
            raise RequestError(f"the form asks for a rehearsal, and also for {others[0]}", where=dag, fix=fix)
        interval = ArrivalInterval(start, end)
        return RunRequest(reason=reason, rehearsed=interval, earlier=params["earlier"])
    if until and params["replay"] == "everything":
        found = f"the form asks for everything, and also for records up to {until.isoformat()} only"
        raise RequestError(found, where=dag, fix="leave one of the two out: `until`, or replay: everything")
    until = until or (end if params["replay"] == "interval" else None)
    _refuse_future(until, now, dag)
    events = (context.get("triggering_asset_events") or {}).values()
    extras = [event.extra or {} for group in events for event in group]
    return RunRequest(until, params["only"], reason or assets.describe_trigger(extras))


def refuse_invalid_preview(context: Context, now: datetime) -> None:
    """Raise RequestError if the form of a preview is invalid."""
    params, dag = context["params"], context["dag_run"].dag_id
    _refuse_unknown_fields(params, PREVIEW_FIELDS, dag)
    _refuse_future(_read_until(params["until"], dag), now, dag)


def _refuse_unknown_fields(params: Iterable[str], form: tuple[str, ...], dag: str) -> None:
    for name in params:
        if name not in form:
            raise RequestError(f"the form has no field '{name}'", where=dag, fix=suggest_nearest(name, form))


def _read_until(text: str | None, dag: str) -> datetime | None:
    """Return the moment in the field `until`, in UTC; a text without a zone is UTC."""
    if not text:
        return None
    try:
        until = datetime.fromisoformat(text)
        return until.replace(tzinfo=UTC) if until.tzinfo is None else until.astimezone(UTC)
    except (ValueError, OverflowError) as error:  # overflow: a moment outside the years 1 to 9999 in UTC
        raise RequestError(f"until is '{text}': {error}", where=dag, fix="write it like 2026-01-31T06:00") from None


def _refuse_future(until: datetime | None, now: datetime, dag: str) -> None:
    if until and until > now + CLOCK_TOLERANCE:
        found = f"the run asks for records up to {until.isoformat()}, but now is {now.isoformat(timespec='seconds')}"
        raise RequestError(found, where=dag, fix="ask for a moment that has passed, or for everything available")


def _plain_datetime(moment: datetime | None) -> datetime | None:
    """Return a moment as Python's own type, in UTC; Airflow gives pendulum's."""
    return datetime.fromisoformat(moment.isoformat()).astimezone(UTC) if moment else None
