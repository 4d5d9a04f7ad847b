"""Chromium and its driver, which the tests in a browser need: installed where we may, or what to do is said.

Also axe-core, which checks pages for accessibility, by npm into var/node; without npm its tests are skipped.

python3 scripts/browser.py        what `make test-browser` runs first
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = {"chromium": "chromium", "chromedriver": "chromium-driver"}
"""The programs, and Debian's packages of them."""

NODE = Path(__file__).resolve().parent.parent / "var" / "node"
AXE = "axe-core@4.10.3"


def main() -> int:
    """Exit code 0 when both are there."""
    if missing() and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *missing()]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, check=False)
    if still := missing():
        print(
            f"tests in a browser need {' and '.join(PACKAGES)} on the PATH\n"
            f"  what to do: as root, apt-get install {' '.join(still)} (Debian), or your system's packages of them",
            file=sys.stderr,
        )
        return 1
    npm = shutil.which("npm")
    if npm and not (NODE / "node_modules" / "axe-core").exists():
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"]
        subprocess.run([npm, "install", "--prefix", str(NODE), *options, AXE], check=False)
    return 0


def missing() -> list[str]:
    """The packages of what is not on the PATH."""
    return [package for program, package in PACKAGES.items() if not shutil.which(program)]


if __name__ == "__main__":
    sys.exit(main())
