# SPDX-License-Identifier: Apache-2.0
"""Self-supervised learning on images: SimCLR, BYOL, and SCAN's clusters. No function here takes
labels, so none can leak.

Each method trains by `labeldp.deep.train` on pairs of views, and returns a net for
`labeldp.papers._embed.Embedder`. Views are made by `labeldp.deep.augment`, which draws from a given
generator; kornia draws from torch's global one. lightly, which has these losses, too, needs
torchvision.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from labeldp.errors import InvalidInput, needs_torch

with needs_torch():
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
    from torch.optim.swa_utils import AveragedModel

from labeldp import _validate
from labeldp.deep._consistency import nearest_rows
from labeldp.deep._inputs import Inputs, Resident, as_inputs
from labeldp.deep._loop import Optimizer, Progress, Recipe, predict, require_generator, train
from labeldp.deep._losses import at_least_float32, likelihood_loss
from labeldp.deep.augment import Augmentation, flip, rand_augment, resized_crop
from labeldp.deep.schedules import cosine, weight_average
from labeldp.papers._embed import CHANNELS, channels_first, require_unit_range

SIMCLR = Recipe(
    epochs=200,
    batch_size=512,
    rate=0.4,
    schedule=partial(cosine, ramp=0.05),
    optimizer=Optimizer("sgd", weight_decay=1e-4, clip=math.inf),
)
"""As Tang et al. 2022 train on CIFAR-10 (there for 500 epochs)."""
BYOL = replace(SIMCLR, rate=0.2)
SCAN = Recipe(
    epochs=50,
    batch_size=512,
    rate=0.02,
    schedule=cosine,
    optimizer=Optimizer("sgd", weight_decay=1e-4, clip=5.0),
)
SELF_LABEL = replace(SCAN, batch_size=1000, rate=0.01)

# widths of the projection heads, which are dropped after the training
_HIDDEN, _PROJECTED = 512, 128
_HEADS = ("head", "fc", "classifier")  # usual names of a net's last layer


@dataclass(frozen=True)
class ScanSettings:
    """Settings of `scan`.

    Parameters
    ----------
    recipe : Recipe, default=SCAN
        The training of the clusters; `augment` as in `simclr`.
    n_neighbours : int, default=20
        Number of nearest images, by cosine, from which each epoch takes one.
    entropy_weight : float, default=5.0
        Weight of the entropy in `scan_loss`, which keeps clusters from being empty.
    self_label : Recipe or None, default=SELF_LABEL
        The training of the last step, in which sure images teach; None leaves it out.
    confidence : float in (0, 1), default=0.99
        Probability from which an image is sure: see `self_label_loss`.
    """

    recipe: Recipe = SCAN
    n_neighbours: int = 20
    entropy_weight: float = 5.0
    self_label: Recipe | None = SELF_LABEL
    confidence: float = 0.99


def simclr(
    module: nn.Module,
    inputs: Any,
    recipe: Recipe = SIMCLR,
    *,
    generator: torch.Generator,
    temperature: float = 0.1,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    fabric: Any = None,
    checkpoint: str | Path | None = None,
) -> nn.Module:
    """Train a net so that two views of an image are nearer to each other than to views of other
    images.

    Parameters
    ----------
    module : nn.Module
        Gives features (m, d), for example `without_head(CifarResNet18())`. Trained in place, moved
        to the device.
    inputs : (n, h, w), (n, h, w, c) or (n, c, h, w) images, or what `as_inputs` takes
        Bytes (uint8) or floats of 0..1, of which `recipe.augment` may take others; public.
    recipe : Recipe, default=SIMCLR
        Its `augment` makes one view of an image. None: crops that `rand_augment` changes once, in
        three colours also mirrored. The paper's has other changes of colours.
    generator : torch.Generator
        On the CPU. It draws the order of images, the views, and the initial weights of layers that
        are added to the net.
    temperature : float > 0, default=0.1
        Temperature of `nt_xent`.
    device, progress, fabric
        As in `train`. In many processes, an image is compared with those of its own process.
    checkpoint : str or Path, optional
        As in `train`: a training that was cut off goes on from it.

    Returns
    -------
    nn.Module in evaluation mode, giving features (m, d): `module`, or its average if the recipe
    asks for one.

    Notes
    -----
    Guarantee: no label is read. Cost: two passes of the net an image and epoch.

    References
    ----------
    Chen, Kornblith, Norouzi and Hinton, "A Simple Framework for Contrastive Learning of Visual
    Representations", ICML 2020; settings of Tang et al., "Machine Learning with Differentially
    Private Labels", PoPETs 2022.
    """
    _validate.positive(temperature=temperature)
    require_generator(generator)
    found = _images(inputs)
    with _first_weights(generator):
        net = nn.Sequential(module, _perceptron(_width(module, found), _PROJECTED))
    views = _two_views(_view(recipe, found))
    loss = partial(nt_xent, temperature=temperature)
    trained = _train(
        net, found, recipe, views, loss, generator, _Host(device, progress, fabric, checkpoint)
    )
    return _inside(trained, 0)


def byol(
    module: nn.Module,
    inputs: Any,
    recipe: Recipe = BYOL,
    *,
    generator: torch.Generator,
    decay: float = 0.996,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    fabric: Any = None,
) -> nn.Module:
    """Train a net to predict its own slow average's projection of another view of the image.

    Parameters
    ----------
    module : nn.Module
        Gives features (m, d). Trained in place, moved to the device.
    inputs : (n, h, w), (n, h, w, c) or (n, c, h, w) images, or what `as_inputs` takes
        Bytes (uint8) or floats of 0..1, of which `recipe.augment` may take others; public.
    recipe : Recipe, default=BYOL
        As in `simclr`.
    generator : torch.Generator
        As in `simclr`.
    decay : float in [0, 1), default=0.996
        Decay of the slow net, a `weight_average`.
    device, progress, fabric
        As in `train`.

    Returns
    -------
    nn.Module in evaluation mode, giving features (m, d): `module`, or its average if the recipe
    asks for one.

    Notes
    -----
    Guarantee: no label is read. Cost: two passes of the net with gradients and two without, an
    image and epoch.

    References
    ----------
    Grill et al., "Bootstrap Your Own Latent: A New Approach to Self-Supervised Learning", NeurIPS
    2020.
    """
    require_generator(generator)
    found = _images(inputs)
    with _first_weights(generator):
        online = nn.Sequential(module, _perceptron(_width(module, found), _PROJECTED))
        net = _Byol(
            online, _perceptron(_PROJECTED, _PROJECTED), _validate.fraction(decay=decay, zero=True)
        )
    views = _two_views(_view(recipe, found))
    trained = _train(net, found, recipe, views, _both, generator, _Host(device, progress, fabric))
    return _inside(trained.online, 0)


def scan(
    module: nn.Module,
    inputs: Any,
    n_clusters: int,
    settings: ScanSettings | None = None,
    *,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    fabric: Any = None,
) -> nn.Module:
    """Train a net of good features to put images and their neighbours into one cluster, then to
    agree with itself on confident images.

    Parameters
    ----------
    module : nn.Module
        Gives features (m, d) in which images of a class are near each other: what `simclr` or
        `byol` returned. Trained further in place.
    inputs : (n, h, w), (n, h, w, c) or (n, c, h, w) images, or what `as_inputs` takes
        Those that the features were learned on.
    n_clusters : int
        At most n; most simply the number of classes, which is public.
    settings : ScanSettings, optional
        The recipes of both steps, and how neighbours are used.
    generator : torch.Generator
        As in `simclr`.
    device, progress, fabric
        As in `train`; epochs of both steps are reported.

    Returns
    -------
    nn.Module in evaluation mode, giving cluster probabilities (m, n_clusters). As an embedder for
    as many clusters it gives these clusters; `predict(net, images).argmax(1)` are groups for
    `aggregate`.

    Notes
    -----
    Guarantee: no label is read. Cost: n^2 d multiplications for the neighbours, then as `simclr`.

    References
    ----------
    Van Gansbeke et al., "SCAN: Learning to Classify Images without Labels", ECCV 2020; used by Tang
    et al. 2022 for NoiseCluster.
    """
    require_generator(generator)
    settings, found = settings or ScanSettings(), _images(inputs)
    count = _validate.integer(n_clusters=n_clusters, low=2, high=len(found))
    near = _validate.integer(
        n_neighbours=settings.n_neighbours,
        low=1,
        high=len(found) - 1,
        fix="An image has at most all others as neighbours.",
    )
    # The neighbours are found by the features as they are now, before the clusters' training
    # changes them.
    module.to(device if fabric is None else fabric.device)
    pairs = _Pairs(
        found,
        nearest_rows(predict(module, found), near),
        torch.Generator().manual_seed(int(torch.randint(2**62, (1,), generator=generator))),
    )
    with _first_weights(generator):
        net: nn.Module = nn.Sequential(module, nn.Linear(_width(module, found), count))
    host, recipe, last = _Host(device, progress, fabric), settings.recipe, settings.self_label
    loss = partial(scan_loss, entropy_weight=settings.entropy_weight)
    net = _train(net, pairs, recipe, _view_of_each(_view(recipe, found)), loss, generator, host)
    if last is not None:
        loss = partial(
            self_label_loss, confidence=_validate.fraction(confidence=settings.confidence)
        )
        net = _train(net, found, last, _beside(_view(last, found)), loss, generator, host)
    return nn.Sequential(net, _Probabilities()).eval()


def without_head(module: nn.Module) -> nn.Module:
    """Replace the last layer of a net by the identity, in place, so that the net returns that
    layer's inputs as features.

    Parameters
    ----------
    module : nn.Module
        With a last layer `head`, `fc` or `classifier`, as the image nets of `labeldp.deep.models`
        and most others.
    """
    for name in _HEADS:
        if isinstance(getattr(module, name, None), nn.Linear | nn.Identity):
            setattr(module, name, nn.Identity())
            return module
    raise InvalidInput(
        f"Expected a net with a linear layer {', '.join(_HEADS)}, got {type(module).__name__}. Make"
        " one that gives features."
    )


class _Probabilities(nn.Module):
    """Softmax in float32 or wider: in bf16, rows would sum to 1 only within a few parts in a
    thousand."""

    def forward(self, logits: Tensor) -> Tensor:
        return torch.softmax(at_least_float32(logits), dim=1)


class _Byol(nn.Module):
    """A net that returns predictions and targets: (2m, 2, d)."""

    def __init__(self, online: nn.Module, predictor: nn.Module, decay: float) -> None:
        super().__init__()
        self.online, self.predictor, self._decay = online, predictor, decay
        # made at the first call, on its device; in a list, so that no optimizer sees it
        self._slow: list[AveragedModel] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self._slow:
            # batch normalisation as in the paper
            self._slow.append(weight_average(self.online, self._decay).train())
        else:
            self._slow[0].update_parameters(self.online)  # with the weights after the last step
        with torch.no_grad():
            target = self._slow[0](x)
        return torch.stack((self.predictor(self.online(x)), target), dim=1)


@dataclass(frozen=True, eq=False)
class _Pairs(Inputs):
    """Inputs that pair each image with a random one of its neighbours, stacked along the
    channels."""

    inputs: Inputs
    neighbours: Tensor
    seed: torch.Generator

    def __len__(self) -> int:
        return len(self.inputs)

    def batches(self, rows: Iterable[Tensor]) -> Iterator[Tensor]:
        wanted = [torch.cat((chosen, self._partners(chosen))) for chosen in rows]
        for both in self.inputs.batches(wanted):
            yield torch.cat(both.chunk(2), dim=1)

    def _partners(self, rows: Tensor) -> Tensor:
        which = torch.randint(self.neighbours.shape[1], (len(rows),), generator=self.seed)
        return self.neighbours[rows, which]

    def on(
        self, device: torch.device | str, layout: torch.memory_format = torch.preserve_format
    ) -> Inputs:
        return replace(self, inputs=self.inputs.on(device, layout))


@dataclass(frozen=True)
class _Host:
    """The device and processes of a training, its progress function, and the file that it goes on
    from."""

    device: torch.device | str
    progress: Progress | None
    fabric: Any
    checkpoint: str | Path | None = None


def _train(
    net: nn.Module,
    inputs: Inputs,
    recipe: Recipe,
    pairs: Augmentation,
    loss: Callable[[Tensor], Tensor],
    generator: torch.Generator,
    host: _Host,
) -> Any:
    """Train a net by the loop of `labeldp.deep.train`. Its evidence is row numbers, which no loss
    reads."""
    if recipe.alpha or recipe.loss is not likelihood_loss:
        raise InvalidInput(
            "Expected a recipe without mixup and without a loss, since learning without labels has"
            " its own. Leave them out."
        )

    def of_pairs(outputs: Tensor, rows: Tensor, reduction: str = "mean") -> Tensor:
        return loss(outputs)

    # Row numbers take the place of evidence: the loop wants some for each row, and this loss
    # ignores them, so no label can be passed.
    own = replace(recipe, augment=pairs, loss=of_pairs)
    numbers = torch.arange(len(inputs))
    return train(net, inputs, numbers, own, generator=generator, **vars(host))


def _images(X: Any) -> Inputs:
    """Convert images to inputs with channels first; other inputs are returned unchanged."""
    inputs = as_inputs(X)
    if len(inputs) < 2:
        raise InvalidInput(f"Expected at least two images to compare, got {len(inputs)}.")
    if isinstance(inputs, Resident) and inputs.tensor.ndim in (3, 4):
        if not (inputs.tensor.is_floating_point() or inputs.tensor.dtype == torch.uint8):
            raise InvalidInput(
                f"Expected images of bytes (uint8) or floats of 0..1, got {inputs.tensor.dtype}."
                " Convert them to uint8."
            )
        told_last = inputs.tensor.shape[-1] in CHANNELS and inputs.tensor.shape[1] not in CHANNELS
        return Resident(channels_first(inputs.tensor, "last" if told_last else "first"))
    return inputs


def _view(recipe: Recipe, inputs: Inputs) -> Augmentation:
    """Return the augmentation that makes a view of a batch."""
    if recipe.augment is not None:
        return recipe.augment
    if inputs.ndim != 4:
        raise InvalidInput(
            "Expected images, of which there is a rule for views, got batches of"
            f" {inputs.ndim} axes. Pass Recipe(augment=...)."
        )
    if isinstance(inputs, Resident) and inputs.tensor.is_floating_point():
        require_unit_range(inputs.tensor)
    return _cropped_and_changed


def _cropped_and_changed(x: Tensor, generator: torch.Generator) -> Tensor:
    mirrored = flip(x, generator) if x.shape[1] == 3 else x
    return rand_augment(resized_crop(mirrored, generator), generator, count=1, hole=0.0)


def _two_views(view: Augmentation) -> Augmentation:
    return lambda x, generator: torch.cat((view(x, generator), view(x, generator)))


def _view_of_each(view: Augmentation) -> Augmentation:
    """Make a view of each image of a pair that is stacked along the channels."""
    return lambda x, generator: torch.cat([view(half, generator) for half in x.chunk(2, dim=1)])


def _beside(view: Augmentation) -> Augmentation:
    return lambda x, generator: torch.cat((x, view(x, generator)))


def _both(outputs: Tensor) -> Tensor:
    predictions, targets = outputs.unbind(dim=1)
    return byol_loss(predictions, targets)


def _perceptron(n_in: int, n_out: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(n_in, _HIDDEN, bias=False),
        nn.BatchNorm1d(_HIDDEN),
        nn.ReLU(inplace=True),
        nn.Linear(_HIDDEN, n_out),
    )


def _width(module: nn.Module, inputs: Inputs) -> int:
    """Return the number of features that the net gives."""
    if next(module.parameters(), None) is None:
        raise InvalidInput(
            f"Expected a net with weights to train, got {type(module).__name__}, which has none."
        )
    shape = tuple(predict(module, inputs.take(torch.arange(2))).shape)
    if len(shape) != 2:
        raise InvalidInput(
            f"Expected a net that gives features (m, d), got shape {shape}. Put torch.nn.Flatten()"
            " or a mean behind it."
        )
    return int(shape[1])


@contextmanager
def _first_weights(generator: torch.Generator) -> Iterator[None]:
    """Draw the initial weights of layers made in this block from the generator, and leave torch's
    global one unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        yield


