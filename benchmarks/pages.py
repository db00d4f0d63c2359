# SPDX-License-Identifier: Apache-2.0
"""The tables of the pages, made from the kept runs: `python -m benchmarks pages [NAME ...]
[--write]` prints them, or puts them there.

In a page a table stands between `<!-- table NAME -->` and `<!-- end NAME -->`. Those of nets need
torch; without it they stay as they are.
"""

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from benchmarks import BENCHMARKS
from benchmarks.common import ROOT, parser


def commands() -> str:
    """The benchmarks, their questions, and the page that answers each."""
    rows = [
        f"| `{name}` | {question} | " + (f"[{page}](../docs/results/{page}.md) |" if page else "|")
        for name, (_, page, question) in BENCHMARKS.items()
    ]
    return "\n".join(["| NAME | question | results |", "|---|---|---|", *rows])


PAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "README.md": {"tabular": ("tabular", "first")},
    "docs/results/gains.md": {
        "tabular": ("tabular", "summary"),
        "deep": ("deep.report", "summary"),
        "small-epsilon": ("small_epsilon.report", "summary"),
    },
    "benchmarks/README.md": {"commands": ("pages", "commands")},
    "docs/results/tables.md": {
        "tabular": ("tabular", "tables"),
        "boosting": ("boosting", "tables"),
        "curvature": ("boosting", "curvature_table"),
        "columns": ("boosting", "columns_table"),
    },
    "docs/results/rare_classes.md": {
        "rare-classes": ("rare_classes", "tables"),
        "known-rate": ("rare_classes", "known_tables"),
        "campaigns": ("campaigns", "tables"),
    },
    "docs/results/numbers.md": {"numbers": ("numbers", "tables")},
    "docs/results/several.md": {"several": ("several", "tables")},
    "docs/results/convex.md": {"convex": ("convex", "tables")},
    "docs/results/small_epsilon.md": {
        "small-epsilon": ("small_epsilon.report", "tables"),
        "pretrained": ("pretrained", "tables"),
        "overlapping": ("overlapping", "tables"),
        "pate": ("pate", "tables"),
    },
    "docs/results/nets.md": {
        "deep": ("deep.report", "tables"),
        "deep-share": ("deep.share", "tables"),
    },
    "docs/results/images.md": {"deep-images": ("deep.images", "tables")},
    "docs/results/defaults.md": {
        "defaults": ("defaults", "tables"),
        "stages": ("defaults", "stages_tables"),
        "deep-untuned": ("deep.untuned", "tables"),
    },
    "docs/results/intervals.md": {"intervals": ("intervals", "tables")},
    "docs/results/speed.md": {
        "speed": ("speed.command", "tables"),
        "scale": ("scale", "tables"),
        "plan": ("scale", "planned"),
        "deep-step-cpu": ("deep.step", "tables", "cpu"),
        "deep-step-gpu": ("deep.step", "tables", "gpu"),
    },
    "docs/results/faults.md": {
        "faults": ("faults", "tables"),
        "deep-resume": ("deep.resume", "tables"),
    },
}
"""The tables of each page by name: the module and the function that make it, and its arguments."""


def made(page: str, name: str) -> str:
    """Make a table of a page."""
    module, function, *arguments = PAGES[page][name]
    return str(getattr(import_module(f"benchmarks.{module}"), function)(*arguments))


def needs_torch(name: str) -> bool:
    """Return whether a table is about nets."""
    return name.startswith("deep")


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
    options = parser("pages", __doc__)
    names = dict.fromkeys(name for _, name in every())
    options.add_argument("name", nargs="*", help=", ".join(names))
    options.add_argument("--write", action="store_true", help="put them into the pages")
    args = options.parse_args(arguments)
    if unknown := set(args.name) - set(names):
        options.error(f"no table {', '.join(sorted(unknown))}")
    wanted = [(page, name) for page, name in every() if not args.name or name in args.name]
    if not find_spec("torch"):
        if any(needs_torch(name) for _, name in wanted):
            print("Tables of nets are left out: pip install 'labeldp[torch]'", file=sys.stderr)
        wanted = [(page, name) for page, name in wanted if not needs_torch(name)]
    for page, name in wanted:
        table = made(page, name)
        if not args.write:
            print(f"{page}, {name}\n\n{table}\n")
            continue
        path = ROOT / page
        path.write_text(put(path.read_text(encoding="utf-8"), name, table), encoding="utf-8")
