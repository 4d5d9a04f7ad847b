"""Parts of Airflow that die are started again, not too often, and never after `down`: with small programs as parts."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hindcast.common.errors import PlatformError
from hindcast.common.settings import Settings, read_settings
from hindcast_local import airflow, lock, ports, process, stack, supervisor
from hindcast_local.process import Process
from pipelines import until

SUPERVISOR = """
import os, sys
from hindcast_local import airflow, process, supervisor
def start(settings, name):
    code = (settings.var / f"{name}.py").read_text()
    log = settings.logs / f"{name}.log"
    env, command = dict(os.environ), [sys.executable, "-c", code]
    return process.start_process(name, "here", command, log=log, env=env, cwd=settings.var)
airflow.start_part = start
supervisor.INTERVAL = 0.1
sys.exit(supervisor.main())
"""
SERVE = "import time; print('serves', flush=True); time.sleep(300)"
FAIL = "print('fails', flush=True)"
LEAVE_CHILD = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
{SERVE}
"""
SCHEDULER, TRIGGERER = "airflow-scheduler", "airflow-triggerer"


class Stack:
    """A folder of records, with programs that run in the place of parts of Airflow, and a supervisor."""

    def __init__(self, settings: Settings) -> None:
        self.now = settings
        self.folder = lock.records_folder(settings)
        self.all: list[Process] = []

    def start(self, name: str, code: str) -> Process:
        """Start and record a program, as `up` does; `code` is what the supervisor starts, too."""
        self.now.var.joinpath(f"{name}.py").write_text(code)
        command, env = [sys.executable, "-c", code], {**os.environ, **self.now.environment}
        env["PYTHONPATH"] = os.pathsep.join(sys.path)
        log = self.now.logs / f"{name}.log"
        started = process.start_process(name, "here", command, log=log, env=env, cwd=self.now.var)
        process.write_record(self.folder, started)
        self.all.append(started)
        return started

    def supervise(self) -> Process:
        with lock.try_lock(self.now, "up or down"):
            started = self.start(supervisor.NAME, SUPERVISOR)
            until(lambda: "watching" in self.log())
        return started

    def find(self, name: str) -> Process | None:
        found = next((one for one in process.load_records(self.folder) if one.name == name), None)
        if found and found not in self.all:
            self.all.append(found)
        return found

    def has_new(self, old: Process) -> bool:
        """Does another process of the same name run, in the place of this one?"""
        found = self.find(old.name)
        return found is not None and found.pid != old.pid and process.is_running(found)

    def log(self) -> str:
        path = self.now.logs / f"{supervisor.NAME}.log"
        return path.read_text() if path.exists() else ""

    def count(self, name: str, text: str) -> int:
        """How often a program of this name has printed this text."""
        return (self.now.logs / f"{name}.log").read_text().count(text)


def kill(one: Process) -> None:
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: not process.is_running(one))


def holds(condition: Callable[[], bool], seconds: float = 1.0) -> bool:
    """Is it so all the time?"""
    end = time.monotonic() + seconds
    while condition():
        if time.monotonic() > end:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Stack]:
    names = ("HINDCAST_KAFKA_PORT", "HINDCAST_AIRFLOW_PORT", "HINDCAST_SPARK_PORT")
    made = Stack(
        read_settings({"HINDCAST_VAR": str(tmp_path), **{name: str(ports.find_free_port()) for name in names}})
    )
    made.now.logs.mkdir()
    yield made
    process.stop_processes([one for one in made.all if one.name == supervisor.NAME], patience=1)
    process.stop_processes(made.all, patience=0)


