"""Planning a run: which offsets it ingests, from the topics, the journal and the contract; and abandoning one."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from hindcast import __version__
from hindcast.archives import archived_topics
from hindcast.common import clock
from hindcast.common.errors import BusyError, RequestError, RunError, suggest_nearest
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.plan import (
    closes,
    committed_runs,
    definitions,
    ended_runs,
    inputs,
    journal,
    notices,
    rehearsals,
    taken_offsets,
    topic_planning,
)
from hindcast.plan.plans import Plan
from hindcast.plan.purposes import Erasure, Purpose, Release, Replay, Requeue, Upgrade
from hindcast.plan.rehearsals import RehearsedOffsets
from hindcast.plan.runs import Abandoned, Run
from hindcast.store import emitted_log, tables
from hindcast.store.tables import Table, locate_table, read_last_run


def ensure_plan(
    contract: BoundContract,
    run_id: str,
    interval_end: datetime | None = None,
    only: str | None = None,
    reason: str | None = None,
    instead: Release | Requeue | Erasure | Upgrade | None = None,
    *,
    ahead: bool = False,
    given: TopicSource | None = None,
    rehearsed: RehearsedOffsets | None = None,
    ends_rehearsal: bool = False,
) -> Plan:
    """Return the plan of the run `run_id`, after storing it; that of an earlier attempt if there is one.

    `interval_end` (UTC) bounds what is replayed; without it, everything available is. `only`, `ahead`, `given` and
    `rehearsed`: as for `propose_plan`. `instead`: what the run does instead of replaying. Raise BusyError if another
    run of the pipeline has not ended, also if it has the same `run_id` and is for something else: a run of another DAG
    can; and while a rehearsal of Airflow is open, unless the run may end that (`ends_rehearsal`). Raise TableError if a
    table has a commit of a run that the journal lacks: the next run would take its number. A stopped run is
    abandoned for this one, even if it is an earlier attempt of `run_id`; this run ingests the records that it left. The
    run is known at the moment directly before its plan is stored: until then a question gets an answer without the run,
    and that answer must not change.
    """
    warehouse = contract.warehouse
    past = journal.read_runs(warehouse, contract.pipeline)
    open_runs = [run for run in past if not run.is_finished]
    kind = Replay if instead is None else type(instead)
    for run in open_runs:
        same = run.run_id == run_id and isinstance(run.plan.purpose, kind)
        same = same and (rehearsed is None or run.plan.rehearsed_interval == rehearsed.interval)
        same = same and run.plan.pass_numbers is None
        if run.state == "stopped":
            continue
        if same and isinstance(instead, Release) and not instead.is_same_answer(run.plan.released_keys):
            raise RunError(
                "another answer was given before, and its release has not ended",
                where=f"{contract.pipeline}, run {run.number} ({run.run_id})",
                fix=f"retry the release of that answer; or hindcast abandon {contract.pipeline}, then retry this one",
            )
        if same and run.plan.contract == contract.hash and is_of_this_version(run.plan):
            return run.plan
        if same and not is_of_this_version(run.plan) and _has_committed(warehouse, contract, run.plan):
            raise RunError(
                f"the run was begun by Hindcast {run.plan.version}, and this is {__version__}",
                where=f"{contract.pipeline}, run {run.number} ({run.run_id})",
                fix=f"finish it with {run.plan.version}; or abandon it, and the next run does what it left: "
                f"hindcast abandon {contract.pipeline}",
            )
        if same and _has_committed(warehouse, contract, run.plan):
            raise RunError(
                "the contract was changed while the run was under way",
                where=f"{contract.pipeline}, run {run.number} ({run.run_id})",
                fix="put the contract and its variables (--var) back and retry, or abandon the run: "
                f"hindcast abandon {contract.pipeline}",
            )
        if not same:
            raise BusyError(
                f"run {run.number} ({run.run_id}) has not ended",
                where=contract.pipeline,
                fix=f"wait for it or {name_retry(run)}; if it cannot be finished: hindcast abandon {contract.pipeline}",
            )
    committed_runs.refuse_unknown_runs(contract, past)
    if rehearsed is not None:
        rehearsals.refuse_rehearsal(contract, past)
        inputs.refuse_unrehearsed(contract, rehearsed.interval)
    elif instead is None and rehearsals.is_open(past):
        notices.refuse_rehearsing(warehouse, contract.pipeline)
        if not ends_rehearsal and (last := rehearsals.find_airflows_run(past)) is not None:
            raise BusyError(
                f"a backfill of Airflow rehearses the pipeline: its last run is {last.number} ({last.run_id})",
                where=contract.pipeline,
                fix=f"if it has ended, end the rehearsal: hindcast rehearse {contract.pipeline} --end",
            )
    if any(run.plan.erasure for run in open_runs):  # one that a gate stopped purges once more
        notices.wait_for_forgetting(warehouse, contract.pipeline)
    if past and past[-1].state == "abandoned":  # whoever abandoned it may have been killed before it refused these
        ended_runs.refuse_late_commits(warehouse, past, past[-1])
    propose = partial(
        propose_plan,
        contract,
        run_id,
        interval_end,
        only=only,
        instead=instead,
        ahead=ahead,
        given=given,
        rehearsed=rehearsed,
    )
    plan = propose(past)
    for run in open_runs:
        try:
            abandon_run(warehouse, run, f"given up for {run_id}")
        except RunError as ended:
            raise BusyError(
                f"another run was planned at the same moment: {ended.found}",
                where=contract.pipeline,
                fix="run it again when that one has ended; nothing was written",
            ) from ended
    if open_runs:
        past = journal.read_runs(warehouse, contract.pipeline)
        plan = propose(past)
    plan = replace(plan, reason=reason, definition=definitions.list_unstored_fields(past, contract))

    def date_plan(run: Run) -> Run:
        known_at, is_ahead = _next_known_at(contract, past, run.plan.purpose, consented=ahead)
        return replace(run, plan=replace(run.plan, known_at=known_at, ahead=is_ahead))

    return journal.append_entry(warehouse, Run(plan), date=date_plan).plan


def is_of_this_version(plan: Plan) -> bool:
    """Return whether this Hindcast may do steps of a run: the one that planned it must have the same version."""
    return plan.version in ("", __version__)


def name_retry(run: Run) -> str:
    """Return how to retry a run, with the command if a command began it."""
    if run.plan.erasure:
        return "repeat the hindcast forget that began it"
    if run.plan.rehearsed_interval is not None and run.run_id.startswith(rehearsals.RUN_PREFIX):
        return "repeat the hindcast rehearse that began it"
    command = {"cli": "run", "requeue": "requeue", "release": "release"}.get(run.run_id.partition("__")[0])
    return f"retry it (hindcast {command} {run.plan.pipeline})" if command else "retry it"


def propose_plan(
    contract: BoundContract,
    run_id: str,
    interval_end: datetime | None,
    past: list[Run],
    only: str | None = None,
    instead: Release | Requeue | Erasure | Upgrade | None = None,
    *,
    ahead: bool = False,
    given: TopicSource | None = None,
    rehearsed: RehearsedOffsets | None = None,
) -> Plan:
    """Return the plan of a run after the `past` ones if it were planned now; nothing is stored.

    Its known-at is the moment at which it begins to look for offsets; `ensure_plan` takes a later one.

    `rehearsed`: the interval of arrival that a rehearsed run is of, and where it ends; its inputs are those known then.
    `given`: topics to plan instead of Kafka's. A run that does something `instead` of replaying asks Kafka only for
    topics that no run has planned: what became of the others in Kafka does not stop it. With `only`, a topic, input or
    view, the run ingests only that topic, or reads only that input again: all other topics and inputs stay where the
    last run left them, for the next run. That table is derived whole, then the tables below it
    (`Contract.list_tables_below`). Raise RequestError unless the last run was completed under the same contract,
    because otherwise the next run has to look at all tables. Raise RunError if the known-at would be more than an hour
    ahead of the clock, unless a person consents to that (`ahead`) or did so for the run before.
    """
    warehouse = contract.warehouse
    if only is not None:
        _refuse_alone(contract, only, past)
    purpose = instead or (Replay(only) if rehearsed is None else Replay(only, rehearsed.interval, rehearsed.logs))
    known_at, is_ahead = _next_known_at(contract, past, purpose, consented=ahead)
    upto = rehearsals.date_run(contract, past, purpose)
    kept = past[-1].plan.as_of_system_times if only is not None else {}
    pins = {
        name: kept[name]
        if name in kept and name != only
        else inputs.read_as_of_system_time(warehouse, contract, name, upto)
        for name in contract.inputs
    }
    before = {name: taken_offsets.find_taken(contract, name, past) for name in contract.topics}
    topics = {
        n: topic_planning.plan_no_offsets(contract, n, state.taken) for n, state in before.items() if instead and state
    }
    if others := [name for name in contract.topics if name not in topics]:
        with archived_topics.open_source(contract, given) as cluster:
            for name in others:
                bounds = interval_end if rehearsed is None else rehearsed.ends[name]
                topics[name] = topic_planning.plan_topic(cluster, contract, name, before[name], bounds, known_at, past)
    if instead or only is not None:
        topics |= {name: topics[name].without_offsets() for name in others if name != only}
    topics = {name: topics[name] for name in contract.topics}
    numbers = max([1, *(len(topic.chunks) for topic in topics.values())])
    number = max((run.number for run in past), default=0) + numbers
    decodings = {name: topic.hash_decoding for name, topic in contract.topics.items()}
    end = interval_end if rehearsed is None else rehearsed.interval.until
    identity = (contract.pipeline, number, run_id, known_at, end, contract.hash)
    return Plan(
        *identity,
        topics,
        pins,
        purpose,
        decodings=decodings,
        numbers=numbers,
        ahead=is_ahead,
        version=__version__,
    )


MAX_AHEAD = timedelta(hours=1)
"""How far the known-at of a run may be ahead of the clock that plans it without a person's consent."""


