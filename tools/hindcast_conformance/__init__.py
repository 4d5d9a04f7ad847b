"""Conformance vectors, run through the operators that the jobs use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hindcast.common import permissions
from hindcast.common.errors import PlatformError
from hindcast_conformance.formatting import format_failure, format_families
from hindcast_conformance.runner import Outcome, compute_directory, run_vectors
from hindcast_conformance.topology import count_exceptions
from hindcast_conformance.vectors import Vector, load_vectors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Outcome", "Vector", "compute_directory", "load_vectors", "run_conformance", "run_vectors"]


def run_conformance(spark: SparkSession, directory: Path, out: Path) -> int:
    """Run every vector file of a directory and write the results to `out`; return 0 if no vector failed, else 1.

    `out` is one JSON object: vector name -> result in the form of the vector's `expected`, or `{"declined": reason}`.
    Print the families, what is not run from a contract alone, and the first vector that failed.
    """
    try:
        out.parent.stat()  # a missing folder is reported before all vectors are run
        outcomes = run_vectors(spark, load_vectors(directory))
        results = {outcome.vector.name: outcome.computed for outcome in outcomes}
        out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    except OSError as error:
        raise PlatformError(
            **permissions.explain_error(error, Path(error.filename or out), "read or written")
        ) from None
    print(format_families(outcomes))
    apart = count_exceptions(outcome.vector for outcome in outcomes if outcome.vector.semantics == "kafka")
    for reason, count in apart.most_common():
        print(f"kafka, not by its contract alone {count}: {reason}")
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    if failed:
        print(format_failure(failed[0]))
    return 1 if failed else 0
