"""A real broker of ours that asks who we are: TLS and SASL, with ACLs, and an identity provider that gives tokens.

Its listener PLAINTEXT is for the tests themselves, which may do everything there; all others obey the ACLs.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import NameOID

from hindcast_local import broker, ports
from serving import Handler, serving

READER, ODD = "reader", "odd"
SECRETS = {READER: "correct-horse-7351", ODD: 'quo"te\\ back\r\n ${env:HOME} ü9214'}
"""The passwords of users; the odd one has all that quoting can go wrong with."""
KEY_PASSWORD = "unlock-4628"  # noqa: S105  # it is a test's

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"


@dataclass(frozen=True)
class Secured:
    """Where its listeners are, and the files of a client."""

    folder: Path
    plaintext: str
    ssl: str
    sasl_ssl: str
    sasl_plaintext: str
    token_url: str
    admin: AdminClient = field(repr=False)

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def sasl(self, mechanism: str = "SCRAM-SHA-512", user: str = READER, **more: str) -> dict[str, str]:
        """The environment of someone who logs in with a password over TLS; `more` goes over it."""
        told = {"SECURITY": "sasl_ssl", "CA": self.ca, "MECHANISM": mechanism, "USERNAME": user}
        return self._environ(self.sasl_ssl, {**told, "PASSWORD": SECRETS.get(user, ""), **more})

    def mutual(self, **more: str) -> dict[str, str]:
        """The environment of someone with a certificate."""
        files = {"CERT": str(self.folder / "reader.pem"), "KEY": str(self.folder / "reader.key")}
        return self._environ(self.ssl, {"SECURITY": "ssl", "CA": self.ca, **files, **more})

    def locked(self, **more: str) -> dict[str, str]:
        """The same with a key that is encrypted."""
        return self.mutual(**{"KEY": str(self.folder / "locked.key"), "KEY_PASSWORD": KEY_PASSWORD, **more})

    def allow(self, user: str, *operations: str, topic: str = "", prefix: bool = False, group: str = "") -> None:
        """Gives a user rights on a topic (or on all whose names begin so) or on a group."""
        kind = ResourceType.GROUP if group else ResourceType.TOPIC
        pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
        acls = [
            AclBinding(kind, group or topic, pattern, f"User:{user}", "*", AclOperation[name], AclPermissionType.ALLOW)
            for name in operations
        ]
        for done in self.admin.create_acls(acls).values():
            done.result(20)

    @staticmethod
    def _environ(servers: str, told: Mapping[str, str]) -> dict[str, str]:
        return {"HINDCAST_KAFKA": servers, **{f"HINDCAST_KAFKA_{name}": value for name, value in told.items() if value}}


@contextmanager
def secured(folder: Path) -> Iterator[Secured]:
    """The broker with its users, as long as the context lasts."""
    certificates(folder)
    listeners = {
        name: f"127.0.0.1:{ports.find_free_port()}" for name in ("PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT")
    }
    with _provider() as provider:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider}/jwks"
        port = int(listeners["PLAINTEXT"].rpartition(":")[2])
        with broker.run_broker(
            folder / "broker", port, _properties(folder, listeners, provider), (allowed,)
        ) as servers:
            admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
            made = Secured(folder, *listeners.values(), token_url=f"{provider}/token", admin=admin)
            _users(admin)
            yield made


def _properties(folder: Path, listeners: Mapping[str, str], provider: str) -> dict[str, object]:
    users = " ".join(f'user_{name}="{SECRETS[name]}"' for name in (READER,))
    sasl = {
        f"listener.name.{listener}.{name}": value
        for listener in ("sasl_ssl", "sasl_plaintext")
        for name, value in {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER",
            "plain.sasl.jaas.config": f"{_PLAIN} {users};",
            "scram-sha-256.sasl.jaas.config": _SCRAM,
            "scram-sha-512.sasl.jaas.config": _SCRAM,
            "oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
            "oauthbearer.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
        }.items()
    }
    return {
        "listeners": ",".join(f"{name}://{where}" for name, where in listeners.items()),
        "listener.security.protocol.map": ",".join(["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in listeners)]),
        "sasl.oauthbearer.jwks.endpoint.url": f"{provider}/jwks",
        "sasl.oauthbearer.expected.audience": "kafka",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "broker.all.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": folder / "ca.pem",
        "listener.name.ssl.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        **sasl,
    }


def _users(admin: AdminClient) -> None:
    mechanisms = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    wanted = [
        UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
        for user, password in SECRETS.items()
        for mechanism in mechanisms
    ]
    for one in wanted:
        for done in admin.alter_user_scram_credentials([one]).values():
            done.result(20)


def certificates(folder: Path) -> None:
    """ca.pem; broker.all.pem, for 127.0.0.1; reader.pem, its key in locked.key encrypted, in
    reader.older.key in OpenSSL's older form; other.pem of others.
    """
    key, ca = _authority("hindcast tests")
    (folder / "ca.pem").write_bytes(_pem(ca))
    (folder / "other.pem").write_bytes(_pem(_authority("somebody else")[1]))
    for name in ("broker", READER):
        own = ec.generate_private_key(ec.SECP256R1())
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        made = _builder(name, ca.subject, own).add_extension(x509.SubjectAlternativeName(names), critical=False)
        (folder / f"{name}.pem").write_bytes(_pem(made.sign(key, hashes.SHA256())))
        locks: dict[str, serialization.KeySerializationEncryption] = {name: serialization.NoEncryption()}
        if name == READER:
            locks["locked"] = serialization.BestAvailableEncryption(KEY_PASSWORD.encode())
        for file, lock in locks.items():
            kind = serialization.PrivateFormat.PKCS8
            (folder / f"{file}.key").write_bytes(own.private_bytes(serialization.Encoding.PEM, kind, lock))
        older = serialization.PrivateFormat.TraditionalOpenSSL
        unlocked = serialization.NoEncryption()
        (folder / f"{name}.older.key").write_bytes(own.private_bytes(serialization.Encoding.PEM, older, unlocked))
    (folder / "broker.all.pem").write_bytes((folder / "broker.key").read_bytes() + (folder / "broker.pem").read_bytes())


def write_own_certificate(folder: Path, since: datetime, until: datetime) -> None:
    """server.pem, which nobody else has signed, for 127.0.0.1 between two moments; and its key in server.key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = _builder("server", subject, key, since, until).add_extension(names, critical=False)
    (folder / "server.pem").write_bytes(_pem(made.sign(key, hashes.SHA256())))
    kind = serialization.PrivateFormat.PKCS8
    (folder / "server.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    )


def _authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = _builder(name, subject, key).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return key, made.sign(key, hashes.SHA256())


def _builder(
    name: str,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    since: datetime | None = None,
    until: datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since or now - timedelta(hours=1))
        .not_valid_after(until or now + timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@contextmanager
def _provider() -> Iterator[str]:
    """An identity provider: /token gives a token to who knows a client's secret, /jwks the key to check it with."""
    key = rsa.generate_private_key(65537, 2048)
    numbers = key.public_key().public_numbers()
    shown = {"kty": "RSA", "kid": "one", "alg": "RS256", "use": "sig", "n": _number(numbers.n), "e": _number(numbers.e)}

    class Provider(Handler):
        def get(self) -> None:
            self.answer({"keys": [shown]})

        def post(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            scheme, _, told = self.headers.get("Authorization", "").partition(" ")
            user, _, password = base64.b64decode(told).decode().partition(":")
            if scheme != "Basic" or SECRETS.get(user) != password:
                self.answer({"error": "invalid_client"}, 401)
                return
            now = int(time.time())
            claims = {"sub": user, "aud": "kafka", "iss": "tests", "iat": now, "exp": now + 600, "scope": "kafka"}
            parts = b".".join(_text(json.dumps(it).encode()) for it in ({"alg": "RS256", "kid": "one"}, claims))
            token = parts + b"." + _text(key.sign(parts, padding.PKCS1v15(), hashes.SHA256()))
            self.answer({"access_token": token.decode(), "token_type": "Bearer", "expires_in": 600})

    with serving(Provider) as url:
        yield url


def _text(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big")).decode()
