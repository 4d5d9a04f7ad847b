"""Sessions of a Spark Connect server that asks for a token.

Whoever reaches a Spark Connect server executes code as its owner, so it asks for the token that it has in its
environment. Its clients have the same variable, or the token as the password of an Airflow connection, or in a file.

While the server is down, every user of this machine can listen at its port on loopback. So a token is sent there to
processes of our own user and of root alone.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from hindcast import listeners
from hindcast.errors import PlatformError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # a variable's name
"""Spark's own variable for the token, of servers and of clients."""

TOKEN_FILE = "token_file"  # noqa: S105  # a name in an Airflow connection's extra
"""Names, in the extra of an Airflow connection, the file with the token."""


def connect(url: str, conf: Mapping[str, str], token: str = "") -> SparkSession:
    """Return this process's session of the Spark Connect server at `url`, made with these settings if there is none.

    `token` if it is given, else the one of the URL, else the one of the environment. PlatformError where the server
    does not accept it, or where what listens on loopback is another user's.

    On loopback the token is sent without TLS. To another machine it goes by TLS, unless the URL says `use_ssl=false`:
    that is for networks which nobody else is in, as that of docker-compose.yaml.
    """
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    from pyspark.sql.connect.session import SparkSession as Session

    channels = _channels(url, token)
    _wait_for_server(url, channels.host, channels.port)
    channels.refuse_foreign()
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # PySpark's functions then speak to the server, not to a JVM here
    builder = Session.builder.channelBuilder(channels)
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
        session.client.set_retry_policies([_policy(url, channels.refuse_foreign)])
        return cast("SparkSession", session)
    except SparkConnectGrpcException as error:
        if "authentication token" not in str(error):
            raise
        raise PlatformError(
            "the Spark Connect server does not accept our token",
            where=url.partition("/;")[0],
            mend=f"set {TOKEN} to the token that the server was started with; for the server of `make up` that is the "
            "text of HINDCAST_VAR/spark/token, a new one for each start",
        ) from None


PATIENCE = 10.0
"""Seconds after which a server that does not answer is reported as gone. PySpark itself is silent for ten minutes."""


def _wait_for_server(url: str, host: str, port: int) -> None:
    """Return when the server takes a connection; PlatformError if it does not within `PATIENCE`."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection((host.strip("[]"), port), timeout=PATIENCE):
                return
        except OSError:
            if time.monotonic() >= end:
                raise _gone(url) from None
            time.sleep(0.2)


def _policy(url: str, refuse: Callable[[], None] = lambda: None) -> Any:
    """Return PySpark's policy of retries, but for a server that has been away for `PATIENCE`: that is an error of ours.

    So is what `refuse` raises when a call has failed. What is tidied up after that does not wait for the server again.
    """
    import grpc  # type: ignore[import-untyped]  # it has no types of its own
    from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicyState

    gone = False

    class Tries(RetryPolicyState):
        """The tries of one call: `first` is when it failed for the first time."""

        first: float | None = None

        def next_attempt(self, exception: BaseException | None = None) -> int | None:
            nonlocal gone
            if not isinstance(exception, grpc.RpcError) or exception.code() != grpc.StatusCode.UNAVAILABLE:
                return super().next_attempt(exception)
            refuse()
            self.first = self.first or time.monotonic()
            gone = gone or time.monotonic() - self.first > PATIENCE
            if gone:
                raise _gone(url) from None
            return 500

    class Patient(DefaultPolicy):
        """A policy whose calls count their tries so."""

        def to_state(self) -> RetryPolicyState:
            return Tries(self)

    return Patient()


def _gone(url: str) -> PlatformError:
    """Return the error of a server that does not answer."""
    return PlatformError(
        f"the Spark Connect server has not answered for {PATIENCE:g} s",
        where=url.partition("/;")[0],
        mend="start it again (hindcast up, if it is the one of `make up`), then repeat the command: a run goes on where"
        " it was; HINDCAST_VAR/logs/spark.log says why it ended",
    )


def _foreign(url: str, port: int, uid: int) -> PlatformError:
    """Return the error of a server that is another user's."""
    return PlatformError(
        f"port {port} is held by uid {uid}, not by us ({os.geteuid()}) nor root: it was not sent the token",
        where=url.partition("/;")[0],
        mend=f"find out why uid {uid} listens there: it may be after the token. Have that process ended, or "
        "choose another port (HINDCAST_SPARK_PORT), then `make down` and `make up`. If another user's server is meant,"
        " it needs TLS, and the URL use_ssl=true",
    )


def _channels(url: str, token: str) -> Any:
    """What opens channels to the server at `url`, and sends the token with every call."""
    import grpc
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    class Shown(grpc.AuthMetadataPlugin):  # type: ignore[misc]  # it has no types
        """The token, as gRPC asks for it: for each call, when the connection is made over which the call goes."""

        def __init__(self, channels: Channels) -> None:
            self.channels = channels

        def __call__(self, _: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
            try:
                self.channels.refuse_foreign()
            except PlatformError as error:
                callback((), error)
            else:
                callback((("authorization", f"Bearer {self.channels.token}"),), None)

    class Channels(DefaultChannelBuilder):
        """PySpark's own, which knows `localhost` alone as loopback and cannot do without TLS elsewhere."""

        @property
        def port(self) -> int:
            return int(self.endpoint.rpartition(":")[2])

        def refuse_foreign(self) -> None:
            """Raise PlatformError if a token would go to another user of this machine."""
            if self.token is None or self.use_ssl or not listeners.is_loopback(self.host):
                return
            if others := listeners.find_others(self.host.strip("[]"), self.port):
                raise _foreign(url, self.port, min(others))

        def toChannel(self) -> grpc.Channel:  # noqa: N802  # PySpark's name
            if self.token is None or self.use_ssl:
                return super().toChannel()
            if listeners.is_loopback(self.host):
                shown = grpc.metadata_call_credentials(Shown(self))
                local = grpc.composite_channel_credentials(grpc.local_channel_credentials(), shown)
                return self._secure_channel(self.endpoint, local)
            return self._insecure_channel(self.endpoint) if self._is_plain() else super().toChannel()

        def metadata(self) -> Any:
            """What every call carries; the token where the channel itself does not."""
            plain = self.token is not None and self._is_plain() and not listeners.is_loopback(self.host)
            return [*super().metadata(), *([("authorization", f"Bearer {self.token}")] if plain else [])]

        def _is_plain(self) -> bool:
            return str(self.getDefault(self.PARAM_USE_SSL, "")).lower() == "false"

    channels = Channels(url)
    if token:
        channels.set(Channels.PARAM_TOKEN, token)
    return channels
