"""One DAG per contract in schemas/: plan -> replay each topic -> derive, gate and publish each view -> report.

<pipeline>__preview says what a run would change, and writes nothing: a DAG of its own, so that no run waits for it.

Where a gate can hold changes back there is a third one, <pipeline>__release: it asks a person (approve or reject) and
publishes what was approved. The first triggers it when something is newly held.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.hitl import HITLBranchOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import (
    DAG,
    AssetAny,
    Context,
    CronDataIntervalTimetable,
    Param,
    TaskGroup,
    TriggerRule,
    get_parsing_context,
    task,
)
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowFailException

from hindcast.contracts import Contract, paths, read, read_all
from hindcast.contracts.names import PREVIEW, RELEASE, name_stand_ins
from hindcast.errors import ContractError
from hindcast.scheduling import assets, steps
from hindcast.scheduling.links import ReportLink
from hindcast.scheduling.operators import SharedSpark, SubmittedSpark
from hindcast.session import home
from hindcast.settings import settings

DEFAULTS = {
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": True,
    "execution_timeout": timedelta(minutes=15),
    "weight_rule": "hindcast.scheduling.priority.FreshFirst",
}
PATIENCE = {"mode": "reschedule", "poke_interval": 10, "timeout": 3600}
"""How a run waits for one that is under way: it asks every 10 s, keeps no worker busy, and gives up after an hour."""

SPARK_TIMEOUT = timedelta(hours=12)
"""After so long a step in Spark is stopped, and tried again: the first replay of a large topic may take hours."""

APPROVED = {**PATIENCE, "timeout": 2 * SPARK_TIMEOUT.total_seconds()}
"""How an approval or a rejection waits: longer than a step may take, for nobody gives it a second time."""

RUN = "{{ ti.xcom_pull(task_ids='plan') }}"
UNTIL = "{{ ti.xcom_pull(task_ids='plan', key='until') }}"
ONLY = "{{ ti.xcom_pull(task_ids='plan', key='only') }}"


def pipeline_dag(contract: Contract) -> DAG:
    """The DAG of a contract; its tasks are named after the contract's topics and views."""
    with DAG(
        contract.pipeline,
        description=contract.description.strip().split("\n")[0],
        doc_md=_doc(contract),
        schedule=_schedule(contract),
        start_date=contract.start,
        catchup=contract.catchup,
        max_active_runs=1,
        default_args=DEFAULTS,
        params=_form(contract),
        tags=["hindcast"],
    ) as dag:
        plan = task.sensor(task_id="plan", doc_md=PLAN, **PATIENCE)(steps.plan)(contract.pipeline)
        with TaskGroup("replay", tooltip="Kafka to log and table"):
            tables = {name: _table_task(contract, "replay", name) for name in contract.topics}
        with TaskGroup("build", tooltip="derive, gate, publish"):
            for name in contract.views:
                tables[name] = _table_task(contract, "build", name)
        for name, made in tables.items():
            [tables[i] for i in (*contract.made_of(name), *_referred(contract, name)) if i in tables] >> made
        plan >> StartPreview(
            task_id="preview",
            trigger_dag_id=f"{contract.pipeline}{PREVIEW}",
            trigger_run_id="preview__{{ run_id }}",
            conf={"until": UNTIL, "only": ONLY},
            logical_date=None,
            reset_dag_run=True,
            trigger_rule=TriggerRule.ALL_SKIPPED,
        )
        last = {"task_id": "report", "outlets": [assets.alias(contract.pipeline)], "doc_md": REPORT, **SOME}
        if contract.can_hold:
            report = task.short_circuit(**last)(steps.finish)(contract.pipeline, plan)
            report >> TriggerDagRunOperator(task_id="ask", trigger_dag_id=f"{contract.pipeline}{RELEASE}")
        else:
            report = task(**last)(steps.finish)(contract.pipeline, plan)
        report.operator.operator_extra_links = (ReportLink(),)
        plan >> list(tables.values()) >> report
    return dag


