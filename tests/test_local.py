"""Processes of this machine: a real broker, taken ports, and stopping exactly what was started."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest
import yaml

from hindcast.common.errors import PlatformError, SettingsError
from hindcast.common.session import default_properties, format_defaults_file
from hindcast.common.settings import Settings, read_settings
from hindcast.kafka.security import read_security
from hindcast_local import airflow, broker, ports, process, stack
from hindcast_local.process import Process
from pipelines import until

SLEEP = "import time; time.sleep(300)"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a state folder and ports of their own."""
    ours = [ports.find_free_port() for _ in range(3)]
    names = ("HINDCAST_KAFKA_PORT", "HINDCAST_AIRFLOW_PORT", "HINDCAST_SPARK_PORT")
    return read_settings({"HINDCAST_VAR": str(tmp_path), **{n: str(p) for n, p in zip(names, ours, strict=True)}})


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    """Starts Python programs as processes of ours, and sees to it that none is left."""
    started: list[Process] = []

    def start_(code: str, name: str = "program") -> Process:
        command = [sys.executable, "-c", code]
        one = process.start_process(
            name, "here", command, log=tmp_path / f"{name}.log", env=dict(os.environ), cwd=tmp_path
        )
        started.append(one)
        return one

    yield start_
    process.stop_processes(started, patience=0)


