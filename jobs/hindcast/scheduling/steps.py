"""The steps of a run as Airflow's tasks call them. Importing this costs neither Spark nor a connection.

What retrying cannot mend (a contract, a record, a gate, a table of another form) fails the task at once.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from hindcast import telling
from hindcast.errors import FINAL, AskedError, BusyError, HindcastError, nearest
from hindcast.scheduling import gauges
from hindcast.words import counted

if TYPE_CHECKING:
    from airflow.sdk import Context, PokeReturnValue
    from pyspark.sql import SparkSession

AHEAD = timedelta(minutes=1)
"""So far may the clock of Airflow's scheduler be ahead of ours."""


class Asked(NamedTuple):
    """What a run is asked to do: replay up to `until`, or all there is; all tables, or `only` one."""

    until: datetime | None = None
    only: str | None = None
    reason: str | None = None


FORM = ("replay", "until", "only", "preview", "reason")
"""The fields of the form by which a person triggers a run (dags/pipelines.py); their names in a run's `conf`."""

PREVIEW_FORM = ("until", "only")
"""Those of them by which a person triggers a preview alone."""


def asked(context: Context, now: datetime) -> Asked:
    """What the form, the interval and the events that have started a run ask for; AskedError if that makes no sense."""
    from hindcast.scheduling import assets

    params, dag = context["params"], context["dag_run"].dag_id
    _refuse_other_fields(params, FORM, dag)
    start, end = _plain(context.get("data_interval_start")), _plain(context.get("data_interval_end"))
    if start and end and end < start:
        found = f"the interval ends at {end.isoformat()}, before it starts at {start.isoformat()}"
        raise AskedError(found, where=dag, mend="trigger it with an end that is later, or with an empty logical date")
    until = _read_until(params["until"], dag)
    if until and params["replay"] == "everything":
        mend = "leave one of the two out: `until`, or replay: everything"
        raise AskedError(f"everything is asked for, and only what is dated before {until}", where=dag, mend=mend)
    asked_for = until or (end if params["replay"] == "interval" else None)
    _refuse_future(asked_for, now, dag)
    events = [event for some in (context.get("triggering_asset_events") or {}).values() for event in some]
    return Asked(asked_for, params["only"], params["reason"] or assets.reason(events))


def check_preview(context: Context) -> None:
    """Fail the task of a preview whose form makes no sense."""
    params, dag = context["params"], context["dag_run"].dag_id
    with _failing_for_good():
        _refuse_other_fields(params, PREVIEW_FORM, dag)
        _refuse_future(_read_until(params["until"], dag), datetime.now(UTC), dag)


def _refuse_other_fields(params: Iterable[str], form: tuple[str, ...], dag: str) -> None:
    for name in params:
        if name not in form:
            raise AskedError(f"the form has no field '{name}'", where=dag, mend=nearest(name, form))


def _read_until(text: str | None, dag: str) -> datetime | None:
    """Return the moment in the field `until`, which is UTC if it names no other zone."""
    try:
        until = datetime.fromisoformat(text) if text else None
    except ValueError as error:
        raise AskedError(f"until is '{text}': {error}", where=dag, mend="write 2026-01-31T06:00") from None
    return until and (until.replace(tzinfo=UTC) if until.tzinfo is None else until.astimezone(UTC))


def _refuse_future(asked_for: datetime | None, now: datetime, dag: str) -> None:
    if asked_for and asked_for > now + AHEAD:
        found = f"records up to {asked_for.isoformat()} are asked for; it is {now.isoformat(timespec='seconds')} now"
        raise AskedError(found, where=dag, mend="ask for a moment that has passed, or for everything there is")


def plan(pipeline: str, **context: Any) -> PokeReturnValue:
    """Stores the run's plan, as a sensor: done with the run's number.

    Skipped, and so is all that follows it, where only a preview was asked for.

    Not done while another run of the pipeline is under way: a pipeline's runs are serialised, also those of a backfill
    beside the schedule, which Airflow starts at the same time. Nor while something waits for its turn that goes first:
    an approval, or in a backfill a fresh run.
    """
    from airflow.sdk import PokeReturnValue
    from airflow.sdk.exceptions import AirflowSkipException

    from hindcast import runs
    from hindcast.contracts import find
    from hindcast.planning import journal
    from hindcast.scheduling import connections
    from hindcast.settings import settings

    ti, dag_run, run_id = context["ti"], context["dag_run"], context["run_id"]
    with _failing_for_good():
        connections.use()
        todo = asked(context, datetime.now(UTC))  # type: ignore[arg-type]  # Airflow gives it so
        ti.xcom_push("only", todo.only or "")
        if context["params"]["preview"]:
            ti.xcom_push("until", todo.until.isoformat() if todo.until else "")
            raise AirflowSkipException("only a preview was asked for")
        begun = any(r.run_id == run_id and not r.finished for r in journal.runs(settings().warehouse, pipeline))
        can_hold = find(settings().schemas, pipeline).can_hold
        if not begun and (first := _goes_first(ti, dag_run.run_type, run_id, can_hold=can_hold)):
            print(first)
            return PokeReturnValue(is_done=False)
        try:
            number = runs.plan(pipeline, run_id, *todo)
        except BusyError as busy:
            print(busy)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=number)


