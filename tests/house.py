# SPDX-License-Identifier: Apache-2.0
"""The size of the house, read from syntax trees: what `tests/test_architecture.py` keeps in budget.

Statements are counted, not lines: neither width, joining, comments nor docstrings move them.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

OTHERS = {
    "joblib", "lightgbm", "numpy", "pandas", "polars", "pyarrow", "pyspark", "ray", "scipy",
    "sklearn", "skops", "torch", "typer", "xgboost",
}  # fmt: skip
"""Libraries whose private names may not be imported."""
MANY, MANY_PRIVATE = 12, 8  # parameters of a public callable, and of a private function
WIDTH = 100
STACK = r"_getframe|currentframe|(walk|extract)_stack|inspect\.(stack|trace)|\bf_back\b"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def trees(folder: Path) -> dict[Path, ast.Module]:
    """Parse all Python files of a folder, by their path."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(folder.rglob("*.py"))}


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def statements(tree: ast.AST) -> int:
    """Count the statements of a file; docstrings are none."""
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in ast.walk(tree))


def rooms(source: Mapping[Path, ast.Module], folder: Path) -> dict[str, int]:
    """Count the statements of each package; files beside the packages are the root."""
    found: dict[str, int] = {}
    for path, tree in source.items():
        parts = path.relative_to(folder).parts
        room = parts[0] if len(parts) > 1 else "root"
        found[room] = found.get(room, 0) + statements(tree)
    return found


def _nodes(source: Mapping[Path, ast.Module], *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    return (node for tree in source.values() for node in ast.walk(tree) if isinstance(node, kinds))


def _parameters(function: Function) -> int:
    """Count the parameters; `**kw` hides any number of them, so it counts as too many."""
    args = function.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return len([each for each in named if each.arg not in ("self", "cls")])


def _fields(node: ast.ClassDef) -> int:
    """Count the fields of a dataclass or named tuple: they are what its constructor takes."""
    marks = [*node.decorator_list, *node.bases]
    if not any(re.search("dataclass|NamedTuple", ast.unparse(mark)) for mark in marks):
        return 0
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return sum("ClassVar" not in ast.unparse(field.annotation) for field in fields)


def _numbers(tree: ast.Module) -> int:
    """Count the numbers in assignments at module level, also in tuples, dicts and calls."""
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
    ]
    constants = [each for value in values if value for each in ast.walk(value)]
    return sum(
        isinstance(each, ast.Constant) and type(each.value) in (int, float) for each in constants
    )


def _foreign(node: ast.AST) -> list[str]:
    """Name what an import takes of other libraries' private parts."""
    if isinstance(node, ast.Import):
        full = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        full = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return []
    return [
        name
        for name in full
        if name.split(".")[0] in OTHERS and any(re.match(r"_(?!_)", p) for p in name.split("."))
    ]


def _takes_private(path: Path) -> bool:
    """Say whether a test imports a private module or name of labeldp."""
    pattern = r"labeldp[\w.]*\._|from labeldp[\w.]* import \(?[^)#]*?\b_"
    return re.search(pattern, path.read_text("utf-8")) is not None


def figures(root: Path) -> dict[str, int]:
    """Measure a checkout: every figure is better when it is smaller."""
    folder = root / "src" / "labeldp"
    source = trees(folder)
    functions = list(_nodes(source, ast.FunctionDef, ast.AsyncFunctionDef))
    public = [each for each in functions if not re.match(r"_(?!_init__)", each.name)]
    private = [each for each in functions if re.match(r"_(?!_init__)", each.name)]
    texts = {path: path.read_text("utf-8") for path in source}
    classes = list(_nodes(source, ast.ClassDef))
    tests, benchmarks = trees(root / "tests"), trees(root / "benchmarks")
    written = [*texts.values()]
    for each in (*tests, *benchmarks):
        written.append(each.read_text("utf-8"))
    return {
        "statements in src": sum(map(statements, source.values())),
        "statements in tests": sum(map(statements, tests.values())),
        "statements in benchmarks": sum(map(statements, benchmarks.values())),
        "functions": len(functions),
        "raise statements": len(list(_nodes(source, ast.Raise))),
        "numbers at module level": sum(map(_numbers, source.values())),
        "public callables with many parameters": sum(_parameters(f) > MANY for f in public)
        + sum(_fields(c) > MANY for c in classes),
        "private functions with many parameters": sum(
            _parameters(f) > MANY_PRIVATE for f in private
        ),
        "public functions with **": sum(f.args.kwarg is not None for f in public),
        "readers of stack frames": sum(len(re.findall(STACK, text)) for text in texts.values()),
        "exec or eval": sum(
            len(re.findall(r"(?<![.\w])(?:exec|eval)\(", text)) for text in texts.values()
        ),
        "private names of other libraries": sum(
            len(_foreign(node)) for node in _nodes(source, ast.Import, ast.ImportFrom)
        ),
        "test files that import private names": sum(map(_takes_private, tests)),
        "lines that are too long": sum(
            len(line) > WIDTH for text in written for line in text.splitlines()
        ),
    }
