# SPDX-License-Identifier: Apache-2.0
"""Nets by name, as the command line offers them: made of plain parameters, and kept as such beside a state_dict.

Nothing here imports torch before it is used, so that names can be listed and checked without it.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput, LabelDPError, MissingExtra

if TYPE_CHECKING:
    from torch import nn

    from labeldp.deep._loop import Recipe


@dataclass(frozen=True)
class Net:
    """One of the nets of `labeldp.deep.models`.

    Attributes
    ----------
    maker : str
        Its class.
    settings : mapping
        What the name says of it.
    side : int
        Least height and width of the images it takes; 0 where it takes vectors.
    """

    maker: str
    settings: Mapping[str, int] = field(default_factory=dict)
    side: int = 4


NETS: Mapping[str, Net] = {
    "mlp": Net("Mlp", side=0),
    "small-convnet": Net("SmallConvNet"),
    "resnet18": Net("CifarResNet18"),
    "wrn-28-4": Net("WideResNet", {"depth": 28, "widen": 4}),
    "vgg16": Net("Vgg16", side=32),
    "small-inception": Net("SmallInception"),
}


def net_named(name: str) -> Net:
    """One of `NETS`; of a wrong name, the nearest one is suggested."""
    return NETS[_validate.one_of(NETS, model=name)]


def require_torch() -> None:
    """Raises MissingExtra, with what to install, where torch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("Expected torch for this model, which is not installed. pip install 'labeldp[torch]'") from None


def parameters_for(name: str, n_classes: int, image: tuple[int, int, int] | None, width: int) -> dict[str, int]:
    """What makes the net for these inputs.

    Parameters
    ----------
    name : str
    n_classes : int
    image : (int, int, int) or None
        Channels, height and width.
    width : int
        Of vectors, where there are no images.

    Raises
    ------
    InvalidInput
        It does not take such inputs.
    """
    net = net_named(name)
    images = ", ".join(other for other, each in NETS.items() if each.side)
    if image is None and net.side:
        raise InvalidInput(f"Expected images for {name}, got rows of {width} numbers. Use --model mlp, or name the images (--image).")
    if image is not None and not net.side:
        raise InvalidInput(f"Expected rows of numbers for {name}, got images. Use one of {images} (--model).")
    if image is None:
        return {"n_features": width, "n_classes": n_classes, **net.settings}
    if min(image[1:]) < net.side:
        raise InvalidInput(
            f"Expected images of at least {net.side} x {net.side} pixels for {name}, got {image[1]} x {image[2]}. Enlarge them, or use a "
            "model for smaller ones, such as small-convnet."
        )
    return {"n_classes": n_classes, "in_channels": image[0], **net.settings}


def build(name: str, parameters: Mapping[str, Any]) -> "nn.Module":
    """The net with fresh weights; a name and numbers can make nothing else."""
    require_torch()
    from labeldp.deep import models

    maker = getattr(models, net_named(name).maker)
    try:
        made: nn.Module = maker(**{key: _validate.integer(low=1, **{key: value}) for key, value in parameters.items()})
    except (TypeError, RuntimeError):  # unknown parameters, or more weights than there is memory for
        raise InvalidInput(f"Expected the parameters of {name}, got {', '.join(parameters)}. The model's file was changed.") from None
    return made


def recipe_for(name: str, n_classes: int, epochs: int | None, batch_size: int | None, rate: float | None) -> "Recipe":
    """How the net is trained: by the default recipe where nothing is said; images are moved by up to 2 pixels, which changes no meaning."""
    require_torch()
    from functools import partial

    from labeldp.deep import augment
    from labeldp.deep._loop import default_recipe

    usual = default_recipe(n_classes)
    return replace(
        usual,
        epochs=usual.epochs if epochs is None else epochs,
        batch_size=batch_size,
        rate=usual.rate if rate is None else rate,
        augment=partial(augment.shift, pixels=2) if net_named(name).side else None,
    )


def device_of(name: Any) -> Any:
    """The device that is asked for: one that torch knows, that is there and that holds numbers; "auto" is the GPU if there is one.

    Parameters
    ----------
    name : str or torch.device

    Raises
    ------
    InvalidInput
        Otherwise.
    """
    require_torch()
    import torch

    if isinstance(name, str) and name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        good = isinstance(name, str | torch.device) and float(torch.ones(1, device=name)) == 1
    except (RuntimeError, AssertionError, ValueError, NotImplementedError):  # torch built without the device asserts
        good = False
    if not good:
        raise InvalidInput(f"Expected a device that torch can use here, got {str(name)!r}. Use cpu or auto (device=, --device).")
    return name


def weights_of(module: "nn.Module") -> bytes:
    """The state_dict as `torch.save` writes it."""
    import torch

    stream = io.BytesIO()
    torch.save({name: weight.detach().cpu() for name, weight in module.state_dict().items()}, stream)
    return stream.getvalue()


def restored(name: str, parameters: Mapping[str, Any], raw: bytes, where: str) -> "nn.Module":
    """The net with these weights, in evaluation mode. Of the file only tensors are read; none of its code is run.

    Parameters
    ----------
    name : str
    parameters : mapping
    raw : bytes
        From `weights_of`.
    where : str
        The file, for messages.
    """
    import torch

    try:
        with torch.device("meta"):  # before there is memory for it
            needed = sum(weight.nbytes for weight in build(name, parameters).state_dict().values())
        if needed > len(raw):
            raise ValueError("larger than the file")
        module = build(name, parameters)
        module.load_state_dict(torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True))
    except LabelDPError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"Expected the weights of {name} in {where}, got something else ({type(error).__name__}). The file is damaged or was changed."
        ) from None
    return module.eval()


def as_floats(X: Any) -> NDArray[np.float32]:
    """Standardised numbers, sparse or not, as a net takes them: those far off are held at a million deviations, for float32."""
    if hasattr(X, "toarray"):
        X = X.copy()
        X.data = as_floats(X.data)
        return np.asarray(X.toarray())
    return np.asarray(np.clip(X, -1e6, 1e6), np.float32)


def probabilities(module: "nn.Module", X: NDArray[Any]) -> NDArray[np.float64]:
    """Of the classes, for each row of X: (n, K)."""
    from labeldp.deep._inputs import inputs_of
    from labeldp.deep._stages import softmax

    return softmax(module, inputs_of(X), np.arange(len(X)))
