"""What Spark is told of an object store that tables are in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hindcast.common import object_store, session
from hindcast.common.errors import PlatformError
from hindcast.common.settings import read_settings

ROOT = Path(__file__).parent.parent

WAREHOUSE = "s3a://bucket/tables"
STORE = "spark.hadoop.fs.s3a"


def test_a_folder_and_another_store_need_nothing() -> None:
    for warehouse in ("/data/warehouse", "abfss://tables@account/warehouse"):
        assert object_store.spark_properties(warehouse, {"AWS_ENDPOINT_URL": "http://store:7070"}) == {}


def test_amazons_is_found_by_its_region() -> None:
    told = object_store.spark_properties(WAREHOUSE, {"AWS_REGION": "eu-west-1"})
    assert told[f"{STORE}.endpoint.region"] == "eu-west-1"
    assert not {f"{STORE}.endpoint", f"{STORE}.path.style.access"} & set(told)


def test_another_is_found_by_its_address_and_buckets_are_paths() -> None:
    told = object_store.spark_properties(WAREHOUSE, {"AWS_ENDPOINT_URL": "http://store:7070"})
    assert told[f"{STORE}.endpoint"] == "http://store:7070"
    assert told[f"{STORE}.path.style.access"] == "true"


def test_commits_are_conditional_writes_and_no_secret_is_a_property() -> None:
    env = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hush"}
    told = object_store.spark_properties(WAREHOUSE, env)
    assert told["spark.delta.logStore.s3a.impl"] == object_store.LOG_STORE
    assert f"{STORE}.performance.flags" not in told, "with `create` S3A overwrites what is there"
    assert not {"me", "hush"} & set(told.values())


def test_sessions_have_it_and_are_refused_without_the_log_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HINDCAST_WAREHOUSE", WAREHOUSE)
    monkeypatch.setattr(session, "venv_folder", lambda: tmp_path)
    (tmp_path / "jars" / "spark").mkdir(parents=True)
    with pytest.raises(PlatformError, match="log store") as refused:
        session.default_properties(read_settings())
    assert refused.value.fix == "run `make object-store`, in a checkout of Hindcast"
    (tmp_path / "jars" / "object-store").mkdir()
    told = session.default_properties(read_settings())
    assert object_store.spark_properties(WAREHOUSE, os.environ).items() <= told.items()
    assert told["spark.driver.extraClassPath"].endswith(f":{tmp_path}/jars/object-store/*")


def test_the_log_store_is_the_class_that_is_built() -> None:
    package, _, name = object_store.LOG_STORE.rpartition(".")
    source = (ROOT / "jobs" / "java" / package / f"{name}.java").read_text(encoding="utf-8")
    assert f"package {package};" in source
