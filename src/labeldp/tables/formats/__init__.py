# SPDX-License-Identifier: Apache-2.0
"""The formats of tables: Parquet, folders of it, and CSV; labels as codes; digests of what columns hold."""
