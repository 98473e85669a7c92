"""Station 10: what the chapter prints and what it means, each with a line that shows the difference."""

from typing import NamedTuple

import torch

import regard
from regard.tour.station import Station, Table

# The line is what the page shows and what runs: the result beside it cannot be that of another line.
LINES = {
    "a": "[float(x) for x in (-(q - k) @ (q - k), q @ q - k @ k + 2 * q @ k, -(q @ q) - k @ k + 2 * q @ k)]",
    "b": "[round(float(inspect(Q, K, V, ScaledDot(s)).entropy()), 3) for s in (64**0.5, 64**-0.5)]",
    "c": "[inspect(zero, half, half, f(1.0)).scores().exp().item() for f in (Triangular, Epanechnikov)]",
    "d": "attend(torch.ones(2, 4), torch.ones(7, 5), torch.ones(7, 3), Bilinear(4, 5)).shape",
    "e": "inspect(zero, one, one, Boxcar(1.0)).weights().item()",
    "f": "layer.inspect(tokens, tokens[:1]).weights().unique(), layer.output.weight.shape",
    "g": "round(float((attend(zero, X, Y + 1, Gaussian(1.0)) - attend(zero, X, Y, Gaussian(1.0)))), 6)",
    "h": "float(torch.tensor([2.0, -1.0]) @ torch.tensor([0.0, 1.0]))",
    "i": "attend(torch.ones(2, 4), torch.ones(7, 5), torch.ones(7, 5), Additive(4, 5, 6)).shape",
}


class Erratum(NamedTuple):
    """One correction: its letter, the line that shows it, and what the line gives."""

    letter: str
    line: str
    result: str


def demonstrate() -> list[Erratum]:
    """Run every line, over the same few tensors."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        names = {
            "torch": torch,
            "attend": regard.attend,
            "inspect": regard.inspect,
            **{name: getattr(regard.scores, name) for name in regard.scores.__all__},
            "q": torch.tensor([1.0, 2.0]),
            "k": torch.tensor([3.0, 1.0]),
            "Q": torch.randn(1, 64),
            "K": torch.randn(16, 64),
            "V": torch.randn(16, 1),
            "zero": torch.zeros(1, 1),
            "half": torch.full((1, 1), 0.5),
            "one": torch.ones(1, 1),
            "X": torch.randn(9, 1),
            "Y": torch.randn(9, 1),
            "tokens": torch.randn(5, 12),
            "layer": regard.MultiHeadAttention(12, 3),
        }
        return [Erratum(letter, line, _said(eval(line, dict(names)))) for letter, line in LINES.items()]


def present() -> Station:
    """Lines and results, for the places on the page."""
    found = demonstrate()
    facts = {f"{one.letter}.line": one.line for one in found} | {f"{one.letter}.result": one.result for one in found}
    return Station(
        "errata",
        "What the chapter prints, and what it means",
        facts=facts,
        tables=(Table("errata", Erratum._fields, found),),
    )


def _said(value: object) -> str:
    """As Python prints it, tensors and shapes as plain lists."""
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return ", ".join(map(_said, value))
    if isinstance(value, torch.Tensor):
        return str([round(number, 6) for number in value.tolist()])
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)
