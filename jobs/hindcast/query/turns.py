"""Turns for work that takes much of the API server: only some pipelines have one at a time, and each has one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class TurnError(Exception):
    """There was no turn in time."""


class Turns:
    """Turns of pipelines: at most so many at the same time, and one of each pipeline."""

    def __init__(self, most: int) -> None:
        self._most, self._pipelines, self._changed = most, set[str](), Condition()

    @contextmanager
    def take(self, pipeline: str, seconds: float) -> Iterator[None]:
        """Do the block in a turn of the pipeline; raise TurnError if there is none for so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_free(pipeline), timeout=seconds):
                raise TurnError(f"no turn of {pipeline} within {seconds:g} s")
            self._pipelines.add(pipeline)
        try:
            yield
        finally:
            with self._changed:
                self._pipelines.discard(pipeline)
                self._changed.notify_all()

    def _is_free(self, pipeline: str) -> bool:
        return pipeline not in self._pipelines and len(self._pipelines) < self._most