def _inside(net: nn.Module, place: int) -> nn.Module:
    """Return the net without the layers that were added for the training."""
    found: nn.Module = list(net.children())[place]
    return found.requires_grad_(True).eval()


def nt_xent(projections: Tensor, temperature: float = 0.5) -> Tensor:
    """Compute SimCLR's loss: among all other views in the batch, find the one of the same image.

    Parameters
    ----------
    projections : (2m, d) float tensor
        m first views, then the second views of the same images. Their lengths do not count.
    temperature : float

    Returns
    -------
    Scalar tensor: mean over views of -ln softmax(cosines / temperature) at the partner. At least
    float32.

    Notes
    -----
    Source: Chen et al., "A simple framework for contrastive learning" (2020), equation 1. Cost
    O(m^2 d).
    """
    m = _half(projections)
    sharpness = 1 / _validate.positive(temperature=temperature)
    z = functional.normalize(at_least_float32(projections), dim=1)
    itself = torch.eye(2 * m, dtype=torch.bool, device=z.device)
    # A view is no candidate for its own partner.
    cosines = (z @ z.T).masked_fill(itself, -math.inf) * sharpness
    return functional.cross_entropy(cosines, torch.arange(2 * m, device=z.device).roll(m))


def byol_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """Compute BYOL's loss: predict what the slower net makes of the other view.

    Parameters
    ----------
    predictions, targets : (2m, d) float tensors
        m first views, then the second views. Targets get no gradient.

    Returns
    -------
    Scalar tensor, 0 to 4: mean over views of 2 - 2 cos(prediction, target of the other view).

    Notes
    -----
    Source: Grill et al., "Bootstrap your own latent" (2020), equation 2, the mean of both
    directions.
    """
    m = _half(predictions)
    if targets.shape != predictions.shape:
        raise InvalidInput(
            f"Expected targets of shape {tuple(predictions.shape)}, got {tuple(targets.shape)}."
        )
    cosines = functional.cosine_similarity(
        at_least_float32(predictions), at_least_float32(targets.detach()).roll(m, 0), dim=1
    )
    return 2 - 2 * cosines.mean()


