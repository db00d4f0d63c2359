# SPDX-License-Identifier: Apache-2.0
"""Augmentation: exactly what is promised, for every image, in the promised proportions, from the
generator alone."""

import ast
import inspect
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.deep import images as shared
from benchmarks.deep.recipes import AUGMENTATIONS, batch_crop
from torch.nn import functional

from labeldp import InvalidInput
from labeldp.deep import Consistency, augment
from labeldp.papers import ghazi2021 as recipes

ROOT = Path(__file__).resolve().parents[2]

STEPS = {
    "flip": augment.flip,
    "shift": partial(augment.shift, pixels=3),
    "shift reflect": partial(augment.shift, pixels=3, mode="reflect"),
    "cutout": partial(augment.cutout, size=4),
    "resized crop": augment.resized_crop,
    "shared cutout": partial(augment.cutout, size=4, shared=True),
    "mixup": lambda x, generator: augment.mixup(x, generator, alpha=4.0)[0],
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=4000, c=2, h=6, w=7):
    return torch.arange(n * c * h * w, dtype=torch.float32).reshape(n, c, h, w) + 1


@pytest.mark.parametrize("name", STEPS)
def test_seeds_decide_and_nothing_is_changed_in_place(name):
    x = images(50)
    before, state = x.clone(), torch.get_rng_state()
    first, again, other = (STEPS[name](x, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(x, before) and torch.equal(torch.get_rng_state(), state)
    assert first.shape == x.shape and first.dtype == x.dtype


@pytest.mark.parametrize("name", ["flip", "shift", "cutout", "resized crop"])
def test_channels_last_stays_so_with_the_same_pixels(name):
    x = images(8)
    last = STEPS[name](x.contiguous(memory_format=torch.channels_last), generator())
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last.contiguous(), STEPS[name](x, generator()))


def test_half_of_the_images_are_mirrored():
    x = images()
    out = augment.flip(x, generator())
    same, mirrored = ((out == y).flatten(1).all(1) for y in (x, x.flip(3)))
    assert torch.equal(same, ~mirrored)
    assert abs(mirrored.float().mean() - 0.5) < 5 * 0.5 / 4000**0.5


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate"])
def test_every_image_is_some_crop_and_every_crop_occurs_equally(mode):
    x = images(5000, 1)
    out = augment.shift(x, generator(), pixels=2, mode=mode)
    padded = functional.pad(x, (2, 2, 2, 2), mode=mode)
    counts = torch.zeros(5, 5)
    for down in range(5):
        for right in range(5):
            counts[down, right] = (
                (out == padded[:, :, down : down + 6, right : right + 7]).flatten(1).all(1).sum()
            )
    assert counts.sum() == 5000  # content is different everywhere, so each image is one crop
    chi2 = ((counts - 200) ** 2 / 200).sum()
    assert chi2 < 64  # 24 degrees of freedom: one in 10^5


def test_no_shift_changes_nothing():
    assert torch.equal(augment.shift(images(3), generator(), pixels=0), images(3))


@pytest.mark.parametrize("size", [1, 4, 5])
def test_cutout_removes_one_square_around_any_pixel(size):
    x = images(4000, 2, 9, 9)
    gone = augment.cutout(x, generator(), size=size) == 0
    assert torch.equal(gone[:, 0], gone[:, 1])
    rows, columns = gone[:, 0].any(2), gone[:, 0].any(1)
    assert torch.equal(gone[:, 0], rows[:, :, None] & columns[:, None, :])  # a rectangle
    for side in (rows, columns):
        # cut at the edge at most to its half
        assert side.sum(1).max() == size and side.sum(1).min() == min(size, size - size // 2)
        assert (side[:, 1:] != side[:, :-1]).sum(1).max() <= 2  # without holes
    inside = gone[:, 0, 4, 4].float().mean()  # the middle pixel is hit by size^2 of the 81 centres
    expected = (size / 9) ** 2
    assert abs(inside - expected) < 5 * (expected * (1 - expected) / 4000) ** 0.5


def test_one_square_for_the_batch_where_asked():
    gone = augment.cutout(images(100, 1, 9, 9), generator(), size=4, shared=True) == 0
    assert (gone == gone[:1]).all()
    assert gone.any()


def test_mixup_mixes_pairs_by_one_weight():
    x = images(1000, 1, 2, 2)
    mixed, partner, lam = augment.mixup(x, generator(), alpha=4.0)
    assert 0 < lam < 1
    torch.testing.assert_close(mixed, lam * x + (1 - lam) * x[partner])
    assert sorted(partner.tolist()) == list(range(1000))
    assert (partner == torch.arange(1000)).sum() < 10


def test_weights_are_beta():
    draw = generator()
    lam = np.array([augment.mixup(torch.zeros(2, 1), draw, alpha=4.0)[2] for _ in range(2000)])
    variance = 1 / (4 * (2 * 4 + 1))
    assert abs(lam.mean() - 0.5) < 5 * (variance / 2000) ** 0.5
    assert lam.var() == pytest.approx(variance, rel=0.15)


def test_images_of_another_scale_are_refused_and_those_of_a_crop_are_not():
    step = augment.rand_augment
    for beyond in (images(3) + 1, images(3) - 1, images(3) * 255):
        with pytest.raises(InvalidInput, match=r"images of 0\.\.1"):
            step(beyond, generator())
    white = torch.full((2, 3, 7, 7), 1 + 2**-23)  # as a crop gives, by rounding
    assert step(white, generator()).max() <= 1
    assert step(images(0), generator()).shape == images(0).shape


def ramps(n=2000, h=16, w=16):
    """Two channels that say where a pixel came from: its column and its row, both in -1..1."""
    column, row = ((torch.arange(length) * 2 + 1) / length - 1 for length in (w, h))
    return torch.stack((column.expand(h, w), row[:, None].expand(h, w))).expand(n, 2, h, w)


def test_crops_are_boxes_inside_the_image_of_the_promised_areas_and_shapes():
    out = augment.resized_crop(ramps(), generator(), scale=(0.3, 0.6), ratio=(0.8, 1.25))
    across, down = out[:, 0, 8], out[:, 1, :, 8]
    # sides, as parts of the image's
    step = (across[:, 8] - across[:, 7]) * 8, (down[:, 8] - down[:, 7]) * 8
    area, ratio = step[0] * step[1], step[0] / step[1]
    assert area.min() >= 0.3 - 1e-4 and area.max() <= 0.6 + 1e-4
    assert ratio.min() >= 0.8 - 1e-4 and ratio.max() <= 1.25 + 1e-4
    assert abs(area.mean() - 0.45) < 5 * 0.3 / 12**0.5 / 2000**0.5
    assert abs(ratio.log().mean()) < 5 * (2 * np.log(1.25)) / 12**0.5 / 2000**0.5
    for place, side in zip((across, down), step, strict=True):
        centre = (place[:, 7] + place[:, 8]) / 2
        assert (centre.abs() + side <= 1 + 1e-4).all() and centre.abs().max() > 0.2
        assert abs(centre.mean()) < 5 * 0.4 / 2000**0.5


def test_a_crop_of_the_whole_is_the_image():
    x = torch.rand(3, 2, 5, 7)
    torch.testing.assert_close(
        augment.resized_crop(x, generator(), scale=(1.0, 1.0), ratio=(1.0, 1.0)),
        x,
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize(
    "step",
    [augment.flip, augment.shift, augment.cutout, augment.resized_crop, augment.rand_augment],
)
def test_what_is_no_batch_of_images_is_refused(step):
    for bad in (torch.zeros(3, 4, 4), np.zeros((1, 3, 4, 4))):
        with pytest.raises(InvalidInput, match="batch of images"):
            step(bad, generator())


def test_bad_options_are_refused():
    x = images(3)
    for bad in (
        lambda: augment.shift(x, generator(), pixels=-1),
        lambda: augment.cutout(x, generator(), size=2.5),
        lambda: augment.rand_augment(x.byte(), generator()),
        lambda: augment.mixup(x, generator(), alpha=-1.0),
        lambda: augment.mixup(x, generator(), alpha=float("nan")),
        lambda: augment.mixup(x.long(), generator(), alpha=1.0),
    ):
        with pytest.raises(InvalidInput, match="Expected"):
            bad()


def test_no_policy_that_was_searched_with_labels_is_here():
    """As docs/concepts/guarantee.md says: every augmentation is one of these, drawn
    alike, and no code names another."""
    known = {"flip", "shift", "cutout", "mixup", "resized_crop", "rand_augment"}
    offered = {
        name
        for name, each in vars(augment).items()
        if inspect.isfunction(each) and each.__module__ == augment.__name__
    }
    assert {name for name in offered if not name.startswith("_")} == known
    searched = re.compile(
        r"auto_?augment|\bpolic(y|ies)\b|torchvision|kornia\.augmentation", re.IGNORECASE
    )
    code = [
        path
        for folder in ("src/labeldp/deep", "src/labeldp/papers", "benchmarks/deep")
        for path in (ROOT / folder).rglob("*.py")
    ]
    calls = {path.name: searched.findall(" ".join(names_in(path))) for path in code}
    assert len(calls) > 20
    assert searched.search("autoaugment")
    assert not {name: found for name, found in calls.items() if found}


def names_in(path: Path) -> list[str]:
    """Every name, attribute and import of a file; not its text."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    found = [node.id for node in nodes if isinstance(node, ast.Name)] + [
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    ]
    found += [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    found += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return found + [
        alias.name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]


def test_augmentations_of_the_recipes_are_made_of_these():
    """Those of the papers' recipes, of the benchmarks', and the strong change of consistency."""
    made = [
        recipes.lp_1st("cifar10", epsilon=1.0)["recipe"].augment,
        recipes.lp_2st("fashion_mnist", epsilon=1.0)["recipe"][1].augment,
    ]
    made += [*AUGMENTATIONS.values(), Consistency().strong, shared.Settings().recipe().augment]
    steps = [step for each in made if each is not None for step in getattr(each, "steps", (each,))]
    functions = {getattr(step, "func", step) for step in steps}
    assert len(functions) > 3
    assert {function for function in functions if function.__module__ != augment.__name__} == {
        batch_crop,
        made[0],  # of those above, as the test of its module says
    }
