# SPDX-License-Identifier: Apache-2.0
"""Networks: their sizes against published counts, and that they run, learn and are what their
docstrings say."""

import copy

import pytest
import torch
from benchmarks.deep.nets import (
    InceptionBlock,
    NeuralCollaborativeFiltering,
    SmallInception,
    Vgg16,
    WideResNet,
    convolution,
)
from torch import nn

from labeldp import InvalidInput
from labeldp.deep import Dense, Recipe, likelihood_loss, train
from labeldp.deep.models import CifarResNet18, Ensemble, Mlp, SmallConvNet

NETS = {
    "resnet": (CifarResNet18, (2, 3, 32, 32)),
    "wide": (lambda: WideResNet(10, 16, 1), (2, 3, 32, 32)),
    "vgg": (Vgg16, (2, 3, 32, 32)),
    "narrow vgg": (lambda: Vgg16(width=8), (2, 3, 32, 32)),
    "inception": (SmallInception, (2, 1, 28, 28)),
    "convnet": (SmallConvNet, (2, 1, 28, 28)),
    "mlp": (lambda: Mlp(6, 10), (2, 6)),
    "collaborative": (lambda: NeuralCollaborativeFiltering(30, 20, 10), (2, 2)),
}


def count(net):
    return sum(p.numel() for p in net.parameters())


def likely(scores):
    """Log-likelihoods: the largest of each row is 0."""
    return scores - scores.amax(1, keepdim=True)


def linear(n_in, n_out):
    return n_in * n_out + n_out


def test_resnet18_against_torchvision():
    """torchvision's table gives ResNet-18 11,689,512 parameters. Ours has another first layer and
    K; a v2 block normalises its input, not its output and its shortcut, and one normalisation
    stands at the end."""
    published = 11_689_512
    for_cifar = published - 7 * 7 * 3 * 64 + 3 * 3 * 3 * 64 - linear(512, 1000) + linear(512, 10)
    assert for_cifar == 11_173_962  # the usual count of version 1 for CIFAR-10
    stem_norm, shortcut_norms, last_norm = 2 * 64, 2 * (128 + 256 + 512), 2 * 512
    narrower_first_norms = 2 * (64 + 128 + 256)
    assert (
        count(CifarResNet18())
        == for_cifar - stem_norm - shortcut_norms - narrower_first_norms + last_norm
    )


@pytest.mark.parametrize(
    ("depth", "widen", "millions"), [(40, 4, 8.9), (16, 8, 11.0), (28, 10, 36.5)]
)
def test_wide_resnets_against_their_paper(depth, widen, millions):
    """Zagoruyko and Komodakis 2016, table 4."""
    with torch.device("meta"):
        assert round(count(WideResNet(10, depth, widen)) / 1e6, 1) == millions


def test_wrn_28_2_and_28_4_against_their_known_counts():
    """1,467,610 is WRN-28-2 of Oliver et al. 2018 ("1.5 M parameters"); 28-4 follows from the same
    code."""
    assert count(WideResNet(10, 28, 2)) == 1_467_610
    assert count(WideResNet()) == 5_849_050


def test_vgg16_against_torchvision():
    """torchvision's table gives vgg16_bn 138,365,992 parameters, most of them in the three linear
    layers that ours lacks."""
    linear_layers = linear(512 * 7 * 7, 4096) + linear(4096, 4096) + linear(4096, 1000)
    assert count(Vgg16()) == 138_365_992 - linear_layers + linear(512, 10)
    assert {
        tuple(layer.weight.shape[:2])
        for layer in Vgg16(width=8).modules()
        if isinstance(layer, nn.Conv2d)
    } == {
        *((8, 3), (8, 8), (16, 8), (16, 16), (32, 16), (32, 32), (64, 32), (64, 64)),
    }


def test_inception_blocks_against_zhang_et_al():
    """Zhang et al. 2017, table 1: their small Inception has 1,649,402 parameters. Its layers, from
    our blocks; their normalisation has no scale, so one number a channel is less. A downsampling
    step is a convolution beside a pooling."""
    plan = [
        (96, 32, 32),
        (64, 32, 48),
        80,
        (160, 112, 48),
        (160, 96, 64),
        (160, 80, 80),
        (160, 48, 96),
        96,
        (240, 176, 160),
        (336, 176, 160),
    ]
    layers = [convolution(3, 96, 3), nn.Linear(336, 10)]
    width = 96
    for step in plan:
        layers.append(
            InceptionBlock(*step) if isinstance(step, tuple) else convolution(width, step, 3, 2)
        )
        width = sum(step[1:]) if isinstance(step, tuple) else width + step
    net = nn.Sequential(*layers)
    scales = sum(norm.num_features for norm in net.modules() if isinstance(norm, nn.BatchNorm2d))
    assert count(net) - scales == 1_649_402


def test_small_inception_is_the_source_papers():
    """Ghazi et al. 2021, Appendix B, read into numbers: (kernel, in, out) of every convolution,
    each with scale and shift."""
    one_by_one = [
        (64 + 32, 32),
        (64, 32),
        (160, 112),
        (160, 96),
        (160, 80),
        (160, 48),
        (240, 176),
        (336, 176),
    ]
    three = [
        (1, 96),
        (96, 32),
        (64, 48),
        (80, 160),
        (160, 48),
        (160, 64),
        (160, 80),
        (160, 96),
        (144, 240),
        (240, 160),
        (336, 160),
    ]
    expected = (
        sum(i * o + 2 * o for i, o in one_by_one)
        + sum(9 * i * o + 2 * o for i, o in three)
        + linear(336, 10)
    )
    net = SmallInception()
    assert count(net) == expected
    sizes = [
        tuple(layer(torch.zeros(1, 1, 28, 28)).shape[1:])
        for layer in (net.features[:4], net.features[:9], net.features)
    ]
    assert sizes == [(160, 14, 14), (240, 7, 7), (336, 7, 7)]


