"""The problem of one rank's tokens, with the mask and the bias of all ranks' tokens laid on it."""

from collections.abc import Callable

from torch import Tensor

from regard.backends.problem import Problem
from regard.errors import RegardError
from regard.pooling.prepare import Settings, to_problem
from regard.scores.forms import DistanceForm, Form
from regard.sharding.shards import Shards

Pose = Callable[[Form, Tensor, Tensor | None, Settings], tuple[Problem, Tensor | None]]
"""How a caller makes a problem of a form, values, the sink of the score and settings; and how it shapes the sink."""


def pose_plainly(form: Form, value: Tensor, sink: Tensor | None, settings: Settings) -> tuple[Problem, Tensor | None]:
    """As `regard.attend` does."""
    return to_problem(form, value, settings), sink


def pose_on_shards(
    shards: Shards, pose: Pose, form: Form, value: Tensor, sink: Tensor | None, settings: Settings
) -> tuple[Problem, Tensor | None]:
    """The problem of this rank's tokens, whose mask and bias are those of the whole sequences.

    These are checked and placed on stand-ins for the whole sequences: one number, seen at every place.
    """
    if settings.dropout:
        raise RegardError(
            "dropout",
            got=f"{settings.dropout} on shards",
            needed="none: the backward pass recomputes blocks, and would drop others",
            repair="Build the layer with dropout=0.0, or drop features outside of attention.",
        )
    if isinstance(form, DistanceForm) and form.width.shape[-2] != 1:
        raise RegardError(
            "score",
            got="a width for each query",
            needed="parameters that all queries share",
            repair="Write such a score as a callable.",
        )
    problem, shaped = pose(form, value, sink, Settings(tolerance=settings.tolerance))
    queries, keys = sum(shards.queries), sum(shards.keys)
    whole = form._replace(query=_stand_in(form.query, queries), key=_stand_in(form.key, keys))
    try:
        laid, _ = pose(whole, _stand_in(value, keys), sink, settings)
    except RegardError as error:
        told = f"{error.repair} Mask and bias speak of all ranks' tokens together, {queries} queries and {keys} keys."
        raise RegardError(error.argument, got=error.got, needed=error.needed, repair=told) from None
    return problem._replace(mask=laid.mask, bias=laid.bias), shaped


def _stand_in(tensor: Tensor, tokens: int) -> Tensor:
    return tensor.new_empty((1,) * tensor.ndim).expand(*tensor.shape[:-2], tokens, tensor.shape[-1])
