"""docker-compose.yaml's services as processes of this machine, for tests.

    with composed(folder, {"POSTGRES_PASSWORD": "..."}) as services:
        services.start("spark-master")          its command, in its environment; waits until its health check passes

Commands, environments and health checks are those of the file. Only what a container would bring is put in place: each
address of a service becomes one of loopback with a free port, /opt/hindcast the checkout, its folder var one of the
test's; PostgreSQL and the broker are the test's own, on `ports`. `more` is what a test sets besides.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cluster
import compose_file
import yaml

from hindcast.common.session import spark_environment, venv_folder
from hindcast_local import ports, process
from hindcast_local.ports import HOST

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docker-compose.yaml"

LISTENS = {
    "airflow-api-server": 8080,
    "spark-master": 7077,
    "spark-connect": 15002,
    "spark-worker": 8081,
    "postgres": 5432,
    "object-store": 7070,
    "kafka": 9092,
}
"""The port on which a service listens in its container."""


class Services:
    """Those of the file that a test has started."""

    def __init__(self, folder: Path, secrets: Mapping[str, str]) -> None:
        self.folder = folder
        self.services: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
        self.ports = {name: ports.find_free_port() for name in LISTENS}
        self.variables = {**secrets, "HINDCAST_AIRFLOW_PORT": str(self.ports["airflow-api-server"])}
        self.more: dict[str, str] = {}
        self.started: list[process.Process] = []

    def address(self, name: str) -> str:
        """Where a service is."""
        return f"{HOST}:{self.ports[name]}"

    def placed(self, text: str, service: str) -> str:
        """A text of the file, as it has to be for a process of this machine."""
        text = compose_file.replace_variables(str(text), self.variables)
        text = text.replace("/opt/hindcast/var", str(self.folder / "var")).replace(
            "/opt/hindcast/.venv", str(venv_folder())
        )
        text = text.replace("/opt/hindcast/objects", str(self.folder / "objects")).replace("/opt/hindcast", str(ROOT))
        text = re.sub("^/objects$", str(self.folder / "objects"), text)
        for name, port in LISTENS.items():
            at = self.ports[name]
            text = re.sub(rf"\b{name}:{port}\b", f"{HOST}:{at}", text)
            text = re.sub(rf'(["/@]){name}", "port": {port}\b', rf'\g<1>{HOST}", "port": {at}', text)
            text = re.sub(rf'"{name}", {port}\b', f'"{HOST}", {at}', text)  # of Python's sockets
            text = re.sub(rf"@{name}/", f"@{HOST}:{at}/", text)
            text = re.sub(rf"(=|^){name}$", rf"\g<1>{HOST}", text)
        text = text.replace("=0.0.0.0", f"={HOST}")
        own = LISTENS.get(service)
        if text == f":{own}":
            return self.address(service)
        if own is not None:  # what it says of itself: a port alone, or one of localhost
            text = re.sub(rf"^(|.*\.port=){own}$", rf"\g<1>{self.ports[service]}", text)
            text = re.sub(rf'localhost(:|", ){own}\b', rf"{HOST}\g<1>{self.ports[service]}", text)
        return text

    def environ(self, name: str) -> dict[str, str]:
        """The environment of a service, over what a container's image brings."""
        told = {key: self.placed(value, name) for key, value in self.services[name].get("environment", {}).items()}
        kept = {key: os.environ[key] for key in ("HOME", "LANG", "USER") if key in os.environ}
        paths = {
            "PATH": f"{venv_folder() / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        return {**kept, **spark_environment(), **paths, "GX_ANALYTICS_ENABLED": "false", **told, **self.more}

    def command(self, name: str) -> list[str]:
        """Its command, behind the entry point that its image brings."""
        entry = [str(cluster.store(venv_folder()))] if name == "object-store" else []
        return [*entry, *(self.placed(part, name) for part in self.services[name]["command"])]

    def run(self, name: str) -> None:
        """Runs a service that ends, and waits for that."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            done = subprocess.run(self.command(name), env=self.environ(name), stdout=output, stderr=output, check=False)
        assert done.returncode == 0, log.read_text(encoding="utf-8")[-2000:]

    def start(self, name: str, number: int = 1) -> process.Process:
        """Starts a service and waits until it is healthy."""
        log = self.folder / f"{name}-{number}.log"
        if number > 1:
            self.ports[name] = ports.find_free_port()
        where = self.address(name) if name in LISTENS else name
        started = process.start_process(
            f"{name}-{number}", where, self.command(name), log=log, env=self.environ(name), cwd=self.folder / "cwd"
        )
        self.started.append(started)
        end = time.monotonic() + 180
        while not self.healthy(name):
            assert process.is_running(started), process.read_log_tail(started, 40)
            assert time.monotonic() < end, f"{name} is not healthy:\n{process.read_log_tail(started, 40)}"
            time.sleep(0.5)
        return started

    def healthy(self, name: str) -> bool:
        """What its own health check says."""
        kind, *check = (self.placed(part, name) for part in self.services[name]["healthcheck"]["test"])
        command = ["bash", "-c", *check] if kind == "CMD-SHELL" else check
        return subprocess.run(command, env=self.environ(name), capture_output=True, check=False).returncode == 0


@contextmanager
def composed(folder: Path, secrets: Mapping[str, str]) -> Iterator[Services]:
    """The services of the file, with what .env has to say; stopped at the end of the block."""
    made = Services(folder, secrets)
    try:
        yield made
    finally:
        process.stop_processes(made.started)
