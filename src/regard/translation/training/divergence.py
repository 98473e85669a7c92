"""The end of a training whose numbers have run away."""

import math

from regard.errors import RegardError


def check_finite(loss: float, pairs: str) -> None:
    """Refuse to go on with a loss that is no number any more; pairs: which ones it was measured on."""
    if not math.isfinite(loss):
        raise RegardError(
            "learning_rate",
            got=f"a loss of {loss} on the {pairs} pairs: the training has diverged",
            needed="a rate at which loss and weights stay finite",
            repair="Lower it, for example to a tenth, and train into a new folder.",
        )
