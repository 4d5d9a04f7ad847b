"""The Spark Connect server as `make up` starts it: it serves those who have its token, and nobody else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil
import pytest

from hindcast.common import port_owners, spark_connect
from hindcast.common.connect_channels import Channels
from hindcast.common.errors import PlatformError
from hindcast.common.settings import Settings, read_settings
from hindcast.common.spark_connect import TOKEN_VARIABLE
from hindcast_local import airflow, ports, process, spark
from hindcast_local.api import AirflowClient
from hindcast_local.process import Process

NOBODY = 65534
NO_LOOPBACK = "0.0.0.0"  # noqa: S104  # to clients: leads to this machine, and is not known as its loopback
CLIENT = """
import os, sys
from hindcast.common import spark_connect
from hindcast.common.errors import PlatformError
from pyspark.sql.connect.session import SparkSession
import encodings.idna, grpc, pyspark.sql.connect.client.core, pyspark.errors.exceptions.connect
if sys.argv[2:]:
    os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
try:
    spark = spark_connect.connect_to_server(sys.argv[1], {"spark.app.name": "test"})
    print("counted", spark.range(3).count(), spark.conf.get("spark.connect.authenticate.token", "no such setting"))
except PlatformError as error:
    print("refused:", error)
"""


class Server(NamedTuple):
    """A server that runs."""

    now: Settings
    process: Process

    @property
    def port(self) -> str:
        return self.process.where.rpartition(":")[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = read_settings(
        {"HINDCAST_VAR": str(tmp_path_factory.mktemp("var")), "HINDCAST_SPARK_PORT": str(ports.find_free_port())}
    )
    started = spark.start_server(settings)
    try:
        spark.wait_for_server(started, 300)
        yield Server(settings, started)
    finally:
        process.stop_processes([started])


def read_token(settings: Settings) -> str:
    return spark_connect.read_token(spark_connect.token_path(settings))


def client(url: str, token: str | None, uid: str = "", script: str = CLIENT) -> str:
    """What a client of its own process prints; with `uid` it is that user's when it connects."""
    environment = {name: value for name, value in os.environ.items() if name not in (TOKEN_VARIABLE, "SPARK_REMOTE")}
    environment |= {TOKEN_VARIABLE: token} if token is not None else {}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", script, url, *([uid] if uid else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("where", ["127.0.0.1:{}", "localhost:{}", f"{NO_LOOPBACK}:{{}}/;use_ssl=false"])
def test_who_has_the_token_is_served(server: Server, where: str) -> None:
    url = f"sc://{where.format(server.port)}"
    assert client(url, read_token(server.now)) == "counted 3 no such setting\n"


WORKERS = """
import os, sys
import pyarrow as pa
from hindcast.common import spark_connect

def look(batches):
    loaded = "hindcast.engine.task" in sys.modules
    yield from [pa.record_batch({"pid": [os.getpid()], "loaded": [loaded]}) for _ in batches]

session = spark_connect.connect_to_server(sys.argv[1], {})
(row,) = session.range(0, 1, 1, 1).mapInArrow(look, "pid long, loaded boolean").collect()  # the worker reads to its end
session.stop()
print(row["pid"], row["loaded"])
"""


@pytest.mark.long
@pytest.mark.ci
def test_a_session_gets_the_python_workers_of_those_before_with_our_modules(server: Server) -> None:
    found = {client(server.process.where, read_token(server.now), script=WORKERS) for _ in range(3)}
    assert len(found) == 1, "each of the sessions had a worker of its own"
    assert found.pop().endswith(" True\n")


TASK = """
from airflow.sdk import DAG
from hindcast.airflow.operators import SharedSpark
with DAG("counts"):
    task = SharedSpark(task_id="count", conn_id="hindcast_spark", python_callable=lambda spark: spark.range(3).count())
print("counted", task.execute({}))
"""