class TestSettings:
    def test_the_default_is_this_checkout(self) -> None:
        found = read_settings({})
        root = Path(__file__).parent.parent
        assert (found.root, found.var, found.schemas) == (root, root / "var", root / "schemas")
        assert found.warehouse == str(root / "var" / "warehouse")
        assert found.kafka == "127.0.0.1:19392"
        assert (found.airflow_port, found.spark_port, found.spark) == (18380, 15392, "connect")

    def test_what_is_not_set_follows_what_is(self) -> None:
        found = read_settings({"HINDCAST_ROOT": "/r", "HINDCAST_KAFKA_PORT": "7"})
        assert (found.var, found.kafka) == (Path("/r/var"), "127.0.0.1:7")

    def test_the_current_folder_is_asked_for_only_where_it_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        whole = {"HINDCAST_ROOT": "/r", "HINDCAST_WAREHOUSE": "/w"}
        assert read_settings({}).root == Path(__file__).parent.parent
        monkeypatch.setattr("hindcast.common.settings.is_checkout", lambda: False)
        assert read_settings(whole).warehouse == "/w"
        for name in ("HINDCAST_ROOT", "HINDCAST_VAR", "HINDCAST_SCHEMAS", "HINDCAST_REPORTS", "HINDCAST_WAREHOUSE"):
            for env in ({**whole, name: "x"}, *([{"HINDCAST_WAREHOUSE": "/w"}] if name == "HINDCAST_ROOT" else ())):
                with pytest.raises(SettingsError, match="the current folder no longer exists") as caught:
                    read_settings(env)
                assert caught.value.fix == f"cd to another folder, or set {name} to an absolute path"
        with pytest.raises(SettingsError, match="the current folder no longer exists") as caught:
            read_security("b:9092", {"HINDCAST_KAFKA_SECURITY": "ssl", "HINDCAST_KAFKA_CA": "ca.pem"})
        assert "set HINDCAST_KAFKA_CA to an absolute path" in caught.value.fix

    def test_a_warehouse_can_be_an_object_store(self) -> None:
        assert read_settings({"HINDCAST_WAREHOUSE": "s3a://bucket/w"}).warehouse == "s3a://bucket/w"

    def test_its_environment_gives_the_same_settings(self, settings: Settings) -> None:
        assert read_settings(settings.environment) == settings

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("HINDCAST_KAFKA_PORT", "70000"),
            ("HINDCAST_AIRFLOW_PORT", "http"),
            ("HINDCAST_SPARK_PORT", "0"),
            ("HINDCAST_SPARK", "yarn"),
            ("HINDCAST_SPARK_MEMORY", "much"),
            ("HINDCAST_MAINTENANCE", "sometimes"),
            ("HINDCAST_MAINTENANCE", "60 * * * *"),
            ("HINDCAST_MAINTENANCE", "0 0 31 2 *"),
            ("HINDCAST_MAINTENANCE", "H 3 * * *"),
            ("HINDCAST_TIME_TRAVEL", "0"),
            ("HINDCAST_KEEP_REPORTS", "-1"),
            ("HINDCAST_LOG", "xml"),
            ("HINDCAST_UMASK", "77"),
            ("HINDCAST_UMASK", "707"),
            ("HINDCAST_UMASK", "u=rwx"),
            *((f"HINDCAST_{name}", "~nobody9/x") for name in ("ROOT", "VAR", "WAREHOUSE", "REPORTS", "SCHEMAS")),
        ],
    )
    def test_what_makes_no_sense_is_named(self, name: str, value: str) -> None:
        with pytest.raises(SettingsError, match=re.escape(f"{name} is '{value}'")):
            read_settings({name: value})

    @pytest.mark.parametrize(
        "warehouse", ["s4://b/x", "s3://b/x", "S3A://b/x", "http://b/x", "://b/x", "wasbs://c@a/x"]
    )
    def test_a_warehouse_of_another_scheme_is_refused(self, warehouse: str) -> None:
        """To Delta's readers every table there is one that does not exist yet."""
        scheme = warehouse.partition(":")[0]
        with pytest.raises(SettingsError, match=f"the warehouse begins with '{scheme}://', and") as caught:
            read_settings({"HINDCAST_WAREHOUSE": warehouse})
        assert caught.value.fix.endswith("known here: abfs, abfss, file, gs, hdfs, s3a")
        assert ("did you mean 's3a'?" in caught.value.fix) == (scheme.lower() in ("s3", "s3a"))

    @pytest.mark.parametrize("value", ["ann", "ann:viewer", "ann:admin, bob:owner"])
    def test_users_without_roles_or_without_an_admin_are_refused(self, value: str) -> None:
        with pytest.raises(SettingsError, match="HINDCAST_USERS is not a list of names with roles that has an admin"):
            read_settings({"HINDCAST_USERS": value})

    @pytest.mark.parametrize("name", ["KAFKA_PORT", "CHUNK", "TIME_TRAVEL", "KEEP_REPORTS", "SPARK_MEMORY"])
    def test_a_number_with_too_many_digits_is_none(self, name: str) -> None:
        value = "9" * 5000 + ("g" if name == "SPARK_MEMORY" else "")
        with pytest.raises(SettingsError, match=rf"HINDCAST_{name} is '9{{40}}\.\.\. \(5,00[01] characters\)', not a"):
            read_settings({f"HINDCAST_{name}": value})

    def test_the_table_lists_every_variable(self, settings: Settings) -> None:
        import hindcast.common.settings

        table = [
            line.split("|")[1].strip()
            for line in (hindcast.common.settings.__doc__ or "").splitlines()
            if "| HIND" in line
        ]
        assert table == list(settings.environment)


def test_spark_defaults_are_the_settings_line_by_line(settings: Settings) -> None:
    lines = format_defaults_file(settings).splitlines()[1:]
    assert dict(line.split(" ", 1) for line in lines) == default_properties(settings)


def test_airflow_knows_every_option_that_we_give_it(settings: Settings) -> None:
    import airflow as package

    text = (Path(package.__path__[0]) / "config_templates" / "config.yml").read_text(encoding="utf-8")
    known = {
        f"AIRFLOW__{section}__{option}".upper()
        for section, content in yaml.safe_load(text).items()
        for option in content["options"]
    }
    assert [
        name for name in airflow.build_environment(settings) if name.startswith("AIRFLOW__") and name not in known
    ] == []


