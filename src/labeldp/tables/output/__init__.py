# SPDX-License-Identifier: Apache-2.0
"""What a release leaves: places of files, staging, publishing, the manifest."""
