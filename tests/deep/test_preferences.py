# SPDX-License-Identifier: Apache-2.0
"""Preferences: the loss on the page, and TRL's, is unbiased for released labels; tiny policies
learn from them, also by the likelihood."""

import math
import re
import socket
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau, norm
from tests.deep.datasets import closed
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid

import labeldp as ldp
from labeldp.deep import evidence_of, likelihood_loss

pytestmark = pytest.mark.deep
MISTAKE = 1e-6  # chance that a right implementation fails a statistical test
RECIPES = Path(__file__).resolve().parents[2] / "docs" / "recipes"
PAGE = (RECIPES / "preferences.md").read_text(encoding="utf-8")
PAIRS, PEOPLE, WORDS, BETA = 4000, 2000, 6, 0.5
MANY = 24  # words: so many that their order tells learning from chance


def robust_dpo() -> Callable[[Tensor, float], Tensor]:
    """The function on the page, as it stands there."""
    code = next(
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        if "def robust_dpo" in block
    )
    found: dict[str, Callable[[Tensor, float], Tensor]] = {}
    exec(compile(code, "preferences.md", "exec"), found)
    return found["robust_dpo"]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_robust_loss_is_unbiased_over_the_matrix_of_the_law_that_runs(epsilon: float) -> None:
    law, loss = ldp.RandomizedResponse(2, epsilon), robust_dpo()
    matrix, flip = law.matrix(), 1 / (1 + math.exp(epsilon))
    assert matrix[0, 1] == matrix[1, 0] == pytest.approx(flip, rel=1e-12)
    z = torch.linspace(-20, 20, 41, dtype=torch.float64)
    for label in (0, 1):
        true = -logsigmoid((2 * label - 1) * z)
        mean = sum(
            float(matrix[label, output]) * loss((2 * output - 1) * z, flip) for output in (0, 1)
        )
        assert torch.allclose(mean, true, atol=1e-10)
        wrong = sum(
            float(matrix[label, output]) * loss((2 * output - 1) * z, flip / 2) for output in (0, 1)
        )
        assert not torch.allclose(wrong, true, atol=1e-3)


