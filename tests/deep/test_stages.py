# SPDX-License-Identifier: Apache-2.0
"""Stages of a net: which rows, weights, recipes and priors each of them has."""

import subprocess
import sys
import textwrap
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from tests.deep.datasets import closed, perceptron, separated
from torch import nn

import labeldp as ldp
from labeldp.deep import Optimizer, Recipe, TorchClassifier, cross_entropy, posterior_loss
from labeldp.deep import _stages as stages
from labeldp.deep._losses import Form
from labeldp.deep.models import Mlp
from labeldp.learn import Prior

K, N = 4, 900
X, Y = separated(N, K)
UNDECAYED = Optimizer("sgd", weight_decay=0.0)
# leaves weights as they are
STILL = Recipe(epochs=1, batch_size=128, rate=1e-12, precision="float32", optimizer=UNDECAYED)
QUICK = Recipe(epochs=6, batch_size=64, rate=0.05, precision="float32", optimizer="sgd")


def classifier(**settings):
    defaults = {
        "stages": 2,
        "recipe": QUICK,
        "epsilon": 2.0,
        "random_state": 0,
    }
    return TorchClassifier(**{"module": perceptron} | defaults | settings)


@pytest.fixture
def seen(monkeypatch):
    """What each stage's training is given: first weights, number of rows, target, and how the
    held-out rows are scored."""
    found = []
    learn = stages.Trainer.learn

    def watched(self, module, model, rows, target, held_out, **more):
        weights = {name: w.clone() for name, w in module.state_dict().items()}
        found.append((weights, rows, target, held_out))
        return learn(self, module, model, rows, target, held_out, **more)

    monkeypatch.setattr(stages.Trainer, "learn", watched)
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_each_stage_learns_from_all_rows_so_far(seen, count):
    model = classifier(stages=count, recipe=STILL, validation_fraction=0.1).fit(X, closed(Y, K))
    assert [stage.name for stage in model.stages_] == [f"stage-{i + 1}" for i in range(count)]
    drawn = np.cumsum([stage.n_rows for stage in model.stages_])
    assert [len(rows) for _, rows, _, _ in seen] == drawn.tolist()
    held = seen[0][3][0]
    assert len(held) + drawn[-1] == N and not set(held) & set(seen[-1][1])
    assert all(len(set(rows)) == len(rows) == len(target) for _, rows, target, _ in seen)


def same(a, b, kinds=("weight", "bias")):
    return all(torch.allclose(a[name], b[name], atol=1e-6) for name in a if name.endswith(kinds))


def test_a_warm_start_takes_weights_and_statistics_of_the_stage_before(seen):
    net = perceptron()
    classifier(module=net, recipe=[QUICK, STILL]).fit(X, closed(Y, K))
    first, second = seen[0][0], seen[1][0]
    assert same(first, net.state_dict()) and not same(second, first)
    assert not torch.allclose(second["layers.0.running_mean"], first["layers.0.running_mean"])
    model = classifier(module=net, recipe=[QUICK, STILL]).fit(X, closed(Y, K))
    assert same(model.module_.state_dict(), second)  # the second recipe left them alone


def test_an_averaged_model_is_what_the_next_stage_starts_from(seen):
    recipe = Recipe(3, 128, 0.05, average=0.99, precision="float32", optimizer="sgd")
    model = classifier(recipe=[recipe, STILL]).fit(X, closed(Y, K))
    assert same(seen[1][0], model.module_.state_dict())
    assert all(w.requires_grad for w in model.module_.parameters())


def test_weights_that_were_frozen_stay_frozen():
    net = perceptron()
    for weight in list(net.parameters())[:2]:
        weight.requires_grad_(False)
    model = classifier(
        module=net,
        recipe=Recipe(1, 128, 0.05, average=0.9, precision="float32", optimizer=UNDECAYED),
    ).fit(X, closed(Y, K))
    assert [w.requires_grad for w in model.module_.parameters()] == [
        w.requires_grad for w in net.parameters()
    ]


