"""Spark's Python workers: what all functions that run in them share."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

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


def freeze_modules() -> None:
    """Leave what this process has loaded out of garbage collection.

    A worker of PySpark collects garbage after each task (daemon.py), which takes 60 ms with our modules, and nothing
    without.
    """
    global _frozen_modules  # noqa: PLW0603  # of this process
    if len(sys.modules) != _frozen_modules:
        gc.freeze()
        _frozen_modules = len(sys.modules)


_frozen_modules = 0
