"""The link from a task in Airflow's UI to the report of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from hindcast.airflow.operators import SharedSpark, SubmittedSpark
from hindcast.airflow.pages import PREFIX

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class ReportLink(BaseOperatorLink):
    """The link *Report* under a task's *Details*: what its run did, or what stopped it."""

    name = "Report"
    operators = [SharedSpark, SubmittedSpark]  # noqa: RUF012  # as Airflow reads it

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  # Airflow's own form
        """Return the address of the report of the task's run, by Airflow's ids of both."""
        return f"{find_airflow_root()}{PREFIX}/dag/{quote(ti_key.dag_id)}/run/{quote(ti_key.run_id, safe='')}/report"


def find_airflow_root() -> str:
    """Return the path at which Airflow's UI is served, without a slash at its end."""
    path: str = urlsplit(conf.get("api", "base_url", fallback="")).path
    return path.rstrip("/")
