# SPDX-License-Identifier: Apache-2.0
"""Speed and memory: each module measures one part in a process of its own, `command` runs them
all."""
