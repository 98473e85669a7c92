"""Training, validation and test data by source sentence, the same in every run."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

from regard.errors import RegardError
from regard.translation.text import normalise

BYTES = 8


class HasSource(Protocol):
    """A pair, or anything else with a source sentence."""

    @property
    def source(self) -> str:
        """The sentence that is translated."""
        ...


Paired = TypeVar("Paired", bound=HasSource)


@dataclass(frozen=True)
class Split(Generic[Paired]):
    """Three parts that share no source sentence, each in the order in which the pairs came."""

    train: tuple[Paired, ...]
    valid: tuple[Paired, ...]
    test: tuple[Paired, ...]


def split(pairs: Iterable[Paired], *, valid: float = 0.01, test: float = 0.01, seed: int = 0) -> Split[Paired]:
    """Put each pair into a part by its source sentence and the seed alone.

    Pairs with the same normalised source are always in the same part, and pairs added later do not move the others.

    Args:
        pairs: anything with a `source`.
        valid: about what share is for validation.
        test: about what share is for the test; 0 leaves a part empty.
        seed: another seed, another split.
    """
    _check_shares(valid, test)
    parts: dict[str, list[Paired]] = {"train": [], "valid": [], "test": []}
    count = 0
    for count, pair in enumerate(pairs, start=1):  # noqa: B007  (count is told in errors)
        at = _place(pair.source, seed)
        parts["test" if at < test else "valid" if at < test + valid else "train"].append(pair)
    for part, share in (("train", 1.0), ("valid", valid), ("test", test)):
        if share > 0 and not parts[part]:
            raise RegardError(
                "pairs" if part == "train" else part,
                got=f"no pair for {part} out of {count}",
                needed="at least one pair in every part",
                repair="Give more pairs, larger shares (0 for no test), or a file of your own for validation.",
            )
    return Split(*(tuple(part) for part in parts.values()))


def _place(source: str, seed: int) -> float:
    """Where in [0, 1) a sentence stands, evenly over sentences."""
    digest = blake2b(f"{seed}\n{normalise(source)}".encode(), digest_size=BYTES).digest()
    return int.from_bytes(digest) / 256**BYTES


def _check_shares(valid: float, test: float) -> None:
    for argument, share in (("valid", valid), ("test", test)):
        if not 0 <= share < 1:
            raise RegardError(
                argument, got=str(share), needed="a share from 0 to less than 1", repair="0.01 is one in a hundred."
            )
    if valid + test >= 1:
        raise RegardError(
            "valid, test", got=f"{valid} and {test}", needed="less than 1 together", repair="Leave some pairs to train."
        )
