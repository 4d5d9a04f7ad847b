"""The end of Spark's JVM, which this process has started, as an error of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hindcast.common.errors import HindcastError, PlatformError
from hindcast.common.settings import Settings

_PATIENCE_SECONDS = 1.0
"""How long a JVM may take to end after the error that its end has caused."""


@contextmanager
def explain_ended_jvm(settings: Settings) -> Iterator[None]:
    """Raise PlatformError for whatever fails because Spark's JVM has ended, for example for lack of memory."""
    try:
        yield
    except HindcastError:
        raise
    except Exception as error:
        if (code := _find_exit_code()) is None:
            raise
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise PlatformError(
            f"Spark's JVM has ended {how}" + (", which is how the system takes memory back" if code == -9 else ""),
            where=f"HINDCAST_SPARK_MEMORY={settings.spark_memory}",
            fix="free memory, or set HINDCAST_SPARK_MEMORY to less than the machine has left; then repeat the command: "
            "a run continues where it stopped",
        ) from error


def _find_exit_code() -> int | None:
    """Return the exit code of the JVM of this process's session, minus the signal that ended it; None while it runs."""
    if "pyspark.core.context" not in sys.modules:
        return None
    from pyspark import SparkContext

    started: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    if started is None:
        return None
    try:
        return started.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return None
