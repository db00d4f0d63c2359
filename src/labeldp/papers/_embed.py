# SPDX-License-Identifier: Apache-2.0
"""Embedder: a trained net as a scikit-learn transformer, for clusters and priors. Nothing here sees
a label."""

from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from labeldp.errors import InvalidInput, needs_torch

with needs_torch():
    import torch
    from torch import Tensor, nn

from labeldp import _validate
from labeldp.deep._inputs import as_inputs
from labeldp.deep._loop import Precision, predict

Layout = Literal["auto", "first", "last"]

CHANNELS = (1, 3, 4)  # lengths by which an axis of channels is recognised
_SLACK = 1e-3  # tolerance for values that rounding has moved outside 0..1


def channels_first(images: Tensor, layout: Layout = "auto") -> Tensor:
    """Permute images to channels before height and width: (n, c, h, w).

    Parameters
    ----------
    images : (n, h, w), (n, h, w, c) or (n, c, h, w) tensor
    layout : {"auto", "first", "last"}
        The place of the channels in (n, a, b, c). "auto": the axis of the two whose length is 1, 3
        or 4.
    """
    chosen = _validate.one_of(("auto", "first", "last"), layout=layout)
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise InvalidInput(
            "Expected images (n, h, w), (n, h, w, c) or (n, c, h, w), got shape"
            f" {tuple(images.shape)}."
        )
    if chosen == "auto":
        first, last = images.shape[1] in CHANNELS, images.shape[3] in CHANNELS
        if first == last:
            raise InvalidInput(
                "Expected one axis of 1, 3 or 4 channels, first or last, got shape"
                f" {tuple(images.shape)}. Pass layout='first' or 'last'."
            )
        chosen = "first" if first else "last"
    return images if chosen == "first" else images.permute(0, 3, 1, 2)


def require_unit_range(images: Tensor) -> None:
    """Refuse values outside 0..1, up to rounding.

    Parameters
    ----------
    images : tensor of images
    """
    low, high = (float(value) for value in images.aminmax())
    if low < -_SLACK or high > 1 + _SLACK:  # NaN passes, and is found in the features
        raise InvalidInput(
            f"Expected images of 0..1, got values from {low:.4g} to {high:.4g}. Pass bytes (uint8),"
            " or floats divided by 255."
        )


Features = NDArray[np.float32]


class Embedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A pretrained torch net as a transformer from images, or rows of numbers, to features. Its
    clone is itself: no net is copied.

    Parameters
    ----------
    module : nn.Module or function of a batch
        DINO, the image tower of CLIP, a model of timm made with num_classes=0, a net of `simclr` or
        `byol`, or any other. What its training did to images before, such as resizing and
        normalising, is a part of it: `nn.Sequential(torchvision.transforms.Resize(224),
        Normalize(mean, std), net)`.
    batch_size : int >= 1, default=256
    device : str or torch.device, optional
        Device to which the net is moved; None: it stays where it is.
    pool : function from the net's output to a tensor (m, d), optional
        How to make a row of features, for example `lambda found: found.pooler_output`. None: a
        tensor (m, d) as it is, the first token of (m, tokens, d), the mean over an image of maps
        (m, d, h, w).
    image : tuple, optional
        Shape of one image, (h, w), (h, w, c) or (c, h, w), if rows are flat, as most of
        scikit-learn expects.
    precision : {"auto", "float32", "bf16"}, default="float32"

    Notes
    -----
    X may be anything that `as_inputs` takes: arrays, tensors, Datasets, DataLoaders. The net gets
    images as (m, c, h, w), bytes (uint8) scaled to 0..1; floats and rows of numbers (n, d) are
    passed unchanged. Features get no privacy guarantee, so a net that was trained on these rows'
    labels must not be used. Cost: one pass of the net, on as many threads as torch has.

    Examples
    --------
    >>> import numpy as np
    >>> Embedder(torch.nn.Conv2d(3, 16, 4)).transform(np.zeros((5, 40, 30, 3), np.uint8)).shape
    (5, 16)
    """

    def __init__(
        self,
        module: Any,
        *,
        batch_size: int = 256,
        device: str | torch.device | None = None,
        pool: Callable[[Any], Tensor] | None = None,
        image: tuple[int, ...] | None = None,
        precision: Precision = "float32",
    ) -> None:
        self.module = module
        self.batch_size = batch_size
        self.device = device
        self.pool = pool
        self.image = image
        self.precision = precision

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def __sklearn_clone__(self) -> Self:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Do nothing, since the net is trained already.

        Parameters
        ----------
        X, y : ignored
        """
        return self

    def __call__(self, X: Any) -> Features:
        return self.transform(X)

    def transform(self, X: Any) -> Features:
        """Compute features: (n, d) float32.

        Parameters
        ----------
        X : (n, h, w), (n, h, w, c) or (n, c, h, w) images, (n, d) rows, or what `as_inputs` takes
        """
        _validate.function(module=self.module, takes="a batch")
        size = _validate.integer(batch_size=self.batch_size, low=1)
        inputs = as_inputs(X, watch=False)
        if not len(inputs):
            raise InvalidInput("Expected at least one row to embed, got none.")
        found = predict(_Prepared(self), inputs, batch_size=size, precision=self.precision)
        features: Features = found.cpu().numpy()
        bad = ~np.isfinite(features).all(axis=1)
        if bad.any():
            raise InvalidInput(
                f"Expected finite features, got NaN or infinity in {int(bad.sum())} rows (first:"
                f" row {int(bad.argmax())}). Look at these rows, or take precision='float32'."
            )
        self._n_features_out = features.shape[1]
        return features


