"""A mask restricted to a block is the block of the mask."""

import pytest
import torch
from tests.contracts.cases import BATCH, MASKS

from regard import Mask
from regard.masks.bound import narrow_pairs

CPU = torch.device("cpu")
QUERIES, KEYS = 13, 17
BLOCKS = [(slice(0, 13), slice(0, 17)), (slice(3, 9), slice(5, 6)), (slice(12, 13), slice(2, 17))]
OTHERS = {
    "window": Mask.window(2, 3, align="top_left"),
    "either": Mask.lengths(torch.tensor([4, 16])) | Mask.causal(align="top_left"),
    "not": ~(Mask.lengths(torch.tensor([4, 16])) & Mask.window(1, 1, align="top_left")),
    "unsigned": Mask.lengths(torch.tensor([4, 16], dtype=torch.uint8)),
}


@pytest.mark.parametrize("name", [*(name for name in MASKS if name != "none"), *OTHERS])
@pytest.mark.parametrize(("rows", "cols"), BLOCKS)
def test_a_block_of_a_mask(name, rows, cols):
    mask = OTHERS[name] if name in OTHERS else MASKS[name](BATCH, QUERIES, KEYS).mask
    placed = mask.place(batch=BATCH, queries=QUERIES, keys=KEYS, device=CPU)
    whole = placed.tile(slice(0, QUERIES), slice(0, KEYS), CPU).expand(*BATCH, QUERIES, KEYS)
    height, width = rows.stop - rows.start, cols.stop - cols.start
    block = placed.restrict(rows, cols).tile(slice(0, height), slice(0, width), CPU)
    assert torch.equal(block.expand(*BATCH, height, width), whole[..., rows, cols])


def test_what_is_shared_stays_shared():
    bias = torch.randn(2, 1, KEYS)
    assert torch.equal(narrow_pairs(bias, slice(3, 5), slice(2, 7)), bias[..., 2:7])
