"""One DAG per contract: plan -> replay each topic -> derive, gate and publish each view -> report.

<pipeline>__preview reports what a run would change and writes nothing. It is a DAG of its own, so no run waits for it.

If a gate can hold changes back, there is a third DAG (release_dag.py). The first one triggers it when changes are newly
held.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import (
    DAG,
    AssetAny,
    Context,
    CronDataIntervalTimetable,
    Param,
    TaskGroup,
    TriggerRule,
    task,
)
from airflow.sdk.definitions.param import ParamsDict

from hindcast.airflow import assets, run_requests, tasks
from hindcast.airflow.dag_defaults import (
    LONG_PATIENCE,
    PATIENCE,
    PLAN,
    REHEARSE,
    REPORT,
    list_dag_options,
    list_step_options,
)
from hindcast.airflow.links import ReportLink
from hindcast.airflow.spark_tasks import create_spark_task, read_contracts_of
from hindcast.common.settings import Settings
from hindcast.contract import (
    Contract,
)
from hindcast.contract.description import summarize_description
from hindcast.contract.names import PREVIEW, RELEASE, name_preview
from hindcast.runs.table_steps import TABLE_STEPS

RUN = "{{ ti.xcom_pull(task_ids='plan') or ti.xcom_pull(task_ids='rehearse') }}"


UNTIL = "{{ ti.xcom_pull(task_ids='plan', key='until') }}"


ONLY = "{{ ti.xcom_pull(task_ids='plan', key='only') }}"


REHEARSED = "{{ ti.xcom_pull(task_ids='plan', key='rehearsed') or '' }}"


def create_pipeline_dag(settings: Settings, contract: Contract) -> DAG:
    """Return the DAG of a contract; its tasks are named after the contract's topics and views."""
    with DAG(
        contract.pipeline,
        description=summarize_description(contract.description),
        doc_md=_doc(contract),
        schedule=_schedule(settings, contract),
        start_date=contract.start if contract.intervals is None else _NEVER,
        catchup=contract.catchup,
        max_active_runs=1,
        **list_dag_options(contract),
    ) as dag:
        patience = {**PATIENCE, **(LONG_PATIENCE if contract.has_arrivals else {})}
        plan = task.sensor(task_id="plan", doc_md=PLAN, **patience)(read_contracts_of(settings, tasks.plan))(
            contract.pipeline
        )
        planned = [plan, *_plan_rehearsals(settings, contract, plan)]
        tables: MutableMapping[str, Any] = {}
        for step in TABLE_STEPS.values():
            with TaskGroup(step.name, tooltip=step.summary):
                for name in step.list_tables(contract):
                    tables[name] = _table_task(settings, contract, step.name, name)
        for name, table in tables.items():
            [
                tables[i] for i in (*contract.list_inputs(name), *_list_other_tables(contract, name)) if i in tables
            ] >> table
        plan >> StartPreview(
            task_id="preview",
            trigger_dag_id=f"{contract.pipeline}{PREVIEW}",
            trigger_run_id=name_preview("{{ run_id }}"),
            conf={"until": UNTIL, "only": ONLY},
            logical_date=None,
            reset_dag_run=True,
            trigger_rule=TriggerRule.ALL_SKIPPED,
        )
        finish = read_contracts_of(settings, tasks.finish)
        last = {"task_id": "report", "outlets": [assets.pipeline_alias(contract.pipeline)], "doc_md": REPORT, **SOME}
        if contract.can_hold:
            report = task.short_circuit(**last)(finish)(contract.pipeline, RUN, REHEARSED)
            report >> TriggerDagRunOperator(task_id="ask", trigger_dag_id=f"{contract.pipeline}{RELEASE}")
        else:
            report = task(**last)(finish)(contract.pipeline, RUN, REHEARSED)
        report.operator.operator_extra_links = (ReportLink(),)
        for first in planned:
            first >> [*tables.values(), report]
        list(tables.values()) >> report
    dag.params = ParamsDict(_form(contract))  # after its tasks: Airflow would copy and check them once more for each
    return dag


SOME: Mapping[str, Any] = {"trigger_rule": TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS}
"""For tasks after those of tables, which are skipped if the run does not concern them."""


def create_preview_dag(settings: Settings, contract: Contract) -> DAG:
    """Return the DAG that reports what a run of the pipeline would change; it and runs do not wait for each other."""
    form = _form(contract)
    with DAG(
        f"{contract.pipeline}{PREVIEW}",
        description=f"Reports what a run of {contract.pipeline} would change, and writes nothing",
        doc_md=f"The tab *Report* of a run shows which past answers a run of `{contract.pipeline}` would change. "
        "It writes nothing, and runs can continue meanwhile.",
        schedule=None,
        max_active_runs=1,
        is_paused_upon_creation=False,
        params={name: form[name] for name in run_requests.PREVIEW_FIELDS},
        **list_dag_options(contract, "preview"),
    ) as dag:
        # Its priority is lower than that of any task of a run.
        last = {
            **list_step_options(settings, contract),
            "priority_weight": 0,
            "weight_rule": "absolute",
            "pre_execute": tasks.check_preview,
        }
        until, only = "{{ params.until or '' }}", "{{ params.only or '' }}"
        create_spark_task(settings, "preview", "preview", contract.pipeline, until, only, "{{ run_id }}", **last)
    return dag


