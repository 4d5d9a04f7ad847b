"""Refusals by brokers, from what Kafka's clients report, as errors that say what was found, where, and what to do.

librdkafka passes the reason to a client's `error_cb` (`ClientErrors`), apart from the failure. It quotes what a server
says, which may echo our login: that is hidden (login_forms.py).
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]  # not in __all__

from hindcast.common.errors import AccessError, TopicError
from hindcast.common.login_forms import hide_login
from hindcast.kafka.security import PREFIX, Security, parse_addresses

AnyClient = Consumer | Producer | AdminClient
Client_co = TypeVar("Client_co", bound=AnyClient, covariant=True)


class ClientErrors(list[KafkaError]):
    """The errors that a client has passed to its `error_cb`, in order."""

    def __call__(self, error: KafkaError) -> None:
        self.append(error)


class _ClientType(Protocol[Client_co]):
    """A type of librdkafka's clients."""

    def __call__(self, config: dict[str, str | int | float | bool], /, *, error_cb: ClientErrors) -> Client_co: ...


def connect_client(
    kind: _ClientType[Client_co], config: Mapping[str, str | int], errors: ClientErrors, how: Security
) -> Client_co:
    """Return a client of librdkafka's; raise AccessError if it cannot use the files that it is given."""
    try:
        return kind(dict(config), error_cb=errors)
    except KafkaException as error:
        fix = f"check {PREFIX}CA, {PREFIX}CERT, {PREFIX}KEY and {PREFIX}KEY_PASSWORD"
        where = ", ".join(str(path) for path in (how.ca, how.cert, how.key) if path)
        raise AccessError(
            f"the files for TLS cannot be used: {_clean_reason(error.args[0].str(), how)}", where=where, fix=fix
        ) from None


def await_broker(
    client: Consumer | Producer | AdminClient,
    errors: ClientErrors,
    servers: str,
    topic: str | None,
    how: Security,
    patience: float,
) -> ClusterMetadata:
    """Return what a broker says of the topic, or of all topics without one, as soon as one does.

    `client`: a consumer, producer or admin client whose error_cb is `errors`. Raises AccessError as soon as no broker
    lets us in, and KafkaException after `patience` seconds.
    """
    until, looked = time.monotonic() + patience, False
    while True:
        try:
            return client.list_topics(topic, timeout=min(_ASK_AGAIN, patience))
        except KafkaException:
            client.poll(0)
            late = time.monotonic() > until
            if late or _is_final(errors):
                refuse_denied_access(errors, servers, how)
            if (late or errors) and not looked:
                looked = True
                _refuse_unresolved(servers)
                _refuse_other_listener(servers, how)
            if late:
                raise


def refuse_denied_access(errors: ClientErrors, servers: str, how: Security) -> None:
    """Raise AccessError if brokers have refused TLS or our login."""
    for error in errors:
        text, server = _clean_reason(error.str(), how), _find_server(error.str(), servers)
        if error.name() == "_AUTHENTICATION":
            raise _login_error(text, server, how)
        if error.name() == "_SSL" or "alert" in text:
            raise _tls_error(text, server, how)


def authorization_error(operation: str, topic: str, servers: str, how: Security) -> AccessError:
    """Return the error for a refused operation on a topic, named as in Kafka's ACLs: Describe, Read, Create, ..."""
    return AccessError(
        f"{_describe_identity(how)} has no right to {operation} the topic, or it is not there",
        where=f"{servers}, topic {topic}",
        fix=f"allow it: kafka-acls --add --allow-principal {_principal(how)} --operation {operation} "
        f"--topic {topic} (docs/security.md lists what is needed)",
    )


def _is_final(errors: ClientErrors) -> bool:
    """Return whether no broker is left that could let us in."""
    names = {error.name() for error in errors}
    return "_ALL_BROKERS_DOWN" in names or any("token" in error.str() for error in errors)


def _login_error(text: str, server: str, how: Security) -> AccessError:
    if "token" in text:
        fix = f"check {PREFIX}TOKEN_URL and _SCOPE, {PREFIX}USERNAME (the client's id) and _PASSWORD (its secret)"
        return AccessError(
            f"no token can be obtained for {how.username}: {text}", where=how.token_url.partition("?")[0], fix=fix
        )
    if "current SASL state" in text:  # its answer to a handshake that it did not ask for
        protocol = "ssl" if how.tls else "plaintext"
        fix = f"name another listener in HINDCAST_KAFKA, or set {PREFIX}SECURITY to {protocol} and leave the user out"
        problem = f"this listener does not use SASL, and {PREFIX}SECURITY is {how.protocol}"
        return AccessError(problem, where=server, fix=f"{fix} (docs/security.md)")
    fix = f"check {PREFIX}USERNAME, {PREFIX}PASSWORD and {PREFIX}MECHANISM, and that the broker knows the user under it"
    return AccessError(f"the broker does not accept {_describe_identity(how)}: {text}", where=server, fix=fix)