SOME = {"trigger_rule": TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS}
"""For tasks after those of tables, which are skipped where a run has nothing to do with them."""

PLAN = (
    "Fixes what the run does: its known-at, and which offsets of each topic. It waits while another run is under way."
)
REJECT = "Notes who has rejected what is held back: it stays held. It waits while something is forgotten."
REPORT = "Says what the run did, completes it, and tells Airflow which tables were published (as asset events)."


def preview_dag(contract: Contract) -> DAG:
    """Return the DAG that says what a run of the pipeline would change; no run waits for it, nor it for one."""
    form = _form(contract)
    with DAG(
        f"{contract.pipeline}{PREVIEW}",
        description=f"Says what a run of {contract.pipeline} would change, and writes nothing",
        doc_md=f"The log of the task *preview* says which past answers a run of `{contract.pipeline}` would change. "
        "It writes nothing; runs may go on meanwhile.",
        schedule=None,
        max_active_runs=1,
        is_paused_upon_creation=False,
        default_args=DEFAULTS,
        params={name: form[name] for name in steps.PREVIEW_FORM},
        tags=["hindcast", "preview"],
    ) as dag:
        # Of a priority that is less than that of any task of a run.
        last = {"priority_weight": 0, "weight_rule": "absolute", "pre_execute": steps.check_preview}
        until, only = "{{ params.until or '' }}", "{{ params.only or '' }}"
        _spark_task("preview", "preview", contract, until, only, **last)
    return dag


class StartPreview(TriggerDagRunOperator):
    """Starts the pipeline's preview, and does not wait for it: the link *Triggered DAG* leads to it."""

    def execute(self, context: Context) -> Any:
        """Hands on what of the form was filled in."""
        self.conf = {name: told for name, told in (self.conf or {}).items() if told}
        return super().execute(context)


def _form(contract: Contract) -> dict[str, Param]:
    """What a person is asked who triggers a run."""
    tables = [*contract.topics, *contract.inputs, *contract.views]
    return {
        "replay": Param(
            "interval",
            title="Replay",
            enum=["interval", "everything"],
            values_display={
                "interval": "up to the end of the run's interval; everything new if it has none",
                "everything": "everything new",
            },
            description="An interval is an upper bound: what earlier runs left is always replayed too.",
        ),
        "until": Param(
            None,
            type=["null", "string"],
            format="date-time",
            pattern=r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?$",
            title="Replay until",
            description="Instead of the interval's end: only what is dated before this moment (UTC).",
        ),
        "only": Param(
            None,
            type=["null", "string"],
            enum=[None, *tables],
            values_display={"null": "all tables"},
            title="Only a table",
            description="Bring what is new of this topic or input alone, derive this table whole, then what is made of "
            "it. All else stays as the last run left it, for the next one.",
        ),
        "preview": Param(
            False,
            type="boolean",
            title="Preview only",
            description=f"Write nothing: start {contract.pipeline}{PREVIEW}, which says what the run would change. "
            "You can start that by itself too: it does not wait for runs.",
        ),
        "reason": Param(
            None,
            type=["null", "string"],
            maxLength=500,
            title="Reason",
            description="Why it is run: kept in the journal, shown in the report.",
        ),
    }


def _schedule(contract: Contract) -> CronDataIntervalTimetable | AssetAny | None:
    if contract.schedule == "inputs":
        return AssetAny(*(assets.asset(it.table) for it in contract.inputs.values()))
    return CronDataIntervalTimetable(contract.schedule, timezone="UTC") if contract.schedule else None


