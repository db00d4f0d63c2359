# SPDX-License-Identifier: Apache-2.0
"""Noisy labels in a Lightning loop: three lines of an ordinary script change, and they are marked.

    pip install 'labeldp[torch]' pytorch-lightning
    python examples/lightning_loop.py [FOLDER]

The labels are released once, to a file. The training reads that file, could run anywhere else, and
costs nothing more. With the package `lightning` in place of `pytorch-lightning`, import `lightning
as L`.
"""

import sys
import tempfile
from pathlib import Path

import pytorch_lightning as L
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

import labeldp as ldp

EPSILON, EPOCHS, HELD_OUT = 2.0, 15, 200


class Digits(L.LightningModule):
    """A small net for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ldp.deep.models.Mlp(64, 10, (64,))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a batch."""
        x, _row, log_likelihood = batch  # changed: was x, y = batch
        # changed: was cross_entropy(self.net(x), y)
        loss = ldp.deep.likelihood_loss(self.net(x), log_likelihood)
        self.log("noisy_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """How well noisy labels of other rows are foretold: what to choose models and stop by."""
        x, _row, log_likelihood = batch
        self.log(
            "noisy_held_out",
            -ldp.deep.likelihood_loss(self.net(x), log_likelihood),
            batch_size=len(x),
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As ever."""
        return torch.optim.AdamW(self.parameters(), 3e-3)


def release(folder: Path, labels: torch.Tensor) -> Path:
    """Noisy labels as a file: the only step that sees true ones."""
    ledger = ldp.Ledger(folder / "ledger.db")
    law = ldp.SubsetSelection(n_classes=10, epsilon=EPSILON)
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            labels.numpy(),
            classes=range(law.n_classes),
            dataset="digits",
            column="label",
            ids=range(len(labels)),
            ledger=ledger,
        ),
        law,
    )
    noisy.save(folder / "noisy.parquet")
    return folder / "noisy.parquet"


def main(folder: Path) -> None:
    """Release, train, and measure on true labels of other rows, which are public here."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = (
        torch.from_numpy(part)
        for part in train_test_split(X.astype("float32") / 16, y, random_state=0)
    )
    noisy = ldp.NoisyLabels.load(release(folder, y))

    data = ldp.deep.with_evidence(TensorDataset(X), noisy)  # changed: was TensorDataset(X, y)
    train, held_out = (
        torch.utils.data.Subset(data, rows)
        for rows in (range(HELD_OUT, len(data)), range(HELD_OUT))
    )
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Digits()
    trainer.fit(
        model,
        DataLoader(train, batch_size=64, shuffle=True),
        DataLoader(held_out, batch_size=HELD_OUT),
    )
    print(
        "mean log-evidence of held-out noisy labels"
        f" {float(trainer.callback_metrics['noisy_held_out']):.3f}"
    )
    accuracy = (ldp.deep.predict(model.net, X_test).argmax(1) == y_test).float().mean()
    print(f"{noisy.privacy.epsilon:g}-label-DP, accuracy {float(accuracy):.3f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
