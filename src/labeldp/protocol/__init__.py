# SPDX-License-Identifier: Apache-2.0
"""What every learner shares, without any framework: the multi-stage loop and quality measured from
noisy labels."""
