"""Stop a training whose loss is NaN, infinite or so large that the weights have lost all meaning."""

from regard.errors import RegardError

# In nats per token. A model that knows nothing has the logarithm of the size of its vocabulary: about 10.
MAX_LOSS = 1e6


def check_loss(loss: float, pairs: str) -> None:
    """Raise a RegardError if a training has diverged.

    Args:
        loss: cross entropy per token, in nats.
        pairs: "training" or "validation", the pairs on which the loss was measured.
    """
    if not -MAX_LOSS <= loss <= MAX_LOSS:  # also for NaN
        raise RegardError(
            "learning_rate",
            got=f"a loss that is no number or exceeds {MAX_LOSS:g} nats per token on the {pairs} pairs: "
            "the training has diverged",
            needed="a learning rate at which loss and weights stay finite",
            repair="Lower it, for example to a tenth, and train into a new folder.",
        )
