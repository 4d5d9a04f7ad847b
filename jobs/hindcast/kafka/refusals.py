"""What Kafka's clients say where brokers refuse us, told as what was found, where, and what to do.

Of librdkafka the reason comes beside the failure, to a client's `error_cb` (`Heard`); of Spark's consumers it stands in
an exception's text. No secret is in either.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from hindcast.errors import AccessError, TopicError
from hindcast.kafka.security import PREFIX, Security, addresses

C = TypeVar("C")


class Heard(list[KafkaError]):
    """What a client has told its `error_cb`, in order."""

    def __call__(self, error: KafkaError) -> None:
        self.append(error)


def connected(kind: Callable[[dict[str, Any]], C], config: dict[str, Any], how: Security) -> C:
    """A client of librdkafka's; AccessError if it cannot make anything of the files that it is given."""
    try:
        return kind(config)
    except KafkaException as error:
        mend = f"check {PREFIX}CA, {PREFIX}CERT, {PREFIX}KEY and {PREFIX}KEY_PASSWORD"
        where = ", ".join(str(path) for path in (how.ca, how.cert, how.key) if path)
        raise AccessError(
            f"the files for TLS cannot be used: {_plain(error.args[0].str())}", where=where, mend=mend
        ) from None


def greet(client: Any, heard: Heard, servers: str, topic: str | None, how: Security, patience: float) -> None:
    """Returns when a broker has told of the topic (of all without one). AccessError as soon as none lets us in.

    `client`: a consumer, producer or admin client whose error_cb is `heard`. KafkaException after `patience` seconds.
    """
    until, looked = time.monotonic() + patience, False
    while True:
        try:
            client.list_topics(*([topic] if topic else []), timeout=min(_ASK_AGAIN, patience))
        except KafkaException:
            client.poll(0)
            late = time.monotonic() > until
            if late or _for_good(heard):
                refuse(heard, servers, how)
            if (late or heard) and not looked:
                looked = True
                _refuse_unresolved(servers)
                _refuse_other_listener(servers, how)
            if late:
                raise
        else:
            return


def refuse(heard: Heard, servers: str, how: Security) -> None:
    """AccessError for what brokers have said of TLS or of who we are; returns if they have said nothing of that."""
    for error in heard:
        text, server = _plain(error.str()), _server(error.str(), servers)
        if error.name() == "_AUTHENTICATION":
            raise _login(text, server, how)
        if error.name() == "_SSL" or "alert" in text:
            raise _tls(text, server, how)


def no_right(operation: str, topic: str, servers: str, how: Security) -> AccessError:
    """The refusal of an operation on a topic, named as Kafka's ACLs do: Describe, Read, DescribeConfigs, Create."""
    return AccessError(
        f"{_who(how)} has no right to {operation} the topic, or it is not there",
        where=f"{servers}, topic {topic}",
        mend=f"have it allowed: kafka-acls --add --allow-principal {_principal(how)} --operation {operation} "
        f"--topic {topic} (docs/security.md lists what is needed)",
    )


def of_spark(text: str, where: str, servers: str, how: Security) -> AccessError | None:
    """What the JVM says of a refusal, told in our words; None if it does not speak of one.

    >>> of_spark("... TopicAuthorizationException: Not authorized to access topics: [menu]", "p.menu", "b:9093", how)
    AccessError(... has no right to Read the topic ...)
    """
    if found := re.search(r"Not authorized to access topics: \[([^\]]+)\]", text):
        return no_right("Read", found[1], servers, how)
    if found := re.search(r"Not authorized to access group: (\S+)", text):
        mend = (
            f"have it allowed: kafka-acls --add --allow-principal {_principal(how)} --operation Read --group {_GROUPS}"
        )
        return AccessError(f"{_who(how)} has no right to Read Spark's group {found[1]}", where=where, mend=mend)
    for name, tell in _OF_JVM.items():
        if found := re.search(rf"{name}(?::? (.*))?$", text, re.MULTILINE):
            return tell((found[1] or "").strip(), where)
    return None


def _for_good(heard: Heard) -> bool:
    """Whether no broker is left that could let us in."""
    names = {error.name() for error in heard}
    return "_ALL_BROKERS_DOWN" in names or any("token" in error.str() for error in heard)


def _login(text: str, server: str, how: Security) -> AccessError:
    if "token" in text:
        mend = f"check {PREFIX}TOKEN_URL and _SCOPE, {PREFIX}USERNAME (the client's id) and _PASSWORD (its secret)"
        return AccessError(f"no token is to be had for {how.username}: {text}", where=how.token_url, mend=mend)
    if "current SASL state" in text:  # its answer to a handshake that it did not ask for
        wanted = "ssl" if how.tls else "plaintext"
        mend = f"name another listener in HINDCAST_KAFKA, or set {PREFIX}SECURITY to {wanted} and leave the user out"
        found = f"this listener asks for no login (SASL), and {PREFIX}SECURITY is {how.protocol}"
        return AccessError(found, where=server, mend=f"{mend} (docs/security.md)")
    mend = (
        f"check {PREFIX}USERNAME, {PREFIX}PASSWORD and {PREFIX}MECHANISM, and that the broker knows the user under it"
    )
    return AccessError(f"the broker does not accept {_who(how)}: {text}", where=server, mend=mend)


