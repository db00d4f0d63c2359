# SPDX-License-Identifier: Apache-2.0
"""The durable record of what was spent: charges, budgets, which rows they are about, and the runs' private folders.

`labeldp.Ledger` is the ledger; nothing heavy is imported with this package.
"""
