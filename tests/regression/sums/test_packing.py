"""Packing: every point in one block, boxes that hold their points, blocks that are compact in space."""

import pytest
import torch

from regard.regression.sums.boxes import pack


def clusters(dim):
    centres = 1000 * torch.rand(7, dim)
    return torch.cat([centre + torch.randn(97, dim) for centre in centres])


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("points", ["uniform", "clusters", "one place", "one"])
def test_every_point_is_in_one_block_and_in_its_box(dim, points):
    made = {
        "uniform": lambda: torch.rand(1003, dim),
        "clusters": lambda: clusters(dim),
        "one place": lambda: torch.ones(150, dim),
        "one": lambda: torch.rand(1, dim),
    }[points]()
    packed = pack(made, 16, torch.full((dim,), 0.1))
    assert sorted(packed.order.tolist()) == list(range(len(made)))
    assert len(packed.low) == len(packed.high) == -(-len(made) // 16)
    for block, (low, high) in enumerate(zip(packed.low, packed.high, strict=True)):
        members = made[packed.members(block)]
        assert torch.equal(members.amin(0), low)
        assert torch.equal(members.amax(0), high)


@pytest.mark.parametrize("dim", [2, 3])
def test_boxes_are_about_as_long_in_every_dimension_measured_in_widths(dim):
    width = torch.tensor([1.0, 20.0, 0.3])[:dim]
    packed = pack(torch.rand(20_000, dim) * 100 * width, 32, width)
    lengths = ((packed.high - packed.low) / width).median(0).values
    assert lengths.max() < 2 * lengths.min()
    volume = (packed.high - packed.low).prod(-1).sum() / (100 * width).prod()
    assert volume < 1.5, "boxes overlap, or are not filled"


def test_a_point_far_away_does_not_make_the_other_boxes_long():
    points = torch.rand(20_000, 2)
    points[77] = torch.tensor([1e4, 0.5])
    packed = pack(points, 32, torch.ones(2))
    lengths = (packed.high - packed.low).median(0).values
    assert lengths.max() < 4 * lengths.min()
