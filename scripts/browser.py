"""Chromium and its driver, which the tests in a browser need: installed where we may, or what to do is said.

python3 scripts/browser.py        what `make test-browser` runs first
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PACKAGES = {"chromium": "chromium", "chromedriver": "chromium-driver"}
"""The programs, and Debian's packages of them."""


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
    return 0


def missing() -> list[str]:
    """The packages of what is not on the PATH."""
    return [package for program, package in PACKAGES.items() if not shutil.which(program)]


if __name__ == "__main__":
    sys.exit(main())
