"""Build the image of Dockerfile without Docker, start docker-compose.yaml's services in it, and run a pipeline.

    .venv/bin/python scripts/image.py                what `make test-image` runs
    .venv/bin/python scripts/image.py --celery       what `make test-celery` runs: Airflow with the CeleryExecutor

Needs root on a Debian, which has debootstrap, and Go for the object store. Everything made is under `--folder`
(var/image); a Debian that is there already is used again, and with `--built` the image too. `--build` only builds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cluster
import image_celery
from compose_file import load_services, make_secrets
from containers import has_limits
from dockerfile import DockerfileError
from image_build import Builder, Image, ImageError, make_base, measure_folder
from image_services import POSTGRES, Composition, StandIn, make_stand_ins

ROOT = Path(__file__).resolve().parent.parent
PIPELINE = "restaurant"
EXPECTED = {"anna": "16.00", "bob": "10.00", "candace": "24.00", "dave": "6.00"}
"""What each customer owes after the first records of the demo."""

PRODUCE = """
from hindcast.common.settings import read_settings
from hindcast.kafka import produce
from hindcast_demo import restaurant
servers, first = read_settings().kafka, restaurant.first_records()
produce.create_topics(servers, *first)
for topic, records in first.items():
    produce.send_records(servers, topic, records)
"""
RUN = """
import sys
from hindcast_local.api import AirflowClient
url, password, pipeline = sys.argv[1:]
web = AirflowClient(url, ("admin", password))
web.unpause(pipeline, 300)
run = web.wait(pipeline, seconds=1800)
for task in web.tasks(pipeline, run):
    print("     ", task["task_id"], task["state"], f"{task['duration'] or 0:.0f} s", flush=True)
"""


def main(arguments: list[str]) -> int:
    """Return 0 when the image is built and a pipeline has run in it."""
    parser = argparse.ArgumentParser(description="build the image without Docker and run a pipeline in it")
    parser.add_argument("--folder", type=Path, default=ROOT / "var" / "image", help="where everything is made")
    parser.add_argument("--build", action="store_true", help="only build")
    parser.add_argument("--built", action="store_true", help="use the image of an earlier build")
    parser.add_argument("--celery", action="store_true", help="with the CeleryExecutor, Redis and a worker")
    asked = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print(
            "image: mounts and chroot need root\n  what to do: run it as root, in a machine of your own",
            file=sys.stderr,
        )
        return 1
    os.umask(0o022)
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.default_int_handler)
    try:
        folder = asked.folder.resolve()
        image = build_image(folder, built=asked.built)
        if not asked.build:
            run_pipeline(image, folder, celery=asked.celery)
    except (ImageError, DockerfileError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("image: interrupted", file=sys.stderr)
        return 130
    return 0


def build_image(folder: Path, *, built: bool) -> Image:
    """Return our image, built anew in a folder, or what an earlier build has left there."""
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    base = make_base(folder / "base")
    print(f"base: {base.mebibytes:.0f} MiB, {time.monotonic() - started:.0f} s", flush=True)
    started, stages = time.monotonic(), folder / "stages"
    stages.mkdir(exist_ok=True)
    image = Builder(ROOT, base, stages, built=built).build((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    print(f"image: {image.mebibytes:.0f} MiB, {time.monotonic() - started:.0f} s", flush=True)
    for part in ("usr", "opt"):
        print(f"      /{part}: {measure_folder(image.root / part):.0f} MiB", flush=True)
    return image


def run_pipeline(image: Image, folder: Path, *, celery: bool) -> None:
    """Start every service of the file, and run a pipeline to its end; ImageError if something fails."""
    file = ROOT / "docker-compose.yaml"
    told = make_secrets(file.read_text(encoding="utf-8"))
    services = load_services(file, told)
    debian = Builder(ROOT, make_base(folder / "base"), folder / "stages", built=True)
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "run").mkdir()
    store = build_store(folder)
    stand_ins = make_stand_ins(image, debian.build(POSTGRES), store, folder / "run", services["kafka"])
    if celery:
        stand_ins["redis"] = StandIn(debian.build(image_celery.REDIS))
        services = image_celery.add_celery(services)
        image = Builder(ROOT, image, folder / "stages").build(image_celery.OURS)
    made = Composition(services, image, stand_ins, folder / "run")
    print(f"limits: {'those of the file' if has_limits() else 'none: cgroups of version 1 cannot be written'}")
    started = time.monotonic()
    with made.network as network:
        made.start()
        print(f"all services are healthy: {time.monotonic() - started:.0f} s", flush=True)
        started = time.monotonic()
        made.run("airflow-scheduler", "python", "-c", PRODUCE)
        url = f"http://{network.addresses['airflow-api-server-1']}:8080"
        command = [sys.executable, "-c", RUN, url, told["AIRFLOW_ADMIN_PASSWORD"], PIPELINE]
        path = os.pathsep.join(str(ROOT / name) for name in ("jobs", "tools"))
        done = subprocess.run(network.outside_command(command), env={**os.environ, "PYTHONPATH": path}, check=False)
        if done.returncode:
            raise ImageError(f"the DAG run of {PIPELINE} failed:\n{made.read_log('airflow-scheduler-1')}")
        check_answer(made.run("airflow-scheduler", "hindcast", "query", f"{PIPELINE}.bills"))
        print(f"a run of {PIPELINE} is completed: {time.monotonic() - started:.0f} s", flush=True)
        for container in network.containers:
            if usage := container.read_usage():
                peak = usage["peak"] / 2**20
                print(f"      {container.name}: at most {peak:.0f} MiB, {usage['failures']} times at its limit")


def check_answer(printed: str) -> None:
    """Print what the pipeline's table says; ImageError unless it is what was ordered."""
    print(printed)
    lines = [line.replace("|", " ").split() for line in printed.splitlines()]
    missing = {who: owed for who, owed in EXPECTED.items() if not any({who, owed} <= set(line) for line in lines)}
    if missing:
        raise ImageError(f"{PIPELINE}.bills does not say {missing}:\n{printed}")


def build_store(folder: Path) -> Path:
    """Return the program of the object store, built from source unless it is there."""
    program = folder / "go" / "versitygw"
    if program.exists():
        return program
    if not shutil.which("go"):
        raise ImageError("there is no Go, with which the object store is built\n  what to do: install Go")
    command = ["go", "install", cluster.STORE]
    done = subprocess.run(command, env={**os.environ, "GOBIN": str(program.parent)}, check=False)
    if done.returncode:
        raise ImageError(f"`{' '.join(command)}` failed\n  what to do: see the lines above")
    return program


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
