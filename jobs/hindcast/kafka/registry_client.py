"""The client of the schema registry: its address, who we are to it, and whom we trust.

These come from the environment alone:

| variable                          | default        | meaning                                               |
| --------------------------------- | -------------- | ----------------------------------------------------- |
| HINDCAST_SCHEMA_REGISTRY_USER     | none           | who we are, by HTTP's basic authentication            |
| HINDCAST_SCHEMA_REGISTRY_PASSWORD | none           | the password, or the secret of an API key             |
| HINDCAST_SCHEMA_REGISTRY_CA       | certifi's list | PEM file of the authorities that sign its certificate |
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from hindcast.common.errors import SettingsError
from hindcast.common.settings import Settings
from hindcast.kafka.bounded_answers import bound_answers
from hindcast.kafka.credential_files import PEM, find_pem_file
from hindcast.kafka.security import is_loopback

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

ADDRESS = "HINDCAST_SCHEMA_REGISTRY"
USER, PASSWORD, CA = VARIABLES = tuple(f"{ADDRESS}_{name}" for name in ("USER", "PASSWORD", "CA"))
"""The variables above, in their order."""

TIMEOUT = 20.0
"""Seconds without a byte after which a try has failed; it is tried three times."""


def open_client(settings: Settings) -> SchemaRegistryClient:
    """Return a client; SettingsError as `client_config` has it, or for certificates that cannot be used."""
    config = client_config(settings.schema_registry)
    from confluent_kafka.schema_registry import SchemaRegistryClient  # its import takes a second

    try:
        client = SchemaRegistryClient(config)
    except OSError as error:
        raise SettingsError(
            f"the certificates of whom we trust cannot be used: {error.strerror or error}",
            where=str(config.get("ssl.ca.location") or "")
            or os.environ.get("SSL_CERT_FILE")
            or settings.schema_registry,
            fix=f"{CA}: {PEM}",
        ) from None
    bound_answers(client)
    return client


def client_config(url: str, environ: Mapping[str, str] | None = None) -> dict[str, str | float]:
    """Return the configuration of Confluent's client: the registry's address, our credentials, whom we trust.

    SettingsError for a setting that is invalid, has no effect, or would let others read the password.
    """
    env = os.environ if environ is None else environ
    user, password, authority = (env.get(name) or "" for name in VARIABLES)
    plain = list(_find_plain_addresses(url))
    if password and not user:
        raise SettingsError(f"{PASSWORD} is set and {USER} is not", fix=f"set both, or leave {PASSWORD} out")
    if ":" in user:
        raise SettingsError(f"{USER} has a ':', which ends the name", fix=f"what follows it belongs into {PASSWORD}")
    if user and (away := [address for address, host in plain if not is_loopback(host)]):
        raise SettingsError(
            f"{USER} is set, and without TLS its password would go readable over the network",
            where=away[0],
            fix=f"set {ADDRESS} to an https:// address; without TLS only a registry on this machine's loopback",
        )
    if user and (seen := [address for address, _ in plain if _is_proxied(address)]):
        raise SettingsError(
            f"{USER} is set, and the password would go readable to the proxy that HTTP_PROXY or ALL_PROXY names",
            where=seen[0],
            fix=f"add {urlsplit(seen[0]).hostname} to NO_PROXY, or set {ADDRESS} to an https:// address",
        )
    if authority and len(plain) == len(url.split(",")):
        fix = f"set {ADDRESS} to an https:// address, or leave {CA} out"
        raise SettingsError(f"{CA} is set, and without TLS nothing would come of it", where=url, fix=fix)
    config: dict[str, str | float] = {"url": url, "timeout": TIMEOUT, "max.retries": 2}
    if user:
        config["basic.auth.user.info"] = f"{user}:{password}"
    if path := find_pem_file(CA, authority):
        config["ssl.ca.location"] = str(path)
    return config


def _find_plain_addresses(url: str) -> Iterator[tuple[str, str]]:
    """Yield a registry's addresses without TLS, each with its host."""
    for number, address in enumerate(url.split(","), 1):
        try:
            parts = urlsplit(address.strip())
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            fix = "write https://host:port, of several registries with commas between"
            raise SettingsError(f"address {number} of {ADDRESS} is not a URL", fix=fix)  # it may be a password
        if parts.scheme == "http":
            yield address.strip(), host


def _is_proxied(address: str) -> bool:
    """Return whether Confluent's client sends requests to an address without TLS through a proxy, even on loopback."""
    return bool({"http", "all"} & {*getproxies()}) and not proxy_bypass(urlsplit(address).netloc)
