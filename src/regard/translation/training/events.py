"""What a training tells while it runs: to a progress bar, to a log, to whoever listens."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Started:
    """Before the first update: sizes, and where it goes on if it was interrupted."""

    updates: int
    done: int
    parameters: int
    pairs: int
    left_out: int
    source_size: int
    target_size: int
    resumed_epoch: int | None
    seconds: float = 0.0


@dataclass(frozen=True)
class Advanced:
    """Some updates later.

    loss: the cross entropy of a target token, in nats, over these updates. speed: target tokens a second.
    """

    epoch: int
    update: int
    updates: int
    loss: float
    speed: float
    learning_rate: float


@dataclass(frozen=True)
class EpochEnded:
    """After an epoch: what is written to the log.

    bleu, exact: of greedy translations of the validation pairs, in percent; valid_loss: the cross entropy of a token
    of their targets, in nats; None where it was not validated.
    flatness: the entropy of attention on validation, as a share of the even one; None without attention.
    """

    epoch: int
    update: int
    loss: float
    gradient_norm: float
    learning_rate: float
    tokens: int
    seconds: float
    bleu: float | None = None
    exact: float | None = None
    valid_loss: float | None = None
    flatness: float | None = None
    is_best: bool = False


@dataclass(frozen=True)
class Warned:
    """Something that a user should know."""

    text: str


@dataclass(frozen=True)
class Stopped:
    """After SIGINT or SIGTERM: the training ends here, with a checkpoint of this update."""

    update: int


@dataclass(frozen=True)
class Ended:
    """The result."""

    epochs: int
    best_epoch: int
    bleu: float
    exact: float
    length_penalty: float
    seconds: float
    history: tuple[EpochEnded, ...] = field(default=(), repr=False)


Event = Started | Advanced | EpochEnded | Warned | Stopped | Ended
Listener = Callable[[Event], None]


def silence(event: Event) -> None:
    """Listen to nothing."""
    del event
