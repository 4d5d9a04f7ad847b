"""Airflow's permissions for single DAGs, by a real auth manager (FAB): what they open and close of the pages.

Flask AppBuilder's provider is no part of our set-up; it is installed beside it, for this test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hindcast.common.settings import Settings, read_settings
from hindcast_local import airflow, ports, process
from warehouses import SHOP, shop

OTHER = SHOP.replace("pipeline: shop", "pipeline: bank")
PASSWORD = "at-the-till-9142"  # noqa: S105  # a test's


@dataclass(frozen=True)
class Server:
    """An API server with FAB, and the environment of its commands."""

    now: Settings
    environ: dict[str, str]

    def command(self, *words: str) -> None:
        """Work Airflow's command line."""
        asked = [str(Path(sys.executable).with_name("airflow")), *words]
        done = subprocess.run(asked, env=self.environ, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, f"{words}: {done.stdout[-1000:]}{done.stderr[-2000:]}"

    def log_in(self, name: str) -> str:
        """Return the token of a user."""
        body = json.dumps({"username": name, "password": PASSWORD}).encode()
        return str(self._ask("/auth/token", None, body)[1]["access_token"])

    def ask(self, address: str, token: str | None) -> tuple[int, Any]:
        """Return the status of an answer of the pages, and what it holds."""
        return self._ask(f"/hindcast{address}", token)

    def _ask(self, address: str, token: str | None, body: bytes | None = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        request = urllib.request.Request(airflow.base_url(self.now) + address, body, headers)  # noqa: S310  # ours
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                text = answer.read().decode()
                return answer.status, json.loads(text) if "json" in answer.headers["Content-Type"] else text
        except urllib.error.HTTPError as error:
            return error.code, None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Airflow with FAB before two pipelines: `cook` may read one of them, `guest` may see the UI alone."""
    folder, beside = tmp_path_factory.mktemp("permissions"), tmp_path_factory.mktemp("fab")
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", sys.executable]
    subprocess.run([*uv, "--target", str(beside), "apache-airflow-providers-fab"], check=True, timeout=300)
    with shop(folder, OTHER) as there:
        settings = read_settings({**there.environment, "HINDCAST_AIRFLOW_PORT": str(ports.find_free_port())})
        manager = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
        own = {"AIRFLOW__CORE__AUTH_MANAGER": manager, "PYTHONPATH": str(beside)}
        environ = {**os.environ, **airflow.build_environment(settings), **own}
        made = Server(settings, environ)
        Path(environ["AIRFLOW_HOME"]).mkdir(parents=True, exist_ok=True)
        made.command("db", "migrate")
        made.command("dags", "reserialize")
        made.command("sync-perm", "--include-dags")
        for role in ("Cook", "Guest"):
            made.command("roles", "create", role)
            made.command("roles", "add-perms", role, "-a", "can_read", "-r", "Website")
            name = role.lower()
            whom = ("--username", name, "--firstname", name, "--lastname", name, "--email", f"{name}@x.org")
            made.command("users", "create", *whom, "--role", role, "--password", PASSWORD)
        made.command("roles", "add-perms", "Cook", "-a", "can_read", "-r", "DAG:shop")
        since = datetime.now(UTC)
        command = [str(Path(sys.executable).with_name("airflow")), "api-server"]
        log = folder / "api-server.log"
        started = process.start_process(
            "airflow-api-server", airflow.base_url(settings), command, log=log, env=environ, cwd=folder
        )
        try:
            airflow.wait_for_part(started, since)
            yield made
        finally:
            process.stop_processes([started])


@pytest.mark.long
def test_who_may_read_one_dag_sees_its_pipeline_and_no_other(server: Server) -> None:
    cook = server.log_in("cook")
    addresses = ("/machine/{}.json?table=prices&key=naan", "/keys/{}.json?table=prices", "/machine/{}?table=prices")
    found = {(name, it): server.ask(it.format(name), cook)[0] for name in ("shop", "bank") for it in addresses}
    assert found == {**{("shop", it): 200 for it in addresses}, **{("bank", it): 403 for it in addresses}}


@pytest.mark.long
def test_who_may_read_none_sees_that_there_are_pages_and_nothing_in_them(server: Server) -> None:
    guest = server.log_in("guest")
    assert server.ask("/machine/shop.json?table=prices&key=naan", guest)[0] == 403
    status, page = server.ask("/", guest)
    assert (status, "shop" in page, "bank" in page) == (200, False, False)
    assert (
        "shop" in server.ask("/", server.log_in("cook"))[1],
        "bank" in server.ask("/", server.log_in("cook"))[1],
    ) == (
        True,
        False,
    )


@pytest.mark.long
def test_without_a_login_there_is_nothing(server: Server) -> None:
    assert {server.ask(it, None)[0] for it in ("/", "/machine/shop?table=prices")} <= {401, 403}
