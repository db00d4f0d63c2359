# SPDX-License-Identifier: Apache-2.0
"""Names for parameters of tests."""

import re


def named(value: object) -> str:
    """`str`, without addresses: the same in every process that collects the tests."""
    return re.sub(" at 0x[0-9a-f]+", "", str(value))
