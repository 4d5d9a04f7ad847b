"""Run a command in a folder as if that were the root of a machine: with mounts, processes and privileges of its own.

As containers are, by the programs of util-linux. The mounts are in a namespace of the command's own: they end when its
last process does, however it ends, and all of its processes end with ours. Needs root. Standard library only.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
KINDS = {"shm": "tmpfs -o mode=1777,size=64m shm", "pts": "devpts -o newinstance,ptmxmode=0666 devpts"}
STREAMS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}
END_WITH_PARENT = "--pdeathsig=KILL"
NO_PRIVILEGES = (END_WITH_PARENT, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")


class User(NamedTuple):
    """A user of a root: ids and the home folder, of its /etc/passwd."""

    uid: int
    gid: int
    home: str


class Mount(NamedTuple):
    """A file or folder of this machine that is seen at a path of the root."""

    source: Path
    target: str
    read_only: bool = False


class Chroot(NamedTuple):
    """A root folder and what is mounted in it. With `read_only` only mounts and `tmpfs` can be written to."""

    root: Path
    mounts: tuple[Mount, ...] = ()
    tmpfs: tuple[str, ...] = ()
    read_only: bool = False

    def make_mount_points(self) -> None:
        """Create the folders and empty files that the mounts cover, as Docker does."""
        for target in (*self.tmpfs, "/dev", "/proc"):
            self.at(target).mkdir(parents=True, exist_ok=True)
        for mount in self.mounts:
            point = self.at(mount.target)
            (point if mount.source.is_dir() else point.parent).mkdir(parents=True, exist_ok=True)
            if not mount.source.is_dir():
                point.touch()

    def at(self, path: str) -> Path:
        """Return where a path of the root is on this machine."""
        return self.root / path.lstrip("/")

    def find_user(self, name: str) -> User:
        """Return a user by name or number; KeyError if /etc/passwd of the root does not have it."""
        for line in self.at("/etc/passwd").read_text(encoding="utf-8").splitlines():
            user, _, uid, gid, _, home, _ = line.split(":")
            if name.partition(":")[0] in (user, uid):
                return User(int(uid), int(gid), home)
        raise KeyError(name)

    def mount_script(self) -> str:
        """Return shell lines that mount everything; they are for a mount namespace of their own."""
        root = shlex.quote(str(self.root))
        lines = [f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc"]
        lines.append(f"mount -t tmpfs -o mode=755,size=1m dev {root}/dev")
        lines += [f"touch {root}/dev/{name} && mount --bind /dev/{name} {root}/dev/{name}" for name in DEVICES]
        lines += [f"mkdir {root}/dev/{name} && mount -t {kind} {root}/dev/{name}" for name, kind in KINDS.items()]
        lines.append(f"ln -s pts/ptmx {root}/dev/ptmx")
        lines += [f"ln -s /proc/self/fd{end} {root}/dev/{name}" for name, end in STREAMS.items()]
        for mount in self.mounts:
            target = shlex.quote(str(self.at(mount.target)))
            lines.append(f"mount --bind {shlex.quote(str(mount.source))} {target}")
            if mount.read_only:
                lines.append(f"mount -o remount,bind,ro {target}")
        lines += [f"mount -t tmpfs -o mode=1777 tmpfs {shlex.quote(str(self.at(path)))}" for path in self.tmpfs]
        if self.read_only:
            lines.append(f"mount -o remount,bind,ro {root}")
        return "\n".join(lines)

    def enter_command(
        self, command: Iterable[str], environ: Mapping[str, str], user: str, workdir: str, *, privileged: bool = False
    ) -> list[str]:
        """Return the command that runs another in the root, where the mounts are."""
        who = self.find_user(user)
        ids = [f"--reuid={who.uid}", f"--regid={who.gid}", "--clear-groups"]
        rights = [] if privileged else [*ids, *NO_PRIVILEGES]
        variables = [f"{name}={value}" for name, value in {"HOME": who.home, **environ}.items()]
        go = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", workdir]
        program = ["setpriv", *rights, "--"] if rights else []
        return ["chroot", str(self.root), *program, "env", "-i", *variables, *go, *command]


def run_in_chroot(chroot: Chroot, command: list[str], environ: Mapping[str, str], user: str, workdir: str) -> int:
    """Run a command in a root on this machine's network, as root with all its rights or as another user with none.

    Return its exit code. What it prints is shown.
    """
    chroot.make_mount_points()
    entered = chroot.enter_command(command, environ, user, workdir, privileged=chroot.find_user(user).uid == 0)
    script = f"set -eu\n{chroot.mount_script()}\nexec {shlex.join(entered)}"
    isolated = ["setpriv", END_WITH_PARENT, "unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
    return subprocess.run([*isolated, "bash", "-c", script], stdin=subprocess.DEVNULL, check=False).returncode
