# SPDX-License-Identifier: Apache-2.0
"""The tables of the pages, made from the kept runs: `python -m benchmarks tables [NAME ...]
[--write]` prints them, or puts them there.

In a page a table stands between `<!-- table NAME -->` and `<!-- end NAME -->`. Those of nets need
torch; without it they stay as they are.
"""

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec

from benchmarks import BENCHMARKS
from benchmarks.common import ROOT, parser


def _of(module: str, function: str = "tables", *arguments: str) -> Callable[[], str]:
    return partial(_call, module, function, arguments)


def _call(module: str, function: str, arguments: Sequence[str]) -> str:
    return str(getattr(import_module(f"benchmarks.{module}"), function)(*arguments))


def commands() -> str:
    """The benchmarks and their questions."""
    rows = [
        f"| `python -m benchmarks {name}` | {question} |"
        for name, (_, question) in BENCHMARKS.items()
    ]
    return "\n".join(["| command | question |", "|---|---|", *rows])


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "tabular": _of("tabular", "summary"),
        "deep": _of("deep.report", "summary"),
        "small-epsilon": _of("small_epsilon.report", "summary"),
    },
    "benchmarks/README.md": {
        "commands": commands,
        "tabular": _of("tabular"),
        "boosting": _of("boosting"),
        "curvature": _of("boosting", "curvature_table"),
        "columns": _of("boosting", "columns_table"),
        "rare": _of("rare"),
        "coverage": _of("coverage"),
        "deep": _of("deep.report"),
        "small-epsilon": _of("small_epsilon.report"),
        "pate": _of("pate"),
        "speed": _of("speed.command"),
        "deep-speed-cpu": _of("deep.speed", "tables", "cpu"),
        "deep-speed-gpu": _of("deep.speed", "tables", "gpu"),
        "defaults": _of("defaults"),
        "stages": _of("defaults", "stages_tables"),
        "deep-gpu": _of("deep.gpu"),
        "deep-defaults": _of("deep.defaults"),
    },
    "docs/aggregates.md": {"overlapping": _of("overlapping")},
    "docs/convex.md": {"convex": _of("convex")},
    "docs/numbers.md": {"numbers": _of("numbers")},
    "docs/rare_events.md": {
        "rare-known": _of("rare", "known_tables"),
        "rare-events": _of("rare_events"),
    },
    "docs/small_epsilon.md": {"pretrained": _of("pretrained")},
    "docs/deep.md": {"deep-share": _of("deep.share")},
    "docs/several.md": {"several": _of("several")},
    "docs/scale.md": {
        "scale": _of("scale"),
        "faults": _of("faults"),
        "plan": _of("scale", "planned"),
    },
}
"""The tables of each page, by name, and what makes them."""


def needs_torch(name: str) -> bool:
    """Return whether a table is about nets."""
    return name.startswith(("deep", "gpu"))


def every() -> list[tuple[str, str]]:
    """Page and name of every table."""
    return [(page, name) for page, tables in PAGES.items() for name in tables]


def put(text: str, name: str, table: str) -> str:
    """A page's text with its table of this name replaced."""
    found = re.compile(rf"(<!-- table {name} -->\n\n).*?(\n\n<!-- end {name} -->)", re.DOTALL)
    text, n = found.subn(lambda match: match[1] + table + match[2], text)
    if n != 1:
        raise ValueError(f"Expected one place for the table {name!r} in the page; got {n}.")
    return text


def main(arguments: Sequence[str]) -> None:
    """Print the tables, or put them into the pages."""
    options = parser("tables", __doc__)
    options.add_argument(
        "name", nargs="*", help=", ".join(dict.fromkeys(name for _, name in every()))
    )
    options.add_argument("--write", action="store_true", help="put them into the pages")
    args = options.parse_args(arguments)
    if unknown := set(args.name) - {name for _, name in every()}:
        options.error(f"no table {', '.join(sorted(unknown))}")
    wanted = [(page, name) for page, name in every() if not args.name or name in args.name]
    if not find_spec("torch"):
        if any(needs_torch(name) for _, name in wanted):
            print("Tables of nets are left out: pip install 'labeldp[torch]'", file=sys.stderr)
        wanted = [(page, name) for page, name in wanted if not needs_torch(name)]
    for page, name in wanted:
        table = PAGES[page][name]()
        if not args.write:
            print(f"{page}, {name}\n\n{table}\n")
            continue
        path = ROOT / page
        path.write_text(put(path.read_text(encoding="utf-8"), name, table), encoding="utf-8")
