"""Schemas from a registry: complete, or a refusal that says what to do."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hindcast.common.errors import AccessError, HindcastError, RecordError, SettingsError, TopicError
from hindcast.common.settings import read_settings
from hindcast.contract import avro
from hindcast.contract.avro_references import inline_references
from hindcast.formats import registry
from hindcast.kafka import bounded_answers, registry_client
from registries import peer, register
from secured import certificates, write_own_certificate
from serving import Handler, serving

POINT = {"type": "record", "name": "Point", "namespace": "geo", "fields": [{"name": "x", "type": "float"}]}
LINE = {
    "type": "record",
    "name": "Line",
    "namespace": "geo",
    "fields": [{"name": "from", "type": "Point"}, {"name": "to", "type": ["null", "geo.Point"]}],
}
MAP = {
    "type": "record",
    "name": "Map",
    "fields": [
        {"name": "lines", "type": {"type": "array", "items": "geo.Line"}},
        {"name": "marks", "type": {"type": "map", "values": "geo.Point"}},
    ],
}


def fetch(url: str, *ids: int) -> dict[int, str]:
    return registry.fetch_schemas(read_settings({"HINDCAST_SCHEMA_REGISTRY": url}), ids, "topic t")


def test_a_schema_comes_with_all_that_it_refers_to() -> None:
    with peer() as url:
        register(url, "point", POINT)
        register(url, "line", LINE, ("geo.Point", "point"))
        id_ = register(url, "map", MAP, ("geo.Line", "line"), ("geo.Point", "point"))
        found = fetch(url, id_, 99)
    assert found.keys() == {id_}, "one that is not there is left out"
    line = "struct<`from`: struct<`x`: float>, `to`: struct<`x`: float>>"
    told = f"struct<`lines`: array<{line}>, `marks`: map<string, struct<`x`: float>>>"
    assert str(avro.parse_schema(json.loads(found[id_]))) == told


def test_a_schema_that_many_others_refer_to_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = registry._ask_registry
    monkeypatch.setattr(registry, "_ask_registry", lambda *given: asked.append(given[-1]) or ask(*given))
    with peer() as url:
        register(url, "s0", {"type": "record", "name": "T0", "fields": []})
        for n in range(1, 12):
            fields = [{"name": "a", "type": f"T{n - 1}"}]
            last = register(
                url,
                f"s{n}",
                {"type": "record", "name": f"T{n}", "fields": fields},
                *[(f"T{before}", f"s{before}") for before in range(n)],
            )
        found = fetch(url, last)
    assert str(avro.parse_schema(json.loads(found[last]))).startswith("struct<`a`: struct<`a`: ")
    assert len(asked) == 12


def test_a_schema_that_refers_to_too_many_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MOST_REFERENCES", 2)
    with peer() as url:
        for name in "abc":
            id_ = register(
                url, name, {"type": "record", "name": name, "fields": []}, *[(it, it) for it in "abc" if it < name]
            )
        assert fetch(url, id_).keys() == {id_}
        more = register(url, "d", {"type": "record", "name": "d", "fields": []}, *[(it, it) for it in "abc"])
        with pytest.raises(RecordError, match="refers to more than 2 others") as refused:
            fetch(url, more)
    assert refused.value.where == f"{url}, topic t"


def test_a_schema_and_all_that_it_refers_to_have_a_size_and_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone is small; those that the schema does not need count too, since they are read."""
    schemas = {name: {"type": "record", "name": name, "fields": [], "doc": "x" * 1_000} for name in "abcd"}
    with peer() as url:
        register(url, "a", schemas["a"])
        register(url, "b", schemas["b"], ("a", "a"))
        three = register(url, "c", schemas["c"], ("b", "b"))
        four = register(url, "d", schemas["d"], ("c", "c"), ("a", "a"))
        monkeypatch.setattr(registry, "MOST_CHARACTERS", 3_500)
        assert fetch(url, three).keys() == {three}
        with pytest.raises(
            RecordError, match="has more than 3,500 characters, with those that it refers to"
        ) as refused:
            fetch(url, three, four)
        assert (refused.value.where, refused.value.fix) == (f"{url}, topic t", "register a schema that needs fewer")
        monkeypatch.setattr(registry, "MOST_SCHEMA_SECONDS", 0.0)
        with pytest.raises(TopicError, match="takes more than 0 s for a schema and all it refers to") as slow:
            fetch(url, three)
        assert slow.value.where == f"{url}, topic t"