@pytest.mark.long
def test_a_task_of_airflow_has_the_token_of_the_server_that_runs_now(server: Server) -> None:
    environment = airflow.build_environment(server.now)
    assert read_token(server.now) not in "".join(environment.values()), "else it was that of the server before"
    command = [sys.executable, "-c", TASK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.endswith("counted 3\n"), done.stderr


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("token", [None, "", "0" * 64])
def test_another_user_of_this_machine_is_refused(server: Server, token: str | None) -> None:
    told = client(server.process.where, token, str(NOBODY))
    assert f"refused: {server.process.where}: the Spark Connect server does not accept our token" in told
    assert f"set {TOKEN_VARIABLE}" in told


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_find_the_token(server: Server) -> None:
    token, pid = read_token(server.now), server.process.pid
    places = [f"/proc/{pid}/environ", str(server.now.var / "spark" / "token")]
    for place in places:
        assert token in Path(place).read_text(encoding="utf-8"), "we can"
        told = subprocess.run(
            ["/bin/cat", place], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False
        )
        assert (told.returncode, token.encode() in told.stdout) == (1, False)


def ask_without_secret(port: int) -> bytes:
    """What a port of Spark's own protocol answers to a request of a client that has not authenticated itself."""
    body = b"hello"
    frame = bytes([3]) + (7).to_bytes(8) + len(body).to_bytes(4) + body  # an RpcRequest
    with socket.create_connection((ports.HOST, port), 5) as connection:
        connection.settimeout(5)
        connection.sendall((8 + len(frame)).to_bytes(8) + frame)
        told = b""
        with suppress(TimeoutError):
            while part := connection.recv(4096):
                told += part
                if len(told) >= 8 and len(told) >= int.from_bytes(told[:8]):
                    break
    return told


@pytest.mark.long
def test_ports_by_which_spark_speaks_with_itself_ask_for_a_secret(server: Server) -> None:
    client(server.process.where, read_token(server.now))
    listening = {
        it.laddr.port for it in psutil.Process(server.process.pid).net_connections("tcp") if it.status == "LISTEN"
    }
    answers = [ask_without_secret(port) for port in listening - {int(server.port)}]
    assert sum(b"Expected SaslMessage" in answer for answer in answers) >= 2, "the driver's and the block manager's"
    refused = {answer for answer in answers if b"Expected SaslMessage" not in answer}
    assert refused <= {b"", b"!xA\n"}, "and that of Py4J, which asks for the secret of the process that it started"


@pytest.mark.long
def test_the_token_stands_in_no_command_line_and_in_no_other_file(server: Server) -> None:
    token = read_token(server.now)
    client(server.process.where, token)
    assert not [p.pid for p in psutil.process_iter(["cmdline"]) if token in " ".join(p.info["cmdline"] or [])]
    files = [path for path in server.now.var.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"token", "connect.conf", "spark.log"}
    assert [path.name for path in files if token.encode() in path.read_bytes()] == ["token"]


def test_each_start_has_a_new_token_and_one_that_others_can_read_is_refused(tmp_path: Path) -> None:
    settings = read_settings({"HINDCAST_VAR": str(tmp_path)})
    path = spark_connect.token_path(settings)
    with pytest.raises(PlatformError, match="the Spark Connect server's token is missing") as refused:
        spark_connect.read_token(path)
    assert "`make up`" in refused.value.fix
    servers = [spark._build_environment(settings)[TOKEN_VARIABLE] for _ in range(2)]
    assert len(set(servers)) == 2
    assert (len(servers[1]), spark_connect.read_token(path), path.stat().st_mode & 0o777) == (64, servers[1], 0o600)
    assert [it.name for it in path.parent.iterdir()] == ["token"]
    path.chmod(0o644)
    with pytest.raises(PlatformError, match="other users can read the file of secrets"):
        spark_connect.read_token(path)


THIEF = """
import os, socket, sys
user, leaves = int(sys.argv[1]), sys.argv[2] == "leaves"
if user != os.geteuid():
    os.setgroups([]); os.setgid(user); os.setuid(user)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    peer, _ = listener.accept()
    if leaves:
        listener.close()  # one that looks for listeners finds none, and the connection is ours
    try:
        peer.sendall(bytes.fromhex("000000040000000000"))  # SETTINGS: gRPC holds us for a server
        stream = peer.makefile("rb")
        preface = stream.read(24)
        if preface.startswith(b"POST"):
            print("has the password", flush=True)
        while frame := stream.read(9):
            stream.read(int.from_bytes(frame[:3]))
            if frame[3] == 1:  # HEADERS, which the token is in
                print("has the token", flush=True)
                os._exit(0)
    except ConnectionError:
        pass
    if leaves:
        break
"""


@contextmanager
def run_thief(monkeypatch: pytest.MonkeyPatch, how: str) -> Iterator[tuple[int, int, subprocess.Popen[str]]]:
    """Yield port, uid and process of another user who listens; if we cannot be two users, we are another than he."""
    uid = NOBODY if os.geteuid() == 0 else os.geteuid()
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    command = [sys.executable, "-c", THIEF, str(uid), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as thief:
        assert thief.stdout
        try:
            yield int(thief.stdout.readline()), uid, thief
        finally:
            thief.kill()


needs_proc = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the system does not say who listens")


@needs_proc
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_token_is_not_sent_to_another_user_who_has_the_port(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    with run_thief(monkeypatch, "stays") as (port, uid, thief):
        with pytest.raises(PlatformError, match=rf"port {port} is held by uid {uid}") as refused:
            spark_connect.connect_to_server(f"sc://{host}:{port}", {}, "secret")
        assert refused.value.where == f"sc://{host}:{port}"
        assert "HINDCAST_SPARK_PORT" in refused.value.fix
        thief.kill()
        assert thief.communicate()[0] == ""


@needs_proc
@pytest.mark.parametrize("how", ["stays", "leaves"])
def test_a_session_does_not_send_it_to_one_who_takes_the_port_later(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    with run_thief(monkeypatch, how) as (port, uid, thief):
        channels = Channels(f"sc://127.0.0.1:{port}", "secret")
        with channels.toChannel() as channel:
            call = channel.unary_unary("/spark.connect.SparkConnectService/Config")
            with pytest.raises(grpc.RpcError, match=r"Getting metadata from plugin failed.*not by us"):
                call(b"", timeout=20)
            with pytest.raises(PlatformError, match=f"by uid {uid}"):
                call_again(spark_connect._build_retry_policy("sc://here", channels.refuse_foreign), 1)
        thief.kill()
        assert thief.communicate()[0] == ""


@needs_proc
def test_who_has_the_port_is_looked_up_once_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call after another finds the same connection; a server that takes the port later gets another."""
    tokens: list[str] = []
    lookups: list[int] = []
    owners: set[int] = set()

    def find_others(_: str, port: int) -> set[int]:
        lookups.append(port)
        return owners

    monkeypatch.setattr(port_owners, "find_others", find_others)
    first, port = serve_tokens(tokens, 0)
    try:
        with Channels(f"sc://127.0.0.1:{port}", "secret").toChannel() as channel:
            call = channel.unary_unary("/spark.connect.SparkConnectService/Config")
            for _ in range(5):
                assert call(b"", timeout=20) == b""
            assert (tokens, len(lookups)) == (["Bearer secret"] * 5, 1)
            first.stop(None).wait()
            owners.add(NOBODY)
            second, _ = serve_tokens(tokens, port)
            try:
                with pytest.raises(grpc.RpcError, match=f"held by uid {NOBODY}"):
                    call(b"", timeout=20, wait_for_ready=True)
                assert len(tokens) == 5
            finally:
                second.stop(None).wait()
    finally:
        first.stop(None).wait()


def serve_tokens(tokens: list[str], port: int) -> tuple[grpc.Server, int]:
    """Return a server, and its port, that answers every call with nothing and keeps the token of each."""

    def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
        tokens.append(dict(context.invocation_metadata())["authorization"])
        return b""

    handler = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("spark.connect.SparkConnectService", {"Config": handler}),)
    )
    bound = server.add_secure_port(f"127.0.0.1:{port}", grpc.local_server_credentials())
    server.start()
    return server, bound


@needs_proc
def test_airflows_password_is_not_sent_to_another_user_who_has_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_thief(monkeypatch, "stays") as (port, uid, thief):
        url = f"http://{ports.HOST}:{port}"
        with pytest.raises(PlatformError, match=rf"port {port} is held by uid {uid}.*the password") as refused:
            AirflowClient(url, ("admin", "secret"))
        assert (refused.value.where, "HINDCAST_AIRFLOW_PORT" in refused.value.fix) == (url, True)
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        started = process.start_process(
            "airflow-api-server", url, command, log=tmp_path / "log", env=dict(os.environ), cwd=tmp_path
        )
        try:
            with pytest.raises(PlatformError, match=f"held by uid {uid}"):
                airflow.wait_for_part(started, datetime.now(UTC), 5)
        finally:
            process.stop_processes([started])
        thief.kill()
        assert thief.communicate()[0] == ""


@needs_proc
def test_our_own_processes_and_roots_have_their_ports() -> None:
    with socket.create_server((ports.HOST, 0)) as listener:
        port = listener.getsockname()[1]
        assert port_owners.find_owners("localhost", port) == {os.geteuid()}
        assert port_owners.find_owners("127.0.0.9", port) == set()
    assert port_owners.find_owners(ports.HOST, port) == set()
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        port = listener.getsockname()[1]
        assert port_owners.find_owners("127.0.0.9", port) == port_owners.find_owners("::1", port) == {os.geteuid()}


class UnavailableError(grpc.RpcError):
    """What a call to a server that died fails with."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


def call_again(policy: Any, failures: int) -> int:
    """Return how often a call is tried that fails so often."""
    from pyspark.sql.connect.client.retries import Retrying

    tried = 0
    for attempt in Retrying([policy]):
        with attempt:
            tried += 1
            if tried <= failures:
                raise UnavailableError
    return tried


def test_a_server_that_is_gone_is_reported_and_then_waited_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_connect, "PATIENCE_SECONDS", 0.6)
    url = f"sc://127.0.0.1:{ports.find_free_port()}"
    with pytest.raises(PlatformError, match=r"has not answered for 0\.6 s") as refused:
        spark_connect.connect_to_server(url, {})
    assert (refused.value.where, "hindcast up" in refused.value.fix) == (url, True)

    assert call_again(spark_connect._build_retry_policy(url), 1) == 2, "a server that is back in time is asked again"
    policy = spark_connect._build_retry_policy(url)
    with pytest.raises(PlatformError, match="has not answered"):
        call_again(policy, 100)
    before = time.monotonic()
    with pytest.raises(PlatformError):
        call_again(policy, 100)
    assert time.monotonic() - before < 0.5


MIDST = """
import sys, time
from hindcast.common import spark_connect
from hindcast.common.errors import PlatformError
spark = spark_connect.connect_to_server(sys.argv[1], {"spark.app.name": "test"})
print("counted", spark.range(3).count(), flush=True)
sys.stdin.readline()
before = time.monotonic()
try:
    spark.range(3).count()
except PlatformError as error:
    print("after", round(time.monotonic() - before), "s:", error)
"""


@pytest.mark.long
def test_a_server_that_is_killed_is_reported_after_ten_seconds(tmp_path: Path) -> None:
    settings = read_settings({"HINDCAST_VAR": str(tmp_path), "HINDCAST_SPARK_PORT": str(ports.find_free_port())})
    started = spark.start_server(settings)
    try:
        spark.wait_for_server(started)
        environment = {
            **os.environ,
            TOKEN_VARIABLE: spark_connect.read_token(spark_connect.token_path(settings)),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-c", MIDST, started.where]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as asking:
            assert asking.stdout
            assert asking.stdout.readline() == "counted 3\n"
            process.stop_processes([started])
            told, _ = asking.communicate("\n", timeout=100)
        seconds = int(told.split()[1])
        assert 10 <= seconds < 30, told
        assert f"{started.where}: the Spark Connect server has not answered for 10 s" in told
    finally:
        process.stop_processes([started])
