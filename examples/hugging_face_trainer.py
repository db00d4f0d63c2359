# SPDX-License-Identifier: Apache-2.0
"""Noisy labels in Hugging Face's Trainer: a `compute_loss` of three lines, and evidence in place of
labels.

    pip install 'labeldp[torch]' transformers accelerate
    python examples/hugging_face_trainer.py [FOLDER]

The model is small and starts from random weights, and the texts are made up, so that nothing is
downloaded. With a pretrained model only `make_model` changes.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

import labeldp as ldp

TOPICS, WORDS, LENGTH, EPSILON, EPOCHS = 4, 80, 16, 2.0, 4


class NoisyTrainer(Trainer):
    """A Trainer that learns from the likelihood of noisy labels."""

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **_: Any
    ) -> Any:
        """The loss of a batch."""
        log_likelihood = inputs.pop("log_likelihood")
        outputs = model(**inputs)
        loss = ldp.deep.likelihood_loss(outputs.logits, log_likelihood)
        return (loss, outputs) if return_outputs else loss


def collate(items: list[tuple[Any, ...]]) -> dict[str, torch.Tensor]:
    """Items (x, row, log-likelihood) as the model's arguments and the evidence beside them."""
    x, _row, log_likelihood = default_collate(items)
    return {**x, "log_likelihood": log_likelihood}


def make_texts(n: int, seed: int) -> tuple[list[dict[str, torch.Tensor]], np.ndarray]:
    """Texts of made-up words, half of which belong to the text's topic; and the topics, which are
    the secret."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(TOPICS, size=n)
    own = rng.integers(WORDS // TOPICS, size=(n, LENGTH)) * TOPICS + topics[:, None]
    words = torch.from_numpy(
        np.where(rng.random((n, LENGTH)) < 0.5, own, rng.integers(WORDS, size=(n, LENGTH)))
    )
    return [{"input_ids": text, "attention_mask": torch.ones_like(text)} for text in words], topics


def make_model() -> BertForSequenceClassification:
    """A transformer of two small layers."""
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=LENGTH,
            num_labels=TOPICS,
        )
    )


def main(folder: Path) -> None:
    """Release, train, and measure on true labels of other rows, which are public here."""
    texts, topics = make_texts(2000, seed=0)
    ledger = ldp.Ledger(folder / "ledger.db")
    law = ldp.RandomizedResponse(TOPICS, EPSILON)
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            topics,
            classes=range(law.n_classes),
            dataset="texts",
            column="label",
            ids=range(len(texts)),
            ledger=ledger,
        ),
        law,
    )

    # texts and evidence of the same rows, matched by id
    data = ldp.deep.with_evidence(texts, noisy, features=lambda item: item)
    set_seed(0)
    options = TrainingArguments(
        output_dir=str(folder / "out"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=64,
        learning_rate=3e-3,
        # or the Trainer would drop the evidence, which the model does not take
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = NoisyTrainer(make_model(), options, data_collator=collate, train_dataset=data)
    trainer.train()

    texts, topics = make_texts(500, seed=1)
    with torch.no_grad():
        logits = trainer.model.eval()(**default_collate(texts)).logits
    accuracy = (logits.argmax(1).numpy() == topics).mean()
    print(f"{noisy.privacy.epsilon:g}-label-DP, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