def test_a_registry_that_never_ends_its_answer_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its bytes arrives in time, so no try of the client ends."""
    done = threading.Event()

    class Dripping(Handler):
        def get(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            while not done.wait(0.02):
                self.wfile.write(b" ")

    monkeypatch.setattr(registry, "MOST_SECONDS", 0.3)
    with serving(Dripping) as url:
        with pytest.raises(TopicError, match=r"the schema registry does not answer \(TimeoutError\)"):
            fetch(url, 1)
        done.set()


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Handler):
        def get(self) -> None:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b" " * 1_000)

    monkeypatch.setattr(bounded_answers, "MOST_BYTES", 1_000_000)
    with serving(Endless) as url, pytest.raises(TopicError) as refused:
        fetch(url, 1)
    assert refused.value.found == "the schema registry's answer has more than 1,000,000 bytes"
    assert (refused.value.where, "HINDCAST_SCHEMA_REGISTRY" in refused.value.fix) == (f"{url}, topic t", True)


def test_an_answer_is_not_decompressed() -> None:
    asked: list[str] = []

    class Compressing(Handler):
        def get(self) -> None:
            asked.append(self.headers["Accept-Encoding"])
            self.send_response(200)
            self.send_header("Content-Encoding", "gzip, gzip")
            self.end_headers()
            self.wfile.write(gzip.compress(gzip.compress(b"{}" * 1_000_000)))

    with serving(Compressing) as url, pytest.raises(TopicError, match=r"answer is compressed \(gzip, gzip\), which"):
        fetch(url, 1)
    assert asked == ["identity"]


def test_an_answer_of_many_parts_is_read() -> None:
    long = {"type": "enum", "name": "E", "symbols": [f"S{n}" for n in range(100_000)]}
    with peer() as url:
        id_ = register(url, "long", long)
        assert json.loads(fetch(url, id_)[id_]) == long


def test_a_name_is_written_out_once() -> None:
    pair: Any = {"type": "record", "name": "P", "fields": [{"name": n, "type": "geo.Point"} for n in "ab"]}
    first, second = inline_references(pair, [POINT])["fields"]
    assert first["type"]["name"] == second["type"] == "geo.Point"


def test_a_type_that_is_but_a_name_is_what_it_names() -> None:
    completed = inline_references({"type": "array", "items": {"type": "geo.Point"}}, [POINT])
    assert completed == {"type": "array", "items": {**POINT, "name": "geo.Point"}}


def nested(name: str, **fields: Any) -> dict[str, Any]:
    """A record with fields of these types."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


B = nested("B", n="int")  # its namespace is that of the type around it
A = nested("x.A", b=["null", B], more={"type": "map", "values": "B"})
C = nested("x.C", b={"type": "array", "items": "B"})
TYPE_B, TYPE_E = "struct<`n`: int>", "struct<`s`: string>"
TYPE_A = f"struct<`b`: {TYPE_B}, `more`: map<string, {TYPE_B}>>"
TYPE_C = f"struct<`b`: array<{TYPE_B}>>"
REFERRING: dict[str, tuple[dict[str, Any], list[Any], str]] = {
    "a nested type before the one that has it": (nested("x.R", b="B", a="A"), [A], f"`b`: {TYPE_B}, `a`: {TYPE_A}"),
    "a nested type after it": (nested("x.R", a="A", b="x.B"), [A], f"`a`: {TYPE_A}, `b`: {TYPE_B}"),
    "a nested type without it": (nested("R", b={"type": "x.B"}), [A], f"`b`: {TYPE_B}"),
    "a sibling's nested type": (nested("R", c="x.C", a="x.A"), [A, C], f"`c`: {TYPE_C}, `a`: {TYPE_A}"),
    "a type of a union": (nested("R", c="x.C"), [["null", A, C]], f"`c`: {TYPE_C}"),
    "one without a namespace": (
        nested("x.R", e="E", y=nested("y.Y", e="E"), own=nested("x.B", m="long"), b="B"),
        [nested("E", s="string")],
        f"`e`: {TYPE_E}, `y`: struct<`e`: {TYPE_E}>, `own`: struct<`m`: bigint>, `b`: struct<`m`: bigint>",
    ),
    "one named as a type of Avro's": (
        nested("x.R", n="int"),
        [{"type": "fixed", "name": "x.int", "size": 2}],
        "`n`: int",
    ),
    "the same type twice": (
        nested("R", a="x.A", b="x.B"),
        [A, {**B, "name": "x.B", "doc": "the same"}],
        f"`a`: {TYPE_A}, `b`: {TYPE_B}",
    ),
    "the same type in two": (
        nested("R", a="x.A", d="x.D"),
        [A, nested("x.D", b={**B, "doc": "the same"})],
        f"`a`: {TYPE_A}, `d`: struct<`b`: {TYPE_B}>",
    ),
}


