"""Sessions of a Spark Connect server that asks for a token.

Whoever reaches a Spark Connect server executes code as its owner, so it asks for the token that it has in its
environment. Its clients have the same variable, or the token as the password of an Airflow connection.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from hindcast.errors import PlatformError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # a variable's name
"""Spark's own variable for the token, of servers and of clients."""


def connect(url: str, conf: Mapping[str, str], token: str = "") -> SparkSession:
    """Return this process's session of the Spark Connect server at `url`, made with these settings if there is none.

    `token` if it is given, else the one of the URL, else the one of the environment. PlatformError where the server
    does not accept it.

    On loopback the token is sent without TLS. To another machine it goes by TLS, unless the URL says `use_ssl=false`:
    that is for networks which nobody else is in, as that of docker-compose.yaml.
    """
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    from pyspark.sql.connect.session import SparkSession as Session

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # PySpark's functions then speak to the server, not to a JVM here
    builder = Session.builder.channelBuilder(_channels(url, token))
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        return cast("SparkSession", builder.getOrCreate())
    except SparkConnectGrpcException as error:
        if "authentication token" not in str(error):
            raise
        raise PlatformError(
            "the Spark Connect server does not accept our token",
            where=url.partition("/;")[0],
            mend=f"set {TOKEN} to the token that the server was started with; for the server of `make up` that is the "
            "text of HINDCAST_VAR/spark/token. After that file was removed: `make down`, then `make up`",
        ) from None


def _channels(url: str, token: str) -> Any:
    """What opens channels to the server at `url`, and sends the token with every call."""
    import grpc  # type: ignore[import-untyped]  # it has no types of its own
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    class Channels(DefaultChannelBuilder):
        """PySpark's own, which knows `localhost` alone as loopback and cannot do without TLS elsewhere."""

        def toChannel(self) -> grpc.Channel:  # noqa: N802  # PySpark's name
            if self.token is None or self.use_ssl:
                return super().toChannel()
            if _is_loopback(self.host):
                shown = grpc.access_token_call_credentials(self.token)
                local = grpc.composite_channel_credentials(grpc.local_channel_credentials(), shown)
                return self._secure_channel(self.endpoint, local)
            return self._insecure_channel(self.endpoint) if self._is_plain() else super().toChannel()

        def metadata(self) -> Any:
            """What every call carries; the token where the channel itself does not."""
            plain = self.token is not None and self._is_plain() and not _is_loopback(self.host)
            return [*super().metadata(), *([("authorization", f"Bearer {self.token}")] if plain else [])]

        def _is_plain(self) -> bool:
            return str(self.getDefault(self.PARAM_USE_SSL, "")).lower() == "false"

    channels = Channels(url)
    if token:
        channels.set(Channels.PARAM_TOKEN, token)
    return channels


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"
