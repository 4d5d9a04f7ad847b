"""Errors of steps as Airflow's tasks raise them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from hindcast.airflow import step_metrics
from hindcast.common import step_events
from hindcast.common.errors import FINAL_ERRORS, HindcastError


@contextmanager
def raise_airflow_errors() -> Iterator[None]:
    """Raise a HindcastError of the block as Airflow's, so that its message ends the task's log, after Spark's own.

    Events of the block go to Airflow (step_metrics.py).
    """
    try:
        with step_events.send_events_to(step_metrics.send_event):
            yield
    except HindcastError as error:
        from airflow.sdk.exceptions import AirflowException, AirflowFailException

        if error.__cause__ is not None:
            # Logged, not printed: printed text takes another way, and may arrive after the error.
            _LOG.info("".join(traceback.format_exception(error.__cause__)).rstrip())
        raise (AirflowFailException if isinstance(error, FINAL_ERRORS) else AirflowException)(str(error)) from None


_LOG = logging.getLogger(__name__)