def _plan_rehearsals(settings: Settings, contract: Contract, plan: Any) -> list[Any]:
    """Return the task after `plan` that plans a rehearsed run, by Spark; none if the pipeline has no arrivals."""
    if not contract.has_arrivals:
        return []
    options = {**list_step_options(settings, contract), "doc_md": REHEARSE, "pre_execute": tasks.skip_rehearsal}
    arguments = (contract.pipeline, "{{ run_id }}", "{{ ti.xcom_pull(task_ids='plan', key='rehearses') }}")
    rehearse = create_spark_task(settings, "rehearse", "rehearse", *arguments, **options)
    plan >> rehearse
    return [rehearse]


class StartPreview(TriggerDagRunOperator):
    """The task that starts the pipeline's preview without waiting for it; the link *Triggered DAG* leads to it."""

    def execute(self, context: Context) -> Any:
        """Start the preview with the fields of the form that were filled in."""
        self.conf = {name: value for name, value in (self.conf or {}).items() if value}
        return super().execute(context)


def _form(contract: Contract) -> dict[str, Param]:
    """Return the fields of the form that triggers a run, by name."""
    tables = [*contract.topics, *contract.inputs, *contract.views]
    ways = {
        "interval": "up to the end of the run's interval; everything new if it has none",
        "everything": "everything new",
    }
    description, fields = "The interval is only an upper bound: what earlier runs left is always replayed too.", {}
    if contract.has_arrivals:
        description += " A backfill leaves this form out unless 'Override parameters on existing runs' is ticked."
        ways[run_requests.REHEARSAL] = "rehearse: what arrived in the run's interval, as known at its end"
        fields["earlier"] = Param(
            False,
            type="boolean",
            title="With earlier records",
            description="Of a rehearsal: what arrived before its first interval belongs to that.",
        )
    return {
        "replay": Param(
            "interval",
            title="Replay",
            enum=[*ways],
            values_display=ways,
            description=description,
        ),
        **fields,
        "until": Param(
            None,
            type=["null", "string"],
            format="date-time",
            pattern=r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?$",
            title="Replay until",
            description="Replaces the interval's end: only records dated before this moment (UTC).",
        ),
        "only": Param(
            None,
            type=["null", "string"],
            enum=[None, *tables],
            values_display={"null": "all tables"},
            title="Only a table",
            description="Ingest only this topic or input, derive this table whole, then the tables derived from it. "
            "Everything else is left to the next run.",
        ),
        "preview": Param(
            False,
            type="boolean",
            title="Preview only",
            description=f"Write nothing: start {contract.pipeline}{PREVIEW}, which reports what the run would change. "
            "You can also start it directly; it does not wait for runs.",
        ),
        "reason": Param(
            None,
            type=["null", "string"],
            maxLength=500,
            title="Reason",
            description="Why you start this run: stored in the journal, shown in the report.",
        ),
    }


def _schedule(settings: Settings, contract: Contract) -> CronDataIntervalTimetable | AssetAny | None:
    """Return when Airflow runs the pipeline; None if only on request."""
    if contract.schedule == "inputs":
        return AssetAny(*(assets.table_asset(settings.warehouse, source.table) for source in contract.inputs.values()))
    expression = contract.schedule or contract.intervals
    return CronDataIntervalTimetable(expression, timezone="UTC") if expression else None


_NEVER = datetime(2999, 1, 1, tzinfo=UTC)
"""When a pipeline starts that only a backfill runs: Airflow gives intervals only to a schedule."""


def _table_task(settings: Settings, contract: Contract, step: str, name: str) -> Any:
    """Return the task that replays a topic or builds a view."""
    skip = partial(read_contracts_of(settings, tasks.skip_unconcerned), contract.pipeline, name)
    options = {
        **list_step_options(settings, contract, name),
        "pre_execute": skip,
        "doc_md": _table_doc(contract, name),
        **SOME,
    }
    return create_spark_task(settings, name, step, contract.pipeline, RUN, name, **options)


def _list_other_tables(contract: Contract, name: str) -> list[str]:
    """Return the other tables that a table's gates read."""
    return [gate.other_table for gate in contract.expectations(name) if gate.other_table]


def _doc(contract: Contract) -> str:
    """Return a pipeline's documentation for the UI, as Markdown: its description, tables, and how to run it."""
    kafka = {name: contract.kafka_topic(name).replace("|", r"\|") for name in contract.topics}  # patterns have |
    rows = [f"| {name} | {t.read} | Kafka: `{kafka[name]}` |" for name, t in contract.topics.items()]
    rows += [f"| {name} | {source.read} | `{source.table}` |" for name, source in contract.inputs.items()]
    rows += [f"| {name} | view | {' with '.join(v.inputs)} |" for name, v in contract.views.items()]
    return "\n".join([contract.description, "", "| table | | from |", "| --- | --- | --- |", *rows, "", RUNNING])


RUNNING = """\
**Trigger** runs it now: everything new, up to a moment, or one table alone; *Preview only* writes nothing. **Backfill**
updates the tables up to the end of each interval, in any order; records are never replayed twice. The link *Report* of
each task shows what its run did.
"""


def _table_doc(contract: Contract, name: str) -> str:
    """Return the documentation of a table's task for the UI, as Markdown."""
    if name in contract.topics:
        step = f"Appends the planned records of `{contract.kafka_topic(name)}` to its log, each with its fate"
    else:
        step = f"Derives the changes from {' and '.join(contract.list_inputs(name))}"
    gates = [f"- `{gate.type}` ({gate.on_failure})" for gate in contract.expectations(name)]
    listed = "\n\nIts gates:\n\n" + "\n".join(gates) if gates else ""
    return f"{step}, checks the gates and publishes `{contract.pipeline}.{name}` in one commit.{listed}"
