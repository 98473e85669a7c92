"""Choose the backend of a problem, run the problem, and explain the choice."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.backends import blocked, reference, sdpa, triton
from regard.backends.base import Backend, Need, Plan, Problem, Refusal, Result
from regard.checks import accumulation_dtype, needs_grad
from regard.errors import RegardError
from regard.scores.additive import LOGISTIC_ERROR
from regard.scores.base import CallablePair
from regard.scores.distance import is_gaussian
from regard.torch_compat import is_exporting

# Largest number of elements (Problem.elements) for which the plain operations of the reference are faster than tiles:
# a call of a tiled operator has a fixed cost. On a GPU each plain operation has that cost, too.
MAX_SMALL_ELEMENTS = {"cpu": 2**16, "cuda": 2**27}
# The same limit for an additive score on a CPU. `python -m benchmarks map`.
MAX_SMALL_ADDITIVE_ELEMENTS = 2**21
# A step of a decoder has few queries, so each tile would use its keys only a few times. Up to MAX_FEW_QUERIES queries
# the reference is preferred on a CPU for as many as MAX_FEW_QUERIES_ELEMENTS elements. For an
# additive score this holds up to MAX_FEW_QUERIES_ADDITIVE queries only, because most of its time goes into pairs.
MAX_FEW_QUERIES = 8
MAX_FEW_QUERIES_ADDITIVE = 2
MAX_FEW_QUERIES_ELEMENTS = 2**25
# Smallest number of elements for which the Triton kernels are faster than plain operations, if gradients are needed or
# the caller is compiled. For other calls they are faster at any size, because they are a single launch.
MIN_TRITON_ELEMENTS = {"distance": 2**25, "additive": 2**27}

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (sdpa.Sdpa(), triton.Triton(), reference.Reference(), blocked.Blocked())
}
"""All backends by name."""

# glibc returns freed memory to the system unless the process has freed a larger block before, and the next call then
# waits for new pages. It remembers blocks of up to 32 MiB, so free one just below this size. The block is never
# written, so it takes no memory. The command that shows the effect:
# `python -m benchmarks.before_after --only 'hidden 256, 32 x 20 x 256, both'`.
np.empty(2**25 - 2**16, dtype=np.uint8)


@dataclass(frozen=True)
class Why:
    """Which backend runs a call and why the others do not, as `regard.why` returns it.

    Attributes:
        backend: name of the backend that runs the call.
        bound: the promised error of one score.
        refusals: for every other backend, the reason why it does not run.
    """

    backend: str
    bound: str
    refusals: dict[str, str]

    def __str__(self) -> str:
        """Return one line for the backend, one for its error bound and one for each refusal."""
        others = [f"  not {name}: {reason}" for name, reason in self.refusals.items()]
        return "\n".join([f"backend: {self.backend}", f"  error of a score: {self.bound}", *others])


def order(problem: Problem, need: Need) -> tuple[str, ...]:
    """Return the names of backends from best to worst for a problem.

    Args:
        problem: the call after preparation.
        need: what the caller needs.

    Returns:
        The names. The last one accepts every problem.
    """
    if need == "weights":
        return ("reference",)
    kind = problem.pair.kind
    is_dot_product = kind == "dot" or (kind == "distance" and is_gaussian(problem.pair) and problem.value.is_cpu)
    torch_first = ("torch",) if is_dot_product and need == "output" else ()
    if torch.compiler.is_compiling() and is_exporting():
        # One exported program serves every length, so sizes must not decide.
        return (*torch_first, "reference") if problem.uses_callable else (*torch_first, "blocked", "reference")
    elements, is_on_gpu = problem.elements, problem.value.device.type == "cuda"
    fallbacks = ("reference",) if elements <= max_reference_elements(problem) else ("blocked", "reference")
    if is_on_gpu and kind in MIN_TRITON_ELEMENTS:
        needs_one_launch = not torch.compiler.is_compiling() and not needs_grad(*problem.operands())
        if needs_one_launch or elements >= MIN_TRITON_ELEMENTS[kind]:
            return ("triton", *fallbacks)
    if is_on_gpu and kind == "distance" and torch.compiler.is_compiling() and torch.is_grad_enabled():
        # inductor (torch 2.11) computes wrong gradients of transposed keys, because it writes and reads them with
        # different strides. inductor does not look inside custom operators, so one is used at any size.
        # Reproduce: `python -m tests.layers.compiled --device cuda`.
        return ("triton", "blocked", "reference")
    return (*torch_first, *fallbacks)


def max_reference_elements(problem: Problem) -> int:
    """Return the largest number of elements for which the reference is preferred to tiles.

    Args:
        problem: its device, its kind of score and its number of queries decide.

    Returns:
        The limit of `Problem.elements`.
    """
    if problem.value.device.type != "cpu":
        return MAX_SMALL_ELEMENTS["cuda"]
    is_additive = problem.pair.kind == "additive"
    if is_additive and problem.tolerance is not None:
        eps = torch.finfo(accumulation_dtype(problem.value.dtype)).eps
        if problem.tolerance < LOGISTIC_ERROR * eps:
            return 0  # the tiles of the backend "blocked" compute tanh itself for such a tolerance
    if problem.queries <= (MAX_FEW_QUERIES_ADDITIVE if is_additive else MAX_FEW_QUERIES):
        return MAX_FEW_QUERIES_ELEMENTS
    return MAX_SMALL_ADDITIVE_ELEMENTS if is_additive else MAX_SMALL_ELEMENTS["cpu"]


def plan(problem: Problem, backend: str = "auto", need: Need = "output") -> Plan:
    """Return the plan of one backend.

    Args:
        problem: the call after preparation.
        backend: the name of a backend, or "auto" for the first one in `order` that does not refuse.
        need: what the caller needs.

    Returns:
        The plan.

    Raises:
        RegardError: if there is no backend of this name, or if it refuses the problem.
    """
    need = _need_with_sink(problem, need)
    if backend != "auto":
        check_backend_name(backend)
        decision = BACKENDS[backend].plan(problem, need)
        if isinstance(decision, Refusal):
            raise RegardError(
                "backend",
                got=repr(backend),
                needed=f"a backend that can run this call; {backend} refuses: {decision.reason}",
                repair='Use backend="auto", or call regard.why(...) to see why each backend refuses.',
            )
        return decision
    if problem.pair.kind == "dot" and need == "output":
        # Ask torch before `order`, which computes sizes that this call does not need.
        decision = BACKENDS["torch"].plan(problem, need)
        if isinstance(decision, Plan):
            return decision
    names = order(problem, need)
    # A dot product that torch has just refused is not asked for again.
    names = names[1:] if names[0] == "torch" and problem.pair.kind == "dot" else names
    decisions = (BACKENDS[name].plan(problem, need) for name in names)
    return next(decision for decision in decisions if isinstance(decision, Plan))


def run(problem: Problem, backend: str = "auto", need: Need = "output") -> Result:
    """Plan a problem, set its padding to 0 if the plan reads it, run it, and add the sink.

    Args:
        problem: the call after preparation.
        backend: as for `plan`.
        need: as for `plan`.

    Returns:
        The result; it has at least the fields that are needed.

    Raises:
        RegardError: as for `plan`, and if the sink does not have the heads of the call.
    """
    chosen = plan(problem, backend, need)
    if chosen.reads_padding and problem.mask is not None:
        problem = zero_padding(problem)
    result = chosen.run(problem)
    return result if problem.sink is None else _add_sink(result, problem.sink)


def zero_padding(problem: Problem) -> Problem:
    """Return the problem with 0 for keys and values that are padding.

    Padding may hold any finite number. Its score could overflow, and 0 * inf in a gradient is NaN. The keys of a
    callable score are not changed, because 0 might not be in its domain.

    Args:
        problem: the call after preparation.

    Returns:
        The problem, or the same object if it has no padding or its padding is 0 already.
    """
    pair, value, mask = problem.pair, problem.value, problem.mask
    if mask is None or problem.padding_is_zero:
        return problem
    padding = mask.padding(value.shape[-2], value.device)
    if padding is None:
        return problem
    if not isinstance(pair, CallablePair):
        pair = pair.replace(pair.query, padding.zero(pair.key), *pair.parameters())
    return problem._replace(pair=pair, value=padding.zero(value), padding_is_zero=True)


def explain(problem: Problem, backend: str = "auto", need: Need = "output") -> Why:
    """Return which backend runs a problem, its promised error, and why every other backend does not.

    Args:
        problem: the call after preparation.
        backend: as for `plan`.
        need: as for `plan`.

    Returns:
        The explanation.

    Raises:
        RegardError: as for `plan`.
    """
    chosen = plan(problem, backend, need)
    need = _need_with_sink(problem, need)
    refusals = {}
    for name, other in BACKENDS.items():
        if name == chosen.backend:
            continue
        decision = other.plan(problem, need)
        if isinstance(decision, Refusal):
            refusals[name] = decision.reason
        elif name == "reference" and problem.elements > (limit := max_reference_elements(problem)):
            refusals[name] = (
                f'it would materialise {problem.elements} elements; backend="auto" uses it for at most {limit}'
            )
        elif backend == "auto":
            refusals[name] = f"{chosen.backend} comes first for this call"
        else:
            refusals[name] = f'the call has backend="{backend}"'
    return Why(chosen.backend, BACKENDS[chosen.backend].error_bound(zero_padding(problem)), refusals)


def check_backend_name(name: str) -> None:
    """Raise unless `name` is "auto" or the name of a backend.

    Args:
        name: the argument `backend` of a call or a layer.

    Raises:
        RegardError: if it is neither.
    """
    if not isinstance(name, str) or name not in ("auto", *BACKENDS):
        raise RegardError(
            "backend",
            got=repr(name),
            needed=f'"auto" or one of {", ".join(sorted(BACKENDS))}',
            repair='Leave it at "auto", which chooses the fastest backend.',
        )


def _need_with_sink(problem: Problem, need: Need) -> Need:
    """Return what the backend must compute: adding a sink to the output needs log_mass."""
    return "log_mass" if problem.sink is not None and need == "output" else need


def _add_sink(result: Result, sink: Tensor) -> Result:
    """Return the result with one more key, whose value is 0 and whose score is `sink`."""
    output, log_mass, weights = result
    assert log_mass is not None
    if log_mass.shape[:-1][-sink.ndim :] != sink.shape:
        raise RegardError(
            "score",
            got=f"a sink for {tuple(sink.shape)} heads and batch axes {tuple(log_mass.shape[:-1])}",
            needed="the heads of the sink as the last batch axes",
            repair="Build the score with sink=heads, where heads is the size of the last batch axis of the query.",
        )
    with_sink = torch.logaddexp(log_mass, sink.to(log_mass.dtype).unsqueeze(-1))
    # The keys keep this share of the weight, and the sink gets the rest.
    key_share = (log_mass - with_sink.masked_fill(with_sink == -torch.inf, 0.0)).exp().unsqueeze(-1)
    return Result((output * key_share).to(output.dtype), with_sink, None if weights is None else weights * key_share)
