"""The Spark provider's operators for the steps of a run.

A failure has our message, and what is stopped in Airflow stops in Spark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from hindcast.airflow import connections, step_metrics
from hindcast.common import session, spark_connect, step_events
from hindcast.common.errors import SettingsError
from hindcast.common.json_values import JsonObject
from hindcast.common.settings import use_environment

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk.types import TaskInstance

FAILURE_VARIABLE = "HINDCAST_FAILURE"
"""The variable that names the file to which a step under spark-submit writes its error."""
RESULT_VARIABLE = "HINDCAST_RESULT"
"""The variable that names the file to which it writes what it returns, as JSON."""


class SharedSpark(PySparkOperator):
    """A step in a session of the shared Spark Connect server."""

    contract_environment: Mapping[str, str] = MappingProxyType({})
    """The variables of the contracts that the step loads (`Settings.contract_environment`)."""

    def execute_callable(self) -> Any:
        """Call the step with a session of the server that the connection names, and return its result.

        The server's token is the connection's password, or in the file that `token_file` of its extra names.
        """
        conn_id = self.conn_id or SparkConnectHook.default_conn_name
        connection = SparkConnectHook.get_connection(conn_id)
        if connection.conn_type != SparkConnectHook.conn_type:
            return super().execute_callable()  # type: ignore[no-untyped-call]  # the provider's
        conf = {"spark.app.name": f"{self.dag_id}-{self.task_id}", **connection.extra_dejson, **self.config_kwargs}
        conf |= session.TEXT_SETTINGS
        conf.pop(SparkConnectHook.PARAM_USE_SSL, None)  # an option of the channel, not of the session
        token = _read_token(conf.pop(spark_connect.TOKEN_FILE, None))
        session.allow_deep_plans()
        spark = spark_connect.connect_to_server(SparkConnectHook(conn_id).get_connection_url(), conf, token)
        try:
            self.op_kwargs = {**self.op_kwargs, "spark": spark}
            return PythonOperator.execute_callable(self)
        finally:
            spark.stop()

    def get_openlineage_facets_on_complete(self, task_instance: TaskInstance) -> OperatorLineage | None:  # noqa: ARG002  # OpenLineage's own form
        """Return what the step read and wrote, for OpenLineage."""
        return _build_step_facets(self.contract_environment, self.python_callable.__name__, list(self.op_args))

    def on_kill(self) -> None:
        """Interrupt what the session computes; the server would continue it."""
        from pyspark.sql import SparkSession

        if spark := SparkSession.getActiveSession():
            spark.interruptAll()


class SubmittedSpark(SparkSubmitOperator):
    """A step in a JVM of its own."""

    contract_environment: Mapping[str, str] = MappingProxyType({})
    """The variables of the contracts that the step loads (`Settings.contract_environment`)."""

    def get_openlineage_facets_on_complete(self, task_instance: TaskInstance) -> OperatorLineage | None:  # noqa: ARG002  # OpenLineage's own form
        """Return what the step read and wrote, for OpenLineage."""
        step, *arguments = self.application_args or [""]
        return _build_step_facets(self.contract_environment, str(step), arguments)

    def execute(self, context: Context) -> Any:
        """Run spark-submit and return the step's result; raise AirflowFailException if a retry would fail too.

        Kafka's credentials reach it through the environment that it inherits from this task: `env_vars` would be on a
        command line if Spark runs on YARN or Kubernetes.
        """
        try:
            connections.apply_connection()
        except SettingsError as error:
            raise AirflowFailException(str(error)) from None
        with TemporaryDirectory() as folder:
            failure, events = Path(folder) / "failure.json", Path(folder) / "events.jsonl"
            result = Path(folder) / "result.json"
            self.env_vars = {
                **(self.env_vars or {}),
                FAILURE_VARIABLE: str(failure),
                RESULT_VARIABLE: str(result),
                step_events.EVENTS_VARIABLE: str(events),
            }
            os.environ["PATH"] = f"{session.venv_folder() / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
            if session.is_local(SparkSubmitHook.get_connection(self._conn_id).host or ""):
                for name, value in session.spark_environment().items():
                    os.environ.setdefault(name, value)
                self.conf = {**session.SECRET_SETTINGS, **(self.conf or {})}
            try:
                super().execute(context)
            except AirflowException:
                raise _read_failure(failure) from None
            finally:
                with step_events.send_events_to(step_metrics.send_event):
                    for event in step_events.read_events(events):
                        if event["event"] != "step progress":  # its lines are in the log already
                            step_events.emit_event(event)
            return json.loads(result.read_text(encoding="utf-8")) if result.exists() else None


def _read_token(path: str | None) -> str:
    """Return the token in this file, masked in the task's log from now on; empty without a file."""
    if path is None:
        return ""
    from airflow.sdk.log import mask_secret

    token = spark_connect.read_token(Path(path))
    mask_secret(token)
    return token


def _build_step_facets(environment: Mapping[str, str], step: str, arguments: Sequence[str]) -> OperatorLineage | None:
    """Return what the step read and wrote, for OpenLineage, given the variables of its contract and its arguments."""
    from hindcast.airflow import lineage

    with use_environment(environment):
        return lineage.build_step_facets(step, arguments[0], arguments[-1])


def _read_failure(failure: Path) -> AirflowException:
    """Return the exception for the error that a step wrote to a file before it ended."""
    if not failure.exists():
        return AirflowException("spark-submit failed without an error from Hindcast\n  what to do: see the log above")
    error: JsonObject = json.loads(failure.read_text(encoding="utf-8"))
    return (AirflowFailException if error["final"] else AirflowException)(str(error["text"]))
