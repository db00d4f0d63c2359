# SPDX-License-Identifier: Apache-2.0
"""A law of somebody else's, from a module of its own: known by its name everywhere, and checked
before anything is charged for it."""

import importlib
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from tests.cli.commands import run

import labeldp as ldp
from labeldp.app import stage
from labeldp.app.plan import plan
from labeldp.custody._run import open_run
from labeldp.laws import LAWS, PriorBins, law_named, parse_law, spellings
from labeldp.learn import HistogramPrior
from labeldp.testing import check_law

ROOT = Path(__file__).resolve().parents[2]
DAYS = ["mo", "tu", "we", "th", "fr", "sa", "su"]
LABELS = np.random.default_rng(0).integers(7, size=1200)
X = (
    np.stack([np.cos(LABELS * np.pi / 3.5), np.sin(LABELS * np.pi / 3.5)], axis=1)
    + np.random.default_rng(1).normal(size=(1200, 2)) / 4
)


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder of the example is on the path, nothing of it is imported, and what is registered
    is forgotten after the test."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    before = dict(LAWS)
    sys.modules.pop("wheel_law", None)
    yield
    LAWS.clear()
    LAWS.update(before)


@pytest.fixture
def wheel(examples: None) -> Any:
    """The example's law, registered for one test."""
    return importlib.import_module("wheel_law").Wheel


@pytest.fixture
def ledger(tmp_path: Path) -> ldp.Ledger:
    return ldp.Ledger(tmp_path / "ledger.db")


def private(y: Any = LABELS, **facts: Any) -> ldp.PrivateLabels:
    return ldp.PrivateLabels(y, **{"classes": range(7), "dataset": "a", "column": "label"} | facts)


def visits(path: Path) -> Path:
    lines = [
        f"{i},{x:.4f},{y:.4f},{DAYS[day]}"
        for i, ((x, y), day) in enumerate(zip(X, LABELS, strict=True))
    ]
    path.write_text("\n".join(["visit,x,y,day", *lines]) + "\n")
    return path


def command(*given: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which knows no law but labeldp's and what it is told."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "examples")])
    }
    return subprocess.run(
        [sys.executable, "-m", "labeldp", *map(str, given)],
        capture_output=True,
        text=True,
        env=environment,
    )


def test_a_module_a_table_and_two_commands(tmp_path: Path, wheel: Any) -> None:
    source, out = visits(tmp_path / "visits.csv"), tmp_path / "noisy.csv"
    to, law = ("--label", "day", "--ledger", tmp_path / "ledger.db"), ("--law", "wheel_law:Wheel")
    done = command(
        "release",
        source,
        *to,
        "--classes",
        ",".join(DAYS),
        "--epsilon",
        2,
        "--id",
        "visit",
        *law,
        "--out",
        out,
    )
    assert done.returncode == 0, done.stderr
    noisy = ldp.read_noisy(out)
    assert [block.law for block in noisy.blocks] == [wheel(7, 2.0)]
    visit = noisy.ids.astype(int)
    right = np.mean(noisy.hard_codes() == LABELS[visit])
    # false alarm below 2e-9
    assert abs(right - float(wheel(7, 2.0).matrix()[0, 0])) < 6 * np.sqrt(0.25 / 1200)
    model = ldp.LabelDPClassifier(LogisticRegression()).fit(X[visit], noisy, ids=noisy.ids)
    assert model.score(X, np.array(DAYS)[LABELS]) > 0.7  # 0.912 ± 0.005
    trained = command("train", out, *to, *law, "--out", tmp_path / "model")
    assert trained.returncode == 0 and "(proven)" in trained.stdout, trained.stderr
    unknown = command("train", out, *to, "--law", "rr", "--out", tmp_path / "other")
    assert unknown.returncode == 4 and "register_law" in unknown.stderr


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ("no_such.module:Law", "No module named 'no_such'). Name its folder in PYTHONPATH"),
        ("wheel_law:Wheell", "AttributeError"),
        ("wheel_law:math", "subclass of labeldp.Law"),
        ("wheel_law:Wheel:3", "without a number"),
        ("wheel", "register_law"),
        ("subset:two", "subset[:SIZE]"),
    ],
)
def test_what_a_command_refuses(tmp_path: Path, examples: None, law: str, message: str) -> None:
    source, facts = (
        visits(tmp_path / "visits.csv"),
        (
            "--label",
            "day",
            "--classes",
            ",".join(DAYS),
            "--epsilon",
            1,
        ),
    )
    code, _, told = run(
        "release",
        source,
        *facts,
        "--law",
        law,
        "--out",
        tmp_path / "o.csv",
        "--ledger",
        tmp_path / "l.db",
    )
    assert code == 2 and message in " ".join(told.replace("│", " ").split())
    assert [file.name for file in tmp_path.iterdir()] == ["visits.csv"]


