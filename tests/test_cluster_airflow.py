"""docker-compose.yaml's services as processes: Airflow on a real PostgreSQL, with spark-submit to a Spark cluster."""

from __future__ import annotations

import base64
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal

import cluster
import pytest

from composed import ROOT, Services, composed
from databases import postgres
from hindcast.bitemporal.predicates import Question
from hindcast.common.session import venv_folder
from hindcast.common.settings import read_settings
from hindcast.common.spark_connect import TOKEN_VARIABLE
from hindcast.contract import find
from hindcast.kafka import produce
from hindcast.plan import journal
from hindcast.query import read
from hindcast_demo import restaurant
from hindcast_local import broker, ports
from hindcast_local.api import AirflowClient
from test_compose import SECRETS

pytestmark = pytest.mark.cluster

OURS = ("LISTENERS", "NODE_ID", "ROLES", "PROTOCOL_MAP", "LISTENER_NAME", "VOTERS", "LOG_DIRS", "HEAP_OPTS")
"""What ends the names of the broker's variables that say where it is and how large, which the test says itself."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """All of the file but Spark Connect, started in its order. Spark's work goes through SparkSubmitOperator."""
    if not cluster.store(venv_folder()).exists():
        pytest.skip("no S3 server here (make test-cluster builds one)")
    folder = tmp_path_factory.mktemp("composed")
    (folder / "schemas").mkdir()
    shutil.copy(ROOT / "schemas" / "restaurant.yaml", folder / "schemas")
    told = {name: secrets.token_hex(16) for name in SECRETS}
    told["AIRFLOW_FERNET_KEY"] = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    with postgres(folder) as database, composed(folder, told) as made:
        database.run(f"CREATE ROLE airflow LOGIN PASSWORD '{told['POSTGRES_PASSWORD']}'")
        database.run("CREATE DATABASE airflow OWNER airflow")
        made.ports["postgres"] = database.port
        made.more = {"HINDCAST_SCHEMAS": str(folder / "schemas"), "HINDCAST_SPARK": "submit"}
        made.more |= {"AIRFLOW__API__HOST": ports.HOST, "SPARK_LOCAL_IP": ports.HOST}
        with broker.run_broker(folder / "kafka", made.ports["kafka"], properties(made)):
            made.run("object-store-folders")
            made.run("airflow-migrate")
            for name in ("object-store", "spark-master", "spark-worker"):
                made.start(name)
            made.start("spark-worker", 2)
            for part in ("api-server", "scheduler", "dag-processor", "triggerer"):
                made.start(f"airflow-{part}")
            yield made


def properties(made: Services) -> dict[str, str]:
    """The broker's variables of the file, as properties."""
    told = made.services["kafka"]["environment"]
    names = [name for name in told if not name.endswith(OURS)]
    return {name.removeprefix("KAFKA_").lower().replace("_", "."): str(told[name]) for name in names}


@pytest.mark.long
def test_a_dag_run_by_spark_submit_and_a_run_by_spark_connect(services: Services) -> None:
    servers, env = services.address("kafka"), services.environ("airflow-scheduler")
    first = restaurant.first_records()
    produce.create_topics(servers, *first)
    for topic, records in first.items():
        produce.send_records(servers, topic, records)
    user = ("admin", services.variables["AIRFLOW_ADMIN_PASSWORD"])
    web = AirflowClient(f"http://{services.address('airflow-api-server')}", user)
    web.unpause("restaurant")
    done = web.wait("restaurant")
    tasks = {task["task_id"]: task for task in web.tasks("restaurant", done)}
    assert tasks["build.bills"]["operator"] == "SubmittedSpark"
    assert bills(env, 1) == {"anna": 16, "bob": 10, "candace": 24, "dave": 6}

    services.more["HINDCAST_SPARK"] = "connect"
    services.start("spark-connect")
    for topic, records in restaurant.late_records().items():
        produce.send_records(servers, topic, records)
    env |= {
        "SPARK_REMOTE": f"sc://{services.address('spark-connect')}",
        TOKEN_VARIABLE: services.variables[TOKEN_VARIABLE],
    }
    command = [sys.executable, "-c", "import sys; from hindcast.cli import main; sys.exit(main())"]
    subprocess.run([*command, "run", "restaurant"], env=env, check=True, cwd=services.folder)
    assert bills(env, 2) == {"anna": 16, "bob": 10, "candace": 24, "dave": 5}
    with within(env):
        assert [run.state for run in journal.read_runs(env["HINDCAST_WAREHOUSE"], "restaurant")] == ["completed"] * 2
    assert not list(services.folder.glob("var/**/_delta_log"))


@contextmanager
def within(env: Mapping[str, str]) -> Iterator[None]:
    """With what a service's environment says of the warehouse."""
    with pytest.MonkeyPatch.context() as patch:
        for name in env:
            if name.startswith(("AWS_", "HINDCAST_")):
                patch.setenv(name, env[name])
        yield


def bills(env: Mapping[str, str], run: int) -> dict[str, Decimal | None]:
    """What each customer was believed to owe after a run."""
    with within(env):
        settings = read_settings()
        moment = read.moment_of(settings.warehouse, "restaurant", f"run:{run}")
        rows = read.query(settings.warehouse, find(settings.schemas, "restaurant"), "bills", Question(known_at=moment))
        return {row["customer"]: row["amount"] for row in rows.to_pylist()}
