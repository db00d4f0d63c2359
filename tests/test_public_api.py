# SPDX-License-Identifier: Apache-2.0
"""What users see: the names, their documentation, how fast the package imports, and what is in the
wheel."""

import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import labeldp

ROOT = Path(__file__).resolve().parents[1]
NAMES = [
    name
    for name in labeldp.__all__
    if name not in ("aggregates", "deep", "errors", "laws", "learn", "metrics", "stats")
]
HEAVY = (
    "numpy",
    "scipy",
    "sklearn",
    "pyarrow",
    "cryptography",
    "typer",
    "rich",
    "skops",
    "pandas",
    "torch",
)
ON_TORCH = ("labeldp.papers.tang2022",)
SPELT_OUT = r"_Buffer|_SupportsArray|_NestedSequence|_array_like|numpy\._typing"
ARRAYS = ("NDArray", "ArrayLike", "ndarray")


def test_names_are_sorted_few_and_all_there() -> None:
    assert list(labeldp.__all__) == sorted(set(labeldp.__all__))
    assert len(labeldp.__all__) <= 50
    assert set(labeldp.__all__) <= set(dir(labeldp))
    with pytest.raises(AttributeError, match="labeldp attribute nonsense"):
        _ = labeldp.nonsense


def documented(thing: Any) -> list[tuple[str, Any]]:
    """A public object and, for a class, the public methods and properties that it defines
    itself."""
    found = [(thing.__name__, thing)]
    if inspect.isclass(thing) and not issubclass(thing, BaseException):
        for name, member in vars(thing).items():
            target = (
                member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            )
            if not name.startswith("_") and inspect.isfunction(target):
                found.append((f"{thing.__name__}.{name}", target))
    return found


def own_doc(thing: Any) -> str:
    """A class's or function's docstring; what a dataclass makes up from its fields does not
    count."""
    text = inspect.getdoc(thing) or ""
    made_up = inspect.isclass(thing) and text.startswith(f"{thing.__name__}(")
    return "" if made_up else text


def takes_arrays(function: Any) -> list[str]:
    """The arguments of a function that its annotations call arrays; mappings of arrays are
    described where they are made."""
    annotations = {
        name: str(note)
        for name, note in getattr(function, "__annotations__", {}).items()
        if name != "return"
    }
    return [
        name
        for name, note in annotations.items()
        if any(word in note for word in ARRAYS) and "Mapping[" not in note and "dict[" not in note
    ]


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_documented(name: str) -> None:
    missing = [label for label, thing in documented(getattr(labeldp, name)) if not own_doc(thing)]
    assert not missing, f"no docstring: {missing}"


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_described(name: str) -> None:
    """What a public function or class takes stands in a numpydoc section, and arrays are given with
    their shapes."""
    thing = getattr(labeldp, name)
    if inspect.isclass(thing) and (
        issubclass(thing, BaseException) or not inspect.signature(thing).parameters
    ):
        return
    text = own_doc(thing)
    sections = any(
        f"{section}\n{'-' * len(section)}" in text for section in ("Parameters", "Attributes")
    )
    assert sections, f"{name}: no numpydoc section Parameters or Attributes"
    for label, member in documented(thing):
        arrays = takes_arrays(member)
        shaped = any(shape in own_doc(member) for shape in ("(n", "(m", "(K"))
        assert shaped or not arrays, f"{label}: no shape for {arrays}"


def public_modules() -> list[Any]:
    """The modules that users may name."""
    found = [
        "labeldp",
        *(module.name for module in pkgutil.walk_packages(labeldp.__path__, "labeldp.")),
    ]
    public = [name for name in found if "._" not in name and not name.endswith("__main__")]
    torch = [
        pytest.mark.deep,
        pytest.mark.skipif(not find_spec("torch"), reason="needs labeldp[torch]"),
    ]
    return [
        pytest.param(name, marks=torch if name in ON_TORCH or ".deep" in name else ())
        for name in public
    ]


@pytest.mark.parametrize("name", public_modules())
def test_no_signature_spells_out_what_numpy_takes_for_an_array(name: str) -> None:
    module = import_module(name)
    things = [
        getattr(module, each)
        for each in getattr(module, "__all__", None) or vars(module)
        if not each.startswith("_")
    ]
    own = [
        each
        for each in things
        if hasattr(each, "__name__") and str(getattr(each, "__module__", "")).startswith("labeldp")
    ]
    members = [member for each in own if callable(each) for member in documented(each)]
    assert not [label for label, thing in members if re.search(SPELT_OUT, signature_of(thing))]


def signature_of(thing: Any) -> str:
    try:
        return str(inspect.signature(thing))
    except ValueError:  # of a class that is made by C
        return ""


def test_the_help_of_the_classifier_begins_on_one_screen() -> None:
    """Name, signature and summary in 50 lines of 100 columns, of which the signature takes 8."""
    cls = labeldp.LabelDPClassifier
    assert len(textwrap.wrap(f"{cls.__name__}{inspect.signature(cls)}", 100)) <= 8
    text = pydoc.plain(pydoc.render_doc(cls)).split("\n")
    screen = [part for line in text for part in textwrap.wrap(line, 100) or [""]][:50]
    assert "class LabelDPClassifier in module" in screen[0]
    assert any(str(cls.__doc__).split("\n")[0] in line for line in screen)


def test_importing_is_light() -> None:
    """`import labeldp` and listing its names load none of the libraries it stands on."""
    program = (
        "import sys, labeldp; dir(labeldp); print(*sorted({name.split('.')[0] for name in"
        " sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "labeldp" in loaded
    assert not set(HEAVY) & set(loaded)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this source without a network."""
    out = tmp_path_factory.mktemp("wheel")
    build = f"from hatchling.build import build_wheel; build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True)
    (path,) = out.glob("labeldp-*.whl")
    return path


def test_the_wheel_holds_the_package_and_its_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "labeldp").rglob("*.py")
    }
    packed = {name for name in names if name.endswith(".py")}
    assert packed == sources
    assert {"labeldp/py.typed", "labeldp/__init__.pyi", "labeldp/tables/__init__.pyi"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert f"Version: {labeldp.__version__}\n" in metadata


def test_the_source_distribution_holds_what_its_tests_read(tmp_path: Path) -> None:
    """Tests import the benchmarks, run the examples, and read the pages and the Makefile."""
    build = f"from hatchling.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("labeldp-*.tar.gz")
    with tarfile.open(path) as archive:
        packed = {name.split("/", 1)[1] for name in archive.getnames()}
    wanted = {
        ROOT / name
        for name in ("Makefile", "constraints.txt", "README.md", "CHANGELOG.md", "pyproject.toml")
    }
    for folder in ("src", "tests", "docs", "benchmarks", "examples"):
        wanted |= {
            path
            for path in (ROOT / folder).rglob("*.*")
            if path.suffix in (".py", ".md", ".json", ".gz", ".png")
        }
    names = {path.relative_to(ROOT).as_posix() for path in wanted if ".cache" not in path.parts}
    assert len(names) > 300
    assert not names - packed


def test_the_command_is_installed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "labeldp = labeldp.cli:main" in archive.read(entry).decode()