def test_its_name_is_known_everywhere_in_python(
    tmp_path: Path, ledger: ldp.Ledger, wheel: Any
) -> None:
    model = ldp.LabelDPClassifier(LogisticRegression(), epsilon=2.0, law="wheel")
    model.fit(X, private(ids=np.arange(1200), ledger=ledger))
    assert {block.law for block in model.noisy_labels_.blocks} == {wheel(7, 2.0)}
    spec = ldp.ReleaseSpec(
        "day", DAYS, 2.0, law="wheel", id="visit", unit="visit", max_rows_per_unit=2, dataset="b"
    )
    done = ldp.release(visits(tmp_path / "visits.csv"), tmp_path / "out.csv", spec, ledger)
    assert ldp.read_noisy(done.path).blocks[0].law == wheel(7, 1.0)
    lines = {
        line["law"]: line
        for line in plan(7, [2.0], laws=["wheel", "rr-top-k:3", "subset:1"])["laws"]
    }
    assert (
        lines["wheel"]["keep_probability"]
        == lines["wheel"]["noisy_accuracy"]
        == pytest.approx(wheel(7, 2.0).matrix()[0, 0])
    )
    assert lines["subset:1"]["bits_per_row"] == pytest.approx(lines["rr"]["bits_per_row"])
    code, said, _ = run("plan", "--classes", 7, "--epsilon", "1,2", "--law", "wheel")
    assert code == 0 and "wheel" in said
    with pytest.raises(ldp.InvalidInput, match="does not read it"):
        ldp.LabelDPClassifier(LogisticRegression(), law="wheel", prior=np.ones((1200, 7))).fit(
            X, private()
        )
    with pytest.raises(ldp.InvalidInput, match="uses the prior"):
        ldp.ReleaseSpec("day", DAYS, 2.0, law="wheel", prior=DAYS)


@pytest.mark.deep
@pytest.mark.skipif(not find_spec("torch"), reason="needs labeldp[torch]")
def test_a_net_is_trained_by_its_name(ledger: ldp.Ledger, wheel: Any) -> None:
    net = ldp.deep.models.Mlp(2, 7, (8,))
    model = ldp.deep.TorchClassifier(
        net, epsilon=2.0, law="wheel", recipe=ldp.deep.Recipe(epochs=1)
    ).fit(X.astype(np.float32), private(ledger=ledger))
    assert wheel(7, 2.0) in {block.law for block in model.noisy_labels_.blocks}


