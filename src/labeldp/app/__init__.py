# SPDX-License-Identifier: Apache-2.0
"""What a command does, callable from Python."""
