"""Conformance vectors, run through the operators that the jobs use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hindcast import rights
from hindcast.conformance.printing import failure, families
from hindcast.conformance.runner import Outcome, outcomes, run
from hindcast.conformance.vectors import Vector, load
from hindcast.errors import PlatformError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Outcome", "Vector", "conformance", "load", "outcomes", "run"]


def conformance(spark: SparkSession, directory: Path, out: Path) -> int:
    """Run every vector file of a directory and write one JSON object to `out`: vector name -> what was computed.

    What was computed has the form of the vector's `expected`, or is `{"declined": reason}`. Prints the families and
    the first vector that failed. Returns 0 if all that were run passed, else 1.
    """
    try:
        out.parent.stat()  # that there is no such folder is told before all is run
        done = outcomes(spark, load(directory))
        computed = {outcome.vector.name: outcome.computed for outcome in done}
        out.write_text(json.dumps(computed, indent=1), encoding="utf-8")
    except OSError as error:
        raise PlatformError(**rights.explain(error, Path(error.filename or out), "read or written")) from None
    print(families(done))
    failed = [outcome for outcome in done if outcome.state == "failed"]
    if failed:
        print(failure(failed[0]))
    return 1 if failed else 0