@pytest.mark.parametrize(("schema", "referred", "columns"), REFERRING.values(), ids=REFERRING)
def test_every_named_type_of_a_referred_schema_can_be_used(schema: Any, referred: list[Any], columns: str) -> None:
    assert str(avro.parse_schema(inline_references(schema, referred))) == f"struct<{columns}>"


def test_two_types_of_one_name_that_differ_are_refused() -> None:
    fetched = [A, nested("x.D", b=nested("B", n="long"))]
    with peer() as url:
        for name, each in zip("ad", fetched, strict=True):
            register(url, name, each)
        id_ = register(url, "root", nested("R", a="x.A", d="x.D"), ("x.A", "a"), ("x.D", "d"))
        with pytest.raises(
            RecordError, match=r"not Avro: it refers to two types named 'x\.B' that differ: refer to one"
        ):
            fetch(url, id_)
    own = nested("R", b=nested("x.B", n="long"), a="x.A")
    with pytest.raises(avro.SchemaError, match=r"has two types named 'x\.B' that differ"):
        avro.parse_schema(inline_references(own, [A]))
    itself = nested("x.D", d=["null", nested("B", d="D")])
    with pytest.raises(avro.SchemaError, match=r"has the type 'x\.B' inside itself"):
        avro.parse_schema(inline_references(nested("R", b="x.B"), [itself]))


def test_one_with_a_login_is_read_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with peer(login="ann:secret") as url:
        id_ = register(url, "point", POINT)
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY_USER", "ann")
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY_PASSWORD", "secret")
        assert fetch(url, id_)
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY_PASSWORD", "wrong-one")
        with pytest.raises(AccessError) as refused:  # which is not tried again
            fetch(url, id_)
    assert "refuses us (HTTP 401)" in str(refused.value)
    assert "HINDCAST_SCHEMA_REGISTRY_PASSWORD" in refused.value.fix
    assert "wrong-one" not in str(refused.value)


def test_the_tables_list_every_variable() -> None:
    page = (Path(__file__).parents[1] / "docs" / "security.md").read_text(encoding="utf-8")
    rows = r"^\| (HINDCAST_SCHEMA_REGISTRY_\w+ +\|.*?) +\|$"
    own, told = (re.findall(rows, text, re.MULTILINE) for text in (registry_client.__doc__ or "", page))
    assert [re.sub(" +", " ", row) for row in own] == told
    assert tuple(row.split()[0] for row in own) == registry_client.VARIABLES


AWAY, HERE = "https://registry.example.org/api", "http://127.0.0.1:8081"
LOGIN = {"USER": "ann", "PASSWORD": "s3cret-9"}


def config(url: str, **told: str) -> dict[str, Any]:
    return registry_client.client_config(
        url, {f"HINDCAST_SCHEMA_REGISTRY_{name}": value for name, value in told.items()}
    )


@pytest.mark.parametrize("url", [AWAY, HERE, "http://localhost:8081,http://[::1]:8082", f"{HERE},{AWAY}"])
def test_a_login_is_sent_by_tls_or_to_the_loopback(url: str) -> None:
    assert config(url, **LOGIN)["basic.auth.user.info"] == "ann:s3cret-9"


