# SPDX-License-Identifier: Apache-2.0
"""Nets by name for the command line, stored as a name, plain parameters and a state_dict; and
modules from a user's file.

torch is imported only inside functions, so that names can be listed and checked without it.
"""

import copy
import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput, LabelDPError, MissingExtra

if TYPE_CHECKING:
    import torch
    from torch import nn

    from labeldp.deep._loop import Recipe

Floats = NDArray[np.float64]
ROWS = 1 << 13  # rows that a module predicts at a time
MOST_NETS = 100  # of an Ensemble: a changed file could name a billion


@dataclass(frozen=True)
class Net:
    """A net of `labeldp.deep.models` that the command line knows by name.

    Attributes
    ----------
    maker : str
        Name of its class.
    settings : mapping
        Parameters that the name implies.
    side : int
        Minimal height and width of its images; 0 if it takes vectors.
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
    """Return one of `NETS`; the error for a wrong name suggests the nearest one."""
    return NETS[_validate.one_of(NETS, model=name)]


def require_torch() -> None:
    """Raise MissingExtra, with what to install, if torch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra(
            "Expected torch for this model, which is not installed. pip install 'labeldp[torch]'"
        ) from None


def parameters_for(
    name: str, n_classes: int, image: tuple[int, int, int] | None, width: int
) -> dict[str, int]:
    """Return the parameters that make the net for these inputs.

    Parameters
    ----------
    name : str
    n_classes : int
    image : (int, int, int) or None
        Channels, height and width.
    width : int
        Width of the vectors, if there are no images.

    Raises
    ------
    InvalidInput
        If the net does not take such inputs.
    """
    net = net_named(name)
    images = ", ".join(other for other, each in NETS.items() if each.side)
    if image is None and net.side:
        raise InvalidInput(
            f"Expected images for {name}, got rows of {width} numbers. Use --model mlp, or name the"
            " images (--image)."
        )
    if image is not None and not net.side:
        raise InvalidInput(
            f"Expected rows of numbers for {name}, got images. Use one of {images} (--model)."
        )
    if image is None:
        return {"n_features": width, "n_classes": n_classes, **net.settings}
    if min(image[1:]) < net.side:
        raise InvalidInput(
            f"Expected images of at least {net.side} x {net.side} pixels for {name}, got {image[1]}"
            f" x {image[2]}. Enlarge them, or use a model for smaller ones, such as small-convnet."
        )
    return {"n_classes": n_classes, "in_channels": image[0], **net.settings}


def build(name: str, parameters: Mapping[str, Any], sizes: Sequence[int] = ()) -> "nn.Module":
    """Make the net, or an Ensemble of `n_nets`, with new weights. A model's file names it, which
    can so build nothing but these nets.

    `sizes`: of several label columns the number of classes of each.
    """
    require_torch()
    from labeldp.deep import models

    maker = getattr(models, net_named(name).maker)
    several = parameters.get("n_nets", 1)
    if several != 1:
        one = {key: value for key, value in parameters.items() if key != "n_nets"}
        return models.Ensemble(
            [
                build(name, one)
                for _ in range(_validate.integer(n_nets=several, low=1, high=MOST_NETS))
            ],
            sizes,
        )
    try:
        made: nn.Module = maker(
            **{key: _validate.integer(low=1, **{key: value}) for key, value in parameters.items()}
        )
    # unknown parameters, or more weights than there is memory for
    except (TypeError, RuntimeError):
        raise InvalidInput(
            f"Expected the parameters of {name}, got {', '.join(parameters)}. The model's file was"
            " changed."
        ) from None
    return made


def recipe_for(
    name: str, n_classes: int, epochs: int | None, batch_size: int | None, rate: float | None
) -> "Recipe":
    """Make the recipe of the net; images are shifted by up to 2 pixels, which keeps their class."""
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


def loss_for(correction: str) -> "Callable[..., torch.Tensor]":
    """Return the loss with a correction's name, in the words of `LabelDPClassifier`."""
    from labeldp.deep import _losses

    losses: dict[str, Callable[..., torch.Tensor]] = {
        "em": _losses.posterior_loss,
        "debias": _losses.debiased_loss,
        "none": _losses.cross_entropy,
    }
    return losses.get(correction, _losses.likelihood_loss)


def weights_of(module: "nn.Module") -> bytes:
    """Serialise the state_dict of a net, as `torch.save` does."""
    import torch

    stream = io.BytesIO()
    torch.save(
        {name: weight.detach().cpu() for name, weight in module.state_dict().items()}, stream
    )
    return stream.getvalue()


