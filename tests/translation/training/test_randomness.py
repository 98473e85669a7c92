"""`randomness`: what is drawn after a state was restored is what was drawn after it was read."""

import torch

from regard.translation.training import randomness


def test_drawing_goes_on_where_it_was():
    cpu = torch.device("cpu")
    torch.rand(3)
    kept = randomness.read(cpu)
    drawn = torch.rand(5)
    torch.rand(7)
    randomness.restore(cpu, kept)
    assert torch.equal(torch.rand(5), drawn)
