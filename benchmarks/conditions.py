# SPDX-License-Identifier: Apache-2.0
"""Under which conditions a benchmark ran: kept beside every result."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("labeldp", "numpy", "scipy", "scikit-learn", "pyarrow", "cryptography")


def machine() -> dict[str, object]:
    """Processor, load, versions, commit and time."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "commit": commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str:
    """The commit that the working tree is at; with a plus if files have changed since."""
    root = Path(__file__).parents[1]
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()
