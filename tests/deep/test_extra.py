# SPDX-License-Identifier: Apache-2.0
"""torch is optional: nothing loads it unasked, and who asks without it is told what to install."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

import labeldp
from labeldp import deep


@pytest.mark.deep
def test_torch_is_installed() -> None:
    """The rest of this folder is not even collected without torch."""
    if find_spec("torch") is None:
        pytest.skip("tests/deep needs torch: run `make test-deep`")


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout


def test_naming_the_package_loads_no_torch() -> None:
    program = (
        "import sys, labeldp; labeldp.deep; dir(labeldp.deep); import labeldp.papers.ghazi2021;"
        " print('torch' in sys.modules)"
    )
    assert run(program).strip() == "False"


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_a_training_loop_loads_no_scikit_learn() -> None:
    program = (
        "import sys; from labeldp.deep import Consistency, train, with_evidence; print('sklearn' in"
        " sys.modules)"
    )
    assert run(program).strip() == "False"


def test_the_extra_is_named_where_torch_is_missing() -> None:
    program = """
import sys
sys.modules["torch"] = None
import labeldp
for name in labeldp.deep.__all__:
    try:
        getattr(labeldp.deep, name)
    except labeldp.MissingExtra as error:
        assert "labeldp[torch]" in str(error)
    else:
        raise SystemExit(f"{name} did not ask for torch")
print("told")
"""
    assert run(program).strip() == "told"


NAMES = ["papers.tang2022.Embedder", "papers.tang2022.simclr", "papers.tang2022.denoise_ssl"]
CALLS = [
    'papers.ghazi2021.lp_2st("cifar10", epsilon=1.0)',
    "papers.malek2021.alibi(epsilon=1.0)",
    "papers.tang2022.ldp_ssl(epsilon=1.0)",
    "papers.tang2022.FixMatchTeacher",
]


@pytest.mark.parametrize("asked", [*NAMES, *CALLS])
def test_the_papers_load_no_torch_and_name_the_extra_where_they_need_it(asked: str) -> None:
    program = f"""
import sys
import labeldp, sklearn.base  # which looks for torch among the modules that are loaded
sys.modules["torch"] = None
from labeldp import papers
from labeldp.papers import esfandiari2022, ghazi2021, malek2021, regression, tang2022
ghazi2021.stages("lp-2st", epsilon=1.0)
try:
    {asked}
except labeldp.MissingExtra as error:
    print("labeldp[torch]" in str(error))
"""
    assert run(program).strip() == "True"


def test_names_are_sorted_and_a_wrong_one_is_named() -> None:
    assert labeldp.deep is deep
    assert list(deep.__all__) == sorted(set(deep.__all__)) == dir(deep)
    with pytest.raises(AttributeError, match="likelihod_loss"):
        _ = deep.likelihod_loss
