# SPDX-License-Identifier: Apache-2.0
"""The functions behind the commands, callable from Python."""
