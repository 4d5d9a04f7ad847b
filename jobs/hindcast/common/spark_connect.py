"""Sessions of a Spark Connect server that asks for a token.

Whoever reaches a Spark Connect server can execute code as its owner, so it asks for the token that it has in its
environment. Its clients have the token in the same variable, as the password of an Airflow connection, or in a file.

While the server is down, any user of this machine can listen at its port on loopback. So a token is sent there only to
processes of our own user and of root.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hindcast import __version__
from hindcast.common import private_files
from hindcast.common.errors import PlatformError
from hindcast.common.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import RetryPolicy

TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # a variable's name
"""Spark's own variable for the token, of servers and of clients."""

TOKEN_FILE = "token_file"  # noqa: S105  # a name in an Airflow connection's extra
"""The name of the token's file in the extra of an Airflow connection."""


VERSION_PROPERTY = "spark.hindcast.version"
"""The property of a server that says which version of Hindcast its Python workers have."""


def connect_to_server(url: str, conf: Mapping[str, str], token: str = "") -> SparkSession:
    """Return this process's session of the Spark Connect server at `url`; create it with these settings if needed.

    The token is `token` if given, else that of the URL, else that of the environment. PlatformError if the server does
    not accept it, if another user's process listens on loopback, or if the server says that it has another version of
    Hindcast.

    On loopback the token is sent without TLS. To another machine it is sent by TLS, unless the URL says
    `use_ssl=false`, which is for private networks like that of docker-compose.yaml.
    """
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    from pyspark.sql.connect.session import SparkSession as Session

    from hindcast.common.connect_channels import Channels

    channels = Channels(url, token)
    _wait_for_server(url, channels.host, channels.port)
    channels.refuse_foreign()
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # PySpark's functions then speak to the server, not to a JVM here
    builder = Session.builder.channelBuilder(channels)
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
        session.client.set_retry_policies([_build_retry_policy(url, channels.refuse_foreign)])
        _refuse_other_version(cast("SparkSession", session), url)
        return cast("SparkSession", session)
    except SparkConnectGrpcException as error:
        if "authentication token" not in str(error):
            raise
        raise PlatformError(
            "the Spark Connect server does not accept our token",
            where=url.partition("/;")[0],
            fix=f"set {TOKEN_VARIABLE} to the token that the server was started with; for the server of `make up` "
            "that is the text of HINDCAST_VAR/spark/token, a new one for each start",
        ) from None


def _refuse_other_version(spark: SparkSession, url: str) -> None:
    """Raise PlatformError if the server says that it has another version of Hindcast than we."""
    version = read_conf(spark, [VERSION_PROPERTY])[VERSION_PROPERTY]
    if version not in (None, __version__):
        raise PlatformError(
            f"the Spark Connect server has Hindcast {version}, and this is {__version__}",
            where=url.partition("/;")[0],
            fix="install one version for both, and start the server again",
        )


def is_client(spark: SparkSession) -> bool:
    """Return whether a session is one of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def read_conf(spark: SparkSession, names: Iterable[str]) -> dict[str, str | None]:
    """Return settings of a server's session, None for those that are not set, in one call."""
    from pyspark.sql.connect import proto

    asked = proto.ConfigRequest.GetOption(keys=list(names))
    return dict(spark.client.config(proto.ConfigRequest.Operation(get_option=asked)).pairs)


def write_conf(spark: SparkSession, conf: Mapping[str, str | None]) -> None:
    """Set settings of a server's session, and unset those that are None, in one call each."""
    from pyspark.sql.connect import proto

    pairs = [proto.KeyValue(key=name, value=value) for name, value in conf.items() if value is not None]
    unset = [name for name, value in conf.items() if value is None]
    if pairs:
        spark.client.config(proto.ConfigRequest.Operation(set=proto.ConfigRequest.Set(pairs=pairs)))
    if unset:
        spark.client.config(proto.ConfigRequest.Operation(unset=proto.ConfigRequest.Unset(keys=unset)))


PATIENCE_SECONDS = 10.0
"""Seconds after which a server that does not answer is reported as gone. PySpark itself is silent for ten minutes."""


def _wait_for_server(url: str, host: str, port: int) -> None:
    """Return when the server takes a connection; PlatformError if it does not within `PATIENCE_SECONDS`."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with socket.create_connection((host.strip("[]"), port), timeout=PATIENCE_SECONDS):
                return
        except OSError:
            if time.monotonic() >= end:
                raise _unreachable_error(url) from None
            time.sleep(0.2)


def _build_retry_policy(url: str, refuse: Callable[[], None] = lambda: None) -> RetryPolicy:
    """Return PySpark's retry policy, but with PlatformError for a server that is away for `PATIENCE_SECONDS`.

    `refuse` is called after each failed call and may raise an error as well. Clean-up after that does not wait for the
    server again.
    """
    import grpc  # type: ignore[import-untyped]  # it has no types of its own
    from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicyState

    gone = False

    class Tries(RetryPolicyState):
        """The tries of one call; `first` is the time of its first failure."""

        first: float | None = None

        def next_attempt(self, exception: BaseException | None = None) -> int | None:
            nonlocal gone
            if not isinstance(exception, grpc.RpcError) or exception.code() != grpc.StatusCode.UNAVAILABLE:
                return super().next_attempt(exception)
            refuse()
            self.first = self.first or time.monotonic()
            gone = gone or time.monotonic() - self.first > PATIENCE_SECONDS
            if gone:
                raise _unreachable_error(url) from None
            return 500

    class Patient(DefaultPolicy):
        """A policy whose calls use `Tries`."""

        def to_state(self) -> RetryPolicyState:
            return Tries(self)

    return Patient()


def _unreachable_error(url: str) -> PlatformError:
    """Return the error of a server that does not answer."""
    return PlatformError(
        f"the Spark Connect server has not answered for {PATIENCE_SECONDS:g} s",
        where=url.partition("/;")[0],
        fix="start it again (hindcast up, if it is the one of `make up`), then repeat the command: a run continues"
        " where it stopped; HINDCAST_VAR/logs/spark.log says why the server ended",
    )


def token_path(settings: Settings) -> Path:
    """Return the path of the token that the running server asks its clients for."""
    return settings.var / "spark" / "token"


def read_token(path: Path) -> str:
    """Return the token in the file that `start_server` wrote; PlatformError if it is missing or others may know it."""
    remedy = "`make down`, then `make up`: each start of the server makes a new token"
    try:
        return private_files.read_secret(path, remedy)
    except FileNotFoundError:
        raise PlatformError("the Spark Connect server's token is missing", where=str(path), fix=remedy) from None