def test_each_stage_has_its_recipe(seen):
    one, two = (
        Recipe(1, 128, loss=cross_entropy, precision="float32"),
        Recipe(3, 64, loss=posterior_loss, alpha=1.0, precision="float32"),
    )
    model = classifier(recipe=(one, two)).fit(X, closed(Y, K))
    assert [len(each) for each in model.history_] == [1, 3]
    hard, soft = seen[0][2], seen[1][2]
    assert hard.dtype == torch.int64 and isinstance(soft, Form)
    # a prior could not help: one stage, and its recipe
    only = classifier(recipe=(one, two), law="subset").fit(X, closed(Y, K))
    assert [len(each) for each in only.history_] == [1]


def side_of(model):
    (block,) = [block for block in model.noisy_labels_.blocks if block.stage == "stage-2"]
    return np.concatenate(
        [values.reshape(len(block.rows), -1) for values in block.side.values()], axis=1
    )


def test_the_temperature_sharpens_or_flattens_the_prior():
    flat, plain, sharp = (
        side_of(classifier(law="rr-with-prior", prior=Prior(temperature=t)).fit(X, closed(Y, K)))
        for t in (1e9, 1.0, 1e-9)
    )
    # no class is likelier than another: all are candidates, in every row
    assert len(np.unique(flat, axis=0)) == 1
    assert len(np.unique(plain, axis=0)) > 1
    assert len(np.unique(sharp, axis=0)) == K  # one candidate, the likeliest


def test_the_prior_is_the_model_so_far(monkeypatch, seen):
    asked = []
    prior_of = stages.Trainer.prior_of
    monkeypatch.setattr(
        stages.Trainer,
        "prior_of",
        lambda self, model, rows: asked.append((model, rows)) or prior_of(self, model, rows),
    )
    classifier(stages=3).fit(X, closed(Y, K))
    assert [model.number for model, _ in asked] == [1, 2]
    for (_, rows), (_, before, _, _) in zip(asked, seen, strict=False):
        assert not set(rows) & set(before)  # the model has seen no label of these rows


def test_a_given_prior_is_mixed_into_later_stages_by_its_weight():
    """With one class each the candidates of the second stage show whose prior it was: the model's,
    or the one given."""
    given = np.full((len(Y), K), 0.1)
    given[:, 1] = 1.0
    given[:200] = 1.0  # with one candidate in every row nothing would be told, which is refused
    sides = {
        w: side_of(
            classifier(law="rr-with-prior", prior=Prior(given, weight=w)).fit(X, closed(Y, K))
        )
        for w in (0.5, 1.0)
    }
    assert len(np.unique(sides[1.0], axis=0)) == 2  # class 1 alone, or all of them
    assert len(np.unique(sides[0.5], axis=0)) > 2


def test_a_public_prior_serves_the_first_stage():
    wrong = np.eye(K)[(Y + 1) % K] + 1e-9
    wrong[:200] = 1.0  # with one candidate in every row nothing would be told, which is refused
    told = (
        classifier(prior=wrong, law="rr-with-prior", recipe=STILL)
        .fit(X, closed(Y, K))
        .noisy_labels_
    )
    called = (
        classifier(prior=lambda x: wrong[: len(x)], law="rr-with-prior", recipe=STILL)
        .fit(X, closed(Y, K))
        .noisy_labels_
    )
    assert np.array_equal(told.likelihood(), called.likelihood())
    (first,) = [block for block in told.blocks if block.stage == "stage-1"]
    sure = first.rows >= 200
    # one candidate, which the prior is sure of
    assert np.array_equal(first.outputs[sure], (Y[first.rows[sure]] + 1) % K)


