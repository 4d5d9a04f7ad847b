"""The few calls to Airflow's REST API that the demo and the tests make."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from hindcast import listeners
from hindcast.errors import PlatformError

PAUSE = 0.5
"""Seconds between two looks at a run."""


def refuse_foreign(url: str) -> None:
    """Raise PlatformError if another user of this machine listens at `url`: passwords and tokens would be his."""
    place = urlsplit(url)
    if not place.hostname or not place.port or not listeners.is_loopback(place.hostname):
        return
    if others := listeners.find_others(place.hostname, place.port):
        raise PlatformError(
            f"port {place.port} is held by uid {min(others)}, not by us ({os.geteuid()}) nor root: it was not sent the "
            "password",
            where=url,
            mend=f"find out why uid {min(others)} listens there: it may be after the password. Have that process ended,"
            " or choose another port (HINDCAST_AIRFLOW_PORT), then `make down` and `make up`",
        )


class Airflow:
    """A running Airflow at `url` (http://127.0.0.1:18380), for a user: a name and a password."""

    def __init__(self, url: str, user: tuple[str, str]) -> None:
        self.url = url
        who = {"username": user[0], "password": user[1]}
        self._token = self._call("POST", "/auth/token", who)["access_token"]

    def broken(self) -> list[str] | None:
        """The errors of files that could not be loaded; None while Airflow has read no DAG and found no error."""
        errors = self._call("GET", "/api/v2/importErrors")["import_errors"]
        if not errors and not self._call("GET", "/api/v2/dags?limit=1")["total_entries"]:
            return None
        return [f"{error['filename']}: {error['stack_trace'].strip()}" for error in errors]

    def pool(self, name: str, slots: int) -> None:
        """Makes a pool if it is not there; one that is there keeps its slots."""
        if not any(p["name"] == name for p in self._call("GET", "/api/v2/pools?limit=1000")["pools"]):
            self._call("POST", "/api/v2/pools", {"name": name, "slots": slots})

    def unpause(self, dag: str, seconds: float = 60) -> None:
        """Lets a DAG run, as soon as Airflow has read it."""
        end = time.monotonic() + seconds
        while not self._call("GET", f"/api/v2/dags?dag_id_pattern={dag}")["dags"]:
            if time.monotonic() > end:
                raise PlatformError(f"Airflow does not know the DAG {dag}", where=self.url, mend="hindcast check")
            time.sleep(PAUSE)
        self._call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})

    def trigger(self, dag: str, **params: Any) -> str:
        """Starts a manual run without an interval: everything there is; returns the run's id."""
        asked = {"logical_date": None, "conf": params}
        return str(self._call("POST", f"/api/v2/dags/{dag}/dagRuns", asked)["dag_run_id"])

    def backfill(self, dag: str, start: str, end: str, **form: Any) -> None:
        """Backfills the intervals from `start` to `end` (ISO times) and waits until that has ended.

        `form`: max_active_runs, run_backwards and reprocess_behavior (none, failed, completed), as Airflow's form has
        them.
        """
        wanted = {"dag_id": dag, "from_date": start, "to_date": end, "dag_run_conf": {}}
        made = self._call("POST", "/api/v2/backfills", {**wanted, **form})
        end_at = time.monotonic() + 900
        while not self._call("GET", f"/api/v2/backfills/{made['id']}")["completed_at"]:
            if time.monotonic() > end_at:
                raise PlatformError(f"the backfill of {dag} has not ended", where=self.url, mend="see it in the UI")
            time.sleep(PAUSE)

    def run(self, dag: str, run: str) -> dict[str, Any]:
        """A run, as Airflow tells it."""
        found: dict[str, Any] = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}")
        return found

    def runs(self, dag: str) -> dict[str, str]:
        """The state of each run by its id, oldest first."""
        found = self._call("GET", f"/api/v2/dags/{dag}/dagRuns?order_by=id")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def approve(
        self,
        dag: str,
        run: str | None = None,
        task: str = "approve",
        seconds: float = 120,
        keys: Sequence[str] | None = None,
    ) -> str:
        """Approves what a run (the first one if none is named) waits for, as a person does in the UI; its id.

        `keys`: those that are chosen in the form; None: none, which means all.
        """
        asked = {} if keys is None else {"keys": list(keys)}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = run or next(iter(self.runs(dag)), "")
            waiting = [t for t in self.tasks(dag, found) if t["task_id"] == task] if found else []
            if waiting and waiting[0]["state"] in ("awaiting_input", "deferred"):
                path = f"/api/v2/dags/{dag}/dagRuns/{found}/taskInstances/{task}/-1/hitlDetails"
                self._call("PATCH", path, {"chosen_options": ["Approve"], "params_input": asked})
                return found
            time.sleep(PAUSE)
        raise PlatformError(f"{dag} asks for nothing", where=self.url, mend="see the run in the UI")

    def wait(self, dag: str, run: str | None = None, seconds: float = 900, state: str = "success") -> str:
        """Waits until a run (the first one if none is named) has succeeded; PlatformError names what failed.

        With `state` failed it waits for that, and for nothing else.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            runs = self.runs(dag)
            found = run or next(iter(runs), "")
            if runs.get(found) == state:
                return found
            if runs.get(found) == "failed":
                raise PlatformError(f"{dag} failed in {self._failed(dag, found)}", where=self.url, mend="see its log")
            time.sleep(PAUSE)
        raise PlatformError(f"{dag} has not ended in {seconds:.0f} s", where=self.url, mend="see the run in the UI")

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        """The task instances of a run, as Airflow tells them."""
        found: list[dict[str, Any]] = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")[
            "task_instances"
        ]
        return found

    def log(self, dag: str, run: str, task: str, attempt: int = 1) -> list[str]:
        """The lines of a task's log; of an exception what it says, not where it came from."""
        told = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{attempt}?map_index=-1")
        lines = []
        for entry in told["content"]:
            lines.append(entry["event"])
            lines += [f"{error['exc_type']}: {error['exc_value']}" for error in entry.get("error_detail") or []]
        return lines

    def fail(self, dag: str, run: str, task: str) -> None:
        """Marks a task failed, as a person does in the UI: it is stopped if it runs."""
        self._call("PATCH", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}", {"new_state": "failed"})

    def events(self, asset: str) -> list[dict[str, Any]]:
        """What the events of an asset tell (assets.py), oldest first."""
        found = self._call("GET", f"/api/v2/assets/events?name_pattern={asset}&order_by=timestamp")["asset_events"]
        return [event["extra"] for event in found if event["name"] == asset]

    def definitions(self, dag: str) -> list[dict[str, Any]]:
        """The tasks of a DAG, as Airflow tells them."""
        found: list[dict[str, Any]] = self._call("GET", f"/api/v2/dags/{dag}/tasks")["tasks"]
        return found

    def _failed(self, dag: str, run: str) -> str:
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
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            told = error.read(500).decode(errors="replace")
            raise PlatformError(f"Airflow answers {error.code} to {method} {path}: {told}", where=self.url) from None
        except OSError as error:
            raise PlatformError(f"Airflow does not answer: {error}", where=self.url, mend="make up") from None
