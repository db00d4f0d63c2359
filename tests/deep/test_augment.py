# SPDX-License-Identifier: Apache-2.0
"""Augmentation: exactly what is promised, for every image, in the promised proportions, from the generator alone."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from labeldp import InvalidInput
from labeldp.deep import augment

STEPS = {
    "flip": augment.flip,
    "shift": partial(augment.shift, pixels=3),
    "shift reflect": partial(augment.shift, pixels=3, mode="reflect"),
    "cutout": partial(augment.cutout, size=4),
    "shared cutout": partial(augment.cutout, size=4, shared=True),
    "mixup": lambda x, generator: augment.mixup(x, generator, alpha=4.0).inputs,
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


@pytest.mark.parametrize("name", ["flip", "shift", "cutout"])
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
            counts[down, right] = (out == padded[:, :, down : down + 6, right : right + 7]).flatten(1).all(1).sum()
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
        assert side.sum(1).max() == size and side.sum(1).min() == min(size, size - size // 2)  # cut at the edge at most to its half
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
    mixed = augment.mixup(x, generator(), alpha=4.0)
    assert 0 < mixed.lam < 1
    torch.testing.assert_close(mixed.inputs, mixed.lam * x + (1 - mixed.lam) * x[mixed.partner])
    assert sorted(mixed.partner.tolist()) == list(range(1000))
    assert (mixed.partner == torch.arange(1000)).sum() < 10


def test_weights_are_beta():
    draw = generator()
    lam = np.array([augment.mixup(torch.zeros(2, 1), draw, alpha=4.0).lam for _ in range(2000)])
    variance = 1 / (4 * (2 * 4 + 1))
    assert abs(lam.mean() - 0.5) < 5 * (variance / 2000) ** 0.5
    assert lam.var() == pytest.approx(variance, rel=0.15)


def test_alpha_zero_mixes_nothing():
    x = images(5)
    mixed = augment.mixup(x, generator(), alpha=0)
    assert mixed.lam == 1 and torch.equal(mixed.inputs, x) and torch.equal(mixed.partner, torch.arange(5))


def test_chains_run_from_left_to_right():
    x = images(20)
    draw = generator()
    expected = augment.cutout(augment.flip(x, draw), draw, size=3)
    assert torch.equal(augment.chain(augment.flip, partial(augment.cutout, size=3))(x, generator()), expected)


@pytest.mark.parametrize("step", [augment.flip, augment.shift, augment.cutout])
def test_what_is_no_batch_of_images_is_refused(step):
    for bad in (torch.zeros(3, 4, 4), np.zeros((1, 3, 4, 4))):
        with pytest.raises(InvalidInput, match="batch of images"):
            step(bad, generator())


def test_bad_options_are_refused():
    x = images(3)
    for bad in (
        lambda: augment.shift(x, generator(), pixels=-1),
        lambda: augment.shift(x, generator(), mode="wrap"),
        lambda: augment.cutout(x, generator(), size=2.5),
        lambda: augment.mixup(x, generator(), alpha=-1.0),
        lambda: augment.mixup(x, generator(), alpha=float("nan")),
        lambda: augment.mixup(x.long(), generator(), alpha=1.0),
    ):
        with pytest.raises(InvalidInput, match="Expected"):
            bad()