@pytest.mark.parametrize(
    ("url", "told", "found", "fix"),
    [
        ("http://registry.example.org", LOGIN, "without TLS its password would go readable", "to an https:// address"),
        (f"{AWAY}, http://10.0.0.7:8081", LOGIN, "http://10.0.0.7:8081: HINDCAST_SCHEMA_REGISTRY_USER is set", "https"),
        (AWAY, {"PASSWORD": "s3cret-9"}, "_PASSWORD is set and HINDCAST_SCHEMA_REGISTRY_USER is not", "set both"),
        (AWAY, {**LOGIN, "USER": "ann:x"}, "_USER has a ':', which ends the name", "_PASSWORD"),
        (HERE, {"CA": "/ca.pem"}, "_CA is set, and without TLS nothing would come of it", "leave"),
        (AWAY, {"CA": "/nowhere.pem"}, "/nowhere.pem: HINDCAST_SCHEMA_REGISTRY_CA cannot be read: No such", "path"),
        (AWAY, {"CA": json.__file__}, "HINDCAST_SCHEMA_REGISTRY_CA is not a PEM file", "BEGIN CERTIFICATE"),
        ("http://[half", {}, "address 1 of HINDCAST_SCHEMA_REGISTRY is not a URL", "https://host:port"),
        ("https://host:99999", {}, "is not a URL", "https://host:port"),
        (f"{AWAY},host:8081", {}, "address 2 of HINDCAST_SCHEMA_REGISTRY", "https://host:port"),
    ],
)
def test_what_makes_no_sense_is_refused(url: str, told: dict[str, str], found: str, fix: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(found)) as refused:
        config(url, **told)
    assert fix in refused.value.fix
    assert "s3cret-9" not in str(refused.value)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "all_proxy"])
def test_a_login_without_tls_does_not_go_to_a_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client takes the environment's proxy also for the loopback."""
    for other in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "http://proxy.example.org:3128")
    with pytest.raises(SettingsError, match="would go readable to the proxy") as refused:
        config(HERE, **LOGIN)
    assert refused.value.fix.startswith("add 127.0.0.1 to NO_PROXY")
    assert config(HERE).get("basic.auth.user.info") is None
    assert config(AWAY, **LOGIN), "TLS passes through a proxy unread"
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    assert config(HERE, **LOGIN)


def test_settings_that_make_no_sense_are_told_before_anybody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY_PASSWORD", "s3cret-9")
    with pytest.raises(SettingsError, match="_USER is not"):
        fetch(AWAY, 1)


def test_a_file_that_holds_no_certificate_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY_CA", str(tmp_path / "ca.pem"))
    with pytest.raises(SettingsError, match="the certificates of whom we trust cannot be used") as refused:
        fetch(AWAY, 1)
    assert refused.value.where == str(tmp_path / "ca.pem")
    assert "HINDCAST_SCHEMA_REGISTRY_CA" in refused.value.fix


ECHO = b"<html>you sent Basic YW5uOnMzY3JldC05, that is ann:s3cret-9</html>"
UNKNOWN = {"error_code": 40403, "message": "Schema 7 not found"}
ANSWERS: dict[str, tuple[Any, int, type[HindcastError], str]] = {
    "a web page": (ECHO, 200, TopicError, "what answers is no schema registry (JSONDecodeError)"),
    "nothing": (b"", 200, TopicError, "what answers is no schema registry"),
    "a list": ([1], 200, TopicError, "what answers is no schema registry"),
    "not its address": (ECHO, 404, TopicError, "no schema registry answers there (HTTP 404)"),
    "not its path": ({"error_code": 404, "message": "HTTP 404 Not Found"}, 404, TopicError, "fails (HTTP 404: HTTP"),
    "a login": (ECHO, 302, TopicError, "no schema registry answers there (HTTP 302)"),
    "a list in error": ([1], 404, TopicError, "no schema registry answers there (HTTP 404)"),
    "who may not": (ECHO, 403, AccessError, "the schema registry refuses us (HTTP 403)"),
    "a fault": ({"error_code": 50001, "message": "of ann:s3cret-9"}, 501, TopicError, "(HTTP 501: of ann:***)"),
    "an echo": (
        {"error_code": 50001, "message": "auth Basic YW5uOnMzY3JldC05"},
        500,
        TopicError,
        "(HTTP 500: auth Basic ***)",
    ),
    "an echo at the cut": (
        {"error_code": 50001, "message": f"{'x' * 195}s3cret-9"},
        500,
        TopicError,
        f"(HTTP 500: {'x' * 195}***)",
    ),
    "other JSON": ({"hello": 1}, 200, RecordError, "is not Avro: it has no text"),
    "no JSON": ({"schema": "record Point"}, 200, RecordError, "is not Avro: Expecting value"),
    "too deep": ({"schema": "[" * 100_000}, 200, RecordError, "is not Avro: "),
    "a number": ({"schema": 5}, 200, RecordError, "is not Avro: it has no text"),
}


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize(("told", "status", "error", "found"), ANSWERS.values(), ids=ANSWERS)
def test_whatever_answers_it_is_told_what_to_do_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, told: Any, status: int, error: type[HindcastError], found: str
) -> None:
    for name, value in LOGIN.items():
        monkeypatch.setenv(f"HINDCAST_SCHEMA_REGISTRY_{name}", value)

    class Other(Handler):
        def get(self) -> None:
            self.answer(told, status)

    with serving(Other) as url, pytest.raises(error) as refused:
        fetch(url, 7)
    assert found in refused.value.found
    assert refused.value.fix
    assert "topic t" in refused.value.where
    assert url in str(refused.value)
    assert "s3cre" not in str(refused.value)
    assert "YW5uOnMzY3JldC05" not in str(refused.value)


