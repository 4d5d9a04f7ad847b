"""What the tasks of a pipeline's DAGs have in common."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

DEFAULT_ARGS: Mapping[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": True,
    "execution_timeout": timedelta(minutes=15),
    "weight_rule": "hindcast.airflow.priority.FreshFirst",
}
PATIENCE: Mapping[str, Any] = {"mode": "reschedule", "poke_interval": 10, "timeout": 3600}
"""How a run waits for another one: it checks every 10 s, occupies no worker, and gives up after an hour."""

PLAN = "Plans the run: its known-at and the offsets of each topic. It waits while another run is under way."
REPORT = "Reports what the run did, completes it, and sends an asset event for each published table."
