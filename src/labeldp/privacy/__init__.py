# SPDX-License-Identifier: Apache-2.0
"""Cost and custody: where noise comes from, what was done with it, and the durable record of what it cost."""