def judgements(seed: int = 0, words: int = WORDS) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    """Pairs of one-word answers, in public order; whether the first is preferred, by a
    Bradley-Terry model; and who judged."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, words, PAIRS)
    second = (first + rng.integers(1, words, PAIRS)) % words
    reward = np.linspace(-2, 2, words)
    preferred = (rng.random(PAIRS) < 1 / (1 + np.exp(reward[second] - reward[first]))).astype(int)
    return torch.from_numpy(first), torch.from_numpy(second), preferred, np.arange(PAIRS) % PEOPLE


def released(
    preferred: np.ndarray, people: np.ndarray, epsilon: float, seed: int = 0
) -> ldp.NoisyLabels:
    law, noise = ldp.RandomizedResponse(2, epsilon), ldp.SeededNoise(seed)
    return ldp.privatize(
        ldp.PrivateLabels(
            preferred,
            classes=range(law.n_classes),
            ids=np.arange(len(people)),
            unit=people,
            max_rows_per_unit=2,
            noise=noise,
        ),
        law,
    )


def test_the_robust_loss_of_released_labels_is_that_of_the_true_ones() -> None:
    """A z-test of the mean over 4,000 pairs, and the same by `debias`; half of the person's epsilon
    is that of a row."""
    first, second, preferred, people = judgements()
    noisy, flip = released(preferred, people, 2.0), 1 / (1 + math.exp(1.0))
    z = (first - second).double()
    sign, truth = (torch.from_numpy(2.0 * codes - 1) for codes in (noisy.hard_codes(), preferred))
    rows = robust_dpo()(sign * z, flip)
    assert np.allclose(
        rows.numpy(),
        noisy.debias(torch.stack([-logsigmoid(-z), -logsigmoid(z)], dim=1).numpy()),
        rtol=1e-9,
    )
    off = rows + logsigmoid(truth * z)
    assert abs(float(off.mean() / (off.std() / math.sqrt(PAIRS)))) < norm.isf(MISTAKE / 2)
    unmoved = -logsigmoid(sign * z) + logsigmoid(truth * z)
    assert abs(float(unmoved.mean() / (unmoved.std() / math.sqrt(PAIRS)))) > norm.isf(MISTAKE / 2)


def trained(loss: Callable[[Tensor], Tensor], first: Tensor, second: Tensor) -> Tensor:
    """A policy over the words, from a uniform reference, by its implicit rewards: beta times its
    log-ratios, (words,), of mean 0."""
    policy = nn.Parameter(torch.zeros(WORDS, dtype=torch.float64))
    reference = log_softmax(torch.zeros(WORDS, dtype=torch.float64), dim=0)
    optimizer = torch.optim.LBFGS([policy], max_iter=60)

    def closure() -> Tensor:
        optimizer.zero_grad()
        ratios = BETA * (log_softmax(policy, dim=0) - reference)
        value = loss(ratios[first] - ratios[second])
        value.backward()
        return value

    optimizer.step(closure)
    found = BETA * log_softmax(policy.detach(), dim=0)
    return found - found.mean()


def test_tiny_policies_learn_the_rewards_from_released_judgements() -> None:
    first, second, preferred, people = judgements()
    noisy, flip = released(preferred, people, 4.0), 1 / (1 + math.exp(2.0))
    sign, evidence = torch.from_numpy(2.0 * noisy.hard_codes() - 1), evidence_of(noisy)
    found = {
        "robust": trained(lambda z: robust_dpo()(sign * z, flip).mean(), first, second),
        "likelihood": trained(
            lambda z: likelihood_loss(torch.stack([torch.zeros_like(z), z], dim=1), evidence),
            first,
            second,
        ),
        "as if true": trained(lambda z: -logsigmoid(sign * z).mean(), first, second),
    }
    off = {
        name: float((rewards - torch.linspace(-2, 2, WORDS)).abs().max())
        for name, rewards in found.items()
    }
    assert off["robust"] < 0.4 and off["likelihood"] < 0.4 < 0.6 < off["as if true"], off


def test_one_bill_for_all_judgements_of_a_person(tmp_path: Path) -> None:
    _, _, preferred, people = judgements()
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=2.0)
    told = {
        "ids": np.arange(PAIRS),
        "unit": people,
        "max_rows_per_unit": 2,
        "ledger": ledger,
    }
    noisy = ldp.privatize(closed(preferred, 2, **told), ldp.RandomizedResponse(2, 2.0))
    assert (ledger.spent("d", "label"), noisy.privacy.unit, len(ledger.runs())) == (
        2.0,
        "unit",
        1,
    )
    # epsilon of a row is half of the person's
    assert noisy.likelihood().min() == pytest.approx(math.exp(-1.0))
    with pytest.raises(ldp.BudgetExceeded):
        ldp.privatize(closed(preferred, 2, **told), ldp.RandomizedResponse(2, 1.0))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL is there, and reaches no network: else it tells the Hub of each trainer."""
    pytest.importorskip("trl", reason="needs trl: `make test-deep` installs it")

    def refuse(*_: object) -> None:
        raise AssertionError("TRL reached for the network")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def run_by_trl(
    folder: Path,
    noisy: ldp.NoisyLabels,
    first: Tensor,
    second: Tensor,
    steps: int,
    loss_type: str = "robust",
) -> Any:
    """The trainer after the lines on the page, for a tiny net with random weights; a prompt of one
    word, and answers of one word each."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = np.array([f"answer{word}" for word in range(MANY)])
    vocabulary = {
        word: code for code, word in enumerate([*words, "question", "<end>", "<pad>", "<unknown>"])
    }
    spoken = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    spoken.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=spoken, eos_token="<end>", pad_token="<pad>", unk_token="<unknown>"
    ).save_pretrained(folder)
    GPT2LMHeadModel(
        GPT2Config(vocab_size=len(vocabulary), n_positions=4, n_embd=16, n_layer=1, n_head=1)
    ).save_pretrained(folder)
    options = {
        "output_dir": str(folder),
        "beta": BETA,
        "learning_rate": 0.01,
        "per_device_train_batch_size": 64,
        "max_steps": steps,
    }
    options |= {
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    (lines,) = re.findall(r"For TRL,[^:]*:\n\n((?:    .*\n|\n)+)", PAGE)
    names = {
        "np": np,
        "math": math,
        "noisy": noisy,
        "epsilon_of_a_row": 2.0,
        "model": str(folder),
        "options": options,
    }
    names |= {"prompts": ["question "] * len(first), "a": words[first], "b": words[second]}
    exec(
        compile(dedent(lines).replace('"robust"', repr(loss_type)), "preferences.md", "exec"), names
    )
    return names["trainer"]


def implicit_rewards(trainer: Any) -> Tensor:
    """Beta times the log-ratio of each answer, with the end that TRL appends, (MANY,)."""
    texts = trainer.processing_class(
        [f"question answer{word}<end>" for word in range(MANY)], return_tensors="pt"
    ).input_ids
    logs = [
        log_softmax(net(input_ids=texts).logits[:, :-1], dim=2)
        for net in (trainer.model, trainer.ref_model)
    ]
    policy, reference = (
        each.gather(2, texts[:, 1:, None]).sum(dim=(1, 2)).detach() for each in logs
    )
    return BETA * (policy - reference)


@pytest.mark.usefixtures("offline")
# how TRL 1.16 uses transformers
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_the_loss_that_trl_runs_is_that_of_the_page(tmp_path: Path) -> None:
    """Of single pairs in both orders, by a policy moved far from its reference; the default loss
    takes released labels as true."""
    first, second, preferred, people = (each[:40] for each in judgements(words=MANY))
    noisy, flip = released(preferred, people, 4.0), 1 / (1 + math.exp(2.0))
    for loss_type, expected in [("robust", robust_dpo()), ("sigmoid", lambda z, _: -logsigmoid(z))]:
        trainer = run_by_trl(tmp_path, noisy, first, second, steps=1, loss_type=loss_type)
        torch.nn.init.normal_(trainer.model.transformer.wte.weight)
        rewards = implicit_rewards(trainer)
        winner, loser = np.where(noisy.hard() == 1, [first, second], [second, first])
        z, of_trl = rewards[winner] - rewards[loser], torch.empty(2, 40)
        for pair, row in enumerate(trainer.train_dataset):
            swapped = {**row, "chosen_ids": row["rejected_ids"], "rejected_ids": row["chosen_ids"]}
            for order, each in enumerate([row, swapped]):
                of_trl[order, pair] = trainer.compute_loss(
                    trainer.model, trainer.data_collator([each])
                ).detach()
        assert z.min() < -3 and z.max() > 3
        assert torch.allclose(
            of_trl, torch.stack([expected(z, flip), expected(-z, flip)]), rtol=1e-4, atol=1e-4
        )
        # over the law, where the released order is the true one
        mean = (1 - flip) * of_trl[0] + flip * of_trl[1]
        assert torch.allclose(mean, -logsigmoid(z), rtol=1e-4, atol=1e-4) == (loss_type == "robust")


@pytest.mark.usefixtures("offline")
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_a_tiny_net_that_trl_trains_on_released_judgements_orders_the_answers(
    tmp_path: Path,
) -> None:
    """A net that learned nothing orders the words at random, and passes Kendall's exact test with
    chance MISTAKE.

    That asks for a tau of about 0.66.
    """
    first, second, preferred, people = judgements(words=MANY)
    trainer = run_by_trl(tmp_path, released(preferred, people, 4.0), first, second, steps=60)
    found = kendalltau(
        implicit_rewards(trainer).numpy(), np.arange(MANY), alternative="greater", method="exact"
    )
    assert found.pvalue < MISTAKE, found
