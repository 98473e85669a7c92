"""The models that the laboratory compares: one size, one cell, and a different way to the context."""

from dataclasses import dataclass, replace

from regard.translation.model import Architecture

TITLES = {"none": "no attention", "scaled_dot": "scaled dot", "squared_distance": "squared distance"}
HEADS = 4


@dataclass(frozen=True)
class Competitor:
    """A change of the common architecture.

    attention: a score of the library, or "none".
    heads: how many of it.
    hidden: another size of the state; None for the common one.

    >>> print(Competitor("additive", heads=4))
    additive, 4 heads
    """

    attention: str
    heads: int = 1
    hidden: int | None = None

    def __str__(self) -> str:
        parts = [TITLES.get(self.attention, self.attention)]
        parts += [f"{self.heads} heads"] if self.heads > 1 else []
        parts += [f"state of {self.hidden}"] if self.hidden is not None else []
        return ", ".join(parts)

    @property
    def folder(self) -> str:
        """Its name as that of a folder."""
        return str(self).replace(", ", "-").replace(" ", "-")

    def changed(self, common: Architecture) -> Architecture:
        """The common architecture with this way to the context."""
        hidden = common.hidden if self.hidden is None else self.hidden
        width = common.attention_dim if self.heads == 1 else None  # heads share the width of the state
        return replace(common, attention=self.attention, heads=self.heads, hidden=hidden, attention_dim=width)


NONE = Competitor("none")
ADDITIVE = Competitor("additive")
EVERY = (
    NONE,
    Competitor("dot"),
    Competitor("scaled_dot"),
    Competitor("bilinear"),
    Competitor("squared_distance"),
    ADDITIVE,
    Competitor("additive", heads=HEADS),
)
FEW = (NONE, Competitor("scaled_dot"), ADDITIVE)


def without_attention(hidden: int, common: int) -> Competitor:
    """The model without attention and a state of some size; of the common size it is `NONE` itself."""
    return NONE if hidden == common else replace(NONE, hidden=hidden)
