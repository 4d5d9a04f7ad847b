"""scripts/dockerfile.py: what it reads of a Dockerfile and its .dockerignore, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from dockerfile import DockerfileError, Ignored, expand_variables, parse_environment, parse_stages

ROOT = Path(__file__).parent.parent


def test_ours_is_read_whole() -> None:
    stages = parse_stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    last = {step.name: step for step in stages[-1].steps}
    assert last["USER"].text == "hindcast"
    assert last["ENTRYPOINT"].words == ["tini", "--"]
    assert last["CMD"].words == ["hindcast", "--help"]
    copied = {word for step in stages[-1].steps if step.name == "COPY" for word in step.words[:-1]}
    assert not copied & {".", "tests", "docs"}


def test_stages_steps_lines_and_options() -> None:
    text = """# a comment
FROM debian:12 AS build
RUN one \\
 # within
 && two

FROM build
COPY --from=build --chown=app /a /b \\
  /c/
ENV A=1 B="two words"
"""
    build, last = parse_stages(text)
    assert (build.name, build.base, last.name, last.base) == ("build", "debian:12", "1", "build")
    assert [(step.line, step.name, step.text) for step in build.steps] == [(3, "RUN", "one  && two")]
    copy, env = last.steps
    assert (copy.options, copy.words) == ({"from": "build", "chown": "app"}, ["/a", "/b", "/c/"])
    assert parse_environment(env, {}) == {"A": "1", "B": "two words"}


def test_variables() -> None:
    assert expand_variables("/v/bin:$PATH:${PATH}x$NONE", {"PATH": "/bin"}) == "/v/bin:/bin:/binx"
    (stage,) = parse_stages("FROM a\nENV P=new Q=$P")
    assert parse_environment(stage.steps[0], {"P": "old"}) == {"P": "new", "Q": "old"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no FROM"),
        ("RUN x", "line 1: RUN before the first FROM"),
        ("FROM a b", "line 1: FROM a b: write FROM image"),
        ("FROM a\nHEALTHCHECK NONE", "line 2: HEALTHCHECK is not one of COPY, CMD"),
        ("FROM a\nRUN --mount=type=cache,target=/x pip", "line 2: RUN --mount is not known here"),
        ("FROM a\nRUN <<E\nE", "line 2: RUN with a here-document or a list"),
        ('FROM a\nRUN ["x"]', "line 2: RUN with a here-document or a list"),
        ("FROM a AS x\nCOPY --from=x a b", "line 2: --from=x is no earlier stage (none)"),
        ("FROM a AS x\nFROM a\nCOPY --from=y a b", "line 3: --from=y is no earlier stage (x)"),
        ("FROM a\nCOPY a", "line 2: COPY a: name what is copied"),
        ("FROM a\nRUN x \\", "line 2: the file ends in a continued line"),
    ],
)
def test_what_is_not_known_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(DockerfileError) as caught:
        parse_stages(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "left_out", "copied"),
    [
        ("var", ["var", "var/a/b"], ["vary", "jobs/var"]),
        ("/var/", ["var/a"], ["jobs/var"]),
        ("**/__pycache__", ["__pycache__/a", "jobs/x/__pycache__/a.pyc"], ["jobs/x/a.py"]),
        ("*.md", ["README.md"], ["docs/a.md"]),
        ("**/*.md", ["README.md", "docs/a/b.md"], ["docs/a.mdx"]),
        ("a?c", ["abc"], ["ac", "a/c"]),
        ("*\n!jobs\n**/*.pyc", ["docs/a", "jobs/a.pyc"], ["jobs/hindcast/a.py"]),
        ("# jobs\n\n!x", [], ["# jobs", "jobs/a"]),
    ],
)
def test_dockerignore(pattern: str, left_out: list[str], copied: list[str]) -> None:
    ignored = Ignored(pattern)
    assert [path for path in (*left_out, *copied) if ignored.has(path)] == left_out


def test_files_that_may_be_copied(tmp_path: Path) -> None:
    for name in ("jobs/a.py", "jobs/b.pyc", "jobs/c/d.py", "one.xml"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    ignored = Ignored("**/*.pyc")
    assert [file.relative_to(tmp_path).as_posix() for file in ignored.list_files(tmp_path, "jobs")] == [
        "jobs/a.py",
        "jobs/c/d.py",
    ]
    assert ignored.list_files(tmp_path, "one.xml") == [tmp_path / "one.xml"]
    assert ignored.list_files(tmp_path, "none") == []
