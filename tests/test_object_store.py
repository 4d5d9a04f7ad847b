"""What Spark is told of an object store that tables are in."""

from __future__ import annotations

import os

import pytest

from hindcast import object_store
from hindcast.session import defaults
from hindcast.settings import settings

WAREHOUSE = "s3a://bucket/tables"
STORE = "spark.hadoop.fs.s3a"


def test_a_folder_and_another_store_need_nothing() -> None:
    for warehouse in ("/data/warehouse", "abfss://tables@account/warehouse"):
        assert object_store.properties(warehouse, {"AWS_ENDPOINT_URL": "http://store:7070"}) == {}


def test_amazons_is_found_by_its_region() -> None:
    told = object_store.properties(WAREHOUSE, {"AWS_REGION": "eu-west-1"})
    assert told[f"{STORE}.endpoint.region"] == "eu-west-1"
    assert not {f"{STORE}.endpoint", f"{STORE}.path.style.access"} & set(told)


def test_another_is_found_by_its_address_and_buckets_are_paths() -> None:
    told = object_store.properties(WAREHOUSE, {"AWS_ENDPOINT_URL": "http://store:7070"})
    assert told[f"{STORE}.endpoint"] == "http://store:7070"
    assert told[f"{STORE}.path.style.access"] == "true"


def test_commits_are_conditional_writes_and_no_secret_is_a_property() -> None:
    env = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hush"}
    told = object_store.properties(WAREHOUSE, env)
    assert told["spark.delta.logStore.s3a.impl"] == "io.delta.storage.GCSLogStore"
    assert told[f"{STORE}.performance.flags"] == "create"
    assert not {"me", "hush"} & set(told.values())


def test_sessions_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_WAREHOUSE", WAREHOUSE)
    assert object_store.properties(WAREHOUSE, os.environ).items() <= defaults(settings()).items()
