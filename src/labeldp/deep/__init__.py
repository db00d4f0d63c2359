# SPDX-License-Identifier: Apache-2.0
"""Learn from noisy labels with PyTorch (extra `torch`): losses, datasets, a training loop, models,
augmentation and schedules.

In your own training loop, three lines change:

    data = labeldp.deep.with_evidence(dataset, noisy)            # items (x, i, log-likelihood row)
    for x, _, log_likelihood in DataLoader(data, ...):
        loss = labeldp.deep.likelihood_loss(model(x), log_likelihood)

Without a loop of your own, `train(net, inputs, evidence_of(noisy), Recipe(), generator=...)` is a
whole training. Names are imported when they are first used, and torch with them; `import labeldp`
never imports torch.
"""

import lazy_loader

from labeldp.errors import needs_torch

_found, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    with needs_torch():
        return _found(name)