def release_dag(contract: Contract) -> DAG:
    """The DAG that asks a person whether changes that are held back may be published, and publishes them."""
    told = "{{ ti.xcom_pull(task_ids='held')['text'] }}"
    until = "{{ ti.xcom_pull(task_ids='held')['until'] }}"
    by = "{{ ti.xcom_pull(task_ids='approve', key='by') }}"
    keys = "{{ ti.xcom_pull(task_ids='approve', key='keys') | tojson }}"
    with DAG(
        f"{contract.pipeline}{RELEASE}",
        description=f"Asks whether what {contract.pipeline}'s gates have held back may be published",
        schedule=None,
        max_active_runs=1,
        is_paused_upon_creation=False,
        default_args=DEFAULTS,
        tags=["hindcast", "release"],
    ) as dag:
        held = task(steps.held)(contract.pipeline)
        approve = Approval(
            task_id="approve",
            subject=f"{contract.pipeline}: publish what is held back?",
            body=told,
            options=["Approve", "Reject"],
            options_mapping={"Approve": "plan", "Reject": "reject"},
            params={"keys": _keys_to_choose([])},
            execution_timeout=None,
        )
        plan = task.sensor(task_id="plan", doc_md=PLAN, **APPROVED)(steps.plan_release)
        planned = plan(contract.pipeline, "{{ run_id }}", until, by, keys)
        release = _spark_task("release", "release", contract, "{{ run_id }}", until, by, keys)
        outlets = [assets.alias(contract.pipeline)]
        report = task(task_id="report", outlets=outlets, doc_md=REPORT)(steps.finish_release)
        reject = task.sensor(task_id="reject", doc_md=REJECT, **APPROVED)(steps.reject)
        held >> approve >> [planned, reject(contract.pipeline, until, by, keys)]
        planned >> release >> report(contract.pipeline, "{{ run_id }}")
    return dag


def _keys_to_choose(labels: list[str]) -> Param:
    """The field of the form that asks for keys, with those that can be chosen."""
    return Param(
        [],
        source="task",
        type=["array", "null"],
        items={"type": "string"},
        examples=labels,
        title="Keys",
        description="The answer is about these keys; about all that are shown if none is chosen. The others stay held.",
    )


class Approval(HITLBranchOperator):
    """Asks a person which way to go, and of which keys, and tells the tasks there what they chose, and who it was."""

    def execute(self, context: Context) -> Any:
        """Asks with the keys that are held now."""
        self.offer(context["ti"].xcom_pull(task_ids="held")["keys"])
        return super().execute(context)

    def offer(self, labels: list[str]) -> None:
        """Lets a person choose among keys."""
        self.params = ParamsDict({"keys": _keys_to_choose(labels)})

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on when the person has answered; raise Airflow's error where none has."""
        if "error" not in event:
            context["ti"].xcom_push("by", (event["responded_by_user"] or {}).get("name") or "Airflow")
            chosen = (event["params_input"] or {}).get("keys")
            context["ti"].xcom_push("keys", chosen or context["ti"].xcom_pull(task_ids="held")["keys"])
        return super().execute_complete(context, event)


def broken_dag(dag_id: str, error: Exception) -> DAG:
    """What stands in for a contract that does not load: it says why, and does nothing else."""

    def contract() -> None:
        raise AirflowFailException(str(error))

    with DAG(dag_id, doc_md=f"```\n{error}\n```", schedule=None, tags=["hindcast", "broken contract"]) as dag:
        task(contract)()
    return dag


def made(folder: Path) -> dict[str, DAG]:
    """The DAGs of a folder's contracts by their ids; of a task that begins only those of its own contract's file."""
    wanted = get_parsing_context().dag_id or ""
    own = folder / f"{wanted.removesuffix(RELEASE).removesuffix(PREVIEW)}.yaml"
    if wanted and own in paths(folder) and isinstance(contract := read(own), Contract):
        found, _ = dags({own: contract}, wanted)
        if wanted in found:
            return found
    found, broken = dags(read_all(folder), wanted)
    stand_ins = name_stand_ins(broken, found)
    return found | {dag_id: broken_dag(dag_id, broken[path]) for dag_id, path in stand_ins.items()}


