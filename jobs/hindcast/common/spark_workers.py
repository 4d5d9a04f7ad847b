"""Spark's Python workers: what all functions that run in them share."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from pyspark.errors import PySparkException

from hindcast.common.errors import HindcastError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BatchConverter: TypeAlias = "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]"


def map_in_workers(frame: DataFrame, convert: BatchConverter, schema: StructType | str) -> DataFrame:
    """Return what a function makes of the batches of a DataFrame, in Spark's tasks (`DataFrame.mapInArrow`)."""
    return frame.mapInArrow(partial(_convert_batches, convert), schema)


def _convert_batches(convert: BatchConverter, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    freeze_modules()
    return convert(batches)


class WorkerError(Exception):
    """An error of ours in a worker, as JSON; `raise_worker_errors` raises it as it was."""


@contextmanager
def pass_errors() -> Iterator[None]:
    """Raise errors of ours, in a worker, as those of which `raise_worker_errors` can tell what they say."""
    try:
        yield
    except HindcastError as error:
        raise WorkerError(json.dumps([type(error).__name__, error.found, error.where, error.fix])) from error


@contextmanager
def raise_worker_errors() -> Iterator[None]:
    """Raise the error of a Spark job as that which one of its workers passed."""
    try:
        yield
    except PySparkException as error:
        passed = re.search(rf"{WorkerError.__name__}: (\[.*\])", str(error))
        if passed is None:
            raise
        name, found, where, fix = json.loads(passed[1])
        kinds = {it.__name__: it for it in _list_kinds(HindcastError)}
        raise kinds.get(name, HindcastError)(found, where=where, fix=fix) from error


def _list_kinds(kind: type[HindcastError]) -> Iterator[type[HindcastError]]:
    yield kind
    for own in kind.__subclasses__():
        yield from _list_kinds(own)


def freeze_modules() -> None:
    """Leave what this process has loaded out of garbage collection.

    A worker of PySpark collects garbage after each task (daemon.py), which takes 60 ms with our modules, and nothing
    without.
    """
    global _frozen_modules  # noqa: PLW0603  # of this process
    if len(sys.modules) != _frozen_modules:
        gc.freeze()
        gc.set_threshold(_THRESHOLD)
        _frozen_modules = len(sys.modules)


_frozen_modules = 0
_THRESHOLD = 100_000
"""So many new objects start a garbage collection: a task has tens of thousands of messages at once, none in a cycle."""