@pytest.mark.parametrize(("n_stages", "epsilon"), [(1, 0.5), (2, 0.5), (1, 1.0)])
def test_correct_class_frequencies_do_not_hurt(n_stages, epsilon):
    """Mean of three draws, whose accuracies spread by about four points; a split by the sorted
    prior lost forty."""
    k, n, rng = 10, 6000, np.random.default_rng(0)
    p = 1 / np.arange(1.0, k + 1)
    centers, y = 2.0 * rng.normal(size=(k, 8)), rng.choice(k, 2 * n, p=p / p.sum())
    X = (centers[y] + 0.7 * rng.normal(size=(2 * n, 8))).astype(np.float32)
    found = []
    for prior in (None, np.tile(p, (n, 1))):
        settings = {
            "epsilon": epsilon,
            "stages": n_stages,
            "prior": prior,
            "random_state": 0,
        }
        made = partial(
            TorchClassifier,
            lambda k: Mlp(8, k, (32,)),
            recipe=Recipe(epochs=6, precision="float32"),
            **settings,
        )
        found.append(
            np.mean(
                [
                    made()
                    .fit(X[:n], closed(y[:n], k, noise=ldp.SeededNoise(seed)))
                    .score(X[n:], y[n:])
                    for seed in range(3)
                ]
            )
        )
    assert found[1] >= found[0] - 0.1, found


def test_the_filter_leaves_out_what_the_model_does_not_believe(seen):
    model = classifier(law="rr-with-prior", prior=Prior(top_k=1), epsilon=1.0).fit(X, closed(Y, K))
    drawn = [stage.n_rows for stage in model.stages_]
    assert len(seen[0][1]) == drawn[0]
    latest = {
        row
        for block in model.noisy_labels_.blocks
        if block.stage == "stage-2"
        for row in block.rows
    }
    assert latest < set(seen[1][1]) and 0.6 * sum(drawn) < len(seen[1][1]) < 0.9 * sum(drawn)
    all_rows = classifier(law="rr-with-prior", prior=Prior(top_k=K), epsilon=1.0).fit(
        X, closed(Y, K)
    )
    assert len(seen[3][1]) == sum(stage.n_rows for stage in all_rows.stages_)
    papers = classifier(law="rr-with-prior", prior=Prior(top_k="mean"), epsilon=1.0).fit(
        X, closed(Y, K)
    )
    assert len(seen[4][1]) == papers.stages_[0].n_rows < len(seen[5][1]) < len(Y)


def test_logits_that_become_nan_end_the_fit_before_the_next_draw():
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.seen = Mlp(K, K, (8,)), 0

        def forward(self, x):
            self.seen += self.training
            logits = self.inner(x)
            return logits if self.training or not self.seen else logits * torch.nan

    with pytest.raises(ldp.InvalidInput, match="NaN or infinity for"):
        classifier(module=Fragile()).fit(X, closed(Y, K))


TWO_PROCESSES = """
    import os
    import sys
    import numpy as np
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    place, rank, device = sys.argv[1], int(os.environ["RANK"]), "cpu"
    if sys.argv[2] == "fabric":
        from lightning_fabric import Fabric

        device = Fabric(accelerator="cpu", strategy="ddp", devices=2)
        device.launch()
    else:
        dist.init_process_group("gloo")
    import labeldp as ldp
    from labeldp.deep import TorchClassifier
    from labeldp.deep import Recipe
    from labeldp.deep.models import Mlp

    rng = np.random.default_rng(0)
    y = rng.integers(4, size=600)
    X = (3 * np.eye(4)[y] + rng.normal(size=(600, 4))).astype(np.float32)
    ledger = ldp.Ledger(f"{place}/ledger.db")
    facts = {"classes": range(4), "dataset": "two", "column": "label", "ledger": ledger}
    recipe, settings = Recipe(epochs=1, precision="float32"), {"folder": f"{place}/fit"}
    net = TorchClassifier(lambda k: Mlp(4, k, (8,)), recipe=recipe, device=device, **settings)
    y = y if rank == 0 else np.zeros(600, int)  # only the first process may look at raw labels
    labels = ldp.PrivateLabels(y, **facts)
    noisy = net.fit(X, labels).noisy_labels_
    np.save(f"{place}/likelihood-{rank}.npy", noisy.likelihood())
    np.save(f"{place}/proba-{rank}.npy", net.predict_proba(X))
    try:
        net.set_params(epsilon=0.5).fit(X, labels)
    except ldp.InvalidInput as error:
        assert "epsilon" in str(error)
    else:
        raise SystemExit("another epsilon in the same folder was not refused")
    dist.barrier()
    os._exit(0)  # gloo's threads may still run, and would abort the interpreter's own end
"""


