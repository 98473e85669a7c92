"""Where a training stands: what is counted, and the best epoch so far."""

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from regard.translation.monitoring import EpochEnded


@dataclass
class Best:
    """The epoch whose model is kept; epoch 0 is none."""

    epoch: int = 0
    bleu: float = -1.0
    exact: float = -1.0
    loss: float = math.inf

    @classmethod
    def of(cls, entry: EpochEnded) -> "Best":
        """An epoch that was validated."""
        assert entry.bleu is not None
        assert entry.exact is not None
        assert entry.valid_loss is not None
        return cls(entry.epoch, entry.bleu, entry.exact, entry.valid_loss)

    @classmethod
    def read(cls, values: object) -> "Best | None":
        """Return the epoch described in a checkpoint or model folder, or None if the values have another structure."""
        names = [entry.name for entry in fields(cls)]
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            return None
        is_count = type(values["epoch"]) is int and values["epoch"] >= 0
        return cls(**values) if is_count and all(type(values[name]) in (int, float) for name in names[1:]) else None

    def beats(self, other: "Best") -> bool:
        """By BLEU; of equals by exact translations, then by the loss."""
        return (self.bleu, self.exact, -self.loss) > (other.bleu, other.exact, -other.loss)


@dataclass
class Standing:
    """What a checkpoint says beside tensors.

    epoch: how many have ended. within: updates of the present one. count: updates in all. seconds: spent so far.
    """

    epoch: int = 0
    within: int = 0
    count: int = 0
    seconds: float = 0.0
    best: Best = field(default_factory=Best)

    def next_epoch(self) -> None:
        """The present epoch has ended."""
        self.epoch, self.within = self.epoch + 1, 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Standing":
        """What `to_dict` gave."""
        return cls(**values | {"best": Best(**values["best"])})
