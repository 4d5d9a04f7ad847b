"""Run the services of docker-compose.yaml from a built image, and what stands in for the images that are not ours.

Commands, environments, health checks, limits, users, volumes and read-only roots are those of the file. Of the others:

    kafka           the same release, from the jars of `make setup`, in our image; its variables as properties
    postgres        Debian's PostgreSQL, in an image of its own
    object-store    the same release, built from source, in our image
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chroots import Chroot, Mount
from compose_file import Service
from containers import Container, Network
from image_build import Image, ImageError

ROOT = Path(__file__).resolve().parent.parent
HEALTHY_SECONDS = 420
POSTGRES = """FROM base AS postgres
RUN apt-get update -qq && apt-get install -qq --yes --no-install-recommends postgresql \\
 && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/* && mkdir -p /var/lib/postgresql/data /run/postgresql \\
 && chown -R postgres /var/lib/postgresql
ENV PATH=/usr/lib/postgresql/15/bin:$PATH
"""
START_POSTGRES = """cd "$PGDATA"; umask 077
if [ ! -s PG_VERSION ]; then
  echo "$POSTGRES_PASSWORD" > /tmp/password
  initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256
  echo "host all all all scram-sha-256" >> pg_hba.conf
  postgres -k /tmp -c listen_addresses= &
  until createdb --host=/tmp --username="$POSTGRES_USER" "$POSTGRES_DB"; do sleep 1; done
  kill -INT $!
  wait
fi
exec postgres -c "listen_addresses=*"
"""
START_KAFKA = """[ -s /var/lib/kafka/data/meta.properties ] || java -cp "/opt/kafka/libs/*" \
  kafka.tools.StorageTool format -t hindcast-of-test-image -c /etc/kafka.properties
exec java -cp "/opt/kafka/libs/*" $KAFKA_HEAP_OPTS kafka.Kafka /etc/kafka.properties
"""
ASK_KAFKA = (
    "from confluent_kafka.admin import AdminClient; "
    "AdminClient({'bootstrap.servers': 'localhost:9092'}).list_topics(timeout=8)"
)
ASK_STORE = "import urllib.request as u; u.urlopen('http://localhost:7070/health', timeout=5)"


@dataclass(frozen=True)
class StandIn:
    """What is run in place of an image that is not ours. Commands that are empty are those of the file."""

    image: Image
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    tmpfs: tuple[str, ...] = ("/tmp",)  # noqa: S108  # a container's
    environ: Mapping[str, str] = field(default_factory=dict)
    user: str = ""


def make_stand_ins(ours: Image, postgres: Image, store: Path, folder: Path, kafka: Service) -> dict[str, StandIn]:
    """Return the stand-ins by service. `store` is the program of the object store."""
    config = folder / "kafka.properties"
    properties = [
        f"{name.removeprefix('KAFKA_').lower().replace('_', '.')}={value}\n"
        for name, value in kafka["environment"].items()
        if name != "KAFKA_HEAP_OPTS"
    ]
    config.write_text("".join(properties), encoding="utf-8")
    jars = (ROOT / ".venv" / "jars" / "broker").resolve()
    return {
        "kafka": StandIn(
            ours,
            command=("bash", "-euc", START_KAFKA),
            check=("python", "-c", ASK_KAFKA),
            mounts=(
                Mount(jars, "/opt/kafka/libs", read_only=True),
                Mount(config, "/etc/kafka.properties", read_only=True),
            ),
            user="hindcast",
        ),
        "postgres": StandIn(
            postgres,
            command=("bash", "-euc", START_POSTGRES),
            tmpfs=("/tmp", "/run/postgresql"),  # noqa: S108  # a container's
            environ={"PGDATA": "/var/lib/postgresql/data"},
        ),
        "object-store": StandIn(
            ours,
            entrypoint=("versitygw",),
            check=("python", "-c", ASK_STORE),
            mounts=(Mount(store, "/usr/local/bin/versitygw", read_only=True),),
        ),
    }


class Composition:
    """The services of the file, from an image, on a network."""

    def __init__(
        self, services: dict[str, Service], image: Image, stand_ins: Mapping[str, StandIn], folder: Path
    ) -> None:
        self.services, self.image, self.stand_ins, self.folder = services, image, stand_ins, folder
        self.aliases = {name: f"{name}-1" for name in services}
        self.network = Network(folder / "logs", [one for name in services for one in self.list_replicas(name)])
        self.running: dict[str, Container] = {}
        (folder / "logs").mkdir(parents=True, exist_ok=True)

    def list_replicas(self, name: str) -> list[str]:
        """Return the names of a service's containers."""
        return [f"{name}-{number + 1}" for number in range(self.services[name]["deploy"].get("replicas", 1))]

    def start(self) -> None:
        """Start every service when those before it are healthy or have ended; ImageError if one fails."""
        for name in self.services:
            started = time.monotonic()
            for replica in self.list_replicas(name):
                self._start_replica(name, replica)
            for replica in self.list_replicas(name):
                self._wait(name, replica)
            print(f"      {name}: {time.monotonic() - started:.0f} s", flush=True)

    def run(self, name: str, *command: str, seconds: float = 600) -> str:
        """Return what a command prints in a service's first container, as its user; ImageError if it fails."""
        container = self.running[f"{name}-1"]
        done = container.run(self._enter(name, list(command), container.chroot), seconds)
        if done.returncode:
            told = f"{done.stdout}{done.stderr}"[-3000:]
            raise ImageError(f"`{shlex.join(command)[:200]}` failed in {name} (exit code {done.returncode}):\n{told}")
        return done.stdout

    def _start_replica(self, name: str, replica: str) -> None:
        service, stand_in = self.services[name], self.stand_ins.get(name)
        image = stand_in.image if stand_in else self.image
        hosts = self.network.write_hosts(replica, self.aliases)
        mounts = [Mount(hosts, "/etc/hosts", read_only=True)]
        mounts += [self._find_volume(text, image, name) for text in service.get("volumes", [])]
        mounts += stand_in.mounts if stand_in else ()
        tmpfs = stand_in.tmpfs if stand_in else tuple(service.get("tmpfs", ()))
        if not (stand_in or service.get("read_only")):
            raise ImageError(f"{name} has no `read_only: true` in docker-compose.yaml\n  what to do: add it there")
        chroot = Chroot(image.root, tuple(mounts), tmpfs, read_only=True)
        chroot.make_mount_points()
        of_file = [*(stand_in.entrypoint if stand_in else image.entrypoint), *map(str, service.get("command", ()))]
        command = list(stand_in.command) if stand_in and stand_in.command else of_file
        entered = self._enter(name, command, chroot)
        limits = service["deploy"]["resources"]["limits"]
        self.running[replica] = self.network.start(replica, chroot, entered, limits)

    def _enter(self, name: str, command: list[str], chroot: Chroot) -> list[str]:
        service, stand_in = self.services[name], self.stand_ins.get(name)
        image = stand_in.image if stand_in else self.image
        environ = {key: str(value) for key, value in service.get("environment", {}).items()}
        more = dict(stand_in.environ) if stand_in else {}
        user = (stand_in.user if stand_in else "") or str(service["user"])
        return chroot.enter_command(command, {**image.environ, **environ, **more}, user, image.workdir)

    def _find_volume(self, text: str, image: Image, name: str) -> Mount:
        """Return the mount of a volume; a new one begins as what the image has at that path, as Docker has it."""
        source, target, *options = text.split(":")
        if source.startswith("."):
            return Mount((ROOT / source).resolve(), target, read_only="ro" in options)
        folder = self.folder / "volumes" / source
        if not folder.exists():
            folder.mkdir(parents=True)
            inside = image.root / target.lstrip("/")
            stand_in = self.stand_ins.get(name)
            who = Chroot(image.root).find_user((stand_in.user if stand_in else "") or str(self.services[name]["user"]))
            owner = inside.stat() if inside.exists() and not stand_in else None
            shutil.chown(folder, owner.st_uid if owner else who.uid, owner.st_gid if owner else who.gid)
        return Mount(folder, target)

    def _wait(self, name: str, replica: str) -> None:
        """Return when a container is healthy, or has ended well if that is what it is for."""
        container, service, stand_in = self.running[replica], self.services[name], self.stand_ins.get(name)
        check = service.get("healthcheck", {}).get("test")
        end = time.monotonic() + HEALTHY_SECONDS
        while time.monotonic() < end:
            code = container.process.poll()
            if check is None and code == 0:
                return
            if code is not None:
                raise ImageError(f"{replica} ended (exit code {code}):\n{self.read_log(replica)}")
            if check is not None:
                kind, *words = check
                own = ["sh", "-c", *words] if kind == "CMD-SHELL" else [str(word) for word in words]
                words = list(stand_in.check) if stand_in and stand_in.check else own
                if container.run(self._enter(name, words, container.chroot), 60).returncode == 0:
                    return
            time.sleep(1)
        raise ImageError(f"{replica} is not healthy after {HEALTHY_SECONDS} s:\n{self.read_log(replica)}")

    def read_log(self, replica: str) -> str:
        """Return the end of what a container printed."""
        return (self.folder / "logs" / f"{replica}.log").read_text(encoding="utf-8", errors="replace")[-4000:]
