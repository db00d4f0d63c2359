# SPDX-License-Identifier: Apache-2.0
"""What needs torch: `pip install 'labeldp[torch]'`. torch is imported when it is first used."""
