"""Execute a Dockerfile's steps in folders, without a Docker engine, and make the Debian that stands in for its base.

python:3.11-slim-bookworm is Debian bookworm with a Python 3.11 in /usr/local. Here debootstrap makes the Debian, and
Python is Debian's own 3.11, with `python` and `pip` in /usr/local/bin. Needs root. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from chroots import Chroot, Mount, run_in_chroot
from dockerfile import DockerfileError, Ignored, Stage, Step, expand_variables, parse_environment, parse_stages

RELEASE, PYTHON = "bookworm", "python3.11"
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Variables that a build inherits, as Docker's predefined arguments."""

CHANGES = ("RUN", "COPY")
"""Steps that change files."""

NETWORK_FILES = ("/etc/resolv.conf", "/etc/pip.conf")
"""Files of this machine that say how registries are reached; only the build sees them."""

SLIM = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*")
"""What Docker's Debian leaves out of each package."""

CLEAN = """Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin"; };
"""
"""How Docker's Debian keeps no packages that are installed."""


class ImageError(Exception):
    """What failed, and what to do about it."""


@dataclass(frozen=True)
class Image:
    """A root folder, and how its programs are started."""

    root: Path
    environ: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    user: str = "root"
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @property
    def mebibytes(self) -> float:
        """The size of the root on disk."""
        return measure_folder(self.root)


def measure_folder(folder: Path) -> float:
    """Return what `du` says of a folder, in MiB."""
    done = subprocess.run(["du", "-skx", str(folder)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0]) / 1024


def make_base(folder: Path) -> Image:
    """Return the stand-in for the base image, made in a folder unless it is there; ImageError if it cannot be made."""
    image, complete = Image(folder), folder.with_suffix(".complete")
    if complete.exists():
        return image
    if not shutil.which("debootstrap"):
        _check(["apt-get", "install", "-qq", "--yes", "--no-install-recommends", "debootstrap"], "apt-get update")
    shutil.rmtree(folder, ignore_errors=True)
    mirrors = dict(_list_mirrors())
    if RELEASE not in mirrors:
        fix = f"add one of {RELEASE} to /etc/apt/sources.list.d"
        raise ImageError(
            f"apt knows no mirror of Debian {RELEASE} ({', '.join(mirrors) or 'none'})\n  what to do: {fix}"
        )
    include = "--include=ca-certificates,netbase,tzdata"
    _check(["debootstrap", "--variant=minbase", include, RELEASE, str(folder), mirrors[RELEASE]], "see the lines above")
    sources = [f"deb {uri} {name} main" for name, uri in mirrors.items() if name.startswith(RELEASE)]
    (folder / "etc/apt/sources.list").write_text("\n".join(sources) + "\n", encoding="utf-8")
    (folder / "etc/apt/apt.conf.d/docker-clean").write_text(CLEAN, encoding="utf-8")
    slim = "".join(f"path-exclude {pattern}\n" for pattern in SLIM)
    (folder / "etc/dpkg/dpkg.cfg.d/docker").write_text(slim, encoding="utf-8")
    for path in (path for pattern in SLIM for path in folder.glob(pattern.lstrip("/"))):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for certificate in Path("/usr/local/share/ca-certificates").glob("*.crt"):  # authorities of this network
        shutil.copy(certificate, folder / "usr/local/share/ca-certificates")
    command = (
        "update-ca-certificates && apt-get update -qq && "
        f"apt-get install -qq --yes --no-install-recommends {PYTHON}-venv && {PYTHON} -m venv /usr/local && "
        "apt-get clean && rm -rf /var/lib/apt/lists/*"
    )
    if run_with_network(image, command):
        raise ImageError(f"the base in {folder} cannot be completed\n  what to do: see the lines above")
    complete.touch()
    return image


def run_with_network(image: Image, line: str) -> int:
    """Run a shell line in an image, which it changes, with this machine's network; return its exit code."""
    files = [Path(name) for name in NETWORK_FILES if Path(name).exists()]
    chroot = Chroot(image.root, tuple(Mount(path.resolve(), str(path), read_only=True) for path in files))
    added = [chroot.at(str(path)) for path in files if not chroot.at(str(path)).exists()]
    inherited = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    code = run_in_chroot(chroot, ["sh", "-c", line], {**inherited, **image.environ}, image.user, image.workdir)
    for path in added:
        path.unlink()
    return code


def _list_mirrors() -> Iterator[tuple[str, str]]:
    """Yield each release that this machine's apt knows, and where it is."""
    asked = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"]
    for line in subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines():
        release, _, uri = line.partition(" ")
        yield release, uri