@pytest.mark.parametrize("kind", ["plain", "fabric"])
def test_of_several_processes_only_the_first_opens_the_run(tmp_path, kind):
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    if kind == "fabric" and find_spec("lightning_fabric") is None:
        pytest.skip("needs lightning-fabric: pip install 'labeldp[fabric]'")
    (tmp_path / "program.py").write_text(textwrap.dedent(TWO_PROCESSES))
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
    ]
    done = subprocess.run(
        [*command, tmp_path / "program.py", tmp_path, kind], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = (np.load(tmp_path / f"likelihood-{rank}.npy") for rank in (0, 1))
    assert np.array_equal(first, second)
    assert np.array_equal(*(np.load(tmp_path / f"proba-{rank}.npy") for rank in (0, 1)))
    assert [run.state for run in ledger.runs()] == ["settled"] and ledger.spent(
        "two", "label"
    ) == 1.0


def pairs_in_two_stages(seed, n=4000, k=10):
    """Half of the rows tell the pair of their label, half tell nothing; AutoLaw draws the second
    stage with a prior that knows which."""
    rng = np.random.default_rng(seed)
    easy, truth = rng.random(n) < 0.5, rng.integers(k, size=n)
    place = np.where(easy, truth // 2, k // 2)
    prior = np.full((k // 2 + 1, k), 0.02 / (k - 2))
    prior[np.arange(k) // 2, np.arange(k)] = 0.49
    prior[-1] = 1 / k
    half, law = n // 2, ldp.AutoLaw(k, 1.0)
    labels = closed(truth, k, ids=np.arange(n), noise=ldp.SeededNoise(seed))
    first = ldp.privatize(labels.subset(np.arange(half)), law)
    second = ldp.privatize(labels.subset(np.arange(half, n)), law, prior=prior[place[half:]])
    return np.eye(k // 2 + 1, dtype=np.float32)[place], ldp.concat([first, second])


def test_held_out_rows_of_two_stages_measure_a_net_on_all_kinds_of_rows():
    """Bias of 80 fits, at a false alarm of 1e-7. Of all rows that can be inverted, those held out
    would be the hard ones."""
    k, fits = 10, 80
    net = partial(nn.Linear, k // 2 + 1)
    recipe = Recipe(epochs=10, batch_size=500, rate=8.0, precision="float32", optimizer=UNDECAYED)
    errors = []
    for seed in range(fits):
        X, noisy = pairs_in_two_stages(seed)
        able = noisy.invertible.reshape(2, -1)
        # what could be held out by mistake
        assert able[0].all() and able[1].any() and not able[1].all()
        model = TorchClassifier(
            net, recipe=recipe, stages=1, validation_fraction=0.3, random_state=seed
        ).fit(X, noisy, ids=noisy.ids)
        of_a_pair = model.predict(np.eye(k // 2 + 1, dtype=np.float32))[: k // 2] // 2 == np.arange(
            k // 2
        )
        errors.append(model.estimated_accuracy_.value - (0.5 * 0.5 * of_a_pair.mean() + 0.5 / k))
    assert abs(np.mean(errors)) < 5.33 * np.std(errors) / np.sqrt(fits)
