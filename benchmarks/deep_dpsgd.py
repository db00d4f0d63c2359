# SPDX-License-Identifier: Apache-2.0
"""DP-SGD with Opacus (pip install opacus): protects images as well as labels, at (epsilon, 1e-5). The stronger promise costs accuracy.

Batch normalisation mixes rows, so Opacus's own replacement, group normalisation, stands in for it. Rate and clipping are common choices,
not tuned; the published numbers beside it are the literature's own.
"""

import torch
from deep_data import Data
from deep_nets import build
from deep_recipes import Method
from deep_train import Fitted
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

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


def fit(data: Data, method: Method, epsilon: float, seed: int, *, device: str = "cpu", progress=str) -> Fitted:
    """Train under DP-SGD for the recipe's epochs, Poisson batches, noise for exactly this epsilon at delta 1e-5."""
    from opacus import PrivacyEngine
    from opacus.utils.batch_memory_manager import BatchMemoryManager
    from opacus.validators import ModuleValidator

    torch.manual_seed(seed)
    net = ModuleValidator.fix(build(method.net, data)).to(device)
    for layer in net.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False  # Opacus reads each layer's output after it
    epochs = method.stages[0].epochs
    optimizer = torch.optim.SGD(net.parameters(), RATE, momentum=0.9)
    loader = DataLoader(TensorDataset(data.X, torch.from_numpy(data.y)), batch_size=min(BATCH, len(data.y)))
    net, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=net, optimizer=optimizer, data_loader=loader, target_epsilon=epsilon, target_delta=DELTA, epochs=epochs, max_grad_norm=CLIP
    )
    found = Fitted(net)
    for epoch in range(epochs):
        total, steps = 0.0, 0
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=256, optimizer=optimizer) as batches:
            for x, y in batches:
                if not len(y):
                    continue
                optimizer.zero_grad()
                loss = functional.cross_entropy(net(x.to(device).float() / 255), y.to(device))
                loss.backward()
                optimizer.step()
                total, steps = total + float(loss), steps + 1
        found.epochs.append({"stage": 1, "epoch": epoch + 1, "loss": round(total / steps, 5)})
        progress(f"epoch {epoch + 1}: loss {total / steps:.4f}")
    found.net = _plain(net)
    return found


def _plain(net: nn.Module) -> nn.Module:
    """The net without Opacus's wrapper."""
    inner = net._module if hasattr(net, "_module") else net
    return inner.eval()
