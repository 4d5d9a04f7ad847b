"""Channels to a Spark Connect server that send a token with every call, and to nobody but us and root."""

from __future__ import annotations

import os

import grpc  # type: ignore[import-untyped]  # it has no types of its own
from pyspark.sql.connect.client.core import DefaultChannelBuilder

from hindcast.common import port_owners
from hindcast.common.errors import PlatformError


class Channels(DefaultChannelBuilder):
    """PySpark's builder, extended: it knows only `localhost` as loopback and needs TLS elsewhere.

    `token`: that of the URL if empty.
    """

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url)
        self._where = url.partition("/;")[0]
        if token:
            self.set(Channels.PARAM_TOKEN, token)

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    def refuse_foreign(self) -> None:
        """Raise PlatformError if a token would go to another user of this machine."""
        if self.token is None or self.use_ssl or not port_owners.is_loopback(self.host):
            return
        if others := port_owners.find_others(self.host.strip("[]"), self.port):
            raise self._foreign_owner_error(min(others))

    def toChannel(self) -> grpc.Channel:  # noqa: N802  # PySpark's name
        if self.token is None or self.use_ssl:
            return super().toChannel()
        if port_owners.is_loopback(self.host):
            shown = grpc.metadata_call_credentials(_TokenPlugin(self))
            local = grpc.composite_channel_credentials(grpc.local_channel_credentials(), shown)
            return self._secure_channel(self.endpoint, local)
        return self._insecure_channel(self.endpoint) if self._is_plain() else super().toChannel()

    def metadata(self) -> list[tuple[str, str]]:
        """Return the metadata of every call; the token is in it if the channel does not send it."""
        plain = self.token is not None and self._is_plain() and not port_owners.is_loopback(self.host)
        return [*super().metadata(), *([("authorization", f"Bearer {self.token}")] if plain else [])]

    def _is_plain(self) -> bool:
        return str(self.getDefault(self.PARAM_USE_SSL, "")).lower() == "false"

    def _foreign_owner_error(self, uid: int) -> PlatformError:
        """Return the error of a server that is another user's."""
        return PlatformError(
            f"port {self.port} is held by uid {uid}, not by us ({os.geteuid()}) or root: the token was not sent to it",
            where=self._where,
            fix=f"find out why uid {uid} listens there: it may be after the token. Have that process ended, or "
            "choose another port (HINDCAST_SPARK_PORT), then `make down` and `make up`. If you want to use another"
            " user's server, it needs TLS, and the URL needs use_ssl=true",
        )


class _TokenPlugin(grpc.AuthMetadataPlugin):  # type: ignore[misc]  # it has no types
    """The token for gRPC, which asks for it at each call, once the call's connection is made.

    Who has the port is looked up for new connections only: that takes the kernel milliseconds.
    """

    def __init__(self, channels: Channels) -> None:
        self.channels = channels
        self._checked: frozenset[str] = frozenset()

    def __call__(self, _: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        try:
            connections = port_owners.list_own_connections()
            if not connections or not connections <= self._checked:
                self.channels.refuse_foreign()
                self._checked = connections
        except PlatformError as error:
            callback((), error)
        else:
            callback((("authorization", f"Bearer {self.channels.token}"),), None)
