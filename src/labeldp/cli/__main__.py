# SPDX-License-Identifier: Apache-2.0
"""`python -m labeldp.cli`."""

from labeldp.cli import main

main()
