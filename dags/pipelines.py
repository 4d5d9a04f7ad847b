"""One DAG per contract in schemas/: plan -> replay each topic -> derive, gate and publish each view -> report.

Where a gate can hold changes back there is a second one, <pipeline>__release: it asks a person (approve or reject) and
publishes what was approved. The first triggers it when something is newly held.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.hitl import HITLBranchOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Context, CronDataIntervalTimetable, Param, TaskGroup, TriggerRule, task
from airflow.sdk.exceptions import AirflowFailException

from hindcast import steps
from hindcast.contracts import Contract, load, paths, repeated
from hindcast.errors import HindcastError
from hindcast.session import home
from hindcast.settings import settings

RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=20), "retry_exponential_backoff": True}
PATIENCE = {"mode": "reschedule", "poke_interval": 10, "timeout": 3600}
"""How a run waits for one that is under way: it asks every 10 s, keeps no worker busy, and gives up after an hour."""

RUN = "{{ ti.xcom_pull(task_ids='plan') }}"
UNTIL = "{{ data_interval_end | default('', true) }}"
PREVIEW = "Write nothing: the log of the task preview says which past answers the run would change."


def pipeline_dag(contract: Contract) -> DAG:
    """The DAG of a contract; its tasks are named after the contract's topics and views."""
    timetable = CronDataIntervalTimetable(contract.schedule, timezone="UTC") if contract.schedule else None
    with DAG(
        contract.pipeline,
        description=contract.description.strip().split("\n")[0],
        doc_md=_doc(contract),
        schedule=timetable,
        start_date=contract.start,
        catchup=contract.catchup,
        max_active_runs=1,
        default_args=RETRIES,
        params={"preview": Param(False, type="boolean", title="Preview only", description=PREVIEW)},
        tags=["hindcast"],
    ) as dag:
        plan = task.sensor(task_id="plan", **PATIENCE)(steps.plan)(contract.pipeline)
        with TaskGroup("replay", tooltip="Kafka to log and table"):
            tables = {name: _spark_task(name, "replay", contract, RUN, name) for name in contract.topics}
        with TaskGroup("build", tooltip="derive, gate, publish"):
            for name in contract.views:
                tables[name] = _spark_task(name, "build", contract, RUN, name)
        for name, view in contract.views.items():
            [tables[i] for i in view.inputs if i in tables] >> tables[name]
        for name, made in tables.items():
            [tables[i] for i in _referred(contract, name) if i in tables] >> made
        plan >> _spark_task("preview", "preview", contract, UNTIL, trigger_rule=TriggerRule.ALL_SKIPPED)
        if _holds(contract):
            report = task.short_circuit(task_id="report")(steps.finish)(contract.pipeline, plan)
            report >> TriggerDagRunOperator(task_id="ask", trigger_dag_id=f"{contract.pipeline}__release")
        else:
            report = task(steps.finish, task_id="report")(contract.pipeline, plan)
        plan >> list(tables.values()) >> report
    return dag


def release_dag(contract: Contract) -> DAG:
    """The DAG that asks a person whether changes that are held back may be published, and publishes them."""
    told = "{{ ti.xcom_pull(task_ids='held')['text'] }}"
    until = "{{ ti.xcom_pull(task_ids='held')['until'] }}"
    by = "{{ ti.xcom_pull(task_ids='approve', key='by') }}"
    with DAG(
        f"{contract.pipeline}__release",
        description=f"Asks whether what {contract.pipeline}'s gates have held back may be published",
        schedule=None,
        max_active_runs=1,
        is_paused_upon_creation=False,
        default_args=RETRIES,
        tags=["hindcast", "release"],
    ) as dag:
        held = task(steps.held)(contract.pipeline)
        approve = Approval(
            task_id="approve",
            subject=f"{contract.pipeline}: publish what is held back?",
            body=told,
            options=["Approve", "Reject"],
            options_mapping={"Approve": "release", "Reject": "reject"},
        )
        release = _spark_task("release", "release", contract, "{{ run_id }}", until, by)
        held >> approve >> [release, task(steps.reject)(contract.pipeline, until, by)]
    return dag


class Approval(HITLBranchOperator):
    """Asks a person which way to go, and tells the tasks there who it was."""

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Goes on when the person has answered."""
        context["ti"].xcom_push("by", (event["responded_by_user"] or {}).get("name") or "Airflow")
        return super().execute_complete(context, event)


def broken_dag(path: Path, error: HindcastError) -> DAG:
    """What stands in for a contract that does not load: it says why, and does nothing else."""

    def contract() -> None:
        raise AirflowFailException(str(error))

    name = re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem)
    with DAG(name, doc_md=f"```\n{error}\n```", schedule=None, tags=["hindcast", "broken contract"]) as dag:
        task(contract)()
    return dag


def dags(folder: Path) -> Iterator[DAG]:
    """A DAG for each contract of a folder, also for each that does not load or has the name of another."""
    files: dict[str, Path] = {}
    for path in paths(folder):
        try:
            contract = load(path)
            if files.setdefault(contract.pipeline, path) != path:
                raise repeated(contract.pipeline, path, files[contract.pipeline])
            yield pipeline_dag(contract)
            if _holds(contract):
                yield release_dag(contract)
        except HindcastError as error:
            yield broken_dag(path, error)


def _spark_task(task_id: str, step: str, contract: Contract, *arguments: str, **options: Any) -> Any:
    """A step in Spark through the provider: in the shared Spark Connect session, or by spark-submit."""
    if settings().spark == "submit":
        return SparkSubmitOperator(
            task_id=task_id,
            conn_id="spark_default",
            application=str(settings().root / "jobs" / f"{step}.py"),
            application_args=[contract.pipeline, *arguments],
            properties_file=str(home() / "spark-conf" / "spark-defaults.conf"),
            name=f"hindcast {contract.pipeline} {step} {task_id}",
            **options,
        )
    return PySparkOperator(
        task_id=task_id,
        conn_id="hindcast_spark",
        python_callable=getattr(steps, step),
        op_args=[contract.pipeline, *arguments],
        **options,
    )


def _referred(contract: Contract, name: str) -> list[str]:
    """The tables that a table's gates look into."""
    return [gate.refers_to for gate in contract.expectations(name) if gate.refers_to]


def _holds(contract: Contract) -> bool:
    """Whether a gate can hold changes back."""
    gates = (gate for name in (*contract.topics, *contract.views) for gate in contract.expectations(name))
    return any(gate.on_failure == "quarantine" for gate in gates)


def _doc(contract: Contract) -> str:
    rows = [f"| {name} | {t.read} | `{contract.kafka_topic(name)}` |" for name, t in contract.topics.items()]
    rows += [f"| {name} | view | {' with '.join(v.inputs)} |" for name, v in contract.views.items()]
    return "\n".join([contract.description, "", "| table | | from |", "| --- | --- | --- |", *rows])


for _dag in dags(settings().schemas):
    globals()[_dag.dag_id] = _dag
