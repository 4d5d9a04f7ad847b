"""Is anything that requirements.lock pins known to be vulnerable, or withdrawn by its authors?

    python3 scripts/audit.py        what `make audit` runs

Vulnerabilities are asked of an advisory service, which pip-audit speaks to; where that does not answer nothing is known
of them, and the exit code is 1. Withdrawn (yanked) versions are told by the package index itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".venv" / "bin" / "uv"
LOCK = ROOT / "requirements.lock"
AUDITOR = "pip-audit==2.10.1"


def main(lock: Path = LOCK) -> int:
    """Return 0 if everything about the versions in `lock` was answered, and nothing found; else 1."""
    withdrawn = find_withdrawn(lock)
    for line in withdrawn:
        print(line)
    print(f"{len(withdrawn)} versions of {lock.name} were withdrawn", flush=True)
    # --strict: without it a package of which the service knows nothing counts as one without vulnerabilities
    command = [UV, "tool", "run", "--quiet", AUDITOR, "--strict", "--no-deps", "--disable-pip", "-r", lock]
    audited = subprocess.run([str(part) for part in command], check=False).returncode
    if audited:
        print("vulnerabilities: found, or not asked for; see above. No answer says nothing about the packages.")
    return 1 if withdrawn or audited else 0


def find_withdrawn(lock: Path = LOCK) -> list[str]:
    """Return what the package index says of versions in `lock` that their authors have withdrawn."""
    command = [str(UV), "pip", "install", "--dry-run", "--reinstall", "--no-deps", "--python", sys.executable]
    done = subprocess.run([*command, "-r", str(lock)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return [line for line in done.stderr.splitlines() if "is yanked" in line]


if __name__ == "__main__":
    sys.exit(main())
