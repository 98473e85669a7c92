"""The sizes and choices that make one model, as they are stored with it."""

from dataclasses import dataclass, fields
from typing import Literal

from regard.errors import RegardError
from regard.scores.names import KERNEL_SCORES

MAX_SIZE = 2**16  # of embedding, hidden, attention_dim and heads
MAX_LAYERS = 100
SCORES = ("none", "additive", "bilinear", "dot", "scaled_dot", "cosine", "squared_distance", *KERNEL_SCORES)


@dataclass(frozen=True)
class Architecture:
    """What a model is made of.

    Attributes:
        embedding: the width of word vectors.
        hidden: the width of the decoder's state, and of the encoder's in each direction.
        layers: how many bidirectional layers the encoder has.
        unit: "gru" or "lstm", in encoder and decoder.
        cell: "bahdanau" asks with the previous state (eq. 13); "conditional" first steps on the previous word and
            asks with the state in between, then steps on the context: it is NOT eq. 13.
        attention: the name of a score of the library, or "none" for the plain encoder-decoder, whose context is the
            same fixed vector at every step.
        attention_dim: the hidden width of an additive score of one head, `hidden` by default; without meaning for
            others.
        heads: how many heads attend.
        joint: one vocabulary, and one table of word vectors, for both languages.
        tied: the output layer shares the vectors of the target's words.
        embedding_dropout: of the elements of word vectors, on both sides.
        word_dropout: of whole words, on both sides: the vector is 0.
        state_dropout: of the encoder's states, and of the decoder's where the output is read from them.
        readout_dropout: of the layer before the output.
    """

    embedding: int = 256
    hidden: int = 512
    layers: int = 1
    unit: Literal["gru", "lstm"] = "gru"
    cell: Literal["bahdanau", "conditional"] = "bahdanau"
    attention: str = "additive"
    attention_dim: int | None = None
    heads: int = 1
    joint: bool = False
    tied: bool = False
    embedding_dropout: float = 0.2
    word_dropout: float = 0.0
    state_dropout: float = 0.2
    readout_dropout: float = 0.2

    def __post_init__(self) -> None:
        """Refuse values that do not describe a model."""
        for name in ("embedding", "hidden", "attention_dim", "heads", "layers"):
            if name != "attention_dim" or self.attention_dim is not None:
                most = MAX_LAYERS if name == "layers" else MAX_SIZE
                _check_count(name, getattr(self, name), most)
        _check_choice("unit", self.unit, ("gru", "lstm"))
        _check_choice("cell", self.cell, ("bahdanau", "conditional"))
        _check_choice("attention", self.attention, SCORES)
        for field in fields(self):
            if field.name.endswith("_dropout"):
                needed = "a probability from 0 up to, not including, 1"
                _check(field.name, getattr(self, field.name), _is_share, needed, "Pass 0.0 for none.")
        for name in ("joint", "tied"):
            _check(name, getattr(self, name), lambda value: isinstance(value, bool), "true or false", "Leave it out.")
        if self.attention_dim is not None and self.heads > 1:
            _check("attention_dim", self.attention_dim, lambda _: False, "none beside several heads", "Leave it out.")
        if self.attention == "none" and self.heads > 1:
            _check("heads", self.heads, lambda _: False, '1 where attention is "none"', "Leave it out.")
        if self.hidden % self.heads:
            below = max(number for number in range(1, self.heads + 1) if not self.hidden % number)
            needed = f"a divisor of hidden={self.hidden}"
            _check("heads", self.heads, lambda _: False, needed, f"Pass for example {below}.")


def _check(name: str, value: object, fits, needed: str, repair: str) -> None:
    if not fits(value):
        raise RegardError(name, got=repr(value), needed=needed, repair=repair)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    needed = "one of " + ", ".join(choices)
    _check(name, value, lambda chosen: isinstance(chosen, str) and chosen in choices, needed, f"Write {choices[0]}.")


def _check_count(name: str, value: object, most: int) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
    _check(name, value, lambda _: fits, f"a whole number from 1 to {most:,}", "Leave it out for the default.")


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
