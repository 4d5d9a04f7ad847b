"""A small client of Airflow's REST API, for the demo and the tests."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from hindcast.common import port_owners
from hindcast.common.errors import PlatformError
from hindcast_local import ports

POLL_SECONDS = 0.5
"""How often a run is polled, in seconds."""


def refuse_foreign(url: str) -> None:
    """Raise PlatformError if another user of this machine listens at `url`, who would get passwords and tokens."""
    address = urlsplit(url)
    if not address.hostname or not address.port or not port_owners.is_loopback(address.hostname):
        return
    if others := port_owners.find_others(address.hostname, address.port):
        raise PlatformError(
            f"port {address.port} is held by uid {min(others)}, not by us ({os.geteuid()}) nor root: the password was "
            "not sent",
            where=url,
            fix=f"find out why uid {min(others)} listens there: it may be after the password. End that process, or "
            "choose another port (HINDCAST_AIRFLOW_PORT), then `make down` and `make up`",
        )


class AirflowClient:
    """A running Airflow at `url` (http://127.0.0.1:18380), as a user with a name and a password."""

    def __init__(self, url: str, user: tuple[str, str]) -> None:
        self.url = url
        credentials = {"username": user[0], "password": user[1]}
        self._token = self._call("POST", "/auth/token", credentials)["access_token"]

    def find_import_errors(self) -> list[str] | None:
        """Return the errors of DAG files that cannot be loaded; None until Airflow has read a DAG or found an error."""
        errors = self._call("GET", "/api/v2/importErrors")["import_errors"]
        if not errors and not self._call("GET", "/api/v2/dags?limit=1")["total_entries"]:
            return None
        return [f"{error['filename']}: {error['stack_trace'].strip()}" for error in errors]

    def ensure_pool(self, name: str, slots: int) -> None:
        """Create a pool unless it exists; an existing one keeps its slots."""
        if not any(p["name"] == name for p in self._call("GET", "/api/v2/pools?limit=1000")["pools"]):
            self._call("POST", "/api/v2/pools", {"name": name, "slots": slots})

    def unpause(self, dag: str, seconds: float = 60) -> None:
        """Unpause a DAG as soon as Airflow has read it; PlatformError if that takes longer than `seconds`."""
        end = time.monotonic() + seconds
        while not self._call("GET", f"/api/v2/dags?dag_id_pattern={dag}")["dags"]:
            if time.monotonic() > end:
                raise PlatformError(f"Airflow does not know the DAG {dag}", where=self.url, fix="hindcast check")
            time.sleep(POLL_SECONDS)
        self._call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})

    def trigger(self, dag: str, **params: Any) -> str:
        """Start a manual run without an interval, which takes everything available, and return its id."""
        body = {"logical_date": None, "conf": params}
        return str(self._call("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"])

    def backfill(self, dag: str, start: str, end: str, **form: Any) -> None:
        """Backfill the intervals from `start` to `end` (ISO times) and wait until that has ended.

        `form` may have max_active_runs, run_backwards and reprocess_behavior (none, failed, completed), as Airflow's
        form does.
        """
        backfill = self.begin_backfill(dag, start, end, **form)
        deadline = time.monotonic() + 900
        while not self._call("GET", f"/api/v2/backfills/{backfill}")["completed_at"]:
            if time.monotonic() > deadline:
                raise PlatformError(f"the backfill of {dag} has not ended", where=self.url, fix="see it in the UI")
            time.sleep(POLL_SECONDS)

    def begin_backfill(self, dag: str, start: str, end: str, seconds: float = 120, **form: Any) -> int:
        """Begin a backfill as `backfill` does, and return its id.

        While its SQLite is busy Airflow answers 503, and may have made the backfill all the same: look, then ask again.
        """
        before, deadline = self._list_backfills(dag), time.monotonic() + seconds
        body = {"dag_id": dag, "from_date": start, "to_date": end, "dag_run_conf": {}, **form}
        while True:
            try:
                return int(self._call("POST", "/api/v2/backfills", body)["id"])
            except PlatformError as error:
                if "answers 503" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)
            if begun := self._list_backfills(dag) - before:
                return max(begun)

    def _list_backfills(self, dag: str) -> set[int]:
        return {int(it["id"]) for it in self._call("GET", f"/api/v2/backfills?dag_id={dag}")["backfills"]}

    def read_run(self, dag: str, run: str) -> dict[str, Any]:
        """Return a run, as Airflow's API does."""
        response: dict[str, Any] = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}")
        return response

    def read_run_states(self, dag: str) -> dict[str, str]:
        """Return the state of each run by its id, oldest first."""
        runs = self._call("GET", f"/api/v2/dags/{dag}/dagRuns?order_by=id")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in runs}

    def approve(
        self,
        dag: str,
        run: str | None = None,
        task: str = "approve",
        seconds: float = 120,
        keys: Sequence[str] | None = None,
        reason: str | None = None,
    ) -> str:
        """Approve what a run (by default the first) waits for, as a person does in the UI, and return the run's id.

        `keys` are those chosen in the form; None chooses none, which means all. `reason`: what is written in it.
        """
        given = {"keys": None if keys is None else list(keys), "reason": reason}
        params = {name: value for name, value in given.items() if value is not None}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            run_id = run or next(iter(self.read_run_states(dag)), "")
            waiting = [t for t in self.tasks(dag, run_id) if t["task_id"] == task] if run_id else []
            if waiting and waiting[0]["state"] in ("awaiting_input", "deferred"):
                path = f"/api/v2/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/-1/hitlDetails"
                self._call("PATCH", path, {"chosen_options": ["Approve"], "params_input": params})
                return run_id
            time.sleep(POLL_SECONDS)
        raise PlatformError(f"{dag} waits for no approval", where=self.url, fix="see the run in the UI")

    def wait(self, dag: str, run: str | None = None, seconds: float = 900, state: str = "success") -> str:
        """Wait until a run (by default the first) has succeeded, and return its id; PlatformError names what failed.

        With `state` "failed" it waits for a failure instead.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            runs = self.read_run_states(dag)
            run_id = run or next(iter(runs), "")
            if runs.get(run_id) == state:
                return run_id
            if runs.get(run_id) == "failed":
                tasks = self._format_failed_tasks(dag, run_id)
                raise PlatformError(f"{dag} failed in {tasks}", where=self.url, fix="see its log")
            time.sleep(POLL_SECONDS)
        raise PlatformError(f"{dag} has not ended in {seconds:.0f} s", where=self.url, fix="see the run in the UI")

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Return the task instances of a run, as Airflow's API does."""
        response = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")
        tasks: list[dict[str, Any]] = response["task_instances"]
        return tasks

    def read_log(self, dag: str, run: str, task: str, attempt: int = 1) -> list[str]:
        """Return the lines of a task's log; of an exception its message without the traceback."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{attempt}?map_index=-1"
        lines = []
        for entry in self._call("GET", path)["content"]:
            lines.append(entry["event"])
            lines += [f"{error['exc_type']}: {error['exc_value']}" for error in entry.get("error_detail") or []]
        return lines

    def fail(self, dag: str, run: str, task: str) -> None:
        """Mark a task as failed, as a person does in the UI; if it runs, Airflow stops it."""
        self._call("PATCH", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}", {"new_state": "failed"})

    def events(self, asset: str) -> list[dict[str, Any]]:
        """Return `extra` of the events of an asset (assets.py), oldest first."""
        events = self._call("GET", f"/api/v2/assets/events?name_pattern={asset}&order_by=timestamp")["asset_events"]
        return [event["extra"] for event in events if event["name"] == asset]

    def read_task_definitions(self, dag: str) -> list[dict[str, Any]]:
        """Return the tasks of a DAG, as Airflow's API does."""
        tasks: list[dict[str, Any]] = self._call("GET", f"/api/v2/dags/{dag}/tasks")["tasks"]
        return tasks

    def _format_failed_tasks(self, dag: str, run: str) -> str:
        return ", ".join(task["task_id"] for task in self.tasks(dag, run) if task["state"] == "failed") or run

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        refuse_foreign(self.url)
        token = {"Authorization": f"Bearer {self._token}"} if hasattr(self, "_token") else {}
        request = urllib.request.Request(  # noqa: S310  # our own Airflow's address
            self.url + path,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json", **token},
            method=method,
        )
        try:
            with ports.open_directly(request, 30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read(500).decode(errors="replace")
            raise PlatformError(f"Airflow answers {error.code} to {method} {path}: {text}", where=self.url) from None
        except OSError as error:
            raise PlatformError(f"Airflow does not answer: {error}", where=self.url, fix="make up") from None