def _goes_first(ti: Any, run_type: str, run_id: str, *, can_hold: bool) -> str | None:
    """Return what waits for its turn and goes before a run that has not been planned yet, in words; None if nothing.

    `can_hold`: whether a gate can hold changes back. If none can any more, Airflow has no DAG of approvals: one that
    waits will not begin, and the run publishes what was held.
    """
    from hindcast.scheduling import priority

    release = f"{ti.dag_id}__release"
    if can_hold and ti.get_dr_count(release, states=["running"]):
        states = ti.get_task_states(release, task_ids=["plan"])
        waiting = priority.find_waiting({run: state.get("plan") for run, state in states.items()})
        if waiting and not ti.get_dag(release).is_paused:
            return f"{waiting} goes first: a person has approved it"
    if run_type == "backfill" and ti.get_dr_count(ti.dag_id, states=["running"]) > 1:
        states = ti.get_task_states(ti.dag_id, task_ids=[ti.task_id])
        fresh = priority.gives_way(run_id, {run: state.get(ti.task_id) for run, state in states.items()})
        if fresh:
            return f"{fresh} goes first: it is no backfill"
    return None


def plan_release(pipeline: str, name: str, until: str, by: str, labels: str) -> PokeReturnValue:
    """Store the plan of a release of that name, as a sensor: done with its number.

    Not done while another run of the pipeline is under way; none is begun after that before this one (`plan`).
    """
    from airflow.sdk import PokeReturnValue

    from hindcast import runs
    from hindcast.scheduling import connections

    with _failing_for_good():
        connections.use()
        keys = _chosen(pipeline, until, labels)
        try:
            number = runs.plan_release(pipeline, name, keys, by, datetime.fromisoformat(until))
        except BusyError as busy:
            print(busy)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=number)


def concerned(pipeline: str, name: str, context: Context) -> None:
    """Skips the task of a table with which its run has nothing to do: the run is about another one alone."""
    only = context["ti"].xcom_pull(task_ids="plan", key="only")
    if not only:
        return
    from airflow.sdk.exceptions import AirflowSkipException

    from hindcast.contracts import find
    from hindcast.settings import settings

    with _failing_for_good():
        if name not in find(settings().schemas, pipeline).below(only):
            raise AirflowSkipException(f"the run is about {only} and what is made of it")


def replay(pipeline: str, run: str, name: str, spark: SparkSession) -> dict[str, Any]:
    """Replays one topic into its log and its table."""
    with _failing_for_good():
        from hindcast import runs
        from hindcast.scheduling import connections

        connections.use()
        return runs.replay(spark, pipeline, int(run), name)


def build(pipeline: str, run: str, name: str, spark: SparkSession) -> dict[str, Any]:
    """Derives, gates and publishes one view."""
    with _failing_for_good():
        from hindcast import runs

        return runs.build(spark, pipeline, int(run), name)


def preview(pipeline: str, until: str, only: str, spark: SparkSession) -> None:
    """Says what a run would change, up to a moment or about a table alone (empty: all); writes nothing."""
    with _failing_for_good():
        from hindcast import read
        from hindcast.building import preview as previews
        from hindcast.scheduling import connections
        from hindcast.settings import settings

        connections.use()
        end = read.moment_of(settings().warehouse, pipeline, until) if until else None
        print(previews.text(previews.preview(spark, pipeline, end, only or None)))


def pipelines() -> list[list[str]]:
    """The names of the pipelines whose contracts load, each as the arguments of a task."""
    from hindcast.contracts import Contract, read_all
    from hindcast.settings import settings

    found = set()
    for contract in read_all(settings().schemas).values():
        if isinstance(contract, Contract):
            found.add(contract.pipeline)
        else:
            print(f"left out: {contract}")
    return [[name] for name in sorted(found)]


def maintain(pipeline: str, spark: SparkSession) -> None:
    """Compacts, clusters and vacuums a pipeline's tables."""
    with _failing_for_good():
        from hindcast.contracts import find
        from hindcast.settings import settings
        from hindcast.upkeep import maintenance

        now = settings()
        print(maintenance.text(maintenance.maintain(lambda: spark, now, find(now.schemas, pipeline))))


