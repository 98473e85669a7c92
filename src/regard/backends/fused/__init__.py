"""The backend "triton": fused GPU kernels for scores of distance (eq. 4 to 6) and additive scores (eq. 12)."""

import importlib.util
import math
import os

from torch import Tensor

from regard.backends.base import Backend, Need, Plan, Problem, Refusal, Result, full_precision
from regard.backends.fused import operator
from regard.backends.fused.additive import operator as additive_operator
from regard.backends.fused.additive.plan import PROMISED, plan
from regard.backends.fused.batches import groups_of
from regard.backends.fused.conditions import conditions_of
from regard.checks import accumulation_dtype, has_empty_input, needs_grad
from regard.scores.additive import AdditivePair
from regard.scores.base import PairScore

INSTALLED = importlib.util.find_spec("triton") is not None
# Triton reads the same variable when it is imported, so a later change of it has no effect.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MAX_DIM = 128
MAX_TOKENS = 2**30
# Largest mask over queries and keys, other than a band, that is materialised for the kernels.
MAX_MASK_ENTRIES = 2**28


class Triton(Backend):
    """Runs distance and additive scores on a GPU."""

    name = "triton"

    def plan(self, problem: Problem, need: Need) -> Plan | Refusal:
        """Accept what the kernels compute."""
        reason = _refusal(problem, need)
        if reason is not None:
            return self.refuse(reason)
        return Plan(self.name, _run)

    def error_bound(self, problem: Problem) -> str:
        """Return the promised error of one score, and for a low-rank expansion its rank and range."""
        pair = problem.pair
        if not isinstance(pair, AdditivePair):
            return super().error_bound(problem)
        learning = [pair.query, pair.key, pair.weight, problem.value]
        learning += [problem.bias] if isinstance(problem.bias, Tensor) else []
        chosen = plan(problem, gradient=needs_grad(*learning))
        bound = problem.additive_bound(chosen.error)
        if not chosen.rank:
            return bound
        beyond = [
            _share_beyond(tokens, reach) for tokens, reach in zip((pair.query, pair.key), pair.reach, strict=True)
        ]
        ranges = "queries up to {:g}, keys up to {:g}".format(*pair.reach)
        shares = "{:.2%} and {:.2%} of the tokens have activations beyond it, corrected one by one".format(*beyond)
        return f"{bound}; tanh as {chosen.rank} products a hidden unit in the range of {ranges}: {shares}"


def _run(problem: Problem) -> Result:
    with full_precision(problem.value.device):
        is_additive = isinstance(problem.pair, AdditivePair)
        return Result(*(additive_operator.run(problem) if is_additive else operator.run(problem)))


def _share_beyond(tokens: Tensor, reach: float) -> float:
    """Return the share of tokens (*batch, tokens, hidden) with an activation beyond the range."""
    return float((tokens.detach().abs().amax(-1) > reach).double().mean())


def _refusal(problem: Problem, need: Need) -> str | None:
    """Return why the kernels cannot run a problem, or None."""
    pair, value = problem.pair, problem.value
    if pair.kind not in ("distance", "additive"):
        return "it knows scores of distance and additive scores only"
    if need == "weights":
        return "it does not return weights"
    if value.device.type != "cuda" and not INTERPRETED:
        return "its kernels run on a GPU, or with TRITON_INTERPRET=1 in Triton's interpreter"
    if not INSTALLED:
        return 'triton is not installed; pip install "regard[gpu]" brings it'
    if accumulation_dtype(value.dtype).itemsize > 4:
        return "its kernels compute in float32"
    if has_empty_input(problem.pair.query, problem.pair.key, problem.value):
        return "an input is empty"
    if max(problem.queries, problem.keys) > MAX_TOKENS:
        return f"it takes up to {MAX_TOKENS} tokens"
    if problem.bias is not None and not isinstance(problem.bias, Tensor):
        return "it takes no callable bias"
    refusal = _refuse_distance(problem, pair) if pair.kind == "distance" else _refuse_additive(problem)
    return refusal or _refuse_sharing(problem)


def _refuse_distance(problem: Problem, pair: PairScore) -> str | None:
    """What speaks against dropout, bias and mask of a score of distance."""
    if pair.query.shape[-1] > MAX_DIM:
        return f"it takes up to {MAX_DIM} dimensions"
    if problem.dropout:
        return "it has no dropout for scores of distance"
    if isinstance(problem.bias, Tensor) and problem.bias.shape[-2] != 1:
        return "its bias is one number for each key, the same for all queries"
    if conditions_of(problem.mask) is None:
        return "its masks are conditions on keys, one band and one gap in it"
    return None


def _refuse_additive(problem: Problem) -> str | None:
    """What speaks against tolerance, mask and dropout of an additive score."""
    if problem.tolerance is not None and problem.tolerance < PROMISED:
        return f"its tanh is exact to {PROMISED:.2g}"
    if (
        conditions_of(problem.mask) is None
        and math.prod(problem.batch) * problem.queries * problem.keys > MAX_MASK_ENTRIES
    ):
        return f"masks that are no conditions on keys, one band and one gap may have {MAX_MASK_ENTRIES} entries"
    if problem.dropout >= 1:
        return "a dropout of 1 leaves nothing to divide by"
    return None


def _refuse_sharing(problem: Problem) -> str | None:
    """Batch axes that are shared in alternation, of which the kernels have two."""
    pair, mask = problem.pair, problem.mask
    if pair.query.ndim <= 4:
        return None
    tensors = [pair.query, pair.key, *pair.parameters(), problem.value]
    tensors += [problem.bias] if isinstance(problem.bias, Tensor) else []
    tensors += [] if mask is None else mask.tensors()
    if len(groups_of(problem.batch, tensors)) > 2:
        return "the batch axes are shared in more than two alternating groups"
    return None
