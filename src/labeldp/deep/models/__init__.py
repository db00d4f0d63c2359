# SPDX-License-Identifier: Apache-2.0
"""Networks of the papers' experiments, and two small ones. Each returns logits (n, K)."""

from labeldp.deep.models.collaborative import NeuralCollaborativeFiltering
from labeldp.deep.models.inception import SmallInception
from labeldp.deep.models.resnet import CifarResNet18, WideResNet
from labeldp.deep.models.small import Mlp, SmallConvNet
from labeldp.deep.models.vgg import Vgg16

__all__ = ["CifarResNet18", "Mlp", "NeuralCollaborativeFiltering", "SmallConvNet", "SmallInception", "Vgg16", "WideResNet"]