def finish(pipeline: str, run: int, outlet_events: Any = None) -> bool:
    """Makes the run's report, completes the run and tells of what it has published (assets.py).

    Returns whether keys are newly held back, or have got more to hold: then a person is to be asked.
    """
    with _failing_for_good():
        from hindcast import runs
        from hindcast.reports import report
        from hindcast.scheduling import assets

        told = runs.finish(pipeline, run)
        print(report.text(told))
        assets.announce(outlet_events, told)
        held = [table.get("held", {}) for table in told["tables"].values()]
        return any(counts.get("newly") or counts.get("grown") for counts in held)


def finish_release(pipeline: str, name: str, outlet_events: Any = None) -> None:
    """Tells of what a release of that name has published."""
    from hindcast.planning import journal
    from hindcast.settings import settings

    own = [run for run in journal.runs(settings().warehouse, pipeline) if run.run_id == name]
    finish(pipeline, own[-1].number, outlet_events)  # one that was given up was planned again under its name


def held(pipeline: str) -> dict[str, Any]:
    """What is held back: `text` for the person who is asked, the `keys` that can be chosen, `until` when it was read.

    Skipped if nothing is.
    """
    from airflow.sdk.exceptions import AirflowSkipException

    from hindcast.contracts import find
    from hindcast.quality import approval, holds
    from hindcast.settings import settings

    now = settings()
    until = holds.last_entry(now.warehouse, pipeline)  # before the rows: what comes meanwhile was not looked at
    contract = find(now.schemas, pipeline)
    keys = approval.read_held_keys(now.warehouse, contract)
    if not keys:
        raise AirflowSkipException("nothing is held back")
    labels = [key.label for key in keys[: approval.SHOWN]]
    return {"text": approval.describe(contract, keys), "keys": labels, "until": until.isoformat()}


def release(pipeline: str, name: str, until: str, by: str, labels: str, spark: SparkSession) -> None:
    """Publishes what a person has approved, in a run of that name, which is planned."""
    with _failing_for_good():
        from hindcast import runs
        from hindcast.reports import report
        from hindcast.scheduling import connections

        connections.use()
        keys = _chosen(pipeline, until, labels)
        print(report.text(runs.release(spark, pipeline, name, keys, by, datetime.fromisoformat(until))))


def reject(pipeline: str, until: str, by: str, labels: str) -> PokeReturnValue:
    """Note that what is held stays held, as a sensor. Not done while something is forgotten."""
    from airflow.sdk import PokeReturnValue

    with _failing_for_good():
        from hindcast.quality import holds
        from hindcast.settings import settings

        keys = _chosen(pipeline, until, labels)
        try:
            rejected = holds.reject(settings().warehouse, pipeline, keys, by, datetime.fromisoformat(until))
        except BusyError as busy:
            print(busy)
            return PokeReturnValue(is_done=False)
        for name, some in rejected.items():
            print(f"{pipeline}.{name}: {counted(len(some), 'key')} held, rejected by {by}")
        if not rejected:
            print(f"{pipeline}: nothing is held any more as it was shown; nothing was rejected")
        return PokeReturnValue(is_done=True)


def _chosen(pipeline: str, until: str, labels: str) -> dict[str, list[str]]:
    """Return the keys (JSON) by table that a person has chosen (`approval.choose_keys`)."""
    from hindcast.contracts import find
    from hindcast.quality import approval
    from hindcast.settings import settings

    now = settings()
    return approval.choose_keys(now.warehouse, find(now.schemas, pipeline), datetime.fromisoformat(until), labels)


@contextmanager
def _failing_for_good() -> Iterator[None]:
    """Errors of ours end a task's log: what Spark has said of them stands before them, and nothing after.

    What a step tells of itself meanwhile goes to Airflow (gauges.in_airflow).
    """
    try:
        with telling.to(gauges.in_airflow):
            yield
    except HindcastError as error:
        from airflow.sdk.exceptions import AirflowException, AirflowFailException

        if error.__cause__ is not None:
            # As an entry of the log: what is printed goes another way, and may arrive behind the error.
            _LOG.info("".join(traceback.format_exception(error.__cause__)).rstrip())
        raise (AirflowFailException if isinstance(error, FINAL) else AirflowException)(str(error)) from None


_LOG = logging.getLogger(__name__)


def _plain(moment: datetime | None) -> datetime | None:
    """Airflow's moments are pendulum's."""
    return datetime.fromisoformat(moment.isoformat()).astimezone(UTC) if moment else None