class _Prepared(nn.Module):
    """The net with what makes its inputs of a batch, and features of its outputs."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        net = embedder.module
        owner = net if isinstance(net, nn.Module) else getattr(net, "__self__", None)
        weight = next(owner.parameters(), None) if isinstance(owner, nn.Module) else None
        device = embedder.device or (weight.device if weight is not None else "cpu")
        kind = weight.dtype if weight is not None and weight.is_floating_point() else torch.float32
        self.where = nn.Parameter(torch.empty(0, device=device, dtype=kind), requires_grad=False)
        if isinstance(owner, nn.Module):
            self.owner = owner if embedder.device is None else owner.to(device)
            self.training = owner.training  # `predict` restores this mode after the pass
        # in a tuple: torch does not register it twice
        self._net, self._how, self._width = (net,), embedder, 0

    def forward(self, x: Tensor) -> Tensor:
        image = self._how.image
        if image is not None and x.ndim == 2:
            if x.shape[1] != int(np.prod(image)):
                raise InvalidInput(
                    f"Expected rows of {int(np.prod(image))} numbers for image={image!r}, got"
                    f" {x.shape[1]}."
                )
            x = x.reshape(-1, *image)
        if x.ndim > 2:
            # the loop scales all but flat rows
            x = channels_first(x.float().div_(255) if x.dtype == torch.uint8 else x)
            if not x.is_floating_point():
                raise InvalidInput(
                    f"Expected images of bytes (uint8) or floats, got {x.dtype}. Convert them to"
                    " uint8."
                )
        features = (self._how.pool or _pooled)(self._net[0](x))
        if features.ndim != 2 or len(features) != len(x) or not features.shape[1]:
            raise InvalidInput(
                f"Expected features ({len(x)}, d) of {len(x)} rows, got shape"
                f" {tuple(features.shape)}. Pass pool=function."
            )
        if self._width not in (0, features.shape[1]):
            raise InvalidInput(
                f"Expected features of one width, got {self._width} and {features.shape[1]}. Give"
                " rows of one size."
            )
        self._width = features.shape[1]
        return features


def _pooled(output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise InvalidInput(
            f"Expected a tensor from the net, got {type(output).__name__}. Pass pool=function."
        )
    return output.mean((2, 3)) if output.ndim == 4 else output[:, 0] if output.ndim == 3 else output
