"""Secrets that are put where an address, a path or a list belongs: errors name the setting and do not show them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hindcast.airflow import connections
from hindcast.common.errors import SettingsError
from hindcast.common.settings import read_settings
from hindcast.kafka import registry_client
from hindcast.kafka.access_errors import _login_error
from hindcast.kafka.security import PREFIX, Security, read_security

BROKERS = "kafka.example.org:9093"
# ruff: noqa: S105, S106  # all of them are made up here
SECRET = "s3cr3tPW"
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"
KEY = f"-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----\n"
OAUTH = {"SECURITY": "sasl_ssl", "USERNAME": "u", "PASSWORD": SECRET, "MECHANISM": "OAUTHBEARER"}


def read(**variables: str) -> Security:
    return read_security(BROKERS, {f"{PREFIX}{name}": value for name, value in variables.items()})


@pytest.mark.parametrize("text", [KEY, KEY.replace("\n", "\\n"), KEY.replace("\n", " "), f"{BODY}\n{BODY}", BODY])
@pytest.mark.parametrize("name", ["CA", "CERT", "KEY"])
def test_a_key_in_place_of_its_path_is_not_shown(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text(KEY, encoding="utf-8")
    files = {it: str(tmp_path / "c.pem") for it in ("CA", "CERT", "KEY")}
    with pytest.raises(SettingsError) as caught:
        read(SECURITY="ssl", **{**files, name: text})
    found = "cannot be read: No such file" if text == BODY else "has the key or certificate itself, not the path"
    assert caught.value.found.startswith(f"HINDCAST_KAFKA_{name} {found}")
    assert BODY[:20] not in str(caught.value)
    assert "path" in caught.value.fix


def test_nor_is_the_key_of_a_connection_or_of_a_registry(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text(KEY, encoding="utf-8")
    extra = {
        "security.protocol": "ssl",
        "ssl.certificate.location": str(tmp_path / "c.pem"),
        "ssl.key.location": KEY,
    }
    connection: Any = SimpleNamespace(host="b1", port=9093, login=None, password=None, extra_dejson=extra)
    with pytest.raises(SettingsError, match=r"^HINDCAST_KAFKA_KEY has the key or certificate itself") as caught:
        read_security(BROKERS, connections.connection_variables(connection, "kafka"))
    assert BODY not in str(caught.value)
    with pytest.raises(SettingsError, match="HINDCAST_SCHEMA_REGISTRY_CA has the key or certificate itself") as caught:
        registry_client.client_config("https://registry.example.org", {"HINDCAST_SCHEMA_REGISTRY_CA": KEY})
    assert BODY not in str(caught.value)


@pytest.mark.parametrize("path", ["/nowhere/ca.pem", "nowhere/ca.pem", "~nobody-here/ca", "./ca", "/a b/ü"])
def test_a_path_that_leads_nowhere_is_shown(path: str) -> None:
    with pytest.raises(SettingsError, match="HINDCAST_KAFKA_CA cannot be read: No such file") as caught:
        read(SECURITY="ssl", CA=path)
    assert caught.value.where.endswith(path.removeprefix("."))


@pytest.mark.parametrize(
    "text", [SECRET, f"/{SECRET}", f"~{SECRET}/x", f"{SECRET}\0", f"{SECRET}\n", "x" * 5_000 + SECRET]
)
def test_a_password_in_place_of_its_file_is_not_shown(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^HINDCAST_KAFKA_PASSWORD_FILE cannot be read: ") as caught:
        read(SECURITY="sasl_ssl", USERNAME="u", PASSWORD_FILE=text)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("pipe", "is not a regular file"),
        ("/dev/zero", "is not a regular file"),
        ("folder", "is not a regular file"),
        ("large", "has more than 1,048,576 bytes"),
    ],
)
def test_a_file_that_never_ends_is_not_read(tmp_path: Path, name: str, found: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_text(KEY + "x" * (1 << 20), encoding="utf-8")
    (tmp_path / "c.pem").write_text(KEY, encoding="utf-8")
    path, good = str(tmp_path / name), str(tmp_path / "c.pem")
    sets: list[dict[str, str]] = [{"CA": path}, {"CERT": path, "KEY": good}, {"CERT": good, "KEY": path}]
    for files in (*sets, {"USERNAME": "u", "PASSWORD_FILE": path}):
        (setting,) = (it for it, value in files.items() if value == path)
        with pytest.raises(SettingsError, match=f"HINDCAST_KAFKA_{setting} cannot be read: it {found}") as caught:
            read(SECURITY="sasl_ssl" if "USERNAME" in files else "ssl", **files)
        assert caught.value.fix == "set it to the path of a regular file of at most 1 MiB"
    with pytest.raises(SettingsError, match=f"HINDCAST_SCHEMA_REGISTRY_CA cannot be read: it {found}"):
        registry_client.client_config("https://registry.example.org", {"HINDCAST_SCHEMA_REGISTRY_CA": path})


def test_a_password_is_read_through_links(tmp_path: Path) -> None:
    """So Kubernetes mounts a secret."""
    (tmp_path / "..2026_01_01").mkdir()
    (tmp_path / "..2026_01_01" / "password").write_text(f"{SECRET}\n", encoding="utf-8")
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "..data").symlink_to("../..2026_01_01")
    (tmp_path / "mounted" / "password").symlink_to("..data/password")
    how = read(SECURITY="sasl_ssl", USERNAME="u", PASSWORD_FILE=str(tmp_path / "mounted" / "password"))
    assert how.password == SECRET


@pytest.mark.parametrize(
    "variables",
    [
        {"HINDCAST_KAFKA": f"b:9092?password={SECRET}"},
        {"HINDCAST_KAFKA": f"b:9092;sasl.password={SECRET}"},
        {"HINDCAST_KAFKA": f"u:{SECRET}%40b:9092"},
        {"HINDCAST_SCHEMA_REGISTRY": f"https://h/?token={SECRET}"},
        {"HINDCAST_SCHEMA_REGISTRY": f"https://h/;token={SECRET}"},
        {"HINDCAST_SCHEMA_REGISTRY": f"https://h/#{SECRET}"},
        {"HINDCAST_SCHEMA_REGISTRY": f"https://u:{SECRET}%40h"},
        {"HINDCAST_WAREHOUSE": f"s3a://b/x;secret={SECRET}"},
        {"HINDCAST_WAREHOUSE": f"s3a://b/x?secret={SECRET}"},
        {"HINDCAST_WAREHOUSE": f"s3a://k:{SECRET}%40b/x"},
        {"HINDCAST_WAREHOUSE": f"s3a:k:{SECRET}@b/x"},
        {"HINDCAST_WAREHOUSE": f"s3a:/k:{SECRET}@b/x"},
        {"HINDCAST_WAREHOUSE": f"abfss://c@a.dfs.core.windows.net/x;key={SECRET}"},
        {"HINDCAST_USERS": f"ann:{SECRET}"},
        {"HINDCAST_USERS": f"ann:admin,bob:{SECRET}"},
    ],
    ids=lambda variables: "".join(variables.values()),
)
def test_a_secret_in_an_address_or_a_list_is_refused_and_not_shown(variables: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(variables)
    assert SECRET not in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(
    "variables",
    [
        {"HINDCAST_KAFKA": "SASL_SSL://b-1.shop_kafka.example.org:9092,[fe80::1%40]:9092"},
        {"HINDCAST_SCHEMA_REGISTRY": "https://registry.example.org:8080/apis/ccompat/v7/"},
        {"HINDCAST_SCHEMA_REGISTRY": "http://one:8081,http://two:8081/a=b/%20"},
        {"HINDCAST_WAREHOUSE": "s3a://shop/region=eu;old/tables@home/v=1"},
        {"HINDCAST_WAREHOUSE": "file:///srv/a;b=c"},
        {"HINDCAST_WAREHOUSE": "abfss://box@shop.dfs.core.windows.net/a@b/day=1"},
        {"HINDCAST_WAREHOUSE": "/srv/a;b=c/s3a:k@b"},
        {"HINDCAST_USERS": "ann:admin,bob.b:viewer"},
    ],
    ids=lambda variables: "".join(variables.values()),
)
def test_addresses_without_secrets_are_taken(variables: dict[str, str]) -> None:
    settings = read_settings(variables)
    read_security(settings.kafka, {})
    if settings.schema_registry:
        assert registry_client.client_config(settings.schema_registry, {})


def test_the_address_of_tokens_is_not_shown_with_its_query() -> None:
    for url in (f"http://id/?x={SECRET}", f"http://[id/{SECRET}", f"https:{SECRET}"):
        with pytest.raises(SettingsError, match="HINDCAST_KAFKA_TOKEN_URL is not https") as caught:
            read(**OAUTH, TOKEN_URL=url)
        assert SECRET not in str(caught.value)
    for url in (f"https://id/t?client_secret={SECRET}", f"https://id/t?a=b&password={SECRET}"):
        with pytest.raises(SettingsError, match="HINDCAST_KAFKA_TOKEN_URL has credentials in it") as caught:
            read(**OAUTH, TOKEN_URL=url)
        assert SECRET not in str(caught.value)
    policy = read(**OAUTH, TOKEN_URL="https://id.example.org/token?p=b2c_1")
    assert policy.token_url.endswith("?p=b2c_1")
    assert _login_error("no token", "b", policy).where == "https://id.example.org/token"


@pytest.mark.parametrize("url", [f"https://u:{SECRET}", f"https://h,{SECRET}", f"https://[{SECRET}"])
def test_an_invalid_address_of_a_registry_is_not_shown(url: str) -> None:
    with pytest.raises(SettingsError, match=r"address [12] of HINDCAST_SCHEMA_REGISTRY is not a URL") as caught:
        registry_client.client_config(url, {})
    assert SECRET not in json.dumps([str(caught.value), caught.value.fix])
