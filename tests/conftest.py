"""What tests share: one Spark session and one real broker for the whole run of pytest."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.common import progress
from pipelines import restaurant  # noqa: F401  # a fixture for all tests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["resuming"]
progress.INTERVAL = 3600.0  # no line more on a slow machine

LONGEST = (
    "test_kernels.py",
    "test_verify.py",
    "test_ties_runs.py",
    "test_forget.py",
    "test_conformance.py",
    "test_crashes.py",
    "test_gates.py",
    "test_dags.py",
    "test_emitting.py",
    "test_properties.py",
    "test_envelopes.py",
    "test_forget_definitions.py",
    "test_forget_held_events.py",
    "test_removed_gates.py",
    "test_inputs.py",
    "test_runs.py",
    "test_retention.py",
    "test_security.py",
    "test_requeue.py",
    "test_chunks.py",
    "test_held_since.py",
    "test_formats_runs.py",
    "test_gone_keys.py",
    "test_literal_text.py",
    "test_telling.py",
    "test_fates.py",
    "test_widened.py",
    "test_valid_time_runs.py",
    "test_emits_task.py",
    "test_journal.py",
    "test_semantics.py",
    "test_bounds.py",
    "test_gaps.py",
    "test_derive.py",
    "test_holding.py",
    "test_cli.py",
    "test_row_holds.py",
    "test_functions.py",
    "test_pattern_runs.py",
)
"""Files that take longest, in the order in which workers take them: at the end none is left alone with a long one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONGEST)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--connect", action="store_true", help="over Spark Connect, as in Airflow, instead of classic Spark"
    )


@pytest.fixture(params=["kernels", "tasks", "plans"])
def by_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Tables follow by increments however small they are: found by kernels, in this process or in Spark's tasks, or by
    Spark's plans. Whether by kernels.
    """
    from hindcast.runs import incremental_state
    from hindcast.store import file_listing

    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    monkeypatch.setenv("HINDCAST_KERNELS", "off" if request.param == "plans" else "on")
    if request.param == "tasks":
        monkeypatch.setattr(file_listing, "MAX_ROWS_HERE", -1)
    return request.param != "plans"


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session with Delta and the Kafka connector: a classic one on two cores, started and tuned for small data.

    In `make test` and in CI also what is called outside of steps has the settings of small steps; else those of large.
    With --connect it is a client's of a server that is started as `make up` does.
    """
    work = tmp_path_factory.mktemp("spark")
    yield from _connected(work) if request.config.getoption("connect") else _classic(request, work)


def _connected(work: Path) -> Iterator[SparkSession]:
    from hindcast.common import spark_connect
    from hindcast.common.session import open_session
    from hindcast.common.settings import read_settings
    from hindcast.common.spark_connect import TOKEN_VARIABLE
    from hindcast_local import ports, process
    from hindcast_local import spark as server

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HINDCAST_VAR", str(work))
        patch.setenv("HINDCAST_SPARK_PORT", str(ports.find_free_port()))
        started = server.start_server(read_settings())
        try:
            server.wait_for_server(started)
            patch.setenv("SPARK_REMOTE", started.where)
            patch.setenv(TOKEN_VARIABLE, spark_connect.read_token(spark_connect.token_path(read_settings())))
            spark = open_session("hindcast-tests")
            yield spark
            spark.stop()
        finally:
            process.stop_processes([started])


def _remember_names() -> None:
    """Let py4j remember classes and functions of the JVM. PySpark asks for both at each call of a function of Spark's,
    which are two in five of the calls of a run, and a tenth of its time.
    """
    from py4j.java_gateway import JavaClass, JavaMember, JVMView

    def remember(kind: type) -> None:
        ask = kind.__getattr__  # type: ignore[attr-defined]  # both have it

        def find(place: Any, name: str) -> Any:
            found = ask(place, name)
            if isinstance(found, JavaClass | JavaMember):
                vars(place)[name] = found
            return found

        kind.__getattr__ = find  # type: ignore[attr-defined]

    for kind in (JVMView, JavaClass):
        remember(kind)


def _classic(request: pytest.FixtureRequest, work: Path) -> Iterator[SparkSession]:
    from hindcast.common.session import SMALL_STEP_SETTINGS, open_session

    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(work / "tmp"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        # Tests that take minutes outlive a machine that sleeps meanwhile.
        "spark.network.timeout": "3600s",
        "spark.executor.heartbeatInterval": "60s",
        **(SMALL_STEP_SETTINGS if request.config.option.markexpr.startswith("not long") else {}),
    }
    _remember_names()
    logging.getLogger("py4j").setLevel(logging.WARNING)  # at the end of Python it would tell a closed stream
    spark = open_session("hindcast-tests", conf, small=True)
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap servers of a real Kafka broker. All tests share its topics: give yours names of their own."""
    from hindcast_local.broker import run_broker

    folder: Path = tmp_path_factory.mktemp("broker")
    with run_broker(folder) as servers:
        yield servers
