"""The Spark provider's operators as the steps of a run use them: what fails is told in our words, and what is stopped
in Airflow stops in Spark.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from hindcast import remote, session, telling
from hindcast.errors import SettingsError
from hindcast.scheduling import connections, gauges

FAILURE = "HINDCAST_FAILURE"
"""The variable with the place of the file in which a step under spark-submit tells what has stopped it."""


class SharedSpark(PySparkOperator):
    """A step in a session of the shared Spark Connect server."""

    def execute_callable(self) -> Any:
        """Call the step with a session of the server that the connection names.

        The server's token is the connection's password, or in the file that `token_file` of its extra names.
        """
        conn_id = self.conn_id or SparkConnectHook.default_conn_name
        connection = SparkConnectHook.get_connection(conn_id)
        if connection.conn_type != SparkConnectHook.conn_type:
            return super().execute_callable()  # type: ignore[no-untyped-call]  # the provider's
        conf = {"spark.app.name": f"{self.dag_id}-{self.task_id}", **connection.extra_dejson, **self.config_kwargs}
        conf |= session.MEANING
        conf.pop(SparkConnectHook.PARAM_USE_SSL, None)  # of the channel, not of the session
        token = _read_token(conf.pop(remote.TOKEN_FILE, None))
        session.allow_deep_plans()
        spark = remote.connect(SparkConnectHook(conn_id).get_connection_url(), conf, token)
        try:
            self.op_kwargs = {**self.op_kwargs, "spark": spark}
            return PythonOperator.execute_callable(self)
        finally:
            spark.stop()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002  # OpenLineage's own form
        """What the step has read and written, for OpenLineage."""
        return _lineage(self.python_callable.__name__, list(self.op_args))

    def on_kill(self) -> None:
        """Interrupts what the session computes: the server would go on without us."""
        from pyspark.sql import SparkSession

        if spark := SparkSession.getActiveSession():
            spark.interruptAll()


class SubmittedSpark(SparkSubmitOperator):
    """A step in a JVM of its own."""

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002  # OpenLineage's own form
        """What the step has read and written, for OpenLineage."""
        return _lineage(Path(self.application).stem, list(self.application_args or ()))

    def execute(self, context: Context) -> None:
        """Runs spark-submit; AirflowFailException where a retry would meet the same again.

        What Kafka asks of us goes to it in the environment that it inherits from this task: `env_vars` would stand on a
        command line where Spark runs on YARN or Kubernetes.
        """
        try:
            connections.use()
        except SettingsError as error:
            raise AirflowFailException(str(error)) from None
        with TemporaryDirectory() as folder:
            failure, events = Path(folder) / "failure.json", Path(folder) / "events.jsonl"
            self.env_vars = {**(self.env_vars or {}), FAILURE: str(failure), telling.EVENTS: str(events)}
            if session.is_local(SparkSubmitHook.get_connection(self._conn_id).host or ""):
                self.conf = {**session.SECRET, **(self.conf or {})}
            try:
                super().execute(context)
            except AirflowException:
                raise _told(failure) from None
            finally:
                with telling.to(gauges.in_airflow):
                    for event in telling.kept(events):
                        telling.pass_on(event)


def _read_token(path: str | None) -> str:
    """Return the token in this file, which the task's log masks from now on; empty without a file."""
    if path is None:
        return ""
    from airflow.sdk.log import mask_secret

    from hindcast.local import spark

    token = spark.read_token(Path(path))
    mask_secret(token)
    return token


def _lineage(step: str, arguments: list[Any]) -> Any:
    """What OpenLineage is told of a step, given the arguments of its task."""
    from hindcast.scheduling import lineage

    return lineage.facets(step, arguments[0], arguments[-1])


def _told(failure: Path) -> AirflowException:
    """What a step told before it ended."""
    if not failure.exists():
        return AirflowException("spark-submit ended without a word of ours\n  what to do: read what it says above")
    told: dict[str, Any] = json.loads(failure.read_text(encoding="utf-8"))
    return (AirflowFailException if told["final"] else AirflowException)(told["text"])
