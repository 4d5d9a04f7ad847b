"""What tests share: one Spark session and one real broker for the whole run of pytest."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines import restaurant  # noqa: F401  # a fixture for all tests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST = (
    "test_crashes.py",
    "test_evolution.py",
    "test_upgrade.py",
    "test_properties.py",
    "test_envelopes.py",
    "test_security.py",
    "test_requeue.py",
    "test_chunks.py",
    "test_formats_runs.py",
    "test_emitting.py",
    "test_fates.py",
    "test_gates.py",
    "test_inputs.py",
    "test_valid_time_runs.py",
    "test_gaps.py",
    "test_runs.py",
    "test_pattern_runs.py",
)
"""Files that take longest, in the order in which workers take them: at the end none is left alone with a long one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONGEST)))


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A classic Spark session with Delta and the Kafka connector on two cores, started and tuned for small data.

    Without the long tests also what is called outside of steps has the settings of small steps; with them, of large.
    """
    from hindcast.session import SMALL, session

    work = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(work / "tmp"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        # Tests that take minutes outlive a machine that sleeps meanwhile.
        "spark.network.timeout": "3600s",
        "spark.executor.heartbeatInterval": "60s",
        **(SMALL if request.config.option.markexpr == "not long" else {}),
    }
    logging.getLogger("py4j").setLevel(logging.WARNING)  # at the end of Python it would tell a closed stream
    spark = session("hindcast-tests", conf, small=True)
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap servers of a real Kafka broker. All tests share its topics: give yours names of their own."""
    from hindcast.local.broker import running

    folder: Path = tmp_path_factory.mktemp("broker")
    with running(folder) as servers:
        yield servers
