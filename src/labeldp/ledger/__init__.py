# SPDX-License-Identifier: Apache-2.0
"""The durable record of what was spent: charges, budgets, the rows that they cover, and the runs'
private folders.

`labeldp.Ledger` is the ledger. This file imports nothing, so that modules of the package stay cheap
to import one by one.
"""