def _next_known_at(
    contract: BoundContract, past: list[Run], purpose: Purpose, *, consented: bool
) -> tuple[datetime, bool]:
    """Return the known-at of the run after the `past` ones, and whether it is further ahead of the clock than
    `MAX_AHEAD`.

    The known-ats of a pipeline grow, whatever clocks show, and come after those of its closes: what was known then
    stays. Raise RunError for one too far ahead without consent. That of a rehearsed run is no clock's (rehearsals.py).
    """
    if (rehearsed_at := rehearsals.date_run(contract, past, purpose)) is not None:
        return rehearsed_at, False
    now, pipeline = clock.now(), contract.pipeline
    runs = [(run.known_at, f"run {run.number} ({run.run_id})", f"run {run.number}", run.plan.ahead) for run in past]
    kept = closes.list_kept(contract.warehouse, pipeline)
    named = [(close.known_at, f"the close '{close.name}'", "whoever closed it", False) for close in kept]
    if not (runs or named):
        return now, False
    last, who, owner, is_consented = max([*runs, *named], key=lambda it: it[0])
    known_at = max(now, last + timedelta(microseconds=1))
    if known_at <= now + MAX_AHEAD:
        return known_at, False
    if not (consented or is_consented):
        raise RunError(
            f"{who} is known at {last.isoformat()}, but it is {now.isoformat(timespec='seconds')} by this machine's "
            "clock: one of the two clocks was wrong",
            where=pipeline,
            fix=f"set this machine's clock by NTP; if it was the clock of {owner}, continue after that "
            f"moment with: hindcast run {pipeline} --ahead-of-clock (docs/maintenance.md says what that means)",
        )
    return known_at, True


