"""What `make test-image` does without root: steps that copy, and what docker-compose.yaml becomes."""

from __future__ import annotations

from pathlib import Path

import chroots
import compose_file
import containers
import image
import image_celery
import pytest
from dockerfile import DockerfileError
from image_build import Builder, Image, ImageError

FILE = Path(__file__).parent.parent / "docker-compose.yaml"
SECRETS = compose_file.make_secrets(FILE.read_text(encoding="utf-8"))

DOCKERFILE = """FROM debian AS build
WORKDIR /opt/app
COPY jobs jobs
COPY one.txt two.txt ./
COPY one.txt renamed.txt

FROM debian
WORKDIR /opt
WORKDIR app
COPY --from=build /opt/app/jobs .parts
COPY --from=build /opt/app/one.txt /opt/app/renamed.txt there/
ENV PATH=/opt/app/bin:$PATH
USER app
ENTRYPOINT ["tini", "--"]
CMD ["app", "--help"]
"""


def list_files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir())


def test_stages_are_copied_as_docker_does(tmp_path: Path) -> None:
    context, base = tmp_path / "context", tmp_path / "base"
    (context / "jobs" / "java").mkdir(parents=True)
    base.mkdir()
    for name in ("jobs/a.py", "jobs/java/B.java", "jobs/c.pyc", "one.txt", "two.txt"):
        (context / name).write_text(name)
    (context / "jobs" / "link").symlink_to("../one.txt")
    (context / ".dockerignore").write_text("**/*.pyc\n")
    (tmp_path / "stages").mkdir()
    builder = Builder(context, Image(base), tmp_path / "stages")
    made = builder.build(DOCKERFILE)
    parts = ["a.py", "java/B.java", "link"]
    build = [*(f"opt/app/jobs/{part}" for part in parts), "opt/app/one.txt", "opt/app/renamed.txt", "opt/app/two.txt"]
    assert list_files(tmp_path / "stages" / "build") == build
    copied = [*(f"opt/app/.parts/{part}" for part in parts), "opt/app/there/one.txt", "opt/app/there/renamed.txt"]
    assert list_files(made.root) == copied
    assert (made.root / "opt/app/.parts/link").readlink() == Path("../one.txt")
    assert (made.user, made.workdir, made.entrypoint, made.command) == (
        "app",
        "/opt/app",
        ("tini", "--"),
        ("app", "--help"),
    )
    assert made.environ["PATH"].startswith("/opt/app/bin:/usr/local/bin:")
    again = Builder(context, Image(base), tmp_path / "stages", built=True).build(DOCKERFILE)
    assert (again, list_files(again.root)) == (made, copied)
    with pytest.raises(DockerfileError, match=r"line 2: COPY jobs/c.pyc: it is left out by .dockerignore"):
        builder.build("FROM debian\nCOPY jobs/c.pyc /")


def test_services_begin_after_those_that_they_need() -> None:
    services = compose_file.load_services(FILE, SECRETS)
    names = list(services)
    for name, service in services.items():
        assert all(names.index(other) < names.index(name) for other in service.get("depends_on", {}))
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == SECRETS["POSTGRES_PASSWORD"]
    assert '"$AIRFLOW_HOME"' in services["airflow-migrate"]["command"][2]
    with pytest.raises(KeyError, match="POSTGRES_PASSWORD"):
        compose_file.load_services(FILE, {})


def test_celery_changes_every_part_of_airflow_and_adds_a_worker() -> None:
    services = compose_file.load_services(FILE, SECRETS)
    changed = image_celery.add_celery(services)
    assert set(changed) - set(services) == {"redis", "airflow-worker"}
    parts = {n: s["environment"].get("AIRFLOW__CORE__EXECUTOR") for n, s in changed.items() if n.startswith("airflow-")}
    assert set(parts.values()) == {"CeleryExecutor"}
    assert services["airflow-scheduler"]["environment"]["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"


def test_a_user_of_a_container_has_no_rights_and_a_read_only_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\napp:x:50000:50001::/home/app:/bin/sh\n")
    chroot = chroots.Chroot(tmp_path, (chroots.Mount(tmp_path / "etc", "/data", read_only=True),), ("/tmp",), True)  # noqa: S108
    command = chroot.enter_command(["app", "a b"], {"A": "1"}, "50000:50000", "/opt")
    assert {"--reuid=50000", "--regid=50001", "--no-new-privs", "--bounding-set=-all"} <= set(command)
    assert command[-3:] == ["/opt", "app", "a b"]
    assert {"HOME=/home/app", "A=1"} <= set(command)
    script = chroot.mount_script().splitlines()
    assert script[-1] == f"mount -o remount,bind,ro {tmp_path}"
    assert f"mount -o remount,bind,ro {tmp_path}/data" in script
    with pytest.raises(KeyError):
        chroot.find_user("nobody")


def test_answers_and_amounts() -> None:
    printed = "customer | amount\nanna | 16.00\nbob | 10.00\ncandace | 24.00\ndave | 6.00\n"
    image.check_answer(printed)
    with pytest.raises(ImageError, match=r"does not say \{'dave': '6.00'\}"):
        image.check_answer(printed.replace("6.00\n", "5.00\n").replace("15.00", "16.00"))
    assert (containers.parse_bytes("512m"), containers.parse_bytes("2g")) == (2**29, 2**31)