def dags(
    contracts: Mapping[Path, Contract | ContractError], wanted: str = ""
) -> tuple[dict[str, DAG], dict[Path, Exception]]:
    """The DAGs of contracts by their ids, and what is wrong with files of which none can be made.

    `wanted`: the DAG of a task that begins. Whatever goes wrong with one stays with its file: there are the DAGs of all
    others.
    """
    found: dict[str, DAG] = {}
    broken: dict[Path, Exception] = {}
    for path, contract in contracts.items():
        if isinstance(contract, ContractError):
            broken[path] = contract
            continue
        try:
            new = [pipeline_dag(contract), preview_dag(contract)]
            # A task that waited while the last such gate was removed still finds its DAG.
            asks = contract.can_hold or wanted == f"{contract.pipeline}{RELEASE}"
            new += [release_dag(contract)] if asks else []
            found |= {dag.dag_id: dag for dag in new}
        except Exception as error:  # noqa: BLE001  # whatever it is, it is this contract's alone
            what = f"no DAG can be made of it: {type(error).__name__}: {error}"
            broken[path] = ContractError(what, where=f"{path}:1", mend="hindcast check; tell the makers of Hindcast")
    return found, broken


def _table_task(contract: Contract, step: str, name: str) -> Any:
    """The task that makes a table."""
    concerned = partial(steps.concerned, contract.pipeline, name)
    doc = _table_doc(contract, name)
    return _spark_task(name, step, contract, RUN, name, pre_execute=concerned, doc_md=doc, **SOME)


def _spark_task(task_id: str, step: str, contract: Contract, *arguments: str, **options: Any) -> Any:
    """A step in Spark through the provider: in the shared Spark Connect session, or by spark-submit."""
    options |= {"execution_timeout": SPARK_TIMEOUT, "pool": settings().pool}
    if settings().spark == "submit":
        return SubmittedSpark(
            task_id=task_id,
            conn_id="spark_default",
            application=str(settings().root / "jobs" / f"{step}.py"),
            application_args=[contract.pipeline, *arguments],
            properties_file=str(home() / "spark-conf" / "spark-defaults.conf"),
            name=f"hindcast {contract.pipeline} {step} {task_id}",
            **options,
        )
    return SharedSpark(
        task_id=task_id,
        conn_id="hindcast_spark",
        python_callable=getattr(steps, step),
        op_args=[contract.pipeline, *arguments],
        **options,
    )


def _referred(contract: Contract, name: str) -> list[str]:
    """The tables that a table's gates look into."""
    return [gate.refers_to for gate in contract.expectations(name) if gate.refers_to]


def _doc(contract: Contract) -> str:
    """What the UI says of a pipeline: its own description, its tables, and how to run it."""
    kafka = {name: contract.kafka_topic(name).replace("|", r"\|") for name in contract.topics}  # of patterns
    rows = [f"| {name} | {t.read} | Kafka: `{kafka[name]}` |" for name, t in contract.topics.items()]
    rows += [f"| {name} | {it.read} | `{it.table}` |" for name, it in contract.inputs.items()]
    rows += [f"| {name} | view | {' with '.join(v.inputs)} |" for name, v in contract.views.items()]
    return "\n".join([contract.description, "", "| table | | from |", "| --- | --- | --- |", *rows, "", RUNNING])


RUNNING = """\
**Trigger** runs it now: everything new, up to a moment, or one table alone; *Preview only* writes nothing. **Backfill**
brings the tables up to the end of each interval, in any order: what was replayed before is not replayed again. Each
task's *Report* leads to what its run did.
"""


def _table_doc(contract: Contract, name: str) -> str:
    """What the UI says of a table's task."""
    if name in contract.topics:
        made = f"Appends the planned records of `{contract.kafka_topic(name)}` to its log, each with its fate"
    else:
        made = f"Derives what has changed from {' and '.join(contract.made_of(name))}"
    gates = [f"- `{gate.type}` ({gate.on_failure})" for gate in contract.expectations(name)]
    asked = "\n\nIts gates:\n\n" + "\n".join(gates) if gates else ""
    return f"{made}, gates it and publishes `{contract.pipeline}.{name}` in one commit.{asked}"


globals().update(made(settings().schemas))