def _tls(text: str, server: str, how: Security) -> AccessError:
    if "alert" in text:
        mend = f"set {PREFIX}CERT and {PREFIX}KEY to a certificate that an authority of the broker's has signed"
        return AccessError(f"the broker does not accept our certificate: {text}", where=server, mend=mend)
    why = _distrust(server, how) or text
    if "match" in why:
        mend = "name the broker in HINDCAST_KAFKA as its certificate does; its advertised.listeners have to as well"
        return AccessError(f"the broker's certificate is for another name: {why}", where=server, mend=mend)
    other = f"{how.ca} does not have it" if how.ca else "without it this machine's own are trusted"
    mend = f"set {PREFIX}CA to a PEM file of the authority that has signed it ({other})"
    return AccessError(f"the broker's certificate cannot be trusted: {why}", where=server, mend=mend)


def _distrust(server: str, how: Security) -> str:
    """Why a broker's certificate is not trusted, as OpenSSL has it: librdkafka says the same of all reasons."""
    try:
        _shake_hands(server, ssl.create_default_context(cafile=str(how.ca) if how.ca else None))
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, ValueError):
        pass
    return ""


def _refuse_unresolved(servers: str) -> None:
    """TopicError if no broker's name is one that this machine can resolve; it may be able to later."""
    names = [host for host, _ in addresses(servers, "HINDCAST_KAFKA")]
    for host in names:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            continue
        return
    found = f"no machine is known by the name {' or '.join(names)}"
    raise TopicError(found, where=servers, mend="set HINDCAST_KAFKA to the brokers' host:port, as they are named here")


def _refuse_other_listener(servers: str, how: Security) -> None:
    """AccessError if the first broker's listener speaks TLS and we do not, or the other way round."""
    server, context = servers.split(",", maxsplit=1)[0].strip(), ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is sent nothing
    try:
        _shake_hands(server, context)
        speaks = True
    except ssl.SSLError:
        speaks = False
    except (OSError, ValueError):  # nobody is there, or he has gone
        return
    if speaks != how.tls:
        found = f"this listener speaks {'TLS' if speaks else 'no TLS'}, and {PREFIX}SECURITY is {how.protocol}"
        wanted = "ssl or sasl_ssl" if speaks else "plaintext or sasl_plaintext"
        mend = f"name another listener in HINDCAST_KAFKA, or set {PREFIX}SECURITY to {wanted} (docs/security.md)"
        raise AccessError(found, where=server, mend=mend)


def _shake_hands(server: str, context: ssl.SSLContext) -> None:
    host, _, port = server.rpartition(":")
    host = host.rpartition("://")[2].strip("[]")
    with socket.create_connection((host, int(port)), 5) as plain:
        context.wrap_socket(plain, server_hostname=host).close()


def _plain(text: str) -> str:
    """A reason without the address and the state that librdkafka puts around it, nor OpenSSL's numbers."""
    text = re.sub(r"^\w+://\S+: ", "", text)
    text = re.sub(r" \(after \d+ms in state \w+\)", "", text)
    return re.sub(r"error:[0-9A-F]+:SSL routines:[^:]*:", "", text)


def _server(text: str, servers: str) -> str:
    """The broker that a reason names; else the first of them."""
    named = re.match(r"\w+://([^/\s]+)/", text)
    return named[1] if named else servers.split(",", maxsplit=1)[0].strip()


def _who(how: Security) -> str:
    if how.username:
        return f"the user '{how.username}' ({how.mechanism})"
    return f"the owner of {how.cert}" if how.cert else "nobody (we do not log in)"


def _principal(how: Security) -> str:
    return f"User:{how.username}" if how.username else "User:<its subject>" if how.cert else "User:ANONYMOUS"


def _jvm_login(text: str, where: str) -> AccessError:
    mend = (
        f"our own client was let in, so Spark's JVMs have other credentials: set the same {PREFIX} variables "
        f"where they are started, or {PREFIX}HANDOVER to file (docs/security.md)"
    )
    return AccessError(f"the broker does not accept Spark: {text}", where=where, mend=mend)


def _jvm_tls(text: str, where: str) -> AccessError:
    mend = f"set {PREFIX}CA: without it Java trusts its own authorities, which may be others than this machine's"
    return AccessError(f"Spark cannot connect by TLS: {text}", where=where, mend=mend)


def _jvm_secret(text: str, where: str) -> AccessError:
    mend = (
        "the file must be there, and readable, where Spark's driver and executors run; or give them the credentials in "
        f"their environment, with {PREFIX}HANDOVER environment (docs/security.md)"
    )
    return AccessError(f"Spark cannot read a secret: {text}", where=where, mend=mend)


def _jvm_key(_: str, where: str) -> AccessError:
    mend = (
        f"check {PREFIX}KEY and {PREFIX}KEY_PASSWORD; Java before 19 does not read what OpenSSL encrypts keys with by "
        "default: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -in OLD.pem -out NEW.pem makes one that it reads"
    )
    return AccessError("Spark cannot read the key of our certificate", where=where, mend=mend)


_OF_JVM: dict[str, Callable[[str, str], AccessError]] = {
    "SaslAuthenticationException": _jvm_login,
    "LoginException": _jvm_login,
    "SslAuthenticationException": _jvm_tls,
    "Could not read properties from file": _jvm_secret,
    "Invalid PEM keystore configs": _jvm_key,
}
_ASK_AGAIN = 0.5
"""Seconds that one question waits: a refusal may come meanwhile, and no answer then ever does."""
_GROUPS = "spark-kafka-relation --resource-pattern-type prefixed"
