"""Containers without a Docker engine: processes in namespaces of their own, on a network that only they see.

    with Network(folder) as network:
        container = network.start("spark-master-1", image, command, ...)

Each has a root (`chroots`), an address, a host name, a process tree and the limits of its cgroups. Nothing listens on
this machine's own interfaces, not even on loopback. Needs root, util-linux and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from chroots import END_WITH_PARENT, Chroot

CGROUPS = Path("/sys/fs/cgroup")
KINDS = ("memory", "pids", "cpu")
CPU_PERIOD = 100_000
SUBNET = "10.77.0"
UNITS = {"k": 2**10, "m": 2**20, "g": 2**30}
STOP_SECONDS = 15


class Container:
    """A running command, in namespaces that end with it."""

    def __init__(self, name: str, chroot: Chroot, entered: list[str], cgroups: list[Path], log: Path) -> None:
        self.name, self.chroot, self.cgroups, self.log = name, chroot, cgroups, log
        join = [f"echo 0 > {shlex.quote(str(folder / 'cgroup.procs'))}" for folder in cgroups]
        setup = [*join, f"hostname {shlex.quote(name)}", chroot.mount_script()]
        lines = ["set -eu", "read -r _", *setup, f"exec {shlex.join(entered)} < /dev/null"]
        isolated = [
            "setpriv",
            END_WITH_PARENT,
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--uts",
            "--ipc",
            "--fork",
            "--kill-child",
        ]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*isolated, "bash", "-c", "\n".join(lines)], stdin=subprocess.PIPE, stdout=output, stderr=output
            )

    def go(self) -> None:
        """Let the command start: its network is there."""
        if self.process.stdin:
            self.process.stdin.write(b"go\n")
            self.process.stdin.close()

    def run(self, entered: list[str], seconds: float = 600) -> subprocess.CompletedProcess[str]:
        """Run another command in the container's namespaces and limits, as `docker exec` does."""
        pid = self.process.pid
        inside = ["nsenter", f"--target={pid}", "--mount", "--net", "--uts", "--ipc"]
        join = [f"echo 0 > {shlex.quote(str(folder / 'cgroup.procs'))}" for folder in self.cgroups]
        command = shlex.join([*inside, f"--pid=/proc/{pid}/ns/pid_for_children", *entered])
        script = "\n".join(["set -eu", *join, f"exec {command}"])
        try:
            return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(entered, 124, "", f"no answer in {seconds:.0f} s")

    def terminate(self) -> None:
        """Ask the command to end, by SIGTERM."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with contextlib.suppress(OSError):
            for pid in children.read_text(encoding="utf-8").split():
                os.kill(int(pid), signal.SIGTERM)

    def stop(self, seconds: float) -> None:
        """Return when the command has ended, by SIGKILL if it goes on; its namespaces and mounts end with it."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()  # and with it, by --kill-child, all of its processes
            self.process.wait()

    def read_usage(self) -> dict[str, int]:
        """Return the most memory that it had at once, in bytes, and how often it met its limit, if it has cgroups."""
        wanted = {"peak": "memory.max_usage_in_bytes", "failures": "memory.failcnt"}
        found = {name: folder / file for name, file in wanted.items() for folder in self.cgroups[:1]}
        return {name: int(path.read_text(encoding="utf-8")) for name, path in found.items() if path.exists()}


