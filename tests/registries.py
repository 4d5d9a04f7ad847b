"""Schema registries for tests.

`peer` speaks the part of Confluent's REST protocol that its client uses here, over HTTP, in this process. It is no real
registry, so the same tests run against `apicurio`, which is one, in `make test-long`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import java_for_tests

from hindcast_local import ports, process
from serving import Handler, serving


@contextmanager
def peer(login: str | None = None) -> Iterator[str]:
    """The URL of a registry that keeps what it is told in memory; read only by who has the `login` (user:password)."""
    subjects: dict[str, list[int]] = {}
    schemas: list[dict[str, Any]] = []
    wanted = login and f"Basic {base64.b64encode(login.encode()).decode()}"

    class Peer(Handler):
        """GET /schemas/ids/N, GET and POST /subjects/S/versions[/V]."""

        def get(self) -> None:
            path = self.path.partition("?")[0]
            if wanted and self.headers.get("Authorization") != wanted:
                return self.answer({"error_code": 401, "message": "unauthorized"}, 401)
            if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
                place = int(found[1]) - 1
                return self.answer(schemas[place]) if 0 <= place < len(schemas) else self.missing(40403)
            if found := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", path):
                versions = subjects.get(found[1], [])
                place = int(found[2]) - 1
                if place >= len(versions):
                    return self.missing(40402)
                id_ = versions[place]
                return self.answer({"subject": found[1], "version": place + 1, "id": id_, **schemas[id_ - 1]})
            return self.missing(404)

        def post(self) -> None:
            subject = re.fullmatch(r"/subjects/([^/]+)/versions", self.path.partition("?")[0])
            if not subject:
                return self.missing(404)
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kept = {name: told[name] for name in ("schema", "schemaType", "references") if told.get(name)}
            if kept not in schemas:
                schemas.append(kept)
            id_ = schemas.index(kept) + 1
            subjects.setdefault(subject[1], []).append(id_)
            return self.answer({"id": id_})

        def missing(self, code: int) -> None:
            self.answer({"error_code": code, "message": "not found"}, 404)

    with serving(Peer) as url:
        yield url


@contextmanager
def apicurio(folder: Path) -> Iterator[str]:
    """The URL of Apicurio Registry's Confluent API; it is fetched when it is not there yet."""
    port = ports.find_free_port()
    env = {"QUARKUS_HTTP_PORT": str(port), "QUARKUS_HTTP_HOST": ports.HOST, "PATH": "/usr/bin:/bin"}
    where, log = f"{ports.HOST}:{port}", folder / "registry.log"
    started = process.start_process("registry", where, java_for_tests.registry(), log=log, env=env, cwd=folder)
    url = f"http://{where}/apis/ccompat/v7"
    try:
        ports.wait_until_ready(started, lambda: bool(ports.read_json(f"{url}/config")), 180)
        yield url
    finally:
        process.stop_processes([started])


def register(url: str, subject: str, schema: Any, *references: tuple[str, str]) -> int:
    """Registers an Avro schema; its id. `references`: names of types, and the subject that has each as version 1."""
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

    refers = [SchemaReference(name, other, 1) for name, other in references]
    with SchemaRegistryClient({"url": url}) as client:
        id_: int = client.register_schema(subject, Schema(json.dumps(schema), "AVRO", refers))
    return id_