def _check(command: list[str], fix: str) -> None:
    code = subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode
    if code:
        raise ImageError(f"`{' '.join(command)}` failed (exit code {code})\n  what to do: {fix}")


class Builder:
    """Executes stages: each in a folder of `folder`, which begins as a copy of its base."""

    def __init__(self, context: Path, base: Image, folder: Path, *, built: bool = False) -> None:
        """With `built` the folders are there from an earlier build: only how programs are started is read."""
        self.context, self.base, self.folder, self.built = context, base, folder, built
        ignored = context / ".dockerignore"
        self.ignored = Ignored(ignored.read_text(encoding="utf-8") if ignored.exists() else "")
        self.images: dict[str, Image] = {}

    def build(self, text: str) -> Image:
        """Return the image of the last stage of a Dockerfile; ImageError or DockerfileError if a step fails."""
        stages = parse_stages(text)
        for stage in stages:
            self.images[stage.name] = self._build_stage(stage)
        return self.images[stages[-1].name]

    def _build_stage(self, stage: Stage) -> Image:
        root = self.folder / stage.name
        image = self.images.get(stage.base, self.base)
        complete = self.folder / f"{stage.name}.complete"
        if self.built and complete.exists():
            image = replace(image, root=root)
            for step in stage.steps:
                image = image if step.name in CHANGES else self._execute(step, image)
            return image
        complete.unlink(missing_ok=True)
        shutil.rmtree(root, ignore_errors=True)
        print(f"FROM {stage.base} ({image.mebibytes:.0f} MiB)", flush=True)
        subprocess.run(["cp", "-a", str(image.root), str(root)], check=True)
        image = replace(image, root=root)
        for step in stage.steps:
            before, started = measure_folder(root), time.monotonic()
            print(f"{step.name} {' '.join(step.text.split())[:100]}", flush=True)
            image = self._execute(step, image)
            if step.name in CHANGES:
                grown = measure_folder(root) - before
                print(f"      {grown:+.0f} MiB, {time.monotonic() - started:.0f} s", flush=True)
        complete.touch()
        return image

    def _execute(self, step: Step, image: Image) -> Image:
        """Return the image after a step."""
        match step.name:
            case "RUN":
                self._run(step, image)
            case "COPY":
                self._copy(step, image)
            case "ENV":
                return replace(image, environ={**image.environ, **parse_environment(step, image.environ)})
            case "USER":
                return replace(image, user=step.text)
            case "WORKDIR":
                workdir = os.path.join(image.workdir, expand_variables(step.text, image.environ))  # noqa: PTH118
                (image.root / workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
                return replace(image, workdir=workdir)
            case "ENTRYPOINT":
                return replace(image, entrypoint=tuple(step.words), command=())
            case "CMD":
                return replace(image, command=tuple(step.words))
        return image

    def _run(self, step: Step, image: Image) -> None:
        if code := run_with_network(image, step.text):
            fix = f"see the lines above; its folder is {image.root}"
            raise ImageError(f"line {step.line}: RUN failed (exit code {code})\n  what to do: {fix}")

    def _copy(self, step: Step, image: Image) -> None:
        *sources, target = (expand_variables(word, image.environ) for word in step.words)
        place = image.root / os.path.join(image.workdir, target).lstrip("/")  # noqa: PTH118
        into = target.endswith(("/", ".")) or len(sources) > 1
        for source in sources:
            if stage := step.options.get("from"):
                self._copy_from_stage(self.images[stage].root / source.lstrip("/"), place, into=into)
            else:
                self._copy_from_context(step, source, place, into=into)
        if owner := step.options.get("chown"):
            who = Chroot(image.root).find_user(owner)
            subprocess.run(["chown", "-R", f"{who.uid}:{who.gid}", str(place)], check=True)

    def _copy_from_stage(self, source: Path, place: Path, *, into: bool) -> None:
        """Copy a file or what a folder has; links, rights and times stay as they are, the owner is root."""
        if source.is_dir() or into:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
        kept = "--preserve=mode,timestamps,links"
        what = f"{source}/." if source.is_dir() else str(source)  # what a folder has, not the folder
        subprocess.run(["cp", "--recursive", "--no-dereference", kept, what, str(place)], check=True)

    def _copy_from_context(self, step: Step, source: str, place: Path, *, into: bool) -> None:
        files = self.ignored.list_files(self.context, source)
        if not files:
            found = "is left out by .dockerignore" if (self.context / source).exists() else "is not there"
            raise DockerfileError(f"line {step.line}: COPY {source}: it {found}; correct the line or .dockerignore")
        folder = (self.context / source).is_dir()
        for file in files:
            inside = file.relative_to(self.context / source) if folder else Path(file.name)
            target = place / inside if folder or into else place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy2(file, target, follow_symlinks=False)
