# SPDX-License-Identifier: Apache-2.0
"""Releasing tables: formats, the two passes over a file, the shuffle, and files that appear whole."""
