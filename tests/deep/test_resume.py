# SPDX-License-Identifier: Apache-2.0
"""A fit that was broken off goes on where it was, draws no label twice, and refuses the folder of
another fit."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.common import load_json
from tests.deep.datasets import Rows, closed, separated
from tests.naming import named
from torch.utils.data import DataLoader

import labeldp as ldp
from labeldp.deep import (
    Optimizer,
    Recipe,
    TorchClassifier,
    cross_entropy,
    generalised_cross_entropy,
    likelihood_loss,
    schedules,
)
from labeldp.deep._stages import opened
from labeldp.deep.models import Ensemble, Mlp
from labeldp.errors import LabelDPWarning
from labeldp.learn import Prior

ROOT = Path(__file__).resolve().parents[2]
K, N = 4, 500
X, Y = separated(N, K)
RECIPE = Recipe(epochs=2, batch_size=64, rate=0.05, precision="float32", optimizer="sgd")


class Stopped(Exception):
    """Raised by a progress function."""


class Stop:
    """Stops a fit after so many epochs."""

    def __init__(self, after):
        self.after, self.seen = after, 0

    def __call__(self, epoch):
        self.seen += 1
        if self.seen > self.after:
            raise Stopped


def seeded_net(k=K):
    """A net with the same first weights in every run of the tests."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Mlp(K, k, (8,))


def fresh_net(k):
    """A net with the first weights that a seed gives it."""
    return Mlp(K, k, (8,))


def classifier(place, after=10**9, **settings):
    defaults = {
        "recipe": RECIPE,
        "stages": 3,
        "folder": place / "fit",
        "progress": Stop(after),
    }
    return TorchClassifier(**{"module": seeded_net} | defaults | settings)


def kept(place, y=Y, **facts):
    """Labels of the ledger in a folder."""
    account = {"ledger": ldp.Ledger(place / "ledger.db", budget=10.0)}
    return closed(y, K, **account | facts)


def program(*lines):
    """Run lines with the benchmark's functions at hand, in a process that may be forked."""
    text = "\n".join(["from benchmarks.deep import resume", *lines])
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", text]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_fits_that_are_killed_at_random_moments_end_as_if_nothing_had_happened(tmp_path):
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks",
        "deep-resume",
        "--kills",
        "5",
        "--seed",
        "3",
    ]
    subprocess.run(
        command,
        cwd=ROOT,
        check=True,
        capture_output=True,
        env=os.environ | {"BENCHMARK_RESULTS": str(tmp_path)},
    )
    trials = load_json(tmp_path / "deep-resume.json.gz")["trials"]
    assert sum(len(each["kills"]) for each in trials) >= 5
    assert [each["problems"] for each in trials] == [[] for _ in trials]


