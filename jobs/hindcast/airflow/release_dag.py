"""The DAG <pipeline>__release: it asks a person about what is held back, and publishes what was approved."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import HITLBranchOperator
from airflow.sdk import DAG, Context, Param, task
from airflow.sdk.definitions.param import ParamsDict

from hindcast.airflow import approval_tasks, assets
from hindcast.airflow.dag_defaults import PATIENCE, PLAN, REPORT, list_dag_options, list_step_options
from hindcast.airflow.given_texts import mend_text
from hindcast.airflow.spark_tasks import create_spark_task, read_contracts_of
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.contract.bounds import REASON
from hindcast.contract.names import RELEASE

REJECT = "Records who rejected the held changes; they stay held. It waits while a forget run is under way."


def create_release_dag(settings: Settings, contract: Contract) -> DAG:
    """Return the DAG that asks a person whether to publish the changes that are held back, and publishes them."""
    text = "{{ ti.xcom_pull(task_ids='held')['text'] }}"
    until = "{{ ti.xcom_pull(task_ids='held')['until'] }}"
    table = "{{ ti.xcom_pull(task_ids='held').get('table') or '' }}"
    by = "{{ ti.xcom_pull(task_ids='approve', key='by') or '' }}"
    keys = "{{ ti.xcom_pull(task_ids='approve', key='keys') | tojson }}"
    at = "{{ ti.xcom_pull(task_ids='approve', key='at') or '' }}"
    reason = "{{ ti.xcom_pull(task_ids='approve', key='reason') or '' }}"
    step = list_step_options(settings, contract)
    # It waits for longer than a step may take, because nobody answers a second time.
    patience = {**PATIENCE, "timeout": 2 * _find_longest_timeout(settings, contract).total_seconds()}
    with DAG(
        f"{contract.pipeline}{RELEASE}",
        description=f"Asks whether to publish the changes that {contract.pipeline}'s gates hold back",
        schedule=None,
        max_active_runs=1,
        is_paused_upon_creation=False,
        **list_dag_options(contract, "release"),
    ) as dag:
        held = task(task_id="held")(read_contracts_of(settings, approval_tasks.read_held_changes))(contract.pipeline)
        approve = Approval(
            task_id="approve",
            subject=f"{contract.pipeline}: publish the held changes?",
            body=text,
            options=["Approve", "Reject"],
            options_mapping={"Approve": "plan", "Reject": "reject"},
            params=_build_form([]),
            execution_timeout=None,
        )
        plan = task.sensor(task_id="plan", doc_md=PLAN, **patience)(
            read_contracts_of(settings, approval_tasks.plan_release)
        )
        planned = plan(contract.pipeline, "{{ run_id }}", until, by, keys, at, reason, table)
        # The keys, which are values of records, are in the plan: not on the command line of spark-submit.
        release = create_spark_task(settings, "release", "release", contract.pipeline, "{{ run_id }}", **step)
        outlets = [assets.pipeline_alias(contract.pipeline)]
        report = task(task_id="report", outlets=outlets, doc_md=REPORT)(
            read_contracts_of(settings, approval_tasks.finish_release)
        )
        reject = task.sensor(task_id="reject", doc_md=REJECT, **patience)(
            read_contracts_of(settings, approval_tasks.reject)
        )
        held >> approve >> [planned, reject(contract.pipeline, until, by, keys, reason, table)]
        planned >> release >> report(contract.pipeline, "{{ run_id }}")
    return dag


def _find_longest_timeout(settings: Settings, contract: Contract) -> timedelta:
    """Return the longest time that a step of a pipeline may take."""
    names = (None, *contract.topics, *contract.views)
    longest: timedelta = max(list_step_options(settings, contract, name)["execution_timeout"] for name in names)
    return longest


def _keys_to_choose(labels: list[str]) -> Param:
    """Return the form field that asks for keys, with those that can be chosen."""
    return Param(
        [],
        source="task",
        type=["array", "null"],
        items={"type": "string"},
        examples=labels,
        title="Keys",
        description="Your answer applies to these keys, or to all shown if you choose none. The others stay held.",
    )


def _build_form(labels: list[str]) -> dict[str, Param]:
    """Return the form's fields: the keys that can be chosen, and the reason."""
    reason = Param(
        None,
        source="task",
        type=["string", "null"],
        title="Reason",
        description="Why you approve or reject (optional). It is kept, and shown wherever the release is.",
    )
    return {"keys": _keys_to_choose(labels), "reason": reason}


class Approval(HITLBranchOperator):
    """The task that asks a person to approve or reject, for which keys and why; it passes on who answered what when."""

    def execute(self, context: Context) -> Any:
        """Ask, offering the keys that are held now."""
        self.offer(context["ti"].xcom_pull(task_ids="held")["keys"])
        return super().execute(context)

    def offer(self, labels: list[str]) -> None:
        """Set the keys that the form offers."""
        self.params = ParamsDict(_build_form(labels))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Continue after the answer; raise Airflow's error if there was none."""
        if "error" not in event:
            by = mend_text((event["responded_by_user"] or {}).get("name") or "Airflow")
            context["ti"].xcom_push("by", by)
            context["ti"].xcom_push("at", _format_moment(event.get("responded_at")))
            given = event["params_input"] or {}
            context["ti"].xcom_push("reason", mend_text(str(given.get("reason") or "").strip()[:REASON]))
            chosen = given.get("keys")
            # A program need not fill in all fields, and an older form lacked one; the operator refuses what lacks any.
            event = {**event, "params_input": {"keys": [], "reason": None, **given}} if given else event
            context["ti"].xcom_push("keys", chosen or context["ti"].xcom_pull(task_ids="held")["keys"])
        return super().execute_complete(context, dict(event))


def _format_moment(moment: datetime | str | None) -> str:
    """Return when a person answered, as Airflow's event has it, in ISO 8601; empty if it does not."""
    return moment.isoformat() if isinstance(moment, datetime) else moment or ""
