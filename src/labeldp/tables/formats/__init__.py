# SPDX-License-Identifier: Apache-2.0
"""The formats of tables (Parquet files, folders of them, CSV), labels as codes, and digests of
columns."""
