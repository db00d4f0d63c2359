# SPDX-License-Identifier: Apache-2.0
"""Research: mechanisms and methods of the source papers that nobody deploys. No other part of the package imports this one.

`labeldp.research.peer` is the peer-to-peer mechanism; importing it makes its query, `Peer`, known to `labeldp.aggregate` and to files.
"""
