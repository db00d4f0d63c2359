# SPDX-License-Identifier: Apache-2.0
"""A fit that was broken off goes on where it was, draws no label twice, and refuses the folder of another fit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import labeldp as ldp
from labeldp.deep import TorchClassifier, cross_entropy, schedules
from labeldp.deep.checkpoint import opened
from labeldp.deep.describe import described
from labeldp.deep.loop import Recipe
from labeldp.deep.models import Mlp

ROOT = Path(__file__).resolve().parents[2]
BENCHMARK = ROOT / "benchmarks" / "deep_resume.py"
K, N = 4, 500
RECIPE = Recipe(epochs=2, batch_size=64, rate=0.05, precision="float32")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(K, size=N)
    return (3 * np.eye(K)[y] + rng.normal(size=(N, K))).astype(np.float32), y


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


def classifier(place, after=10**9, **settings):
    defaults = {
        "recipe": RECIPE,
        "n_stages": 3,
        "classes": range(K),
        "dataset": "people",
        "ledger": ldp.Ledger(place / "ledger.db", budget=10.0),
        "folder": place / "fit",
        "progress": Stop(after),
    }
    return TorchClassifier(**{"module": seeded_net} | defaults | settings)


def program(*lines):
    """Run lines with the benchmark's functions at hand, in a process that may be forked."""
    text = "\n".join(["import sys", f"sys.path.insert(0, {str(BENCHMARK.parent)!r})", "import deep_resume", *lines])
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, check=True, env=environment).stdout


def test_fits_that_are_killed_at_random_moments_end_as_if_nothing_had_happened(tmp_path):
    result = tmp_path / "result.json"
    command = [sys.executable, "-W", "ignore", str(BENCHMARK), "--kills", "5", "--seed", "3", "--result", str(result)]
    subprocess.run(command, check=True, capture_output=True)
    trials = json.loads(result.read_text())["trials"]
    assert sum(len(each["kills"]) for each in trials) >= 5
    assert [each["problems"] for each in trials] == [[] for _ in trials]


