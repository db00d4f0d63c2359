# SPDX-License-Identifier: Apache-2.0
"""Learning rates at known points and against torch's own schedulers; averages of weights against
their formula."""

import pytest
import torch
from torch import nn

from labeldp import InvalidInput
from labeldp.deep import schedules
from labeldp.deep.schedules import weight_average


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
        0.4 * schedules.one_cycle(s / (steps - 1), peak) for s in range(steps)
    ] == pytest.approx(cycle, abs=1e-9)
    cosine = torch_rates(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, steps - 1), steps)
    assert [0.4 * schedules.cosine(s / (steps - 1)) for s in range(steps)] == pytest.approx(
        cosine, abs=1e-9
    )
    ramped = [schedules.cosine(t, ramp=0.2) for t in (0.1, 0.2, 0.6, 1)]
    assert ramped == pytest.approx([0.5, 1, 0.5, 0])


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
