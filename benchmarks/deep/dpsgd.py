# SPDX-License-Identifier: Apache-2.0
"""DP-SGD with Opacus (pip install opacus): protects images as well as labels, at (epsilon, 1e-5),
for one row more or less.

A changed label is a row removed and another added, so for labels this is up to (2 epsilon, (1 +
e^epsilon) 1e-5): another promise than that of label DP at the same epsilon, neither stronger nor
weaker (docs/papers/errata.md).

Batch normalisation mixes rows, so Opacus's own replacement, group normalisation, stands in for it.
Rate and clipping are common choices, not tuned; the published numbers beside it are the
literature's own.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.deep.data import Data
from benchmarks.deep.nets import build
from benchmarks.deep.recipes import Method
from benchmarks.deep.train import Fitted

DELTA = 1e-5
CLIP = 1.0
RATE = 0.5
BATCH = 1024


def available() -> bool:
    """True if Opacus can be imported."""
    try:
        import opacus  # noqa: F401
    except ImportError:
        return False
    return True


def fit(
    data: Data,
    method: Method,
    epsilon: float,
    seed: int,
    *,
    device: str = "cpu",
    progress: Callable[[str], object] = str,
) -> Fitted:
    """Train a recipe's net for its epochs."""
    torch.manual_seed(seed)
    net, losses = train(
        build(method.net, data),
        data.X,
        data.y,
        epsilon,
        epochs=method.stages[0].epochs,
        device=device,
        progress=progress,
    )
    return Fitted(
        net,
        epochs=[
            {"stage": 1, "epoch": number, "loss": round(loss, 5)}
            for number, loss in enumerate(losses, 1)
        ],
    )


def train(
    net: nn.Module,
    X: Tensor,
    y: NDArray[np.int64],
    epsilon: float,
    *,
    epochs: int,
    batch: int = BATCH,
    rate: float = RATE,
    clip: float = CLIP,
    device: str = "cpu",
    progress: Callable[[str], object] = str,
) -> tuple[nn.Module, list[float]]:
    """Train any net under DP-SGD: Poisson batches, noise for exactly this epsilon at delta 1e-5.
    Noise is torch's global generator's.

    Parameters
    ----------
    net : nn.Module
        Gives logits (m, K). Batch normalisation is replaced.
    X : Tensor, one row an example
        Bytes are scaled to 0..1.
    y : (n,) int64 array
    epsilon : float
        Of examples, features and labels.
    epochs, batch : int
    rate, clip : float
    device : str
    progress : function of a line of text

    Returns
    -------
    (net in evaluation mode, mean loss of each epoch)
    """
    from opacus import PrivacyEngine
    from opacus.utils.batch_memory_manager import BatchMemoryManager
    from opacus.validators import ModuleValidator

    net = ModuleValidator.fix(net).to(device)
    for layer in net.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False  # Opacus reads each layer's output after it
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.9)
    loader = DataLoader(TensorDataset(X, torch.from_numpy(y)), batch_size=min(batch, len(y)))
    net, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=net,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=epochs,
        max_grad_norm=clip,
    )
    losses: list[float] = []
    for epoch in range(epochs):
        total, steps = 0.0, 0
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=256, optimizer=optimizer
        ) as batches:
            for x, labels in batches:
                if not len(labels):
                    continue
                optimizer.zero_grad()
                loss = functional.cross_entropy(net(_scaled(x.to(device))), labels.to(device))
                loss.backward()
                optimizer.step()
                total, steps = total + float(loss), steps + 1
        losses.append(total / steps)
        progress(f"epoch {epoch + 1}: loss {losses[-1]:.4f}")
    return _plain(net), losses


def _scaled(x: Tensor) -> Tensor:
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _plain(net: nn.Module) -> nn.Module:
    """The net without Opacus's wrapper."""
    inner = getattr(net, "_module", net)
    assert isinstance(inner, nn.Module)
    return inner.eval()
