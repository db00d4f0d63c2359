# SPDX-License-Identifier: Apache-2.0
"""What draws the batches of a table: this process, or the workers of a cluster."""
