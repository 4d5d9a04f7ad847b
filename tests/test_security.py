"""How Kafka is spoken to: settings, what stands where, and what a real broker with TLS, SASL and ACLs says of it."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from hindcast.airflow import connections
from hindcast.common import session
from hindcast.common.errors import FINAL_ERRORS, AccessError, PlatformError, SettingsError, TopicError
from hindcast.common.login_forms import hide_login
from hindcast.common.settings import read_settings
from hindcast.kafka import produce, security, task_credentials, topic_patterns
from hindcast.kafka.access_errors import refuse_denied_access
from hindcast.kafka.cluster import Cluster
from hindcast.kafka.security import PREFIX, VARIABLES, Security
from hindcast.kafka.topic_patterns import MemberPartition
from hindcast.kafka.topics import OffsetRange
from hindcast.ops import doctor
from pipelines import RESTAURANT, SEED, T0, Pipeline, tell
from secured import KEY_PASSWORD, ODD, READER, SECRETS, Secured, certificates, secured, write_own_certificate
from serving import Handler, serving
from test_pattern_runs import SALES, in_transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ruff: noqa: S105, S106  # all of them are made up here
BROKERS = "kafka.example.org:9093"
WRONG = "wrong-1234"
SCRAM = {"SECURITY": "sasl_ssl", "USERNAME": "ann", "PASSWORD": "s3cret-9"}


def read(servers: str = BROKERS, **told: str) -> Security:
    return security.read_security(servers, {f"{PREFIX}{name}": value for name, value in told.items()})


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return as soon as it is so; fail after ten seconds."""
    last = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < last
        time.sleep(0.01)


