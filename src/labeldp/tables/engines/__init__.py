# SPDX-License-Identifier: Apache-2.0
"""The engines that draw the batches of a table: this process, or the workers of a cluster."""
