"""Commands that set-up runs: what they print is shown or counted, and what fails is tried again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping

ATTEMPTS, PAUSE_SECONDS = 3, 4.0


class SetupError(Exception):
    """What was found, and what to do about it."""


def run_command(command: list[str], environ: Mapping[str, str]) -> str:
    """Return what a command prints; raise SetupError with the end of it if the command fails."""
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        printed = (done.stderr.strip() or done.stdout.strip() or "it printed nothing")[-2000:]
        raise SetupError(f"`{shorten_command(command)}` failed:\n{printed}")
    return done.stdout


def retry_command(
    command: list[str], environ: Mapping[str, str], fix: str, *, count: str = "", counted: str = ""
) -> None:
    """Run a command with several attempts, as networks fail; raise SetupError with `fix` after the last one.

    Its output is shown; with `count`, only how many lines with this text there are, as the number of `counted`.
    """
    for attempt in range(1, ATTEMPTS + 1):
        code, tail = _count_lines(command, environ, count, counted) if count else _show_output(command, environ)
        if code == 0:
            return
        print(f"      attempt {attempt} of {ATTEMPTS} failed (exit code {code})", flush=True)
        if attempt < ATTEMPTS:
            time.sleep(PAUSE_SECONDS * attempt)
    raise SetupError(f"`{shorten_command(command)}` failed {ATTEMPTS} times\n{tail}  what to do: {fix}")


def shorten_command(command: list[str]) -> str:
    """Return a command as a text of at most 160 characters."""
    text = " ".join(command)
    return text if len(text) < 160 else f"{text[:157]}..."


def _show_output(command: list[str], environ: Mapping[str, str]) -> tuple[int, str]:
    return subprocess.run(command, env=environ, check=False).returncode, ""


def _count_lines(command: list[str], environ: Mapping[str, str], count: str, counted: str) -> tuple[int, str]:
    """Return the exit code and the last lines of a command whose many lines are shown as a number."""
    lines: list[str] = []
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        number = 0
        for line in process.stdout or ():
            lines = [*lines[-19:], line]
            if count in line:
                number += 1
                if number % 10 == 0:
                    print(f"      {number} {counted}", flush=True)
    return process.returncode, "".join(lines)
