# SPDX-License-Identifier: Apache-2.0
"""README, docs and docstrings tell the truth: their examples and commands run, in order, and their
links lead somewhere."""

import doctest
import re
import shlex
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.cli.commands import run

ROOT = Path(__file__).resolve().parents[1]
ANSWERS = sorted((ROOT / "docs" / "results").glob("*.md"))
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page not in ANSWERS]
PAGES = [ROOT / "README.md", *DOCS]
RESULTS = [ROOT / "benchmarks" / "README.md", *ANSWERS]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


EXAMPLES = [
    path.relative_to(ROOT / "src")
    for path in sorted((ROOT / "src").rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]
NETS = ("_embed", "_recipes", "_teacher")
"""Files of the papers whose examples need torch."""
EXAMPLE = [
    (
        pytest.param(path, marks=pytest.mark.deep)
        if "deep" in path.parts or path.stem in NETS
        else path
    )
    for path in EXAMPLES
]


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a page in one language, with the line each starts on."""
    text = page.read_text(encoding="utf-8")
    return [
        (text[: match.start()].count("\n") + 2, match.group(1))
        for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def needed(page: Path) -> list[str]:
    """What the examples of a page need beyond the plain installation."""
    code = "\n".join(text for _, text in blocks(page, "python"))
    nets = re.search(r"\btorch\b|labeldp\.deep|ldp\.deep", code)
    return ["torch", "lightning_fabric"] if nets else []


RUN = [pytest.param(page, marks=pytest.mark.deep) if needed(page) else page for page in PAGES]


@pytest.mark.usefixtures("same_noise")  # of the Python blocks, whose figures are compared
@pytest.mark.parametrize("page", RUN, ids=named)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python blocks share one namespace a page and run in an empty folder; so do the page's
    `labeldp` commands, after them."""
    if not all(map(find_spec, needed(page))):
        pytest.skip("needs labeldp[torch,fabric]: run `make test-deep`")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "example"}
    parser, problems = doctest.DocTestParser(), []
    for line, code in blocks(page, "python"):
        if ">>>" not in code:
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
            continue
        test = parser.get_doctest(code, namespace, page.name, str(page), line - 1)
        runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
        runner.run(test, out=problems.append, clear_globs=False)
        namespace.update(test.globs)
    assert not problems, "".join(problems)
    for line, text in blocks(page, "console"):
        for command in re.findall(r"^\$ (labeldp .*)$", text.replace("\\\n", " "), re.MULTILINE):
            code, said, told = run(*shlex.split(command)[1:])
            assert code == 0, f"{page.name}:{line}: {command}\n{said}\n{told}"


@pytest.mark.parametrize("path", EXAMPLE, ids=str)
def test_examples_of_docstrings_run(path: Path) -> None:
    """The figures in a docstring are those that its example prints."""
    if "deep" in path.parts or path.stem in NETS:
        pytest.importorskip("torch")
    problems: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    for test in doctest.DocTestFinder(exclude_empty=True).find(
        import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    ):
        runner.run(test, out=problems.append)
    assert not problems, "".join(problems)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is there, and to a heading that the page has."""
    missing = []
    for target, anchor in re.findall(
        r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")
    ):
        place = page.parent / target if target else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            missing.append(f"{target}#{anchor}")
    assert not missing


def test_errata_name_tests_that_exist() -> None:
    """Every test that a page names is there."""
    named = {
        match
        for page in [*PAGES, *RESULTS]
        for match in re.findall(r"`(tests/[\w/]+\.py)(?:::\w+)?`", page.read_text(encoding="utf-8"))
    }
    assert not [path for path in named if not (ROOT / path).exists()]
    for page in PAGES:
        for path, name in re.findall(
            r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")
        ):
            assert re.search(rf"def {name}\b", (ROOT / path).read_text(encoding="utf-8")), (
                f"{page.name} names {path}::{name}"
            )


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_documents_import_public_names_only(page: Path) -> None:
    """A module of its own, or a name in its package's `__all__`; a name with an underscore is
    nobody's but ours."""
    for module, names in re.findall(
        r"(?m)^(?:>>> |\.\.\. )?from (labeldp[\w.]*) import ([\w, ]+)",
        page.read_text(encoding="utf-8"),
    ):
        assert "._" not in module, f"{module} is private"
        for name in names.replace(" ", "").split(","):
            path = ROOT / "src" / Path(*module.split(".")) / "__init__.py"
            public = (
                f'"{name}"' in path.read_text(encoding="utf-8")
                or (
                    path.with_suffix(".pyi").exists()
                    and f" as {name}\n" in path.with_suffix(".pyi").read_text(encoding="utf-8")
                )
                if path.exists()
                else not name.startswith("_")
            )
            assert public or (path.parent / f"{name}.py").exists(), (
                f"{module} does not offer {name}"
            )


OPTIONS = [page for page in PAGES if "LearnOptions(" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", OPTIONS, ids=lambda page: page.stem)
def test_documents_import_the_options_that_they_name(page: Path) -> None:
    assert re.search(
        r"from labeldp\.learn import [\w, ]*\bLearnOptions\b", page.read_text(encoding="utf-8")
    )


def test_the_map_of_the_code_names_files_that_are_there() -> None:
    """Every file that the page names exists, and every private module of the package is named on
    it."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "labeldp"
    named = {
        name for name in re.findall(r"`([\w/]+(?:\.py|/))`", page) if not name.startswith("tests/")
    }
    assert not [
        name for name in named if not (package / name).exists() and not (ROOT / name).exists()
    ]
    private = {
        path.relative_to(package).as_posix()
        for path in package.rglob("_*.py")
        if not path.stem.startswith("__")
    }
    folders = tuple(name for name in named if name.endswith("/"))
    helpers = {"_files.py", "_hash.py", "_registry.py", "_validate.py"}
    assert not [name for name in sorted(private - named - helpers) if not name.startswith(folders)]
