"""Progress of steps that take long: the event `step progress`. progress_lines.py prints it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from hindcast.common import spark_connect, step_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

INTERVAL = 10.0
"""Seconds between two events of a step."""

TERMINAL_INTERVAL = 0.5
"""The same, if a terminal shows them."""

on_terminal: contextvars.ContextVar[bool] = contextvars.ContextVar("on_terminal", default=False)
"""Whether a terminal shows the events of this context (progress_lines.py)."""


class TaskCount(NamedTuple):
    """How many tasks the stages that Spark works on have, and how many of them are done."""

    done: int
    total: int


@contextmanager
def report_progress(spark: SparkSession | None = None) -> Iterator[Callable[[SparkSession], None]]:
    """Emit an event of the current step every `INTERVAL` seconds as long as the block lasts.

    It has the number of tasks of all that the session is doing: of `spark`, or of the one that the block passes to the
    function that it gets.
    """
    ended = threading.Event()
    interval = TERMINAL_INTERVAL if on_terminal.get() else INTERVAL
    with ExitStack() as counters:
        counts: list[Callable[[], TaskCount]] = []

        def watch(session: SparkSession) -> None:
            counts[:] = [counters.enter_context(_open_counter(session))]

        def emit_regularly() -> None:
            while not ended.wait(interval):
                with suppress(Exception):  # no progress is no reason to fail
                    step_events.emit_progress(*(counts[0]() if counts else TaskCount(0, 0)))

        if spark is not None:
            watch(spark)
        # In a copy of the context: the events are those of the step, and go where its events go.
        thread = threading.Thread(target=contextvars.copy_context().run, args=(emit_regularly,), daemon=True)
        thread.start()
        try:
            yield watch
        finally:
            ended.set()
            thread.join(1)


@contextmanager
def _open_counter(spark: SparkSession) -> Iterator[Callable[[], TaskCount]]:
    """Yield a function that counts the tasks of a session, of either kind."""
    if not spark_connect.is_client(spark):
        tracker = spark.sparkContext.statusTracker()

        def count_active() -> TaskCount:
            stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
            return TaskCount(sum(it.numCompletedTasks for it in stages), sum(it.numTasks for it in stages))

        yield count_active
        return
    operations: dict[str | None, TaskCount] = {}

    def note_stages(  # PySpark gives the arguments by these names
        stages: Iterable[StageInfo] | None,
        inflight_tasks: int,  # noqa: ARG001
        operation_id: str | None,
        done: bool,
    ) -> None:
        operations.pop(operation_id, None)
        if not done:
            running = [it for it in stages or () if not it.done]
            counts = TaskCount(sum(it.num_completed_tasks for it in running), sum(it.num_tasks for it in running))
            operations[operation_id] = counts

    def count_noted() -> TaskCount:
        counts = list(operations.values())
        return TaskCount(sum(it.done for it in counts), sum(it.total for it in counts))

    handler = cast("ProgressHandler", note_stages)
    spark.registerProgressHandler(handler)
    try:
        yield count_noted
    finally:
        spark.removeProgressHandler(handler)
