# SPDX-License-Identifier: Apache-2.0
"""A TorchClassifier in Ray Train: one fit in several workers, of which the first one alone draws
labels.

    pip install 'labeldp[fabric]' 'ray[train]'
    python examples/ray_train.py [FOLDER]

TorchTrainer starts the workers and joins them by torch.distributed; Fabric finds them joined, and
is told how many there are. The ledger and the folder of the fit must be on a disk that the first
worker keeps if it is started again.
"""

import sys
import tempfile
from pathlib import Path

from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

WORKERS, EPSILON = 2, 2.0


def work(config: dict[str, str]) -> None:
    """What each worker does."""
    import torch
    from lightning_fabric import Fabric
    from sklearn.datasets import load_digits

    import labeldp as ldp

    torch.set_num_threads(1)
    # devices: workers on a machine, num_nodes: machines
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=WORKERS)
    fabric.launch()
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype("float32")
    model = ldp.deep.TorchClassifier(
        lambda n_classes: ldp.deep.models.Mlp(64, n_classes, (64,)),
        recipe=ldp.deep.Recipe(
            epochs=10, batch_size=64, rate=0.02, precision="float32", optimizer="sgd"
        ),
        epsilon=EPSILON,
        folder=Path(config["folder"]) / "fit",
        random_state=0,
        device=fabric,
    )
    labels = ldp.PrivateLabels(  # those of the other workers are not looked at
        y[200:],
        classes=range(10),
        dataset="digits",
        column="digit",
        ledger=ldp.Ledger(Path(config["folder"]) / "ledger.db"),
    )
    model.fit(X[200:], labels)
    if fabric.global_rank == 0:
        print(
            f"{EPSILON:g}-label-DP, accuracy {model.score(X[:200], y[:200]):.3f},"
            f" {fabric.world_size} workers"
        )
    torch.save(model.module_.state_dict(), Path(config["folder"]) / f"net-{fabric.global_rank}.pt")


def main() -> None:
    """Train."""
    folder = str(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()).resolve())
    run = RunConfig(storage_path=str(Path(folder) / "ray"))
    TorchTrainer(
        work,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=run,
    ).fit()


if __name__ == "__main__":
    main()