def test_collaborative_filtering_against_mlperf():
    """MLPerf's reference NCF on MovieLens-20M: 138,493 users, 26,744 items, 64 factors, layers
    256-256-128-64, one output: 31.8 M."""
    with torch.device("meta"):
        large = NeuralCollaborativeFiltering(138_493, 26_744, 1, 64, (256, 256, 128, 64))
    embeddings = (138_493 + 26_744) * (64 + 128)
    assert (
        count(large)
        == embeddings + linear(256, 256) + linear(256, 128) + linear(128, 64) + linear(128, 1)
        == 31_832_577
    )
    assert count(NeuralCollaborativeFiltering()) == (6041 + 3953) * 40 + linear(64, 32) + linear(
        32, 16
    ) + linear(16, 8) + linear(16, 5)


def test_small_nets_by_their_description():
    channels = [(1, 32), (32, 32), (32, 64), (64, 64), (64, 128)]
    assert count(SmallConvNet()) == sum(9 * i * o + 2 * o for i, o in channels) + linear(128, 10)
    assert count(Mlp(14, 2, (30, 20))) == 2 * 14 + 14 * 30 + 2 * 30 + 30 * 20 + 2 * 20 + linear(
        20, 2
    )
    assert count(Mlp(14, 2, ())) == 2 * 14 + linear(14, 2)


@pytest.mark.parametrize("name", NETS)
def test_nets_give_logits_and_every_weight_learns(name):
    torch.manual_seed(0)
    make, shape = NETS[name]
    net = make()
    x = torch.randint(0, 20, shape) if name == "collaborative" else torch.randn(shape)
    logits = net(x)
    assert logits.shape == (2, 10)
    likelihood_loss(logits, likely(torch.rand(2, 10))).backward()
    still = [key for key, p in net.named_parameters() if p.grad is None]
    assert not still
    assert sum(bool(p.grad.any()) for p in net.parameters()) > 0.6 * len(list(net.parameters()))


def test_residual_nets_pass_the_input_on():
    """With zero weights in both convolutions a block is its shortcut."""
    block = CifarResNet18().blocks[0]
    for conv in (block.conv1, block.conv2):
        nn.init.zeros_(conv.weight)
    x = torch.randn(2, 64, 8, 8)
    torch.testing.assert_close(block(x), x)


def test_collaborative_filtering_tells_user_from_item():
    net = NeuralCollaborativeFiltering(30, 30, 5)
    there, back = net(torch.tensor([[3, 7]])), net(torch.tensor([[7, 3]]))
    assert not torch.equal(there, back)


def test_impossible_shapes_are_refused():
    with pytest.raises(InvalidInput, match="depth=27"):
        WideResNet(10, 27)
    with pytest.raises(InvalidInput, match="hidden"):
        NeuralCollaborativeFiltering(hidden=(63, 8))


def test_an_ensemble_predicts_the_mean_of_probabilities():
    """Of all classes; and with sizes of each column's by itself."""
    torch.manual_seed(0)
    nets, x = [Mlp(4, 5, (8,)).eval() for _ in range(3)], torch.randn(6, 4)
    mean = sum(torch.softmax(net(x), 1) for net in nets) / 3
    torch.testing.assert_close(torch.softmax(Ensemble(nets)(x), 1), mean)
    torch.testing.assert_close(Ensemble(nets)(x).exp(), mean)
    heads = Ensemble(nets, sizes=(2, 3))(x)
    for columns in (slice(0, 2), slice(2, 5)):
        torch.testing.assert_close(
            heads[:, columns].exp(), sum(torch.softmax(net(x)[:, columns], 1) for net in nets) / 3
        )


def test_the_nets_of_an_ensemble_learn_by_themselves():
    """As two trainings one after another with the same generator; the second net has another order
    of rows."""
    torch.manual_seed(0)
    # without dropout, which has a generator of its own
    nets, x = [nn.Linear(4, 3) for _ in range(2)], torch.randn(200, 4)
    evidence = Dense(likely(torch.randn(200, 3)))
    alone, epochs = [copy.deepcopy(net) for net in nets], []
    recipe = Recipe(epochs=2, batch_size=32, precision="float32")
    both = train(
        Ensemble(nets),
        x,
        evidence,
        recipe,
        generator=torch.Generator().manual_seed(1),
        progress=epochs.append,
    )
    generator = torch.Generator().manual_seed(1)
    alone = [train(net, x, evidence, recipe, generator=generator) for net in alone]
    assert not both.training
    assert [epoch.number for epoch in epochs] == [1, 2, 1, 2]
    for net, other in zip(both.nets, alone, strict=True):
        assert all(
            torch.equal(a, b)
            for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True)
        )


def test_an_ensemble_is_of_different_nets():
    net = Mlp(4, 3, (8,))
    for nets in (
        [],
        [net, net],
        [net, net, Mlp(4, 3, (8,))],
        [net, "net"],
        net,
        nn.Sequential(net),
        3,
    ):
        with pytest.raises(InvalidInput, match=r"nets|nn\.Module"):
            Ensemble(nets)
    assert len(Ensemble(Mlp(4, 3, (8,)) for _ in range(2)).nets) == 2