def scan_loss(logits: Tensor, entropy_weight: float = 5.0) -> Tensor:
    """Compute SCAN's loss: neighbours share a cluster, and rows spread over all clusters.

    Parameters
    ----------
    logits : (2m, C) float tensor
        m rows, then a neighbour of each.
    entropy_weight : float
        Against one cluster that takes all.

    Returns
    -------
    Scalar tensor: -mean ln sum_c p_c(row) p_c(neighbour) - entropy_weight x entropy of the mean p
    of the rows.

    Notes
    -----
    Source: Van Gansbeke et al., "SCAN: learning to classify images without labels" (2020), equation
    2.
    """
    _half(logits)
    log_p = functional.log_softmax(at_least_float32(logits), dim=1)
    rows, neighbours = log_p.chunk(2)
    apart = -torch.logsumexp(rows + neighbours, dim=1).mean()
    # In logarithms, since the probabilities of clusters that a row is sure not to be in underflow.
    log_mean = torch.logsumexp(rows, dim=0) - math.log(len(rows))
    return apart + entropy_weight * (log_mean.exp() * log_mean).sum()


def self_label_loss(logits: Tensor, confidence: float = 0.99) -> Tensor:
    """Compute the loss of SCAN's last step: images that are surely in a cluster label their
    augmented views.

    Parameters
    ----------
    logits : (2m, C) float tensor
        m rows as they are, which get no gradient, then a view of each.
    confidence : float
        Least probability of a row that counts.

    Returns
    -------
    Scalar tensor: cross-entropy of the views of those rows, each cluster with the same weight; 0
    where there is none.

    Notes
    -----
    Source: Van Gansbeke et al. 2020, section 2.3, with the weights of its code.
    """
    m = _half(logits)
    least, wide = _validate.fraction(confidence=confidence), at_least_float32(logits)
    sure, cluster = functional.softmax(wide[:m].detach(), dim=1).max(dim=1)
    counted = (sure > least).to(wide.dtype)
    sizes = torch.zeros(wide.shape[1], dtype=wide.dtype, device=wide.device).index_add_(
        0, cluster, counted
    )
    # Each cluster has the same weight: otherwise the large ones, which are sure first, would grow
    # until they take all images.
    weights = counted / sizes[cluster].clamp_min(1)
    each = functional.cross_entropy(wide[m:], cluster, reduction="none")
    return (each * weights).sum() / weights.sum().clamp_min(1)


def _half(rows: Tensor) -> int:
    if (
        not isinstance(rows, Tensor)
        or rows.ndim != 2
        or len(rows) % 2
        or not len(rows)
        or not rows.is_floating_point()
    ):
        found = (
            f"shape {tuple(rows.shape)} of {rows.dtype}"
            if isinstance(rows, Tensor)
            else type(rows).__name__
        )
        raise InvalidInput(
            f"Expected floats (2m, d), both halves of a batch, got {found}. Concatenate the two"
            " views' outputs."
        )
    return len(rows) // 2