class Network:
    """A bridge in a network namespace of its own, and the containers on it; all end with the block."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.containers = folder, list[Container]()
        self.addresses = {name: f"{SUBNET}.{number}" for number, name in enumerate(names, 2)}

    def __enter__(self) -> Network:
        # It ends when our end of its input is closed, so also when we are killed
        self.switch = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._wait_for_namespace(self.switch.pid)
        for line in ("link add br0 type bridge", f"addr add {SUBNET}.1/24 dev br0", "link set br0 up"):
            self._ip(self.switch.pid, line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for container in self.containers:
            container.terminate()
        end = time.monotonic() + STOP_SECONDS
        for container in self.containers:
            container.stop(max(end - time.monotonic(), 0))
            _remove_groups(container.cgroups)
        self.switch.kill()
        self.switch.wait()

    def start(self, name: str, chroot: Chroot, entered: list[str], limits: Mapping[str, Any]) -> Container:
        """Start a command as a container that others reach by its address."""
        container = Container(name, chroot, entered, _make_groups(name, limits), self.folder / f"{name}.log")
        self.containers.append(container)
        pid, number = container.process.pid, self.addresses[name].rpartition(".")[2]
        self._wait_for_namespace(pid)
        self._ip(self.switch.pid, f"link add v{number} type veth peer name eth0 netns {pid}")
        self._ip(self.switch.pid, f"link set v{number} master br0 up")
        for line in ("link set lo up", f"addr add {self.addresses[name]}/24 dev eth0", "link set eth0 up"):
            self._ip(pid, line)
        container.go()
        return container

    def write_hosts(self, name: str, aliases: Mapping[str, str]) -> Path:
        """Write the /etc/hosts of a container, its own name first, and return it. `aliases` name containers anew."""
        lines = [f"{self.addresses[name]} {name}", "127.0.0.1 localhost"]
        lines += [f"{self.addresses[container]} {alias}" for alias, container in aliases.items()]
        file = self.folder / f"{name}.hosts"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file

    def outside_command(self, command: list[str]) -> list[str]:
        """Return a command that runs on this machine, but with the containers' network."""
        return ["nsenter", f"--target={self.switch.pid}", "--net", *command]

    def _ip(self, pid: int, line: str) -> None:
        subprocess.run(["nsenter", f"--target={pid}", "--net", "ip", *line.split()], check=True)

    def _wait_for_namespace(self, pid: int) -> None:
        """Return when a process has left our network namespace."""
        end, ours = time.monotonic() + 30, Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{pid}/ns/net").readlink() == ours:
            if time.monotonic() > end:
                raise TimeoutError("unshare has made no network namespace in 30 s; is it permitted here?")
            time.sleep(0.05)


def has_limits() -> bool:
    """Return whether cgroups (version 1) can be written here; without them nothing is limited."""
    return all(
        (CGROUPS / kind / "cgroup.procs").exists() and os.access(_find_own_group(kind), os.W_OK) for kind in KINDS
    )


def parse_bytes(text: str) -> int:
    """Return an amount of memory as the file writes it, 512m or 2g, in bytes."""
    return int(text[:-1]) * UNITS[text[-1]]


def _find_own_group(kind: str) -> Path:
    """Return the cgroup of this process, in which those of containers are made: its limits are theirs too."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, kinds, path = line.split(":", 2)
        if kind in kinds.split(","):
            return CGROUPS / kind / path.lstrip("/")
    return CGROUPS / kind


def _make_groups(name: str, limits: Mapping[str, Any]) -> list[Path]:
    """Create a cgroup of each kind with the limits of a service (cpus, memory, pids), and return their folders."""
    if not has_limits():
        return []
    wanted = {
        "memory": ("memory.limit_in_bytes", parse_bytes(str(limits["memory"]))),
        "pids": ("pids.max", int(limits["pids"])),
        "cpu": ("cpu.cfs_quota_us", int(float(limits["cpus"]) * CPU_PERIOD)),
    }
    folders = []
    for kind, (file, value) in wanted.items():
        folder = _find_own_group(kind) / f"hindcast-{os.getpid()}-{name}"
        folder.mkdir()
        (folder / file).write_text(str(value), encoding="utf-8")
        folders.append(folder)
    return folders


def _remove_groups(folders: Sequence[Path]) -> None:
    """Remove cgroups, whose processes may take a moment to be gone."""
    for folder in folders:
        for _ in range(50):
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.1)