def restored(name: str, parameters: Mapping[str, Any], raw: bytes, where: str) -> "nn.Module":
    """Rebuild the net with these weights, in evaluation mode. Only tensors are read from the file;
    no code of it is run.

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
        # allocates nothing: a changed file may name a net larger than the machine's memory
        with torch.device("meta"):
            needed = sum(weight.nbytes for weight in build(name, parameters).state_dict().values())
        if needed > len(raw):
            raise ValueError("larger than the file")
        module = build(name, parameters)
        module.load_state_dict(torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True))
    except LabelDPError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"Expected the weights of {name} in {where}, got something else"
            f" ({type(error).__name__}). The file is damaged or was changed."
        ) from None
    return module.eval()


def with_head(module: "nn.Module", points: Sequence[object], head: str) -> "nn.Module":
    """Turn a net of two outputs into one of log-probabilities of a range's points (see
    `LocationHead`), in evaluation mode."""
    from labeldp.deep._regressor import with_location

    return with_location(module, np.asarray(points, np.float64), head).eval()


def head_of(module: "nn.Module", start: int, size: int) -> "nn.Module":
    """Return a copy of one of `NETS`, or of an Ensemble of them, that has `size` of its outputs
    alone, from `start` on."""
    from torch import nn

    made: nn.Module = copy.deepcopy(module)
    nets = getattr(made, "nets", None)
    for net in [made] if nets is None else nets:
        last = [each for each in net.modules() if isinstance(each, nn.Linear)][-1]
        last.weight, last.bias = (
            nn.Parameter(each.detach()[start : start + size].clone())
            for each in (last.weight, last.bias)
        )
        last.out_features = size
    if nets is not None:
        made.sizes = ()  # type: ignore[assignment]
    return made


def as_floats(X: Any) -> NDArray[np.float32]:
    """Convert standardised numbers, sparse or not, to float32; clipped at a million deviations, so
    that their squares are finite."""
    if hasattr(X, "toarray"):
        X = X.copy()
        X.data = as_floats(X.data)
        return np.asarray(X.toarray())
    return np.asarray(np.clip(X, -1e6, 1e6), np.float32)


def probabilities(module: "nn.Module", X: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the probabilities of the classes for each row of X: (n, K)."""
    from labeldp.deep._inputs import inputs_of
    from labeldp.deep._stages import logits_of, softmax

    return softmax(logits_of(module, inputs_of(X), np.arange(len(X))))


# A module from a file
# --------------------------------------------------------------------------------------------------


def load_module(
    raw: bytes, name: str, factory: str | None = None, *, probabilities: bool = False
) -> Callable[[Floats], Floats]:
    """Load a torch module as a function from (n, d) numbers to (n, K) probabilities.

    Parameters
    ----------
    raw : bytes
        A program from `torch.export.save`, with a first dimension of any size; or, with `factory`,
        a state_dict from `torch.save`.
    name : str
        Name of the file, for messages.
    factory : str, optional
        "package.module:function"; called without arguments, it returns the `torch.nn.Module` for
        the state_dict.
    probabilities : bool, default=False
        Whether the module returns probabilities; otherwise logits, to which softmax is applied.

    Raises
    ------
    MissingExtra
        If torch is not installed.
    InvalidInput
        If the file cannot be loaded. A state_dict is loaded with `weights_only=True`, which runs no
        code of the file.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtra(
            f"Expected torch for the model {name}, which is not installed. pip install torch."
        ) from None
    module = _exported(raw, name) if factory is None else _from_state(raw, name, factory)
    dtype = next(
        (weight.dtype for weight in module.parameters() if weight.is_floating_point()),
        torch.float32,
    )

    def weights(matrix: Floats) -> Floats:
        found = []
        with torch.inference_mode():
            # of no rows, too, the module knows how many classes there are
            for start in range(0, max(1, len(matrix)), ROWS):
                rows = torch.from_numpy(matrix[start : start + ROWS].astype(np.float32)).to(dtype)
                found.append(_answer(module, rows, name, probabilities))
        return np.concatenate(found)

    return weights


def _answer(module: Any, rows: "torch.Tensor", name: str, probabilities: bool) -> Floats:
    """Compute probabilities of some rows; a user's module may return anything, so its output is
    checked."""
    import torch

    try:
        out = module(rows)
    except Exception as error:
        raise InvalidInput(
            f"Expected the model {name} to take {rows.shape[1]} features of any number of rows, got"
            f" {type(error).__name__}. Check the features; export a program with a dynamic first"
            " dimension."
        ) from None
    if not isinstance(out, torch.Tensor) or out.ndim != 2 or len(out) != len(rows):
        raise InvalidInput(
            f"Expected the model {name} to give a matrix with one row for each row, got something"
            " else."
        )
    values = out.double() if probabilities else torch.softmax(out.double(), dim=1)
    return np.asarray(values.cpu().numpy(), np.float64)


def _exported(raw: bytes, name: str) -> Any:
    """Load a program of `torch.export.save`."""
    import torch

    try:
        return torch.export.load(io.BytesIO(raw)).module()
    except Exception as error:
        raise InvalidInput(
            f"Expected a program of torch.export.save in {name}, got something else"
            f" ({type(error).__name__}). Export it again with this version of torch,"
            f" {torch.__version__}."
        ) from None


def _from_state(raw: bytes, name: str, factory: str) -> Any:
    """Make the factory's module and load the file's weights into it."""
    import torch

    module = _made(factory)
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(
            f"Expected {factory} to give a torch.nn.Module, got {type(module).__name__}."
        )
    try:
        state = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
        module.load_state_dict(state)
    except Exception as error:
        raise InvalidInput(
            f"Expected a state_dict of the module that {factory} gives in {name}, got something"
            f" else ({type(error).__name__}). Save it with torch.save(module.state_dict(), path);"
            " nothing else is loaded from such files."
        ) from None
    return module.eval()


def _made(factory: str) -> object:
    """Call the function "package.module:function" and return its result."""
    module, colon, name = factory.partition(":")
    if not (module and colon and name):
        raise InvalidInput(
            f"Expected package.module:function, got factory={factory!r}. Name the function that"
            " makes the module."
        )
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError):  # of a relative name
        raise InvalidInput(
            f"Expected a function that can be imported, got factory={factory!r}. Install its"
            " package here."
        ) from None
    try:
        return make()
    except Exception as error:
        raise InvalidInput(
            f"Expected {factory} to make a module when it is called without arguments, got"
            f" {type(error).__name__}: {error}"
        ) from error