def _refuse_alone(contract: Contract, only: str, past: list[Run]) -> None:
    """Raise RequestError if a run must not be about one table alone."""
    where, fix = f"{contract.pipeline}, only {only}", "run the pipeline once without `only`"
    known = (*contract.topics, *contract.inputs, *contract.views)
    if only not in known:
        raise RequestError(f"there is no table '{only}'", where=contract.pipeline, fix=suggest_nearest(only, known))
    if not past:
        raise RequestError("the first run is about all tables", where=where, fix=fix)
    if past[-1].state != "completed":
        found = f"run {past[-1].number} was not completed, so what it left undone concerns all tables"
        raise RequestError(found, where=where, fix=fix)
    if past[-1].plan.contract != contract.hash:
        found = f"the contract was changed since run {past[-1].number}, so all tables are derived from scratch"
        raise RequestError(found, where=where, fix=fix)


def describe_written(warehouse: str, contract: Contract, plan: Plan | None, done: int, chunks: int) -> str:
    """Return what a run wrote that failed at a topic after `done` of its chunks, as text; no plan: a preview."""
    if done:
        return f"{done} of its {chunks} chunks are in the log and stay: the next run continues after them"
    if plan is None or not _has_committed(warehouse, contract, plan):
        return "nothing was written"
    return "nothing was written for this topic; what was written for others stays, and the next run continues after it"


def abandon_run(warehouse: str, run: Run, reason: str) -> None:
    """Abandon a run, with all others of its pass: what it committed stays, the rest is left to the next run.

    The journal entry lists the tables that the run `published`, because Delta's log drops its oldest commits. Then its
    steps can commit nothing more (`late_commits`). The moments of a pass that has committed nothing are free again.
    """
    pipeline, first = run.plan.pipeline, run.plan.first_number
    past, last = journal.read_runs(warehouse, pipeline), run.number
    if run.plan.pass_numbers is not None:
        first, last = run.plan.pass_numbers
    names = definitions.list_tables(past, run.plan.contract)
    published = [name for name in names if read_last_run(Table(warehouse, pipeline, name, "versions")) >= first]
    others = [other for other in past if first <= other.number <= last and not other.is_finished]
    ended = [replace(it, outcome=Abandoned(reason, tuple(published), it.stop_error)) for it in others or [run]]
    journal.append_entries(warehouse, ended)
    ended_runs.refuse_late_commits(warehouse, past, others[-1] if others else run)
    if run.plan.pass_numbers is not None:
        ended_runs.free_moments(warehouse, [it for it in past if it.number < first], ended)


def _has_committed(warehouse: str, contract: Contract, run: Plan) -> bool:
    """Return whether a run committed anything: to a log, its fates, the emitted log of a kafka view, or a table."""
    place, kafka_views = (
        (warehouse, contract.pipeline),
        [n for n, v in contract.views.items() if v.semantics == "kafka"],
    )
    written = [
        *(locate(*place, name) for name in contract.topics for locate in (tables.log_table, tables.fates_table)),
        *(emitted_log.emitted_table(warehouse, contract, name) for name in kafka_views),
        *(locate_table(warehouse, contract, name) for name in (*contract.topics, *contract.views)),
    ]
    return any(read_last_run(table) >= run.first_number for table in written)