def test_what_a_kill_must_not_do_would_be_seen(tmp_path):
    """Labels drawn twice, a stage trained twice, and half a file, all planted."""
    told = program(
        "import shutil",
        "from pathlib import Path",
        f"place = Path({str(tmp_path / 'place')!r})",
        "assert deep_resume.attempt(place) == 0",
        "shutil.rmtree(place / 'fit')",
        "[shutil.rmtree(p) if p.is_dir() else p.unlink() for p in place.iterdir() if p.name.startswith('ledger.db')]",
        "assert deep_resume.attempt(place) == 0",
        "(place / 'fit' / '.model-1.pt.part').touch()",
        "print(deep_resume.in_a_process(deep_resume.problems, place))",
    )
    for words in ("drawn under no key, or under several", "stage 1 was trained again", "left behind: .model-1.pt.part"):
        assert words in told


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5])
def test_a_fit_that_was_stopped_goes_on_with_the_stage_it_was_at(data, tmp_path, after):
    X, y = data
    with pytest.raises(Stopped):
        classifier(tmp_path, after).fit(X, y)
    second = classifier(tmp_path, module=Mlp(K, K, (8,))).fit(X, y)  # other first weights: the kept ones count
    assert second.progress.seen == 6 - 2 * (after // 2)
    assert [len(each) for each in second.history_] == [2, 2, 2]
    ledger = second.ledger
    assert ledger.spent("people", "label") == 1.0 and [run.state for run in ledger.runs()] == ["settled"]
    third = classifier(tmp_path).fit(X, y)
    assert third.progress.seen == 0 and third.history_ == second.history_
    assert np.array_equal(third.predict_proba(X), second.predict_proba(X))
    assert np.array_equal(third.noisy_labels_.likelihood(), second.noisy_labels_.likelihood())


def test_a_stopped_fit_ends_with_the_model_of_one_that_was_not(data, tmp_path):
    """With noise from a seed, two folders draw alike."""
    X, y = data
    options = {"ledger": None, "noise": ldp.SeededNoise(0), "random_state": 0}
    whole = classifier(tmp_path, folder=tmp_path / "whole", **options).fit(X, y)
    for after in (1, 3):
        with pytest.raises(Stopped):
            classifier(tmp_path, after, **options).fit(X, y)
    parts = classifier(tmp_path, **options).fit(X, y)
    assert np.array_equal(whole.noisy_labels_.likelihood(), parts.noisy_labels_.likelihood())
    assert np.array_equal(whole.predict_proba(X), parts.predict_proba(X))
    assert whole.history_ == parts.history_


def test_the_state_is_what_the_folder_says(data, tmp_path):
    X, y = data
    model = classifier(tmp_path, validation_fraction=0.1).fit(X, y)
    names = {path.name for path in (tmp_path / "fit").iterdir()}
    stages = ["stage-1", "stage-2", "stage-3"]
    drawn = {f"drawn-{name}.json" for name in ("validation", *stages)}
    assert names == {"plan.json", "initial.pt", "receipt.json", "model-1.pt", "model-2.pt", "model-3.pt", *drawn}
    receipt = json.loads((tmp_path / "fit" / "receipt.json").read_text())
    assert receipt["run_id"] == model.noisy_labels_.receipts[0].run_id and receipt["epsilon"] == 1.0
    notes = [json.loads((tmp_path / "fit" / f"drawn-{name}.json").read_text()) for name in stages]
    assert [note["rows"] for note in notes] == [stage.n_rows for stage in model.stages_]
    assert len({note["prior"] for note in notes}) == 3
    kept = torch.load(tmp_path / "fit" / "model-3.pt", weights_only=True)
    assert all(torch.equal(w, model.module_.state_dict()[name]) for name, w in kept["weights"].items())


def content(place):
    return {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file() and "ledger" not in path.name}


OTHER = {
    "inputs": lambda X, y: ({}, {"X": X + 1}),
    "order": lambda X, y: ({}, {"X": X[::-1].copy()}),
    "ids": lambda X, y: ({}, {"ids": np.arange(N)}),
    "unit": lambda X, y: ({}, {"unit": np.arange(N)}),
    "labels": lambda X, y: ({}, {"y": (y + 1) % K}),
    "ledger": lambda X, y: ({"ledger": "other"}, {}),
    "no ledger": lambda X, y: ({"ledger": None}, {}),
    "epsilon": lambda X, y: ({"epsilon": 0.5}, {}),
    "law": lambda X, y: ({"law": "rr-with-prior"}, {}),
    "stages": lambda X, y: ({"n_stages": 2}, {}),
    "sizes": lambda X, y: ({"stage_sizes": (2, 1, 1)}, {}),
    "prior": lambda X, y: ({"prior": np.ones((N, K))}, {}),
    "classes": lambda X, y: ({"classes": [3, 2, 1, 0]}, {}),
    "dataset": lambda X, y: ({"dataset": "others"}, {}),
    "column": lambda X, y: ({"column": "other"}, {}),
    "rate": lambda X, y: ({"recipe": Recipe(2, 64, 0.04, precision="float32")}, {}),
    "loss": lambda X, y: ({"recipe": Recipe(2, 64, 0.05, loss=cross_entropy, precision="float32")}, {}),
    "schedule": lambda X, y: ({"recipe": Recipe(2, 64, 0.05, schedule=schedules.cosine(0.1), precision="float32")}, {}),
    "net": lambda X, y: ({"module": Mlp(K, K, (9,))}, {}),
    "seed": lambda X, y: ({"random_state": 1}, {}),
    "warm start": lambda X, y: ({"warm_start": False}, {}),
    "temperature": lambda X, y: ({"prior_temperature": 2.0}, {}),
    "filter": lambda X, y: ({"top_k_filter": 3}, {}),
    "validation": lambda X, y: ({"validation_fraction": 0.1}, {}),
    "noisy labels": lambda X, y: ({}, {"y": ldp.privatize(y, ldp.RandomizedResponse(K, 1.0), noise=ldp.SeededNoise(0))}),
}


@pytest.mark.parametrize("name", OTHER)
def test_the_folder_of_another_fit_is_refused_before_anything_is_drawn(data, tmp_path, name):
    X, y = data
    with pytest.raises(Stopped):
        classifier(tmp_path, 3).fit(X, y)
    ledger, before = ldp.Ledger(tmp_path / "ledger.db"), content(tmp_path)
    settings, given = OTHER[name](X, y)
    if settings.get("ledger") == "other":
        settings["ledger"] = ldp.Ledger(tmp_path / "other.db")
    with pytest.raises(ldp.InvalidInput, match=r"[Nn]othing was|Expected a ledger"):
        classifier(tmp_path, **settings).fit(**{"X": X, "y": y} | given)
    assert not (tmp_path / "other.db").exists() or not ldp.Ledger(tmp_path / "other.db").runs()
    assert len(ledger.runs()) == 1 and content(tmp_path) == before
    assert classifier(tmp_path).fit(X, y).progress.seen == 4  # nothing was lost: the first stage is not trained again


def test_another_recipe_in_another_folder_goes_on_from_the_labels_that_were_drawn(data, tmp_path):
    X, y = data
    with pytest.raises(Stopped):
        classifier(tmp_path, 3).fit(X, y)
    other = classifier(tmp_path, folder=tmp_path / "again", recipe=Recipe(1, 64, 0.02, precision="float32")).fit(X, y)
    assert other.ledger.spent("people", "label") == 1.0 and len(other.ledger.runs()) == 1


def test_files_that_do_not_belong_or_cannot_be_read_are_refused(data, tmp_path):
    X, y = data
    for after, folder in ((3, "fit"), (3, "one")):
        with pytest.raises(Stopped):
            classifier(tmp_path, after, folder=tmp_path / folder, dataset=folder).fit(X, y)
    kept = (tmp_path / "fit" / "model-1.pt").read_bytes()
    (tmp_path / "fit" / "model-1.pt").write_bytes((tmp_path / "one" / "model-1.pt").read_bytes())
    with pytest.raises(ldp.InvalidInput, match="come from the labels that this fit has drawn"):
        classifier(tmp_path, dataset="fit").fit(X, y)
    (tmp_path / "fit" / "model-1.pt").write_bytes(kept[: len(kept) // 2])
    with pytest.raises(ldp.InvalidInput, match="Delete the file"):
        classifier(tmp_path, dataset="fit").fit(X, y)
    (tmp_path / "fit" / "model-1.pt").unlink()
    assert classifier(tmp_path, dataset="fit").fit(X, y).progress.seen == 6
    (tmp_path / "one" / "plan.json").write_text("{")
    with pytest.raises(ldp.InvalidInput, match="something else"):
        classifier(tmp_path, folder=tmp_path / "one", dataset="one").fit(X, y)


def test_a_ledger_whose_private_folder_is_gone_is_not_charged_again(data, tmp_path):
    X, y = data
    with pytest.raises(Stopped):
        classifier(tmp_path, 1).fit(X, y)
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    (run,) = ledger.runs()
    for path in ledger.run_dir(run.run_id).iterdir():
        path.unlink()
    with pytest.raises(ldp.InvalidInput, match="Nothing was charged"):
        classifier(tmp_path).fit(X, y)
    assert ledger.spent("people", "label") == 1.0


def test_half_files_are_removed_and_a_folder_in_use_is_left_alone(data, tmp_path):
    X, y = data
    (tmp_path / "fit").mkdir()
    (tmp_path / "fit" / ".model-1.pt.part").write_bytes(b"half")
    with opened(tmp_path / "fit"):
        assert not list((tmp_path / "fit").iterdir())
        with pytest.raises(ldp.InvalidInput, match="no other fit uses"):
            classifier(tmp_path).fit(X, y)
    assert not ldp.Ledger(tmp_path / "ledger.db").spent("people", "label")
    assert classifier(tmp_path).fit(X, y).progress.seen == 6


def test_noisy_labels_are_trained_on_once(data, tmp_path):
    X, y = data
    noisy = ldp.privatize(y, ldp.SubsetSelection(K, 2.0), noise=ldp.SeededNoise(0))
    options = {"ledger": None, "validation_fraction": 0.2}
    first = classifier(tmp_path, **options).fit(X, noisy)
    second = classifier(tmp_path, **options).fit(X, noisy)
    assert (first.progress.seen, second.progress.seen) == (2, 0)
    assert np.array_equal(first.predict_proba(X), second.predict_proba(X))
    assert first.estimated_accuracy_ == second.estimated_accuracy_  # the same rows are held out
    with pytest.raises(ldp.InvalidInput, match="noisy_labels"):
        classifier(tmp_path, **options).fit(X[:400], noisy[:400])


def test_descriptions_tell_settings_apart_and_are_the_same_elsewhere():
    def own(images, generator):
        return images

    different = [
        Recipe(),
        Recipe(augment=own),
        Recipe(augment=lambda images, generator: images + 1),
        Recipe(schedule=schedules.linear_ramp(0.2)),
        Recipe(schedule=schedules.linear_ramp(0.3)),
        Recipe(schedule=schedules.piecewise_constant((0.2, 0.5))),
        Recipe(loss=cross_entropy),
    ]
    texts = [json.dumps(described(recipe)) for recipe in different]
    assert len(set(texts)) == len(texts)
    told = program(
        "import json",
        "from labeldp.deep import schedules",
        "from labeldp.deep.describe import described",
        "from labeldp.deep.loop import Recipe",
        "print(json.dumps(described(Recipe(schedule=schedules.linear_ramp(0.3)))))",
    )
    assert told.strip() == texts[4]
    first, second = ([1, pair, {"a": np.arange(3)}, torch.zeros(2)] for pair in ((2.5, None), [2.5, None]))
    assert described(first) == described(second)
