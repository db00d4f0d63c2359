# SPDX-License-Identifier: Apache-2.0
"""What every learner shares, without any framework: the multi-stage loop and quality measured from
noisy labels."""

import lazy_loader

# the root names `labeldp.protocol.metrics`, which is imported at first use
__getattr__, _, _ = lazy_loader.attach(__name__, ["metrics"])
