# SPDX-License-Identifier: Apache-2.0
"""Learning rates at known points and against torch's own schedulers; averages of weights against
their formula."""

import math

import pytest
import torch
from torch import nn

from labeldp import InvalidInput
from labeldp.deep import schedules, weight_average


def at(schedule, *progress):
    return [schedule(t) for t in progress]


def test_triangular_at_15_percent_is_the_papers():
    assert at(schedules.triangular(0.15), 0, 0.075, 0.15, 0.575, 1) == pytest.approx(
        [0, 0.5, 1, 0.5, 0]
    )


def test_triangular_has_any_peak_and_ends():
    assert at(
        schedules.triangular(0.5, start=0.2, end=0.1), 0, 0.25, 0.5, 0.75, 1
    ) == pytest.approx([0.2, 0.6, 1, 0.55, 0.1])
    assert at(schedules.triangular(0), 0, 0.5, 1) == pytest.approx([1, 0.5, 0])


def test_piecewise_constant_decays_where_the_published_runs_did():
    points = [0, 0.075, 0.15, 0.3, 0.449, 0.45, 0.6, 0.749, 0.75, 0.9, 1]
    assert at(schedules.piecewise_constant(), *points) == pytest.approx(
        [0, 0.5, 1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01]
    )
    assert schedules.piecewise_constant(0.3) == schedules.piecewise_constant([0.3])
    text = schedules.piecewise_constant((0.3, 0.6, 0.9))
    assert at(text, 0.29, 0.3, 0.6, 0.9) == pytest.approx([1, 0.1, 0.01, 0.001])


def test_the_published_decay_points_follow_from_the_ramp():
    """A schedule that restarts its count after the ramp decays at 15 % + 30, 60 and 90 %; the last
    is past the end."""
    assert [p for p in (round(0.15 + d, 2) for d in (0.3, 0.6, 0.9)) if p <= 1] == list(
        schedules.PAPER_DECAYS
    )


def torch_rates(make, steps):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_one_cycle_and_cosine_are_torchs():
    steps = 101
    cycle = torch_rates(
        lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, 0.4, total_steps=steps, pct_start=0.31, cycle_momentum=False
        ),
        steps,
    )
    peak = (0.31 * steps - 1) / (steps - 1)
    assert [
        0.4 * schedules.one_cycle(peak)(s / (steps - 1)) for s in range(steps)
    ] == pytest.approx(cycle, abs=1e-9)
    cosine = torch_rates(
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, steps - 1, eta_min=0.04), steps
    )
    assert [
        0.4 * schedules.cosine(end=0.1)(s / (steps - 1)) for s in range(steps)
    ] == pytest.approx(cosine, abs=1e-9)
    assert at(schedules.cosine(0.2), 0.1, 0.2, 0.6, 1) == pytest.approx([0.5, 1, 0.5, 0])


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.triangular(0.15),
        schedules.triangular(),
        schedules.piecewise_constant(),
        schedules.cosine(0.1),
        schedules.one_cycle(),
    ],
)
def test_factors_stay_between_0_and_1_and_reach_the_peak(schedule):
    values = [schedule(t / 1000) for t in range(1001)]
    assert min(values) >= 0 and max(values) == pytest.approx(1, abs=1e-2)
    assert schedule(1.0000001) == schedule(1)  # rounding of step / steps
    for bad in (-0.1, math.nan):
        with pytest.raises(InvalidInput, match="progress"):
            schedule(bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: schedules.triangular(1.0),
        lambda: schedules.triangular(-0.1),
        lambda: schedules.triangular(start=2.0),
        lambda: schedules.piecewise_constant((0.6, 0.3)),
        lambda: schedules.piecewise_constant((0.5, 1.5)),
        lambda: schedules.piecewise_constant(gamma=0.0),
        lambda: schedules.cosine(math.nan),
        lambda: schedules.one_cycle(divide=0.5),
        lambda: schedules.one_cycle(divide=None),
        lambda: schedules.one_cycle(final_divide="1e4"),
        lambda: schedules.piecewise_constant("half"),
        lambda: schedules.piecewise_constant(1),
    ],
)
def test_impossible_schedules_are_refused(make):
    with pytest.raises(InvalidInput, match="Expected"):
        make()


def test_rates_of_all_groups_follow_their_own_peaks():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [a], "lr": 0.4}, {"params": [b], "lr": 0.04}], lr=1.0)
    for progress in (0.075, 0.15, 0.575):
        schedules.set_rate(optimizer, schedules.triangular(0.15), progress)
        factor = schedules.triangular(0.15)(progress)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(
            [0.4 * factor, 0.04 * factor]
        )


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_average_follows_its_formula_in_weights_and_statistics():
    torch.manual_seed(0)
    model = net()
    average, expected = (
        weight_average(model, 0.5),
        {k: v.clone().double() for k, v in model.state_dict().items()},
    )
    for t in range(1, 20):
        model(torch.randn(8, 3) + t)  # moves the running statistics
        with torch.no_grad():
            for p in model.parameters():
                p += torch.randn_like(p)
        average.update_parameters(model)
        decay = min(0.5, (1 + t) / (10 + t))
        for key, value in model.state_dict().items():
            expected[key] = (
                decay * expected[key] + (1 - decay) * value
                if value.is_floating_point()
                else value.double()
            )
    for key, value in average.module.state_dict().items():
        torch.testing.assert_close(value.double(), expected[key], rtol=1e-5, atol=1e-5)
    assert average.module[1].num_batches_tracked == 19
    assert not torch.equal(average.module[1].running_mean, model[1].running_mean)


def test_average_is_a_model_of_its_own():
    model = net()
    average = weight_average(model)
    assert not average.module.training and model.training
    assert not any(p.requires_grad for p in average.module.parameters()) and all(
        p.requires_grad for p in model.parameters()
    )
    assert not {p.data_ptr() for p in average.module.parameters()} & {
        p.data_ptr() for p in model.parameters()
    }
    with pytest.raises(InvalidInput, match="decay"):
        weight_average(model, 1.0)


def test_average_goes_on_from_its_state():
    model = net()
    first = weight_average(model, 0.9)
    first.update_parameters(model)
    second = weight_average(net(), 0.9)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        model[0].weight += 1
    first.update_parameters(model)
    second.update_parameters(model)
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)