def test_what_it_says_of_a_schema_that_it_has_not() -> None:
    class Other(Handler):
        def get(self) -> None:
            self.answer(UNKNOWN, 404)

    with serving(Other) as url:
        assert fetch(url, 7) == {}


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """ca.pem, other.pem of others, and what a server on 127.0.0.1 has that ca.pem vouches for."""
    folder = tmp_path_factory.mktemp("certificates")
    certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "broker.all.pem")
    return folder, context


@pytest.mark.long
@pytest.mark.ci
def test_one_with_tls_is_read_if_its_authority_is_known(
    certified: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Point(Handler):
        def get(self) -> None:
            self.answer({"schema": json.dumps(POINT)})

    folder, context = certified
    with serving(Point, context) as url:
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY_CA", str(folder / "ca.pem"))
        assert fetch(url, 1).keys() == {1}
        for ca, address, why in (
            (str(folder / "other.pem"), url, "unable to get local issuer certificate"),
            ("", url, "unable to get local issuer certificate"),
            (str(folder / "ca.pem"), url.replace("127.0.0.1", "localhost"), "Hostname mismatch"),
        ):
            monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY_CA", ca)
            with pytest.raises(AccessError, match="certificate cannot be trusted") as refused:
                fetch(address, 1)
            assert why in refused.value.found
            assert "HINDCAST_SCHEMA_REGISTRY_CA" in refused.value.fix
    now = datetime.now(UTC)
    write_own_certificate(folder, now - timedelta(days=2), now - timedelta(days=1))
    outdated = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    outdated.load_cert_chain(folder / "server.pem", folder / "server.key")
    monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY_CA", str(folder / "server.pem"))
    with serving(Point, outdated) as url, pytest.raises(AccessError, match="certificate has expired") as refused:
        fetch(url, 1)
    assert refused.value.fix.startswith("renew it")
    with serving(Point) as url, pytest.raises(AccessError, match="cannot be spoken to by TLS") as refused:
        fetch(url.replace("http:", "https:"), 1)
    assert "http://" in refused.value.fix


@pytest.mark.parametrize(
    ("url", "error", "found", "fix"),
    [
        ("", SettingsError, "topic t names schema 1, and there is no schema registry", "HINDCAST_SCHEMA_REGISTRY"),
        ("http://127.0.0.1:9", TopicError, "the schema registry does not answer", "start it"),
        ("ann:x@127.0.0.1", SettingsError, "not the URL of a schema registry without credentials", "_PASSWORD"),
        ("http://ann:x@host", SettingsError, "not the URL of a schema registry without credentials", "_PASSWORD"),
    ],
)
def test_without_one_it_says_what_to_do(url: str, error: type[HindcastError], found: str, fix: str) -> None:
    with pytest.raises(error) as refused:
        fetch(url, 1)
    assert found in refused.value.found
    assert fix in refused.value.fix
    assert "ann" not in str(refused.value)


def test_another_kind_of_schema_is_refused() -> None:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    with peer() as url:
        with SchemaRegistryClient({"url": url}) as client:
            id_ = client.register_schema("js", Schema('{"type": "object"}', "JSON"))
        with pytest.raises(RecordError, match="is JSON, not Avro"):
            fetch(url, id_)


def test_nothing_asked_needs_no_registry() -> None:
    assert fetch("") == {}
