# SPDX-License-Identifier: Apache-2.0
"""What was written before a law or a query moved to `labeldp.papers` is read as ever.

The ledger, tables and answers in `before.tar.gz` were made when these classes were in
`labeldp.laws`, `labeldp.aggregates` and `labeldp.research`.
"""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import labeldp as ldp
from labeldp.aggregates import Aggregate
from labeldp.laws import law_from_dict

AGES = ldp.Grid(0, 40, points=5)
RELEASES = {
    "alibi": ("people.csv", "label", "abc", 2.0, "alibi:9", "people"),
    "bins": ("ages.csv", "age", AGES, 1.0, "rr-on-bins", "bins"),
    "laplace": ("ages.csv", "age", AGES, 1.0, "laplace", "laplace"),
}
ANSWERS = {"teachers": "confident-gnmax", "peers": "peer", "best": "histogram"}


@pytest.fixture
def before(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).with_name("before.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="tar")
    return tmp_path / "before"


@pytest.mark.parametrize("name", [*RELEASES, "memory"])
def test_noisy_labels_are_read_with_the_likelihood_that_they_had(before: Path, name: str) -> None:
    stored = json.loads((before / "likelihoods.json").read_text())[name]
    memory = before / "alibi.parquet"
    noisy = (
        ldp.NoisyLabels.load(memory) if name == "memory" else ldp.read_noisy(before / f"{name}.csv")
    )
    assert np.allclose(noisy.likelihood(), stored, atol=1e-5)
    (receipt,) = noisy.receipts
    described = receipt.event["law"]["law"]
    assert law_from_dict(described).to_dict() | {"epsilon": described["epsilon"]} == described


@pytest.mark.parametrize("name", RELEASES)
def test_a_repeated_release_by_the_name_of_its_law_costs_nothing(before: Path, name: str) -> None:
    source, label, classes, epsilon, law, dataset = RELEASES[name]
    spec = ldp.ReleaseSpec(
        label,
        list(classes) if name == "alibi" else classes,
        epsilon,
        law=law,
        id="row",
        dataset=dataset,
    )
    ledger = ldp.Ledger(before / "ledger.db")
    stored = (before / f"{name}.csv").read_bytes()
    found = ldp.release(before / source, before / f"{name}.csv", spec, ledger)
    assert found.repeated
    assert (before / f"{name}.csv").read_bytes() == stored
    assert len(ledger.runs()) == 7


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_read_with_their_query(before: Path, name: str) -> None:
    answer = Aggregate.load(before / f"{name}.parquet")
    assert answer.query.name == ANSWERS[name]
    assert answer.receipt.recorded
    assert ldp.Ledger(before / "ledger.db").verify([answer.receipt]) == []


def test_the_ledger_is_in_order_and_its_laws_are_known(before: Path) -> None:
    ledger = ldp.Ledger(before / "ledger.db")
    assert ledger.verify() == []
    drawn = [
        run.receipt.event["law"]["law"]
        for run in ledger.runs()
        if run.receipt.event["event"] == "label-draw"
    ]
    names = ["alibi", "rr-on-bins", "laplace", "alibi"]
    assert [law_from_dict(each).name for each in drawn] == names == [each["law"] for each in drawn]


READS = """
import sys
from labeldp.aggregates import Aggregate
name = Aggregate.load(sys.argv[1]).query.name
print(name, [name for name in ("torch", "sklearn") if name in sys.modules])
"""


@pytest.mark.parametrize("name", ANSWERS)
def test_a_process_that_never_named_a_paper_reads_its_answers(before: Path, name: str) -> None:
    """The class is imported by its module path, and no learner with it."""
    arguments = [sys.executable, "-c", READS, str(before / f"{name}.parquet")]
    said = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    assert said.split() == [ANSWERS[name], "[]"]
