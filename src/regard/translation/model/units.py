"""The gated recurrent units of the decoder, with their input's share of the gates computed by the caller.

In training every previous word is known, so its share is one product for all steps; only what depends on the state
before is computed step by step.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

State = tuple[Tensor, ...]


class GRUUnit(nn.Module):
    """The gated unit of arXiv 1409.0473, appendix A.1.1, in the form of nn.GRUCell."""

    parts = 3

    def __init__(self, hidden: int) -> None:
        """Draw the recurrent weights as nn.GRUCell does."""
        super().__init__()
        self.recurrent = nn.Linear(hidden, self.parts * hidden)
        _draw(self, hidden)

    def start(self, hidden: Tensor) -> State:
        """The state of a unit whose output is `hidden`."""
        return (hidden,)

    def forward(self, gates: Tensor, state: State) -> State:
        """One step.

        gates: (…, 3 hidden), the input's share of reset gate, update gate and candidate, with its bias.
        """
        (hidden,) = state
        reset_in, update_in, new_in = gates.chunk(3, -1)
        reset_h, update_h, new_h = self.recurrent(hidden).chunk(3, -1)
        reset = torch.sigmoid(reset_in + reset_h)
        update = torch.sigmoid(update_in + update_h)
        new = torch.tanh(torch.addcmul(new_in, reset, new_h))
        return (torch.lerp(new, hidden, update),)


class LSTMUnit(nn.Module):
    """The long short-term memory unit, in the form of nn.LSTMCell."""

    parts = 4

    def __init__(self, hidden: int) -> None:
        """Draw the recurrent weights as nn.LSTMCell does."""
        super().__init__()
        self.recurrent = nn.Linear(hidden, self.parts * hidden)
        _draw(self, hidden)

    def start(self, hidden: Tensor) -> State:
        """The state of a unit whose output is `hidden` and whose cell is empty."""
        return (hidden, torch.zeros_like(hidden))

    def forward(self, gates: Tensor, state: State) -> State:
        """One step; gates: (…, 4 hidden), the input's share of input gate, forget gate, candidate, output gate."""
        hidden, cell = state
        into, forget, new, out = (gates + self.recurrent(hidden)).chunk(4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
        return (torch.sigmoid(out) * torch.tanh(cell), cell)


UNITS = {"gru": GRUUnit, "lstm": LSTMUnit}


class Gates(nn.Module):
    """An input's share of a unit's gates: one matrix, split into the part of the word and that of the context."""

    def __init__(self, widths: tuple[int, ...], hidden: int, parts: int) -> None:
        """Draw the weights as nn.GRUCell does, for an input that is the concatenation of the widths."""
        super().__init__()
        self.widths = widths
        self.weight = nn.Parameter(torch.empty(parts * hidden, sum(widths)))
        self.bias = nn.Parameter(torch.empty(parts * hidden))
        _draw(self, hidden)

    def of(self, part: int, tokens: Tensor) -> Tensor:
        """The share of one part of the input, (…, parts hidden); the first brings the bias."""
        return functional.linear(tokens, self.part(part), self.bias if part == 0 else None)

    def part(self, part: int) -> Tensor:
        """The columns of the matrix that belong to one part of the input."""
        return self.weight.split(self.widths, 1)[part]


def _draw(module: nn.Module, hidden: int) -> None:
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)
