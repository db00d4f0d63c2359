# SPDX-License-Identifier: Apache-2.0
"""The source of noise: secrets, keys derived from them, and AES over blocks that name rows."""

from labeldp.noise._secrets import KeySource, SeededNoise, create_key_file

__all__ = ["KeySource", "SeededNoise", "create_key_file"]
