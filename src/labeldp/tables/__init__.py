# SPDX-License-Identifier: Apache-2.0
"""Releases of tables: their specification (`ReleaseSpec`), their place (`Place`), and readers of
released tables (`read_noisy`).

`labeldp.release` releases files, `labeldp.tables.spark` and `labeldp.tables.ray` tables of a
cluster. Names are imported at first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