def use(patch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    """The environment with this of Kafka's, and nothing else of it."""
    for name in (*VARIABLES, "HINDCAST_KAFKA"):
        patch.setenv(name, "")  # so that the patch knows it, and takes back what a test sets
        patch.delenv(name)
    for name, value in environ.items():
        patch.setenv(name, value)


class TestSettings:
    def test_the_tables_list_every_variable(self) -> None:
        page = (Path(__file__).parents[1] / "docs" / "security.md").read_text(encoding="utf-8")
        rows = r"^\| (HINDCAST_KAFKA_\w+ +\|.*?) +\|$"
        own, told = (re.findall(rows, text, re.MULTILINE) for text in (security.__doc__ or "", page))
        assert [re.sub(" +", " ", row) for row in own] == told
        assert tuple(row.split()[0] for row in own) == VARIABLES

    @pytest.mark.parametrize(
        ("told", "expected"),
        [
            ({}, {}),
            ({"SECURITY": "ssl"}, {"security.protocol": "ssl"}),
            (
                SCRAM,
                {
                    "security.protocol": "sasl_ssl",
                    "sasl.mechanism": "SCRAM-SHA-512",
                    "sasl.username": "ann",
                    "sasl.password": "s3cret-9",
                },
            ),
            (
                {**SCRAM, "MECHANISM": "oauthbearer", "TOKEN_URL": "https://id.example.org/token"},
                {
                    "security.protocol": "sasl_ssl",
                    "sasl.mechanism": "OAUTHBEARER",
                    "sasl.oauthbearer.method": "oidc",
                    "sasl.oauthbearer.token.endpoint.url": "https://id.example.org/token",
                    "sasl.oauthbearer.client.id": "ann",
                    "sasl.oauthbearer.client.secret": "s3cret-9",
                },
            ),
        ],
        ids=["plaintext", "TLS", "SCRAM", "OAUTHBEARER"],
    )
    def test_what_librdkafka_is_told(self, told: dict[str, str], expected: dict[str, str]) -> None:
        assert read(**told).librdkafka_config() == expected

    @pytest.mark.parametrize("text", ["s3cret-9\n", "s3cret-9", "\ufeffs3cret-9\r\n"])
    def test_a_password_can_stand_in_a_file_with_what_editors_add(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "password"
        path.write_text(text, encoding="utf-8")
        assert read(SECURITY="sasl_ssl", USERNAME="ann", PASSWORD_FILE=str(path)).password == "s3cret-9"

    @pytest.mark.parametrize("text", ["", "\n", "\ufeff\n"])
    def test_a_file_without_a_password_is_said_to_be_empty(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "password"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(SettingsError, match="the file that HINDCAST_KAFKA_PASSWORD_FILE names is empty"):
            read(SECURITY="sasl_ssl", USERNAME="ann", PASSWORD_FILE=str(path))

    @pytest.mark.parametrize(
        ("told", "found"),
        [
            ({"SECURITY": "tls"}, "HINDCAST_KAFKA_SECURITY is 'tls'"),
            ({"SECURTY": "ssl"}, "HINDCAST_KAFKA_SECURTY is set, but Hindcast has no such variable"),
            ({"SECURTY": ""}, "HINDCAST_KAFKA_SECURTY is set, but Hindcast has no such variable"),
            ({**SCRAM, "MECHANISM": "GSSAPI"}, "HINDCAST_KAFKA_MECHANISM is 'GSSAPI'"),
            ({"SECURITY": "sasl_ssl"}, "HINDCAST_KAFKA_USERNAME and HINDCAST_KAFKA_PASSWORD are not set"),
            ({"SECURITY": "sasl_ssl", "USERNAME": "ann"}, "HINDCAST_KAFKA_PASSWORD is not set"),
            ({**SCRAM, "MECHANISM": "OAUTHBEARER"}, "HINDCAST_KAFKA_TOKEN_URL is not set"),
            ({**SCRAM, "SECURITY": ""}, "_USERNAME and HINDCAST_KAFKA_PASSWORD are set, which has no effect"),
            ({**SCRAM, "SECURITY": "ssl"}, "set, which has no effect with"),
            ({**SCRAM, "SECURITY": "sasl_plaintext", "CA": "/ca.pem"}, "HINDCAST_KAFKA_CA is set, which has no effect"),
            ({**SCRAM, "SCOPE": "kafka"}, "HINDCAST_KAFKA_SCOPE is set and HINDCAST_KAFKA_MECHANISM is SCRAM-SHA-512"),
            ({**SCRAM, "PASSWORD_FILE": "/p"}, "HINDCAST_KAFKA_PASSWORD and HINDCAST_KAFKA_PASSWORD_FILE are both set"),
            ({"SECURITY": "ssl", "CERT": "/c.pem"}, "HINDCAST_KAFKA_CERT is set but HINDCAST_KAFKA_KEY is not"),
            ({"SECURITY": "ssl", "CA": "/nowhere.pem"}, "/nowhere.pem: HINDCAST_KAFKA_CA cannot be read: No such file"),
            ({**SCRAM, "HANDOVER": "mail"}, "HINDCAST_KAFKA_HANDOVER is 'mail'"),
            (
                {**SCRAM, "SECURITY": "sasl_plaintext", "MECHANISM": "PLAIN"},
                "PLAIN without TLS would send its secret unencrypted over the network",
            ),
            (
                {**SCRAM, "MECHANISM": "OAUTHBEARER", "TOKEN_URL": "http://id.example.org/token"},
                "the client's secret would go over the network unencrypted",
            ),
            (
                {**SCRAM, "MECHANISM": "OAUTHBEARER", "TOKEN_URL": "https://ann:s3cret-9@id.example.org/token"},
                "HINDCAST_KAFKA_TOKEN_URL has credentials in it",
            ),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, told: dict[str, str], found: str) -> None:
        with pytest.raises(SettingsError, match=re.escape(found)) as caught:
            read(**told)
        assert caught.value.fix
        assert "s3cret-9" not in str(caught.value)

    @pytest.mark.parametrize(("written", "meant"), [("SASL_SSL", "sasl_ssl"), ("Sasl_Ssl", "sasl_ssl")])
    def test_a_protocol_can_be_written_as_kafka_does(self, written: str, meant: str) -> None:
        assert read(**{**SCRAM, "SECURITY": written}).protocol == meant

    def test_the_nearest_variable_is_told(self) -> None:
        with pytest.raises(SettingsError) as caught:
            read(SECURTY="ssl")
        assert caught.value.fix.startswith("did you mean 'HINDCAST_KAFKA_SECURITY'?")

    def test_other_variables_of_ours_are_no_misspellings(self) -> None:
        assert read(PORT="19392", CONN_USED="kafka") == Security()
        of_kubernetes = {"SERVICE_HOST": "10.0.0.7", "SERVICE_PORT_TLS": "9093", "PORT_9093_TCP_ADDR": "10.0.0.7"}
        assert read(**of_kubernetes) == Security()

    @pytest.mark.parametrize(
        ("servers", "odd"),
        [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1:abc", "127.0.0.1:abc"),
            ("127.0.0.1:70000", "127.0.0.1:70000"),
            ("b1:9092,b2", "b2"),
            ("b1:9092,", ""),
            ("b1:9092 b2:9092", "b1:9092 b2:9092"),
            ("::1:9092", "::1:9092"),
            ("http://b1:9092/", "http://b1:9092/"),
        ],
    )
    def test_brokers_without_host_and_port_are_told_at_once(self, servers: str, odd: str) -> None:
        with pytest.raises(SettingsError, match=re.escape(f"HINDCAST_KAFKA: '{odd}' is not the host:port")) as caught:
            read(servers)
        assert "b1.example.org:9092,b2.example.org:9092" in caught.value.fix

    @pytest.mark.parametrize("servers", ["SASL_SSL://ann:s3cret-9@b1:9093", "b1:9092,ann:s3cret-9,s3cret-9@b2:9092"])
    def test_credentials_in_an_address_are_refused_and_not_shown(
        self, servers: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use(monkeypatch, {"HINDCAST_KAFKA": servers})
        for parse in (read_settings, lambda: read(servers)):
            with pytest.raises(
                SettingsError, match=r"^HINDCAST_KAFKA has credentials or options in an address\n"
            ) as caught:
                parse()
            assert "HINDCAST_KAFKA_USERNAME and HINDCAST_KAFKA_PASSWORD" in caught.value.fix
            assert "s3cret" not in str(caught.value)
        _, results = doctor._read_settings()
        assert ("failed", "HINDCAST_KAFKA has credentials or options in an address") in [
            (it.state, it.found) for it in results
        ]
        assert "s3cret" not in doctor.format_report(results)

    @pytest.mark.parametrize("servers", ["b1:9092", "b1:9092, b2.example.org:9093", "[::1]:9092", "SASL_SSL://b1:9092"])
    def test_brokers_as_they_are_written(self, servers: str) -> None:
        assert len(security.parse_addresses(servers, "here")) == servers.count(",") + 1
        assert read(servers) == Security()

    def test_a_name_that_nobody_has_is_told_within_seconds(self) -> None:
        since = time.monotonic()
        known = pytest.raises(TopicError, match=r"no host has the name nowhere\.invalid")
        with known as caught, Cluster("nowhere.invalid:9092", Security()) as cluster:
            cluster.read_offset_ranges("menu")
        assert time.monotonic() - since < 10
        assert caught.value.where == "nowhere.invalid:9092"
        assert not isinstance(caught.value, AccessError), "a retry may find it"

    @pytest.mark.parametrize("servers", ["127.0.0.1:9092", "localhost:9092,[::1]:9093"])
    def test_plain_without_tls_is_for_the_loopback_alone(self, servers: str) -> None:
        assert read(servers, **{**SCRAM, "SECURITY": "sasl_plaintext", "MECHANISM": "PLAIN"}).mechanism == "PLAIN"

    @pytest.mark.parametrize(
        ("name", "text", "found"),
        [
            ("CA", "no certificate", "HINDCAST_KAFKA_CA is not a PEM file"),
        ],
    )
    def test_a_file_that_one_of_the_clients_cannot_read(self, tmp_path: Path, name: str, text: str, found: str) -> None:
        files = {it: tmp_path / it for it in ("CA", "CERT", "KEY")}
        for it, path in files.items():
            path.write_text(text if it == name else "-----BEGIN PRIVATE KEY-----", encoding="utf-8")
        with pytest.raises(SettingsError, match=re.escape(found)):
            read(SECURITY="ssl", **{it: str(path) for it, path in files.items()})

    def test_secrets_are_not_in_a_repr(self) -> None:
        told = repr(Security("sasl_ssl", key_password="unlock-1", username="ann", password="s3cret-9"))
        assert "ann" in told
        assert "s3cret-9" not in told
        assert "unlock-1" not in told

    def test_the_broker_of_make_up_has_no_security(self) -> None:
        with pytest.raises(SettingsError, match="speaks plaintext"):
            security.refuse_security_of_own_broker({f"{PREFIX}SECURITY": "ssl"})


@pytest.mark.parametrize(
    ("begins", "ends", "authority", "found", "fix"),
    [
        (-2, -1, "server.pem", "certificate has expired", "renew it, or the certificate of its authority; or set this"),
        (1, 2, "server.pem", "certificate is not yet valid", "renew it, or the certificate of its authority; or set"),
        (-1, 1, "other.pem", "self-signed certificate", "other.pem does not have it"),
    ],
)
def test_why_a_certificate_is_not_trusted_decides_what_to_do(
    tmp_path: Path, begins: int, ends: int, authority: str, found: str, fix: str
) -> None:
    certificates(tmp_path)
    now = datetime.now(UTC)
    write_own_certificate(tmp_path, now + timedelta(days=begins), now + timedelta(days=ends))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    how = Security("ssl", ca=tmp_path / authority)
    told: Any = SimpleNamespace(str=lambda: "SSL handshake failed", name=lambda: "_SSL")
    with serving(Handler, context) as url, pytest.raises(AccessError) as caught:
        refuse_denied_access([told], url.removeprefix("https://"), how)  # type: ignore[arg-type]
    assert caught.value.found == f"the broker's certificate cannot be trusted: {found}"
    assert fix in caught.value.fix
    assert ("does not have it" in caught.value.fix) == (authority == "other.pem")


class TestHandover:
    """How tasks of Spark learn the settings, of which nobody else may see the secrets."""

    @pytest.fixture(autouse=True)
    def var(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        monkeypatch.setenv("HINDCAST_VAR", str(tmp_path))
        return tmp_path

    def hand_over(self, patch: pytest.MonkeyPatch, **told: str) -> str | None:
        use(patch, {f"{PREFIX}{name}": value for name, value in told.items()})
        return task_credentials.write_security(replace(read_settings(), kafka=BROKERS))

    def test_plaintext_needs_the_brokers_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.hand_over(monkeypatch) is None

    @pytest.mark.parametrize("password", ["simple", 'two"quotes"', "back\\slash", "line\nfeed"])
    def test_a_task_finds_them_in_its_environment(
        self, monkeypatch: pytest.MonkeyPatch, var: Path, password: str
    ) -> None:
        assert self.hand_over(monkeypatch, **{**SCRAM, "PASSWORD": password}) is None
        assert not list(var.iterdir())
        assert task_credentials.load_security(BROKERS, None).password == password

    @pytest.mark.parametrize(
        "told",
        [
            {**SCRAM, "HANDOVER": "file"},
            {**SCRAM, "HANDOVER": "file", "PASSWORD": 'two"quotes"\n'},
            {"SECURITY": "sasl_ssl", "USERNAME": "ann", "PASSWORD_FILE": "password"},
        ],
        ids=["asked for", "odd characters", "a password file"],
    )
    def test_a_file_that_only_we_can_read_hands_them_over(
        self, monkeypatch: pytest.MonkeyPatch, var: Path, told: dict[str, str]
    ) -> None:
        monkeypatch.chdir(var)
        (var / "password").write_text("from-a-file", encoding="utf-8")
        file = self.hand_over(monkeypatch, **told)
        assert file is not None
        (path,) = (var / "secrets").iterdir()
        assert str(path) == file
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert self.hand_over(monkeypatch, **told) == file, "one file for a process"
        here = security.read_security(BROKERS)
        use(monkeypatch, {})
        there = task_credentials.load_security(BROKERS, file)
        assert there.password == here.password == told.get("PASSWORD", "from-a-file")
        assert replace(there, handover=here.handover) == here

    def test_files_of_processes_that_were_killed_go_after_a_day(
        self, monkeypatch: pytest.MonkeyPatch, var: Path
    ) -> None:
        folder = var / "secrets"
        folder.mkdir()
        for name, age in (("kafka-1-old.json", 86_500), ("kafka-2-new.json", 3_600)):
            (folder / name).touch()
            os.utime(folder / name, (time.time() - age,) * 2)
        self.hand_over(monkeypatch, **SCRAM, HANDOVER="file")
        names = {path.name for path in folder.iterdir()}
        assert len(names) == 2
        assert "kafka-2-new.json" in names

    def test_a_file_stays_as_long_as_its_process_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(task_credentials, "REFRESH_SECONDS", 0.01)
        file = Path(self.hand_over(monkeypatch, **SCRAM, HANDOVER="file") or "")
        os.utime(file, (time.time() - 2 * task_credentials.STALE_SECONDS,) * 2)
        wait_until(lambda: time.time() - file.stat().st_mtime < 60)
        self.hand_over(monkeypatch, **{**SCRAM, "PASSWORD": "another"}, HANDOVER="file")
        assert file.exists()
        file.unlink()
        wait_until(lambda: not any(file.name in thread.name for thread in threading.enumerate()))

    def test_one_that_its_own_process_takes_away_meanwhile_is_passed_over(
        self, monkeypatch: pytest.MonkeyPatch, var: Path
    ) -> None:
        (var / "secrets").mkdir()
        (var / "secrets" / "kafka-3-gone.json").symlink_to(var / "nowhere")  # listed, and not there
        assert self.hand_over(monkeypatch, **SCRAM, HANDOVER="file") is not None

    def test_a_task_that_does_not_share_the_folder_says_so(self, var: Path) -> None:
        with pytest.raises(PlatformError, match="the task cannot read Kafka's credentials: No such file") as caught:
            task_credentials.load_security(BROKERS, str(var / "secrets" / "kafka-1-a.json"))
        assert "HINDCAST_VAR must be a folder that Spark's workers share" in caught.value.fix


class TestConnections:
    """An Airflow connection as the settings."""

    def variables(self, **told: Any) -> dict[str, str]:
        made = {"host": "b1", "port": 9093, "login": "ann", "password": "s3cret-9", "extra_dejson": {}, **told}
        return connections.connection_variables(SimpleNamespace(**made), "kafka")

    def test_credentials_in_its_host_are_refused_and_not_shown(self) -> None:
        with pytest.raises(
            SettingsError, match=r"^connection kafka has credentials or options in an address"
        ) as caught:
            self.variables(host="SASL_SSL://ann:s3cret-9@b1")
        assert "s3cret-9" not in str(caught.value)

    @pytest.mark.parametrize(
        ("told", "expected"),
        [
            ({}, {"": "b1:9093", "SECURITY": "sasl_ssl", "USERNAME": "ann", "PASSWORD": "s3cret-9"}),
            ({"login": None, "password": None}, {"": "b1:9093", "SECURITY": "plaintext"}),
            (
                {
                    "host": None,
                    "port": None,
                    "login": None,
                    "password": None,
                    "extra_dejson": {
                        "bootstrap.servers": "b1:9093,b2:9093",
                        "security.protocol": "SASL_SSL",
                        "sasl.mechanisms": "SCRAM-SHA-256",
                        "sasl.username": "bob",
                        "sasl.password": "other-1",
                        "ssl.ca.location": "/ca.pem",
                        "group.id": "not ours",
                    },
                },
                {
                    "": "b1:9093,b2:9093",
                    "SECURITY": "sasl_ssl",
                    "MECHANISM": "SCRAM-SHA-256",
                    "USERNAME": "bob",
                    "PASSWORD": "other-1",
                    "CA": "/ca.pem",
                },
            ),
        ],
        ids=["host and login", "nobody", "extra alone"],
    )
    def test_what_it_means(self, told: dict[str, Any], expected: dict[str, str]) -> None:
        assert self.variables(**told) == {f"{PREFIX}{it}" if it else PREFIX[:-1]: v for it, v in expected.items()}

    @pytest.mark.parametrize(
        ("told", "found"),
        [
            ({"host": ""}, "connection kafka: has no brokers"),
            ({"port": None}, "connection kafka: 'b1' is not the host:port of a broker"),
            (
                {"extra_dejson": {"ssl.truststore.location": "/x"}},
                "'ssl.truststore.location' is not a supported option",
            ),
            ({"extra_dejson": {"enable.ssl.certificate.verification": False}}, "is not a supported option"),
            ({"extra_dejson": {"sasl.oauthbearer.method": "default"}}, "sasl.oauthbearer.method is 'default'"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, told: dict[str, Any], found: str) -> None:
        with pytest.raises(SettingsError, match=found) as caught:
            self.variables(**told)
        assert "s3cret-9" not in str(caught.value)

    @pytest.mark.parametrize(
        ("spark", "asked", "by"),
        [
            ("connect", "", "file"),
            ("submit", "", "environment"),
            ("connect", "environment", "environment"),
            ("submit", "file", "file"),
        ],
    )
    def test_a_task_uses_it(self, monkeypatch: pytest.MonkeyPatch, spark: str, asked: str, by: str) -> None:
        told = {"CONN_ID": "kafka_main", "SCOPE": "of another", "HANDOVER": asked}
        use(monkeypatch, {"HINDCAST_SPARK": spark, **{f"{PREFIX}{name}": value for name, value in told.items()}})
        monkeypatch.setenv(connections.CONNECTION_USED, "")
        told = '{"conn_type": "kafka", "host": "b1", "port": 9093, "login": "ann", "password": "s3cret-9"}'
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_MAIN", told)
        masked: list[Any] = []
        monkeypatch.setattr("airflow.sdk.log.mask_secret", masked.append)
        connections.apply_connection()
        assert {"s3cret-9", "YW5uOnMzY3JldC05"} <= {*masked}, "as it is, and as HTTP sends it with its user"
        found = security.read_security(os.environ["HINDCAST_KAFKA"])
        assert (os.environ["HINDCAST_KAFKA"], found.username, found.password) == ("b1:9093", "ann", "s3cret-9")
        assert (found.handover, found.scope) == (by, "")

    def test_spark_submit_inherits_it_and_is_given_nothing_to_show(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

        from hindcast.airflow.operators import SubmittedSpark

        use(monkeypatch, {f"{PREFIX}CONN_ID": "kafka_main", "HINDCAST_SPARK": "submit"})
        monkeypatch.setenv(connections.CONNECTION_USED, "")
        told = '{"conn_type": "kafka", "host": "b1", "port": 9093, "login": "ann", "password": "s3cret-9"}'
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_MAIN", told)
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
        seen = []

        def execute(operator: SubmittedSpark, _: Any) -> None:
            seen.append((os.environ.get(f"{PREFIX}PASSWORD"), str(vars(operator))))
            started_with.update(os.environ)

        started_with: dict[str, str] = {}
        monkeypatch.setenv("PATH", "/usr/bin")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setattr(SparkSubmitOperator, "execute", execute)
        operator = SubmittedSpark(task_id="replay", application="jobs/replay.py", conn_id="spark_default")
        assert f"{PREFIX}PASSWORD" not in os.environ, "not where DAGs are parsed"
        operator.execute({})  # type: ignore[arg-type]
        ((password, shown),) = seen
        assert password == "s3cret-9"
        assert "s3cret-9" not in shown
        assert operator.conf == {"spark.authenticate": "true"}, "the driver's own ports ask for a secret"
        assert started_with["PATH"] == f"{Path(sys.prefix) / 'bin'}:/usr/bin", "where spark-submit and Python are"
        assert started_with.get("JAVA_HOME") == session.spark_environment().get("JAVA_HOME")

    def test_one_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        use(monkeypatch, {f"{PREFIX}CONN_ID": "nobodys"})
        monkeypatch.setattr(connections, "CONNECTION_USED", "HINDCAST_NOT_USED")
        with pytest.raises(SettingsError, match="Airflow has no such connection"):
            connections.apply_connection()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Four topics of a record each: the reader may read `menu`, describe `listed`, nothing of `hidden`."""
    with secured(tmp_path_factory.mktemp("secured")) as made:
        produce.create_topics(made.plaintext, "menu", "listed", "hidden", how=security.PLAINTEXT)
        for topic in ("menu", "listed", "hidden"):
            produce.send_records(
                made.plaintext, topic, [produce.ProducerRecord(b"k", b"{}", T0)], how=security.PLAINTEXT
            )
        for user in (READER, ODD, "CN=reader"):
            made.allow(user, "READ", topic="menu")
        made.allow(READER, "DESCRIBE", topic="listed")
        yield made


Environ = Callable[[Secured], dict[str, str]]

LET_IN: dict[str, Environ] = {
    "SCRAM-SHA-512": lambda b: b.sasl(),
    "SCRAM-SHA-256": lambda b: b.sasl("SCRAM-SHA-256"),
    "PLAIN": lambda b: b.sasl("PLAIN"),
    "OAUTHBEARER": lambda b: b.sasl("OAUTHBEARER", TOKEN_URL=b.token_url, SCOPE="kafka"),
    "an odd password": lambda b: b.sasl(user=ODD),
    "mutual TLS": lambda b: b.mutual(),
    "an encrypted key": lambda b: b.locked(),
    "a key in OpenSSL's older form": lambda b: b.mutual(KEY=str(b.folder / f"{READER}.older.key")),
    "SCRAM without TLS": lambda b: b.sasl(SECURITY="sasl_plaintext", CA="") | {"HINDCAST_KAFKA": b.sasl_plaintext},
}


@pytest.mark.parametrize("environ", LET_IN.values(), ids=LET_IN)
def test_a_run_plans_and_reads_with_no_right_but_to_read_its_topics(
    broker: Secured, monkeypatch: pytest.MonkeyPatch, environ: Environ
) -> None:
    use(monkeypatch, environ(broker))
    with Cluster(os.environ["HINDCAST_KAFKA"]) as cluster:
        assert cluster.read_offset_ranges("menu") == {0: OffsetRange(0, 1)}
        assert cluster.topic_id("menu")
        assert cluster.find_offsets_for_time("menu", T0, T0 + timedelta(days=1)) == {0: 0}
        (read,) = cluster.read_committed_records("menu", {0: OffsetRange(0, 1)})
    assert [message.value() for message in read] == [b"{}"]


REFUSED: dict[str, tuple[Environ, str, str]] = {
    "a wrong password": (
        lambda b: b.sasl(PASSWORD=WRONG),
        "the broker does not accept the user 'reader' (SCRAM-SHA-512): SASL authentication error",
        "check HINDCAST_KAFKA_USERNAME, HINDCAST_KAFKA_PASSWORD and HINDCAST_KAFKA_MECHANISM",
    ),
    "a wrong client's secret": (
        lambda b: b.sasl("OAUTHBEARER", TOKEN_URL=b.token_url, PASSWORD=WRONG),
        'no token can be obtained for reader: Failed to acquire SASL OAUTHBEARER token: {"error": "invalid_client"}',
        "check HINDCAST_KAFKA_TOKEN_URL",
    ),
    "an unknown authority": (
        lambda b: b.sasl(CA=str(b.folder / "other.pem")),
        "the broker's certificate cannot be trusted: unable to get local issuer certificate",
        "other.pem does not have it",
    ),
    "the machine's authorities": (
        lambda b: b.sasl(CA=""),
        "the broker's certificate cannot be trusted",
        "set HINDCAST_KAFKA_CA to a PEM file of the authority that has signed it (without it this machine's own",
    ),
    "another name": (
        lambda b: b.sasl() | {"HINDCAST_KAFKA": b.sasl_ssl.replace("127.0.0.1", "localhost")},
        "the broker's certificate is for another name: Hostname mismatch, certificate is not valid for 'localhost'",
        "name the broker in HINDCAST_KAFKA as its certificate does",
    ),
    "no certificate of ours": (
        lambda b: b.mutual(CERT="", KEY=""),
        "the broker does not accept our certificate",
        "set HINDCAST_KAFKA_CERT and HINDCAST_KAFKA_KEY",
    ),
    "a key that stays locked": (
        lambda b: b.locked(KEY_PASSWORD=WRONG),
        "the files for TLS cannot be used",
        "HINDCAST_KAFKA_KEY_PASSWORD",
    ),
    "a listener of TLS": (
        lambda b: {"HINDCAST_KAFKA": b.sasl_ssl},
        "this listener speaks TLS, and HINDCAST_KAFKA_SECURITY is plaintext",
        "to ssl or sasl_ssl",
    ),
    "a listener without SASL": (
        lambda b: b.sasl(SECURITY="sasl_plaintext") | {"HINDCAST_KAFKA": b.plaintext, "HINDCAST_KAFKA_CA": ""},
        "this listener does not use SASL, and HINDCAST_KAFKA_SECURITY is sasl_plaintext",
        "to plaintext and leave the user out",
    ),
    "a listener without": (
        lambda b: b.sasl() | {"HINDCAST_KAFKA": b.plaintext},
        "this listener speaks no TLS, and HINDCAST_KAFKA_SECURITY is sasl_ssl",
        "to plaintext or sasl_plaintext",
    ),
}


@pytest.mark.parametrize(("environ", "found", "fix"), REFUSED.values(), ids=REFUSED)
def test_who_is_not_let_in_is_told_why_within_seconds(
    broker: Secured, monkeypatch: pytest.MonkeyPatch, environ: Environ, found: str, fix: str
) -> None:
    use(monkeypatch, environ(broker))
    since = time.monotonic()
    with pytest.raises(AccessError) as caught, Cluster(os.environ["HINDCAST_KAFKA"]) as cluster:
        cluster.read_offset_ranges("menu")
    assert time.monotonic() - since < 10
    assert caught.value.found.startswith(found)
    assert fix in caught.value.fix
    for secret in (*SECRETS.values(), KEY_PASSWORD, WRONG):
        assert secret not in str(caught.value)


def test_who_produces_is_told_too(broker: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, broker.sasl(PASSWORD=WRONG))
    with pytest.raises(AccessError, match="does not accept the user 'reader'"):
        produce.send_records(broker.sasl_ssl, "menu", [])
    with pytest.raises(AccessError, match="does not accept the user 'reader'"):
        produce.create_topics(broker.sasl_ssl, "new")


def test_a_refusal_is_not_tried_again() -> None:
    assert issubclass(AccessError, FINAL_ERRORS)
    assert not issubclass(TopicError, FINAL_ERRORS)


@pytest.mark.parametrize(
    ("operation", "topic", "question"),
    [
        ("Describe", "hidden", lambda c: c.read_offset_ranges("hidden")),
        ("Describe", "hidden", lambda c: c.topic_id("hidden")),
        ("Describe", "hidden", lambda c: c.find_offsets_for_time("hidden", T0, T0)),
        ("Describe", "nowhere", lambda c: c.read_offset_ranges("nowhere")),
        ("Read", "listed", lambda c: list(c.read_committed_records("listed", {0: OffsetRange(0, 1)}))),
        ("DescribeConfigs", "menu", lambda c: c.is_compacted("menu")),
    ],
)
def test_a_right_that_is_missing_is_named(
    broker: Secured, monkeypatch: pytest.MonkeyPatch, operation: str, topic: str, question: Callable[[Cluster], Any]
) -> None:
    use(monkeypatch, broker.sasl())
    with Cluster(broker.sasl_ssl) as cluster, pytest.raises(AccessError) as caught:
        question(cluster)
    assert caught.value.where == f"{broker.sasl_ssl}, topic {topic}"
    assert f"the user 'reader' (SCRAM-SHA-512) has no right to {operation} the topic" in caught.value.found
    assert f"--allow-principal User:reader --operation {operation} --topic {topic}" in caught.value.fix


def test_a_topic_of_a_pattern_that_is_hidden_from_us_is_not_taken_for_deleted(
    broker: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, broker.sasl())
    broker.allow(READER, "DESCRIBE", topic="deleted")
    with Cluster(broker.sasl_ssl) as cluster:
        menu = MemberPartition("menu", 0, cluster.topic_id("menu"))
        gone = topic_patterns.offset_source(cluster, {0: menu, 1: MemberPartition("deleted", 0, "id")}, 1)
        assert gone.read_offset_ranges("") == {0: OffsetRange(0, 1)}
        assert gone.topic_id("") == ""
        hidden = topic_patterns.offset_source(cluster, {0: menu, 1: MemberPartition("hidden", 0, "id")}, 1)
        for question in (
            hidden.read_offset_ranges,
            hidden.topic_id,
            lambda _: hidden.find_offsets_for_time("", T0, T0),
        ):
            with pytest.raises(AccessError, match="no right to Describe the topic, or it is not there") as caught:
                question("")
            assert caught.value.where == f"{broker.sasl_ssl}, topic hidden"


@pytest.mark.long
def test_each_topic_of_a_pattern_takes_its_own_rights(
    broker: Secured, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, {})
    p = Pipeline(spark, broker.plaintext, tmp_path, SALES)
    eu, us = p.kafka("sales-eu"), p.kafka("sales-us")
    produce.create_topics(broker.plaintext, eu)
    produce.create_topics(broker.plaintext, us, config={"cleanup.policy": "compact"})
    in_transaction(p, "sales-eu", end=2)
    in_transaction(p, "sales-us", end=2)
    use(monkeypatch, broker.sasl(HANDOVER="file"))
    p.servers = broker.sasl_ssl
    with pytest.raises(TopicError, match="the pattern matches no topic") as nothing:
        p.run("first")
    assert "Kafka lists only topics that we may Describe" in nothing.value.fix

    def refused(operation: str, topic: str) -> None:
        with pytest.raises(AccessError) as caught:
            p.run("first")
        assert f"has no right to {operation} the topic" in caught.value.found
        assert f"topic {topic}" in caught.value.where
        assert f"--operation {operation} --topic {topic}" in caught.value.fix

    broker.allow(READER, "READ", topic=eu)
    broker.allow(READER, "DESCRIBE", topic=us)
    refused("Read", us)
    broker.allow(READER, "READ", topic=us)
    refused("DescribeConfigs", eu)
    broker.allow(READER, "DESCRIBE_CONFIGS", topic=eu)
    refused("DescribeConfigs", us)
    broker.allow(READER, "DESCRIBE_CONFIGS", topic=us)
    with pytest.raises(TopicError, match="offsets 1 to 1 are gone from Kafka: compaction took them") as caught:
        p.run("first")
    assert caught.value.where == f"topic {us}, partition 0"


def test_the_doctor_tells_which_topics_we_may_not_read(
    broker: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topics = "".join(
        f"  {name}: {{topic: {name}, read: table, key: {{k: string}}, value: {{v: int}}}}\n"
        for name in ("menu", "listed", "hidden")
    )
    (tmp_path / "shop.yaml").write_text(f"pipeline: shop\nstart: 2026-01-01\ntopics:\n{topics}")
    use(monkeypatch, broker.sasl() | {"HINDCAST_SCHEMAS": str(tmp_path)})
    lines = [line for line in doctor.run_checks() if line.what in ("kafka", "topics")]
    assert [(line.state, line.found) for line in lines] == [
        ("ok", f"{broker.sasl_ssl} answers"),
        ("ok", "shop.menu: menu may be read"),
        ("failed", "shop.listed: we may not read listed"),
        ("warning", "shop.hidden: hidden does not exist, or we may not describe it"),
    ]
    use(monkeypatch, broker.sasl(PASSWORD=WRONG))
    [line] = [line for line in doctor.run_checks() if line.what == "kafka"]
    assert line.state == "failed"
    assert WRONG not in line.found


def test_making_and_writing_a_topic_take_rights_of_their_own(broker: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, broker.sasl())
    broker.allow(READER, "DESCRIBE", topic="new")
    with pytest.raises(AccessError, match="no right to Create the topic"):
        produce.create_topics(broker.sasl_ssl, "new")
    with pytest.raises(AccessError, match="no right to Write the topic"):
        produce.send_records(broker.sasl_ssl, "menu", [produce.ProducerRecord(b"k", b"{}", T0)])


def test_a_token_endpoint_that_echoes_our_login_shows_it_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Echo(Handler):
        def post(self) -> None:
            sent = str(self.headers["Authorization"])
            self.answer({"error": "invalid_client", "error_description": f"{sent} {quote(secret)}"}, 401)

    secret = "s3cret+9 %/"
    encoded = base64.b64encode(f"ann:{secret}".encode()).decode()
    with serving(Echo) as url:
        told = {"SECURITY": "sasl_plaintext", "MECHANISM": "OAUTHBEARER", "TOKEN_URL": f"{url}/token"}
        told |= {"USERNAME": "ann", "PASSWORD": secret}
        use(monkeypatch, {f"{PREFIX}{name}": value for name, value in told.items()})
        with pytest.raises(AccessError, match=r"no token can be obtained for ann: .*Basic [*]{3} [*]{3}") as refused:
            produce.create_topics("127.0.0.1:1", "menu")
    for shown in (secret, "s3cret", quote(secret), encoded):
        assert shown not in str(refused.value)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("client_secret=s3%2Fcret%3D9&x", "client_secret=***&x"),
        ("client_secret=s3%2fcret%3d9", "client_secret=***"),
        (base64.b64encode(b"ann:s3/cret=9").decode(), "***"),
        (base64.b64encode(b"ann:s3%2Fcret%3D9").decode().rstrip("="), "***"),
        (r'{"sent": "s3\/cret=9"}', '{"sent": "***"}'),
        ("it was cut: s3/cre", "it was cut: ***"),
        ("s3/cre, and s3/", "s3/cre, and s3/"),
        ("nothing of it", "nothing of it"),
    ],
)
def test_a_login_is_hidden_in_every_form(said: str, shown: str) -> None:
    assert hide_login(said, "ann", "s3/cret=9") == shown
    assert hide_login(said, "ann", "") == said


SPARK_READS: dict[str, Environ] = {
    "by environment": lambda b: b.sasl(),  # of the JVM that runs the task, so in one way only
    "by a file": lambda b: b.sasl(HANDOVER="file"),
    "an odd password": lambda b: b.sasl(user=ODD, HANDOVER="file"),
    "PLAIN": lambda b: b.sasl("PLAIN", HANDOVER="file"),
    "OAUTHBEARER": lambda b: b.sasl("OAUTHBEARER", TOKEN_URL=b.token_url, HANDOVER="file"),
    "mutual TLS": lambda b: b.mutual(HANDOVER="file"),
    "an encrypted key": lambda b: b.locked(HANDOVER="file"),
}
SPARK_REFUSED: dict[str, tuple[Environ, str]] = {
    "another password": (
        lambda b: b.sasl(PASSWORD=WRONG, HANDOVER="file"),
        "the broker does not accept the user 'reader'",
    ),
    "another client's secret": (
        lambda b: b.sasl("OAUTHBEARER", TOKEN_URL=b.token_url, PASSWORD=WRONG, HANDOVER="file"),
        "no token can be obtained for reader",
    ),
    "another authority": (
        lambda b: b.sasl(CA=str(b.folder / "other.pem"), HANDOVER="file"),
        "the broker's certificate cannot be trusted",
    ),
    "a locked key": (lambda b: b.locked(KEY_PASSWORD=WRONG, HANDOVER="file"), "the files for TLS cannot be used"),
}


@pytest.fixture(scope="module")
def seen(broker: Secured, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    made = Pipeline(None, broker.plaintext, folder, RESTAURANT)
    topics = [made.kafka(name) for name in made.contract.topics]
    produce.create_topics(broker.plaintext, *topics, how=security.PLAINTEXT)
    with pytest.MonkeyPatch.context() as patch:
        use(patch, {})
        tell(made, SEED)
    for topic in topics:
        broker.allow(READER, "READ", topic=topic)
    asked = {
        "pipeline": made.name,
        "topic": "menu",
        "ways": {
            **{name: environ(broker) for name, environ in SPARK_READS.items()},
            **{name: environ(broker) for name, (environ, _) in SPARK_REFUSED.items()},
        },
    }
    (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    here = {name: value for name, value in os.environ.items() if not name.startswith("HINDCAST_KAFKA")}
    own = {**made.environ, **broker.sasl(), "HINDCAST_REPORTS": str(folder / "reports")}
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("secured_run.py")), str(folder)],
        env={**here, **own, f"{PREFIX}KEY_PASSWORD": KEY_PASSWORD, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    (folder / "asked.json").unlink()
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "said.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    return folder, json.loads((folder / "seen.json").read_text(encoding="utf-8"))


@pytest.mark.long
class TestRun:
    """A whole run through SASL_SSL in a process of its own, and what can be seen of it anywhere."""

    def test_it_does_what_any_run_does(self, seen: tuple[Path, dict[str, Any]]) -> None:
        assert seen[1]["run"]["tables"]["bills"]["opened"] == 3

    def test_spark_reads_by_every_way_in(self, seen: tuple[Path, dict[str, Any]]) -> None:
        assert {name: seen[1]["read"][name] for name in SPARK_READS} == {name: ["{}"] for name in SPARK_READS}

    @pytest.mark.parametrize("name", SPARK_REFUSED)
    def test_what_spark_is_refused_is_told_in_our_words(self, seen: tuple[Path, dict[str, Any]], name: str) -> None:
        assert SPARK_REFUSED[name][1] in seen[1]["read"][name]

    def test_no_secret_is_seen_anywhere(self, seen: tuple[Path, dict[str, Any]]) -> None:
        folder, told = seen
        files = [path for path in folder.rglob("*") if path.is_file()]
        places = {str(path.relative_to(folder)): path.read_bytes().decode(errors="replace") for path in files}
        for part in ("said.txt", "seen.json", "reports/", "events/", "warehouse/"):
            assert any(name.startswith(part) for name in places), f"{part} was to be looked into"
        secrets = (*SECRETS.values(), KEY_PASSWORD, WRONG, "BEGIN ENCRYPTED", "BEGIN PRIVATE")
        forms = {form for secret in secrets for form in (secret, json.dumps(secret)[1:-1])}
        assert [(name, form) for name, text in places.items() for form in forms if form in text] == []
        assert " INFO " in places["said.txt"], "the log was to be of a level that tells much"
        assert told["ui"]
        assert all(told["ui"].values())
        assert any("org.apache.spark" in line for line in told["processes"])

    def test_files_of_secrets_go_with_their_process(self, seen: tuple[Path, dict[str, Any]]) -> None:
        folder, told = seen
        assert told["secrets"]
        assert list((folder / "var" / "secrets").iterdir()) == []
