# SPDX-License-Identifier: Apache-2.0
"""Runs one benchmark by its name, or lists them."""

import difflib
import os
import sys
from importlib import import_module

from benchmarks import BENCHMARKS

MISSING = {
    "torch": "pip install 'labeldp[torch]'",
    "pyspark": "pip install 'labeldp[spark]'",
    "ray": "pip install 'labeldp[ray]'",
}


def main(arguments: list[str]) -> int:
    """Run the benchmark that the first argument names, with the rest as its options."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("python -m benchmarks NAME [options]; NAME --help shows the options\n")
        print("\n".join(f"{name:20} {question}" for name, (_, _, question) in BENCHMARKS.items()))
        return 0
    name = arguments[0].replace("_", "-")
    if name not in BENCHMARKS:
        close = difflib.get_close_matches(name, BENCHMARKS, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        print(
            f"Expected the name of a benchmark; got {arguments[0]!r}. {hint}`python -m benchmarks`"
            " lists them.",
            file=sys.stderr,
        )
        return 2
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        # before NumPy is imported: small fits on two threads are far slower than on one
        os.environ.setdefault(variable, "1")
    try:
        import_module(f"benchmarks.{BENCHMARKS[name][0]}").main(arguments[1:])
    except ModuleNotFoundError as error:
        if error.name not in MISSING:
            raise
        print(f"{name} needs {error.name}: {MISSING[error.name]}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