def test_names_with_numbers_mean_the_same_everywhere(tmp_path: Path, ledger: ldp.Ledger) -> None:
    model = ldp.LabelDPClassifier(LogisticRegression(), epsilon=1.0, law="subset:3")
    model.fit(X, private(ledger=ledger))
    assert {block.law for block in model.noisy_labels_.blocks} == {ldp.SubsetSelection(7, 1.0, 3)}
    assert parse_law("rr-top-k:3") == (ldp.RRTopK, {"k": 3})
    assert parse_law("cluster-rr:0.05") == (ldp.ClusterRR, {"floor": 0.05})
    assert parse_law("prior-bins:information") == (PriorBins, {"criterion": "information"})
    with pytest.raises(ValueError, match="information"):
        law_named("prior-bins:best", 8, 1.0)
    assert {
        "rr",
        "rr-top-k:K",
        "prior-bins[:CRITERION]",
        "subset[:SIZE]",
        "alibi[:LEVELS]",
        "cluster-rr[:FLOOR]",
    } <= set(spellings())
    for text in (
        "rr:3",
        "rr-top-k",
        "rr-top-k:",
        "rr-top-k:0",
        "rr-top-k:2.5",
        "rr-top-k:8",
        "subset:nan",
        "alibi:1e9",
        "cluster-rr:inf",
        3,
    ):
        with pytest.raises(ldp.InvalidInput):
            ldp.LabelDPClassifier(LogisticRegression(), law=text).fit(
                X, private(dataset="b", ledger=ledger)
            )
        with pytest.raises(ldp.InvalidInput):
            ldp.ReleaseSpec("day", DAYS, 1.0, law=text)
    assert [run.receipt.dataset for run in ledger.runs()] == ["a"]


def louder(wheel: Any) -> Any:
    """Its words are drawn at one and a half times the epsilon that its probabilities are stated
    for."""

    @dataclass(frozen=True)
    class Louder(wheel):
        name: ClassVar[str] = "planted"

        def sample(self, labels: Any, words: Any, side: Any) -> Any:
            return wheel(self.n_classes, 1.5 * self.epsilon).sample(labels, words, side)

    return ldp.register_law(Louder)


def modest(wheel: Any) -> Any:
    """It claims half of the epsilon that it has."""

    @dataclass(frozen=True)
    class Modest(wheel):
        name: ClassVar[str] = "planted"

        @property
        def _words(self) -> Any:
            return wheel(self.n_classes, 2 * self.epsilon)._words

    return ldp.register_law(Modest)


def unbounded(wheel: Any) -> Any:
    """Some outputs are possible for one label alone; its own word for epsilon hides it."""

    @dataclass(frozen=True)
    class Unbounded(wheel):
        name: ClassVar[str] = "planted"

        @property
        def _words(self) -> Any:
            return [2**64, *[0] * (self.n_classes - 1)]

        def exact_epsilon(self, side_row: Any = None) -> float:
            return float(self.epsilon)

    return ldp.register_law(Unbounded)


def nameless(wheel: Any) -> Any:
    """It goes by the name of randomized response."""

    @dataclass(frozen=True)
    class Nameless(ldp.RandomizedResponse):
        pass

    return Nameless


@pytest.mark.parametrize("planted", [louder, modest, unbounded, nameless])
@pytest.mark.parametrize("n_classes", [7, 40])
def test_what_costs_more_than_it_claims_is_refused_before_the_charge(
    planted: Any, n_classes: int, tmp_path: Path, ledger: ldp.Ledger, wheel: Any
) -> None:
    law = planted(wheel)(n_classes, 1.0)
    labels = private(classes=range(n_classes), ledger=ledger)
    source, expected = (
        visits(tmp_path / "visits.csv"),
        pytest.raises(ldp.InvalidInput, match=r"contract|registered"),
    )
    with expected:
        ldp.privatize(labels, law)
    with expected:
        ldp.LabelDPClassifier(LogisticRegression(), epsilon=1.0, law=law).fit(X, labels)
    declared = [*DAYS, *map(str, range(n_classes - 7))]
    with expected:
        ldp.release(
            source,
            tmp_path / "o.csv",
            ldp.ReleaseSpec("day", declared, 1.0, law, dataset="a"),
            ledger,
        )
    if law.name == "planted":
        with expected:
            plan(n_classes, [1.0], laws=["planted"])
    assert list(ledger.runs()) == [] and not (tmp_path / "o.csv").exists()