def test_without_users_of_your_own_there_is_one_who_has_a_password(settings: Settings) -> None:
    given = airflow.build_environment(settings)
    assert not [name for name in given if name.endswith("ALL_ADMINS")]
    assert given["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "admin:admin"
    (password,) = airflow.ensure_passwords(settings).values()
    assert len(password) >= 16
    assert password not in given.values()


def test_passwords_are_made_once_for_each_user_and_are_their_owners_alone(settings: Settings) -> None:
    one = airflow.build_environment(replace(settings, users="ann:admin"))
    path = Path(one["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    assert (path.stat().st_mode & 0o777, list(json.loads(path.read_text()))) == (0o600, ["ann"])
    both = airflow.ensure_passwords(replace(settings, users="ann:admin,bob:viewer"))
    assert (both["ann"], sorted(both)) == (json.loads(path.read_text())["ann"], ["ann", "bob"])


@pytest.mark.parametrize("name", ["passwords.json", "keys.json"])
@pytest.mark.parametrize(("mode", "right"), [(0o640, "read"), (0o604, "read"), (0o620, "write"), (0o602, "write")])
def test_secrets_that_others_can_read_or_write_are_refused(
    settings: Settings, name: str, mode: int, right: str
) -> None:
    airflow.build_environment(settings)
    path = airflow.passwords_path(settings).with_name(name)
    before = path.read_text()
    path.chmod(mode)
    with pytest.raises(PlatformError, match=f"other users can {right} the file of secrets") as refused:
        airflow.build_environment(settings)
    assert refused.value.where == str(path)
    assert f"remove {path}" in refused.value.fix
    assert path.read_text() == before
    path.chmod(0o600)
    airflow.build_environment(settings)
    path.unlink()
    airflow.build_environment(settings)
    assert path.read_text() != before


def test_secrets_of_another_user_are_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow.ensure_passwords(settings)
    other = os.geteuid() + 1
    if os.geteuid() == 0:
        os.chown(airflow.passwords_path(settings), other, -1)
    else:
        other = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: other + 1)
    with pytest.raises(PlatformError, match=f"the file of secrets belongs to uid {other}") as refused:
        airflow.ensure_passwords(settings)
    assert "`chown`" in refused.value.fix


class TestProcesses:
    def test_one_that_runs_is_told_from_a_later_one_of_its_pid(self, start) -> None:
        one = start(SLEEP)
        assert process.is_running(one)
        assert not process.is_running(replace(one, born="another boot/1"))

    def test_a_record_of_a_reused_pid_is_stale_and_that_process_is_left_alone(self, settings: Settings, start) -> None:
        other = start(SLEEP)
        stale = replace(other, name="broker", born="another boot/1", mark="another mark")
        process.write_record(settings.var / "run", stale)
        stack.stop_stack(settings)
        assert process.is_running(other)
        assert process.load_records(settings.var / "run") == []

    def test_a_record_that_cannot_be_read_counts_as_none(
        self, settings: Settings, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (settings.var / "run").mkdir()
        (settings.var / "run" / "broker.json").write_text('{"pid": ')
        stack.stop_stack(settings)
        assert "nothing of ours is running" in capsys.readouterr().out

    def test_stop_ends_children_of_other_sessions_too(self, start) -> None:
        child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{SLEEP}'], start_new_session=True)"
        one = start(f"{child}\n{SLEEP}")
        until(lambda: len(process.find_descendants([one])) == 2)
        pids = process.find_descendants([one])
        process.stop_processes([one])
        assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)

    def test_stop_ends_the_orphans_of_one_that_died(self, start) -> None:
        one = start(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{SLEEP}'])")
        until(lambda: not process.is_running(one))
        assert len(process.find_descendants([one])) == 1
        process.stop_processes([one])
        assert process.find_descendants([one]) == []

    def test_one_that_ignores_signals_is_killed(self, start) -> None:
        one = start(
            f"import signal; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; print('ready', flush=True); {SLEEP}"
        )
        until(lambda: "ready" in Path(one.log).read_text())
        process.stop_processes([one], patience=0.2)
        assert not process.is_running(one)

    def test_one_started_where_interrupts_are_ignored_heeds_them(self, start) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            one = start(f"print('ready', flush=True); {SLEEP}")
        finally:
            signal.signal(signal.SIGINT, before)
        until(lambda: "ready" in Path(one.log).read_text())
        os.kill(one.pid, signal.SIGINT)
        until(lambda: not process.is_running(one))

    def test_down_leaves_a_process_that_it_did_not_start(self, settings: Settings, start) -> None:
        ours = start(SLEEP, "broker")
        process.write_record(settings.var / "run", ours)
        with subprocess.Popen([sys.executable, "-c", SLEEP]) as theirs:
            stack.stop_stack(settings)
            assert theirs.poll() is None
            theirs.kill()
        assert not process.is_running(ours)

    def test_a_program_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(PlatformError, match="/nonexistent/x: broker cannot be started"):
            process.start_process("broker", "", ["/nonexistent/x"], log=tmp_path / "log", env={}, cwd=tmp_path)


class TestPorts:
    def test_requests_to_this_machine_go_to_no_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would get Airflow's password."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"asked": "%s"}' % self.path.encode())

        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", f"http://{ports.HOST}:{ports.find_free_port()}")
        with HTTPServer((ports.HOST, 0), Handler) as server:
            threading.Thread(target=server.handle_request, daemon=True).start()
            assert ports.read_json(f"http://{ports.HOST}:{server.server_port}/own", "token") == {"asked": "/own"}

    def test_a_taken_port_is_named_with_its_holder_and_the_variable(self) -> None:
        with socket.socket() as listener:
            listener.bind((ports.HOST, 0))
            listener.listen()
            port = listener.getsockname()[1]
            with pytest.raises(PlatformError) as caught:
                ports.refuse_taken_port(port, "broker", "HINDCAST_KAFKA_PORT")
        assert f"port {port}, for broker, is not available: Address already in use by process {os.getpid()}" in str(
            caught.value
        )
        assert f"choose another port: HINDCAST_KAFKA_PORT={port + 1}" in str(caught.value)

    def test_a_free_one_is_never_one_that_an_outgoing_connection_may_get(self) -> None:
        given = [ports.find_free_port() for _ in range(50)]
        assert len(set(given)) == 50
        assert max(given) < 32_768

    def test_one_that_ends_while_it_starts_is_reported_with_the_end_of_its_log(self, start) -> None:
        one = start("print('no space left on device'); raise SystemExit(1)")
        with pytest.raises(PlatformError) as caught:
            ports.wait_until_ready(one, lambda: False, 20)
        assert "program ended while it was starting; its log ends with\n  | no space left on device" in str(
            caught.value
        )
        assert f"read its log: {one.log}" in str(caught.value)

    def test_one_that_takes_too_long_is_reported(self, start) -> None:
        with pytest.raises(PlatformError, match="program is not ready after 0 s"):
            ports.wait_until_ready(start(SLEEP), lambda: False, 0.1)

    def test_one_that_has_ended_is_not_ready_whoever_answers_at_its_port(self, start) -> None:
        one = start("raise SystemExit(1)")
        until(lambda: not process.is_running(one))
        with pytest.raises(PlatformError, match="program ended while it was starting"):
            ports.wait_until_ready(one, lambda: True, 20)


class TestStack:
    """`up` and `down`, with a real broker and programs in the place of Airflow's parts and Spark."""

    @pytest.fixture(autouse=True)
    def only_the_broker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(airflow, "PARTS", {})
        monkeypatch.setattr(airflow, "find_import_errors", lambda _: [])

    @pytest.mark.long
    @pytest.mark.ci
    def test_up_twice_and_down_twice(self, settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
        settings = replace(settings, spark="submit")
        settings.var.chmod(0o755)
        before = os.umask(0o022)
        try:
            stack.start_stack(settings)
            first, supervisor = process.load_records(settings.var / "run")
            assert (first.name, supervisor.name) == ("broker", "supervisor")
            assert ports.is_listening(settings.kafka_port)
            assert stack.is_up(settings)
            stack.start_stack(settings)
            assert process.load_records(settings.var / "run") == [first, supervisor]
        finally:
            os.umask(before)
            stack.stop_stack(settings)
        assert not ports.is_listening(settings.kafka_port)
        assert process.find_descendants([first, supervisor]) == []
        stack.stop_stack(settings)
        printed = capsys.readouterr().out
        assert printed.count("starting broker") == 1
        assert f"login    admin: password in {airflow.passwords_path(settings)}" in printed
        assert f"Kafka    {settings.kafka} without a login: every user of this machine can read and write it" in printed
        assert printed.endswith("stopped supervisor\nstopped broker\nnothing of ours is running\n")
        assert printed.count(f"{settings.var} was open to other users of this machine and is now closed") == 1
        modes = {
            str(path.relative_to(settings.var)): path.stat().st_mode & 0o777
            for path in (settings.var, *settings.var.rglob("*"))
        }
        assert {"run", "kafka/server.properties", "logs/broker.log"} <= modes.keys()
        assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}, "others can read nothing of it"

    def test_what_has_started_is_stopped_again_when_another_part_fails(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: Settings, name: str) -> Process:
            raise PlatformError(f"{name} cannot")

        monkeypatch.setattr(airflow, "PARTS", {"airflow-scheduler": ()})
        monkeypatch.setattr(stack, "_start_airflow", fail)
        with pytest.raises(PlatformError, match="airflow-scheduler cannot"):
            stack.start_stack(replace(settings, spark="submit"))
        assert not ports.is_listening(settings.kafka_port)
        assert process.load_records(settings.var / "run") == []

    def test_a_taken_port_stops_up_before_anything_starts(self, settings: Settings) -> None:
        with socket.socket() as listener:
            listener.bind((ports.HOST, settings.kafka_port))
            with pytest.raises(PlatformError, match="HINDCAST_KAFKA_PORT"):
                stack.start_stack(replace(settings, spark="submit"))
        assert process.load_records(settings.var / "run") == []

    def test_settings_that_moved_under_a_running_stack_are_refused(self, settings: Settings, start) -> None:
        process.write_record(settings.var / "run", replace(start(SLEEP, "broker"), where="127.0.0.1:1"))
        with pytest.raises(PlatformError, match=r"broker runs at 127\.0\.0\.1:1, but the settings now say"):
            stack.start_stack(replace(settings, spark="submit"))

    def test_a_broker_elsewhere_is_not_started(self, settings: Settings) -> None:
        assert "broker" not in stack._list_parts(replace(settings, kafka="kafka.example:9092"))


class TestBroker:
    @pytest.mark.long
    @pytest.mark.ci
    def test_it_keeps_what_it_has_over_a_restart(self, tmp_path: Path) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        with broker.run_broker(tmp_path) as servers:
            admin = AdminClient({"bootstrap.servers": servers})
            admin.create_topics([NewTopic("kept", 2)])["kept"].result(20)
        with broker.run_broker(tmp_path) as servers:
            topics = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=20).topics
        assert len(topics["kept"].partitions) == 2

    def test_records_may_be_dated_in_1970_and_in_2099_and_topics_are_not_made_by_asking(self, broker: str) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": broker})
        admin.create_topics([NewTopic("dates", 1)])["dates"].result(20)
        producer = Producer({"bootstrap.servers": broker})
        for timestamp in (1, 4_083_955_200_000):
            producer.produce("dates", value=b"x", timestamp=timestamp)
        assert producer.flush(20) == 0
        consumer = Consumer({"bootstrap.servers": broker, "group.id": "t"})
        assert consumer.get_watermark_offsets(TopicPartition("dates", 0), timeout=20) == (0, 2)
        consumer.close()
        assert "absent" not in admin.list_topics(timeout=20).topics

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "data").write_text("in the way")
        with pytest.raises(PlatformError, match="the broker's storage cannot be formatted"):
            broker.start_broker(tmp_path, ports.find_free_port(), tmp_path / "log")


ASKING = """
from airflow import settings
settings.configure_orm()
with settings.engine.connect() as connection:
    print("waits", connection.exec_driver_sql("PRAGMA busy_timeout").scalar())
"""


def test_airflow_waits_for_others_that_write_to_its_database(tmp_path: Path) -> None:
    """For a minute, not for SQLite's five seconds: `airflow backfill create` beside a busy scheduler."""
    settings = read_settings({"HINDCAST_VAR": str(tmp_path)})
    (tmp_path / "airflow").mkdir()
    command = [sys.executable, "-c", ASKING]
    done = subprocess.run(command, env=airflow.build_environment(settings), capture_output=True, text=True, check=False)
    assert "waits 60000\n" in done.stdout, done.stderr