@pytest.mark.long
@pytest.mark.ci
def test_what_died_runs_again_until_down_stops_all(here: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    first, other = here.start(SCHEDULER, LEAVE_CHILD), here.start(TRIGGERER, SERVE)
    broker = here.start("broker", SERVE)
    here.supervise()
    until(lambda: len(process.find_descendants([first])) == 2)
    for _ in range(2):
        dead = here.find(SCHEDULER)
        assert dead
        kill(dead)
        until(lambda: here.has_new(dead))  # noqa: B023  # it is asked in this round
        assert process.find_descendants([dead]) == [], "what the dead one had started is stopped, too"
        new = here.find(SCHEDULER)
        assert new
        assert f"{SCHEDULER} (process {dead.pid}) had ended: started again as process {new.pid}" in here.log()
    kill(broker)
    assert holds(lambda: here.find("broker") == broker), "it is none of Airflow's parts"
    assert here.find(TRIGGERER) == other
    stack.stop_stack(here.now)
    assert capsys.readouterr().out.startswith(f"stopped {supervisor.NAME}\nstopped {SCHEDULER}\n")
    assert process.load_records(here.folder) == []
    assert holds(lambda: process.find_descendants(here.all) == [])


def test_one_that_dies_again_and_again_is_left_until_it_was_started_by_up(here: Stack) -> None:
    failing, other = here.start(SCHEDULER, FAIL), here.start(TRIGGERER, SERVE)
    until(lambda: not process.is_running(failing))
    here.supervise()
    left = f"{SCHEDULER} ended again after 5 restarts within 10 minutes, and is left as it is: read {failing.log}"
    until(lambda: left in here.log(), 60)
    assert here.count(SCHEDULER, "fails") == 1 + supervisor.MAX_RESTARTS
    assert holds(lambda: here.count(SCHEDULER, "fails") == 1 + supervisor.MAX_RESTARTS)
    assert here.log().count(left) == 1
    kill(other)
    until(lambda: here.has_new(other))
    mended = here.start(SCHEDULER, SERVE)
    time.sleep(0.5)
    kill(mended)
    until(lambda: here.has_new(mended))


def test_what_is_not_recorded_is_not_brought_back(here: Stack) -> None:
    gone, stays = here.start(SCHEDULER, SERVE), here.start(TRIGGERER, SERVE)
    here.supervise()
    process.remove_record(here.folder, gone)
    kill(gone)
    assert holds(lambda: here.find(SCHEDULER) is None)
    watching = here.find(supervisor.NAME)
    assert watching
    process.remove_record(here.folder, watching)
    until(lambda: not process.is_running(watching))
    kill(stays)
    assert holds(lambda: here.find(TRIGGERER) == stays)


def test_while_up_or_down_are_at_work_it_starts_nothing(here: Stack) -> None:
    dead = here.start(SCHEDULER, SERVE)
    here.supervise()
    with stack._hold_lock(here.now):
        kill(dead)
        assert holds(lambda: here.find(SCHEDULER) == dead)
        with pytest.raises(PlatformError, match="another `up` or `down` is running here"):
            stack.stop_stack(here.now)
    until(lambda: here.has_new(dead))


def test_down_waits_for_the_supervisor_at_work(here: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    taken, enough = threading.Event(), threading.Event()

    def work() -> None:
        with lock.try_lock(here.now, supervisor.NAME):
            taken.set()
            enough.wait(20)

    working = threading.Thread(target=work)
    working.start()
    taken.wait()
    threading.Timer(0.5, enough.set).start()
    before = time.monotonic()
    stack.stop_stack(here.now)
    assert time.monotonic() - before > 0.4
    assert "nothing of ours is running" in capsys.readouterr().out
    working.join()


def test_looking_what_runs_leaves_the_records_of_what_died(here: Stack) -> None:
    dead = here.start(SCHEDULER, FAIL)
    until(lambda: not process.is_running(dead))
    assert not stack.is_up(here.now)
    assert stack.find_shared_spark(here.now) is None
    assert here.find(SCHEDULER) == dead


def test_up_starts_a_supervisor_of_its_settings(here: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow, "PARTS", {})
    parts = stack._list_parts(here.now)
    assert list(parts)[-1] == supervisor.NAME
    started = parts[supervisor.NAME].start()
    here.all.append(started)
    until(lambda: "watching airflow-api-server, airflow-scheduler" in here.log())
    assert f"HINDCAST_VAR={here.now.var}" in Path(f"/proc/{started.pid}/environ").read_text()
    until(lambda: not process.is_running(started), 20)
    assert "has removed its record" in here.log()