def test_what_a_kill_must_not_do_would_be_seen(tmp_path):
    """Labels drawn twice, a stage trained twice, and half a file, all planted."""
    told = program(
        "import shutil",
        "from pathlib import Path",
        f"place = Path({str(tmp_path / 'place')!r})",
        "assert resume.attempt(place) == 0",
        "shutil.rmtree(place / 'fit')",
        "[shutil.rmtree(p) if p.is_dir() else p.unlink() for p in place.iterdir() if"
        " p.name.startswith('ledger.db')]",
        "assert resume.attempt(place) == 0",
        "(place / 'fit' / '.model-1.pt.part').touch()",
        "print(resume.in_a_process(resume.problems, place))",
    )
    for words in (
        "drawn under no key, or under several",
        "stage 1 was trained again",
        "left behind: .model-1.pt.part",
    ):
        assert words in told


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5])
def test_a_fit_that_was_stopped_goes_on_with_the_stage_it_was_at(tmp_path, after):
    with pytest.raises(Stopped):
        classifier(tmp_path, after, module=fresh_net).fit(X, kept(tmp_path))
    # other first weights: the kept ones count
    second = classifier(tmp_path, module=fresh_net).fit(X, kept(tmp_path))
    assert second.progress.seen == 6 - 2 * (after // 2)
    assert [len(each) for each in second.history_] == [2, 2, 2]
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    assert ledger.spent("d", "label") == 1.0 and [run.state for run in ledger.runs()] == ["settled"]
    third = classifier(tmp_path, module=fresh_net).fit(X, kept(tmp_path))
    assert third.progress.seen == 0 and third.history_ == second.history_
    assert np.array_equal(third.predict_proba(X), second.predict_proba(X))
    assert np.array_equal(third.noisy_labels_.likelihood(), second.noisy_labels_.likelihood())


def test_a_stopped_fit_ends_with_the_model_of_one_that_was_not(tmp_path):
    """With noise from a seed, two folders draw alike."""
    labels = closed(Y, K)
    whole = classifier(tmp_path, folder=tmp_path / "whole", random_state=0).fit(X, labels)
    for after in (1, 3):
        with pytest.raises(Stopped):
            classifier(tmp_path, after, random_state=0).fit(X, labels)
    parts = classifier(tmp_path, random_state=0).fit(X, labels)
    assert np.array_equal(whole.noisy_labels_.likelihood(), parts.noisy_labels_.likelihood())
    assert np.array_equal(whole.predict_proba(X), parts.predict_proba(X))
    assert whole.history_ == parts.history_


def test_the_state_is_what_the_folder_says(tmp_path):
    # from a seed: two stages of equally many rows, and a law that chooses alike for each of them,
    # have one prior by chance
    model = classifier(tmp_path, validation_fraction=0.1).fit(X, closed(Y, K))
    names = {path.name for path in (tmp_path / "fit").iterdir()}
    stages = ["stage-1", "stage-2", "stage-3"]
    drawn = {f"drawn-{name}.json" for name in ("validation", *stages)}
    assert names == {
        "plan.json",
        "initial.pt",
        "receipt.json",
        "model-1.pt",
        "model-2.pt",
        "model-3.pt",
        *drawn,
    }
    receipt = json.loads((tmp_path / "fit" / "receipt.json").read_text())
    assert receipt["run_id"] == model.noisy_labels_.receipts[0].run_id and receipt["epsilon"] == 1.0
    notes = [json.loads((tmp_path / "fit" / f"drawn-{name}.json").read_text()) for name in stages]
    assert [note["rows"] for note in notes] == [stage.n_rows for stage in model.stages_]
    assert len({note["prior"] for note in notes}) == 3
    loaded = torch.load(tmp_path / "fit" / "model-3.pt", weights_only=True)
    assert all(
        torch.equal(w, model.module_.state_dict()[name]) for name, w in loaded["weights"].items()
    )


def content(place):
    return {
        path: path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and "ledger" not in path.name
    }


OTHER = {
    "inputs": lambda X, y: ({}, {"X": X + 1}),
    "order": lambda X, y: ({}, {"X": X[::-1].copy()}),
    "ids": lambda X, y: ({}, {"ids": np.arange(N)}),
    "unit": lambda X, y: ({}, {"unit": np.arange(N)}),
    "labels": lambda X, y: ({}, {"y": (y + 1) % K}),
    "ledger": lambda X, y: ({}, {"ledger": "other"}),
    "no ledger": lambda X, y: ({}, {"ledger": None}),
    "epsilon": lambda X, y: ({"epsilon": 0.5}, {}),
    "law": lambda X, y: ({"law": "rr-with-prior"}, {}),
    "stages": lambda X, y: ({"stages": 2}, {}),
    "sizes": lambda X, y: ({"stages": (2, 1, 1)}, {}),
    "prior": lambda X, y: ({"prior": np.ones((N, K))}, {}),
    "classes": lambda X, y: ({}, {"classes": [3, 2, 1, 0]}),
    "dataset": lambda X, y: ({}, {"dataset": "others"}),
    "column": lambda X, y: ({}, {"column": "other"}),
    "rate": lambda X, y: (
        {"recipe": Recipe(2, 64, 0.04, precision="float32", optimizer="sgd")},
        {},
    ),
    "loss": lambda X, y: (
        {"recipe": Recipe(2, 64, 0.05, loss=cross_entropy, precision="float32", optimizer="sgd")},
        {},
    ),
    "schedule": lambda X, y: (
        {
            "recipe": Recipe(
                2,
                64,
                0.05,
                schedule=partial(schedules.cosine, ramp=0.1),
                precision="float32",
                optimizer="sgd",
            )
        },
        {},
    ),
    "net": lambda X, y: ({"module": Mlp(K, K, (9,))}, {}),
    "seed": lambda X, y: ({"random_state": 1}, {}),
    "temperature": lambda X, y: ({"prior": Prior(temperature=2.0)}, {}),
    "filter": lambda X, y: ({"prior": Prior(top_k=3)}, {}),
    "validation": lambda X, y: ({"validation_fraction": 0.1}, {}),
    "noisy labels": lambda X, y: (
        {},
        {"noisy": ldp.privatize(closed(y, K), ldp.RandomizedResponse(K, 1.0))},
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_the_folder_of_another_fit_is_refused_before_anything_is_drawn(tmp_path, name):
    with pytest.raises(Stopped):
        classifier(tmp_path, 3).fit(X, kept(tmp_path))
    ledger, before = ldp.Ledger(tmp_path / "ledger.db"), content(tmp_path)
    settings, given = OTHER[name](X, Y)
    if given.get("ledger") == "other":
        given["ledger"] = ldp.Ledger(tmp_path / "other.db")
    with pytest.raises(ldp.InvalidInput, match=r"[Nn]othing was|Expected a ledger"):
        classifier(tmp_path, **settings).fit(
            given.pop("X", X), given.pop("noisy", None) or kept(tmp_path, **given)
        )
    assert not (tmp_path / "other.db").exists() or not ldp.Ledger(tmp_path / "other.db").runs()
    assert len(ledger.runs()) == 1 and content(tmp_path) == before
    # nothing was lost: the first stage is not trained again
    assert classifier(tmp_path).fit(X, kept(tmp_path)).progress.seen == 4


def of_layers(activation, weight=0.0):
    """A net that somebody made, as it is."""
    net = torch.nn.Sequential(torch.nn.Linear(K, 4), activation, torch.nn.Linear(4, K))
    for each in net.parameters():
        torch.nn.init.constant_(each, weight)
    return net


class Halved:
    """A loss with a setting."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, logits, evidence, reduction="mean"):
        return self.factor * likelihood_loss(logits, evidence, reduction)


class Doubled:
    """Another loss."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, logits, evidence, reduction="mean"):
        return 2 * self.factor * likelihood_loss(logits, evidence, reduction)


def of_one(f):
    """A schedule that closes over another one."""
    return lambda t: f(t)


def recipe_of(**parts):
    return {"recipe": replace(RECIPE, **parts)}


LIKE = {
    "a constant": (
        recipe_of(schedule=lambda t: 1.0),
        recipe_of(schedule=lambda t: 0.01),
        "recipe.schedule.code",
    ),
    "an object": (
        recipe_of(loss=Halved(1.0)),
        recipe_of(loss=Doubled(1.0)),
        r"recipe.loss.call.code",
    ),
    "a helper": (
        recipe_of(schedule=of_one(lambda t: 1.0)),
        recipe_of(schedule=of_one(lambda t: 0.1)),
        "schedule.closure.f.code",
    ),
    "our setting": (
        recipe_of(loss=partial(generalised_cross_entropy, q=0.7)),
        recipe_of(loss=partial(generalised_cross_entropy, q=0.5)),
        r"recipe.loss.keywords.q \(kept \"0.7\", now \"0.5\"\)",
    ),
    "one number": (
        {},
        recipe_of(optimizer=Optimizer("sgd", weight_decay=1e-3)),
        r"recipe.optimizer.weight_decay \(kept \"0.0005\", now \"0.001\"\)\. Nothing",
    ),
    "dropout": (
        {"module": partial(Mlp, K, hidden=(8,))},
        {"module": partial(Mlp, K, hidden=(8,), dropout=0.9)},
        r"module.layers\[.*p=0.9",
    ),
    "layers": (
        {"module": of_layers(torch.nn.ReLU())},
        {"module": of_layers(torch.nn.Tanh())},
        r"module.layers\[2\].*Tanh",
    ),
    "numpy's numbers": (
        {"random_state": np.int64(1)},
        {"random_state": np.int64(2)},
        "random_state .kept 1, now 2",
    ),
}


@pytest.mark.parametrize("name", LIKE)
def test_a_fit_that_differs_in_one_thing_alone_is_told_which(tmp_path, name):
    first, second, words = LIKE[name]
    before = classifier(tmp_path, **first).fit(X, kept(tmp_path))
    with pytest.raises(ldp.InvalidInput, match=words):
        classifier(tmp_path, **second).fit(X, kept(tmp_path))
    again = classifier(tmp_path, **first).fit(X, kept(tmp_path))
    assert again.progress.seen == 0 and np.array_equal(
        again.predict_proba(X), before.predict_proba(X)
    )


def test_a_fit_goes_on_with_the_weights_that_it_began_with_and_says_so(tmp_path):
    before = classifier(tmp_path, module=of_layers(torch.nn.ReLU())).fit(X, kept(tmp_path))
    with pytest.warns(LabelDPWarning, match="other weights.*goes on with its own"):
        again = classifier(tmp_path, module=of_layers(torch.nn.ReLU(), 0.1)).fit(X, kept(tmp_path))
    assert again.progress.seen == 0 and np.array_equal(
        again.predict_proba(X), before.predict_proba(X)
    )


def test_a_dataset_is_compared_row_by_row(tmp_path):
    labels, other = kept(tmp_path, ids=np.arange(N)), X.copy()
    model = classifier(tmp_path).fit(Rows(X), labels)
    looked_at = np.linspace(0, N - 1, 64).round().astype(int)
    rest = np.setdiff1d(np.arange(N), looked_at)
    other[rest] = X[rest[::-1]]
    with pytest.raises(ldp.InvalidInput, match="differs in inputs"):
        classifier(tmp_path).fit(Rows(other), labels)
    again = classifier(tmp_path).fit(DataLoader(Rows(X), 16, shuffle=True), labels)
    assert again.progress.seen == 0 and np.array_equal(
        again.predict_proba(X), model.predict_proba(X)
    )


BROKEN = {
    "plan.json": (b"", b"{}", b"[1]", b'{"facts": [], "seed": 1}', b'{"facts": {}, "seed": 1}'),
    "receipt.json": (b"x", b"{}"),
    "drawn-stage-1.json": (b"{}", b"[]"),
    "model-1.pt": (b"", b"xx", {"a": 1}, [1]),
    "initial.pt": (b"", {"a": 1}, 1, None),
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, each) for name in BROKEN for each in BROKEN[name]], ids=named
)
def test_state_that_is_not_what_was_written_is_refused_by_name(tmp_path, name, content):
    classifier(tmp_path, stages=1).fit(X, kept(tmp_path))
    path = tmp_path / "fit" / name
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    advice = "Delete the file" if name == "model-1.pt" else "another folder|those of another net"
    with pytest.raises(ldp.InvalidInput, match=rf"{name}(.|\n)*({advice})"):
        classifier(tmp_path, stages=1).fit(X, kept(tmp_path))
    assert ldp.Ledger(tmp_path / "ledger.db").spent("d", "label") == 1.0


@pytest.mark.parametrize("role", ["id", "unit"])
def test_labels_named_as_ids_or_units_leave_no_digest_in_the_folder(tmp_path, role):
    rows = {"ids" if role == "id" else "unit": {"label": Y}}
    with pytest.raises(ldp.InvalidInput, match=r"got 'label', whose labels|the labels themselves"):
        classifier(tmp_path).fit(X, kept(tmp_path, **rows))
    assert not (tmp_path / "fit").exists()
    assert ldp.Ledger(tmp_path / "ledger.db").runs() == []


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_charged(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(ldp.InvalidInput, match="folder="):
        classifier(tmp_path, folder=tmp_path / place).fit(X, kept(tmp_path))
    assert ldp.Ledger(tmp_path / "ledger.db").spent("d", "label") == 0


def test_settings_in_numbers_of_numpy_name_the_same_fit(tmp_path):
    first, again = (
        classifier(tmp_path, epsilon=epsilon, prior=Prior(top_k=two)).fit(
            X, kept(tmp_path, max_rows_per_unit=two, unit=np.arange(N) // 2)
        )
        for two, epsilon in ((2, 2.0), (np.int64(2), np.float32(2.0)))
    )
    assert np.array_equal(first.predict_proba(X), again.predict_proba(X))


def test_another_recipe_in_another_folder_goes_on_from_the_labels_that_were_drawn(tmp_path):
    with pytest.raises(Stopped):
        classifier(tmp_path, 3).fit(X, kept(tmp_path))
    classifier(
        tmp_path,
        folder=tmp_path / "again",
        recipe=Recipe(1, 64, 0.02, precision="float32", optimizer="sgd"),
    ).fit(X, kept(tmp_path))
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    assert ledger.spent("d", "label") == 1.0 and len(ledger.runs()) == 1


def test_files_that_do_not_belong_or_cannot_be_read_are_refused(tmp_path):
    for after, folder in ((3, "fit"), (3, "one")):
        with pytest.raises(Stopped):
            classifier(tmp_path, after, folder=tmp_path / folder).fit(
                X, kept(tmp_path, dataset=folder)
            )
    written = (tmp_path / "fit" / "model-1.pt").read_bytes()
    (tmp_path / "fit" / "model-1.pt").write_bytes((tmp_path / "one" / "model-1.pt").read_bytes())
    with pytest.raises(ldp.InvalidInput, match="come from the labels that this fit has drawn"):
        classifier(tmp_path).fit(X, kept(tmp_path, dataset="fit"))
    (tmp_path / "fit" / "model-1.pt").write_bytes(written[: len(written) // 2])
    with pytest.raises(ldp.InvalidInput, match="Delete the file"):
        classifier(tmp_path).fit(X, kept(tmp_path, dataset="fit"))
    (tmp_path / "fit" / "model-1.pt").unlink()
    assert classifier(tmp_path).fit(X, kept(tmp_path, dataset="fit")).progress.seen == 6
    (tmp_path / "one" / "plan.json").write_text("{")
    with pytest.raises(ldp.InvalidInput, match="something else"):
        classifier(tmp_path, folder=tmp_path / "one").fit(X, kept(tmp_path, dataset="one"))


def test_a_ledger_whose_private_folder_is_gone_is_not_charged_again(tmp_path):
    with pytest.raises(Stopped):
        classifier(tmp_path, 1).fit(X, kept(tmp_path))
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    (run,) = ledger.runs()
    for path in ledger.run_dir(run.run_id).iterdir():
        path.unlink()
    with pytest.raises(ldp.InvalidInput, match="Nothing was charged"):
        classifier(tmp_path).fit(X, kept(tmp_path))
    assert ledger.spent("d", "label") == 1.0


def test_half_files_are_removed_and_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "fit").mkdir()
    (tmp_path / "fit" / ".model-1.pt.part").write_bytes(b"half")
    with opened(tmp_path / "fit"):
        assert not list((tmp_path / "fit").iterdir())
        with pytest.raises(ldp.InvalidInput, match="no other fit uses"):
            classifier(tmp_path).fit(X, kept(tmp_path))
    assert not ldp.Ledger(tmp_path / "ledger.db").spent("d", "label")
    assert classifier(tmp_path).fit(X, kept(tmp_path)).progress.seen == 6


def test_noisy_labels_are_trained_on_once(tmp_path):
    noisy, options = (
        ldp.privatize(closed(Y, K), ldp.SubsetSelection(K, 2.0)),
        {"validation_fraction": 0.2},
    )
    first = classifier(tmp_path, **options).fit(X, noisy)
    second = classifier(tmp_path, **options).fit(X, noisy)
    assert (first.progress.seen, second.progress.seen) == (2, 0)
    assert np.array_equal(first.predict_proba(X), second.predict_proba(X))
    assert first.estimated_accuracy_ == second.estimated_accuracy_  # the same rows are held out
    with pytest.raises(ldp.InvalidInput, match="noisy_labels"):
        classifier(tmp_path, **options).fit(X[:400], noisy[:400])


def half(images):
    """A helper that an augmentation names."""
    return images / 2


def test_a_stopped_fit_of_an_ensemble_goes_on(tmp_path, ledger):
    """Two stages of two nets, stopped in the second one: the same as without the stop, with one
    charge."""
    shared = {
        "recipe": RECIPE,
        "epsilon": 3.0,
        "stages": 2,
        "random_state": 0,
        "device": "cpu",
    }
    labels = closed(Y, K, ledger=ledger)

    def make() -> TorchClassifier:
        return TorchClassifier(lambda k: Ensemble([Mlp(K, k, (8,)) for _ in range(2)]), **shared)

    with pytest.raises(Stopped):
        make().set_params(folder=tmp_path / "state", progress=Stop(6)).fit(X, labels)
    found = make().set_params(folder=tmp_path / "state").fit(X, labels)
    assert ledger.spent("d", "label") == 3.0
    assert [len(stage) for stage in found.history_] == [4, 4]
    # the same stored labels
    whole = make().set_params(folder=tmp_path / "other").fit(X, labels)
    assert ledger.spent("d", "label") == 3.0
    np.testing.assert_allclose(found.predict_proba(X), whole.predict_proba(X), rtol=1e-5)
    assert found.score(X, Y) > 0.5
