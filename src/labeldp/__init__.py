# SPDX-License-Identifier: Apache-2.0
"""Label differential privacy: release noisy labels once, train on them with any tool, and prove
what was spent.

    law  --privatize(labels)-->  NoisyLabels  --likelihood (n, K)-->  any learner

`__init__.pyi` lists the names. They are imported when they are first used, so that
`import labeldp` is instant.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