def test_what_is_honest_at_the_total_alone_is_refused_for_a_row(
    ledger: ldp.Ledger, wheel: Any
) -> None:
    @ldp.register_law
    @dataclass(frozen=True)
    class Stubborn(wheel):
        """Whatever a row's share of epsilon is, it takes the whole."""

        name: ClassVar[str] = "planted"

        @property
        def _words(self) -> Any:
            return wheel(self.n_classes, 2.0)._words

    labels = private(unit=np.arange(1200) // 2, max_rows_per_unit=2, ledger=ledger)
    with pytest.raises(ldp.InvalidInput, match="contract"):
        ldp.privatize(labels, Stubborn(7, 2.0))
    model = ldp.LabelDPClassifier(LogisticRegression(), epsilon=2.0, law="planted")
    with pytest.raises(ldp.InvalidInput, match="contract"):
        model.fit(X, labels)
    assert list(ledger.runs()) == []


def test_a_run_that_is_open_draws_by_no_law_that_lies(wheel: Any) -> None:
    with open_run(private(), epsilon=1.0, laws={}) as run:
        with pytest.raises(ldp.InvalidInput, match="contract"):
            run.privatize(np.arange(1200), louder(wheel)(7, 1.0))
        assert len(run.privatize(np.arange(1200), wheel(7, 1.0))) == 1200


def test_what_cannot_be_registered(wheel: Any) -> None:
    unfinished = type("Unfinished", (ldp.Law,), {"name": "unfinished"})
    unnamed = dataclass(frozen=True)(
        type("Unnamed", (wheel,), {"name": "two words", "__annotations__": {}})
    )
    taken = dataclass(frozen=True)(type("Taken", (wheel,), {"name": "rr", "__annotations__": {}}))
    wrong = (
        (unfinished, "without inclusion"),
        (unnamed, "a name of letters"),
        (taken, "Rename"),
        (print, "subclass"),
        (3, "subclass"),
    )
    for cls, message in wrong:
        with pytest.raises(ldp.InvalidInput, match=message):
            ldp.register_law(cls)
    again = dataclass(frozen=True)(
        type(
            "Wheel",
            (wheel,),
            {"name": "wheel", "__module__": wheel.__module__, "__annotations__": {}},
        )
    )
    assert ldp.register_law(again) is LAWS["wheel"] is again  # a notebook's cell that is run again


def test_a_law_keeps_the_name_that_it_was_registered_by(
    ledger: ldp.Ledger, wheel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = wheel(7, 1.0)
    monkeypatch.setattr(wheel, "name", "other")
    with pytest.raises(ldp.InvalidInput, match="registered"):
        ldp.privatize(private(ledger=ledger), law)
    with pytest.raises(ldp.InvalidInput, match="keep the name"):
        ldp.ReleaseSpec("day", DAYS, 1.0, law="wheel")
    assert list(ledger.runs()) == []


def test_the_contract_is_kept_without_assertions() -> None:
    """`python -O` leaves assertions out, and a charge rests on the contract."""
    code = (
        "import dataclasses, fractions, labeldp as ldp\n"
        "from labeldp.testing import check_law\n"
        "class Loud(ldp.RandomizedResponse):\n"
        "    name = 'loud'\n"
        "    def sample(self, labels, words, side): words.take(0); return labels.astype('int32')\n"
        "check_law(ldp.register_law(dataclasses.dataclass(frozen=True)(Loud))(3, 1.0))\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "AssertionError: label 0: words give" in done.stderr


@pytest.mark.parametrize("n_classes", [2, 3, 7, 8])
@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 20.0])
def test_the_example_keeps_the_contract(wheel: Any, n_classes: int, epsilon: float) -> None:
    check_law(wheel(n_classes, epsilon))
    assert sum(Fraction(words, 2**64) for words in wheel(n_classes, epsilon)._words) == 1


@pytest.fixture
def rounding(wheel: Any) -> Any:
    """It has whole powers of two for epsilon alone and takes the next larger one, and says so: each
    law by itself is honest."""

    @ldp.register_law
    @dataclass(frozen=True)
    class Rounding(wheel):
        name: ClassVar[str] = "rounding"

        def __post_init__(self) -> None:
            super().__post_init__()
            object.__setattr__(self, "epsilon", float(2.0 ** np.ceil(np.log2(self.epsilon))))

    return Rounding


def test_a_law_that_rounds_epsilon_up_breaks_the_contract(rounding: Any) -> None:
    with pytest.raises(AssertionError, match="more than it was asked for"):
        check_law(rounding(7, 1.0))


UNITS = {"unit": np.arange(1200) // 5, "max_rows_per_unit": 5}


def _by_privatize(law: Any, folder: Path, **facts: Any) -> None:
    ldp.privatize(private(**UNITS, **facts), law(7, 1.0))


def _by_an_estimator_with_units(law: Any, folder: Path, **facts: Any) -> None:
    model = ldp.LabelDPClassifier(LogisticRegression(), epsilon=1.0, law=law(7, 1.0))
    model.fit(X, private(**UNITS, **facts))


def _by_stages_of_an_estimator(law: Any, folder: Path, **facts: Any) -> None:
    model = ldp.LabelDPClassifier(LogisticRegression(), epsilon=1.0, law=law.name, stages=2)
    model.fit(X, private(**UNITS, **facts))


def _by_an_estimator(law: Any, folder: Path, **facts: Any) -> None:
    model = ldp.LabelDPClassifier(LogisticRegression(), epsilon=1.25, law=law.name)
    model.fit(X, private(**facts))


def _by_several_columns(law: Any, folder: Path, **facts: Any) -> None:
    columns = ldp.LabelColumns({"day": range(7), "half": [0, 1]})
    labels = ldp.PrivateLabels(np.column_stack([LABELS, LABELS % 2]), classes=columns, **facts)
    ldp.privatize(labels, columns.law(1.5, "equal", (law.name, "rr")))


def _by_release_with_units(law: Any, folder: Path, ledger: ldp.Ledger, dataset: str) -> None:
    spec = ldp.ReleaseSpec(
        "day", DAYS, 1.0, law=law(7, 1.0), unit="visit", max_rows_per_unit=5, dataset=dataset
    )
    ldp.release(visits(folder / "visits.csv"), folder / "out.csv", spec, ledger)


def _by_release(law: Any, folder: Path, ledger: ldp.Ledger, dataset: str) -> None:
    spec = ldp.ReleaseSpec("day", DAYS, 1.25, law=law.name, dataset=dataset)
    ldp.release(visits(folder / "visits.csv"), folder / "out.csv", spec, ledger)


def _by_release_with_a_histogram(law: Any, folder: Path, ledger: ldp.Ledger, dataset: str) -> None:
    @ldp.register_law
    @dataclass(frozen=True)
    class Sly(ldp.AutoLaw):
        """No check can try every epsilon: this law goes wrong at what the histogram leaves, and
        nowhere else."""

        name: ClassVar[str] = "sly"

        def at(self, epsilon: float) -> Any:
            return replace(self, epsilon=1.0 if epsilon == 0.75 else epsilon)

    spec = ldp.ReleaseSpec(
        "day", DAYS, 1.0, law=Sly(7, 1.0), prior=HistogramPrior(0.25), dataset=dataset
    )
    ldp.release(visits(folder / "visits.csv"), folder / "out.csv", spec, ledger)


def _by_stages_of_a_plan(law: Any, folder: Path, ledger: ldp.Ledger, dataset: str) -> None:
    spec = ldp.ReleaseSpec(
        "day",
        DAYS,
        1.0,
        law=law.name,
        unit="visit",
        max_rows_per_unit=5,
        id="visit",
        dataset=dataset,
    )
    made = stage.plan(folder / "plan", spec, (0.5, 0.5), ledger=ledger)
    stage.release(made, visits(folder / "visits.csv"), 1, folder / "out.csv")


DOORS = [value for name, value in list(globals().items()) if name.startswith("_by_")]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_a_law_that_rounds_epsilon_up_is_refused_before_the_charge(
    door: Any, ledger: ldp.Ledger, rounding: Any, tmp_path: Path
) -> None:
    with pytest.raises(ldp.InvalidInput, match="within the epsilon that it was made for"):
        door(rounding, tmp_path, dataset="a", ledger=ledger)
    assert list(ledger.runs()) == [] and not (tmp_path / "out.csv").exists()