def _tls_error(text: str, server: str, how: Security) -> AccessError:
    if "alert" in text:
        fix = f"set {PREFIX}CERT and {PREFIX}KEY to a certificate that an authority of the broker's has signed"
        return AccessError(f"the broker does not accept our certificate: {text}", where=server, fix=fix)
    distrust = _find_distrust(server, how)
    why, code = (text, None) if distrust is None else (distrust.verify_message, distrust.verify_code)
    if "match" in why:
        fix = "name the broker in HINDCAST_KAFKA as its certificate does; its advertised.listeners have to as well"
        return AccessError(f"the broker's certificate is for another name: {why}", where=server, fix=fix)
    known = ""
    if code in _UNKNOWN_AUTHORITY:
        known = f" ({how.ca} does not have it)" if how.ca else " (without it this machine's own are trusted)"
    fix = f"set {PREFIX}CA to a PEM file of the authority that has signed it{known}"
    if code in OUTDATED:
        fix = "renew it, or the certificate of its authority; or set this machine's clock"
    return AccessError(f"the broker's certificate cannot be trusted: {why}", where=server, fix=fix)


OUTDATED, _UNKNOWN_AUTHORITY = (9, 10), (18, 19, 20, 21)
"""OpenSSL's codes for a certificate that is not valid yet, or any more, and for one that no known authority signed."""


def _find_distrust(server: str, how: Security) -> ssl.SSLCertVerificationError | None:
    """Return why a broker's certificate is not trusted, by OpenSSL: librdkafka says the same for all reasons."""
    try:
        _shake_hands(server, ssl.create_default_context(cafile=str(how.ca) if how.ca else None))
    except ssl.SSLCertVerificationError as error:
        return error
    except (OSError, ValueError):
        pass
    return None


def _refuse_unresolved(servers: str) -> None:
    """Raise TopicError if this machine can resolve no broker's name; it may be able to later."""
    names = [host for host, _ in parse_addresses(servers, "HINDCAST_KAFKA")]
    for host in names:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            continue
        return
    problem = f"no host has the name {' or '.join(names)}"
    fix = "set HINDCAST_KAFKA to the brokers' host:port, as this machine knows them"
    raise TopicError(problem, where=servers, fix=fix)


def _refuse_other_listener(servers: str, how: Security) -> None:
    """Raise AccessError if the first broker's listener speaks TLS and we do not, or the other way round."""
    server, context = servers.split(",", maxsplit=1)[0].strip(), ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is sent nothing
    try:
        _shake_hands(server, context)
        speaks_tls = True
    except ssl.SSLError:
        speaks_tls = False
    except (OSError, ValueError):  # nobody is there, or he has gone
        return
    if speaks_tls != how.tls:
        problem = f"this listener speaks {'TLS' if speaks_tls else 'no TLS'}, and {PREFIX}SECURITY is {how.protocol}"
        protocols = "ssl or sasl_ssl" if speaks_tls else "plaintext or sasl_plaintext"
        fix = f"name another listener in HINDCAST_KAFKA, or set {PREFIX}SECURITY to {protocols} (docs/security.md)"
        raise AccessError(problem, where=server, fix=fix)


def _shake_hands(server: str, context: ssl.SSLContext) -> None:
    host, _, port = server.rpartition(":")
    host = host.rpartition("://")[2].strip("[]")
    with socket.create_connection((host, int(port)), 5) as plain:
        context.wrap_socket(plain, server_hostname=host).close()


def _clean_reason(text: str, how: Security) -> str:
    """Return a reason without the address and state that librdkafka adds, without OpenSSL's numbers, and without our
    secrets.
    """
    text = re.sub(r"^\w+://\S+: ", "", text)
    text = re.sub(r" \(after \d+ms in state \w+\)", "", text)
    return _hide_secrets(re.sub(r"error:[0-9A-F]+:SSL routines:[^:]*:", "", text), how)


def _hide_secrets(text: str, how: Security) -> str:
    for secret in how.secrets:
        text = hide_login(text, how.username, secret)
    return text


def _find_server(text: str, servers: str) -> str:
    """Return the broker that a reason names, or else the first one."""
    named = re.match(r"\w+://([^/\s]+)/", text)
    return named[1] if named else servers.split(",", maxsplit=1)[0].strip()


def _describe_identity(how: Security) -> str:
    if how.username:
        return f"the user '{how.username}' ({how.mechanism})"
    return f"the owner of {how.cert}" if how.cert else "an anonymous client"


def _principal(how: Security) -> str:
    return f"User:{how.username}" if how.username else "User:<its subject>" if how.cert else "User:ANONYMOUS"


_ASK_AGAIN = 0.5
"""Seconds that one question waits: after a refusal no answer ever comes."""
