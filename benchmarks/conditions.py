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
    """The commit of the working tree, with a plus if files have changed since; what BENCHMARK_COMMIT says in a copy without its history."""
    root = Path(__file__).parents[1]
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    if not head:
        return os.environ.get("BENCHMARK_COMMIT", "")
    return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")


def _git(root: Path, *words: str) -> str:
    try:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # no git here
        return ""
