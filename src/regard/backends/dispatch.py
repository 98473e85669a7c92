"""Which backend runs a problem, why the others do not, and the run itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.backends import blocked, fused, reference, sdpa
from regard.backends.base import Backend, Need, Plan, Problem, Refusal, Result
from regard.errors import RegardError
from regard.scores.base import CallablePair
from regard.torch_compat import is_exporting

# Up to so many elements (Problem.elements) the reference's plain operations are faster than an operator with tiles,
# whose call has a fixed cost. On a GPU every operation has that cost.
SMALL = {"cpu": 2**16, "cuda": 2**27}
# The same for an additive score on a CPU.
SMALL_ADDITIVE = 2**19
# A decoder's step has few queries: the score matrix is small, and tiles have nothing to share. Up to FEW_LIMIT elements
# the reference takes it. On a CPU tanh dominates an additive score, so fewer queries count as few.
FEW_QUERIES, FEW_ADDITIVE, FEW_LIMIT = 8, 2, 2**25
# From so many elements on Triton's kernels are faster than plain operations on a GPU.
TRITON_FROM = {"distance": 2**25, "additive": 2**27}

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (sdpa.Sdpa(), fused.Triton(), reference.Reference(), blocked.Blocked())
}
"""Every backend by its name."""


@dataclass(frozen=True)
class Why:
    """The answer of `regard.why`.

    Attributes:
        backend: name of the backend that runs the call.
        bound: the promised error of one score.
        refusals: for every other backend, why it does not run.
    """

    backend: str
    bound: str
    refusals: dict[str, str]

    def __str__(self) -> str:
        """One line each."""
        others = [f"  not {name}: {reason}" for name, reason in self.refusals.items()]
        return "\n".join([f"backend: {self.backend}", f"  error of a score: {self.bound}", *others])


def order(problem: Problem, need: Need) -> tuple[str, ...]:
    """Return the names of backends from best to worst for a problem; sizes decide here and nowhere else."""
    if need == "weights":
        return ("reference",)
    kind = problem.pair.kind
    first = ("torch",) if kind == "dot" and need == "output" else ()
    if torch.compiler.is_compiling() and is_exporting():  # one program serves every length, so no size may decide
        return (*first, "reference") if problem.uses_callable else (*first, "blocked", "reference")
    elements, on_gpu = problem.elements, problem.value.device.type == "cuda"
    rest = ("reference",) if elements <= small_limit(problem) else ("blocked", "reference")
    if on_gpu and elements >= TRITON_FROM.get(kind, elements + 1):
        return ("triton", *rest)
    if on_gpu and kind == "distance" and torch.compiler.is_compiling() and torch.is_grad_enabled():
        # Not the plain operations: inductor (torch 2.11) writes the gradient of transposed keys with one set of strides
        # and reads it with another; operators are opaque to it. `python -m tests.layers.compiled --device cuda`.
        return ("triton", "blocked", "reference")
    return (*first, *rest)


def small_limit(problem: Problem) -> int:
    """Return up to how many elements the reference is the best backend."""
    device, is_additive = problem.value.device.type, problem.pair.kind == "additive"
    few = FEW_ADDITIVE if is_additive and device == "cpu" else FEW_QUERIES
    return max(
        FEW_LIMIT if problem.queries <= few else 0,
        SMALL_ADDITIVE if is_additive else 0,
        SMALL.get(device, SMALL["cuda"]),
    )


def plan(problem: Problem, backend: str = "auto", need: Need = "output") -> Plan:
    """Return the plan of the backend of that name, or with "auto" of the first in `order` that does not refuse.

    Raises:
        RegardError: if there is no such backend, or if the named one refuses.
    """
    if problem.sink is not None and need == "output":
        need = "log_mass"
    if backend != "auto":
        check_backend_name(backend)
        found = BACKENDS[backend].plan(problem, need)
        if isinstance(found, Refusal):
            raise RegardError(
                "backend",
                got=repr(backend),
                needed=f"a backend that can run this call; {backend} refuses: {found.reason}",
                repair='Use backend="auto", or see regard.why(...) for what each backend says.',
            )
        return found
    if problem.pair.kind == "dot" and need == "output":  # before `order` computes sizes that it does not need
        found = BACKENDS["torch"].plan(problem, need)
        if isinstance(found, Plan):
            return found
    plans = (BACKENDS[name].plan(problem, need) for name in order(problem, need))
    return next(found for found in plans if isinstance(found, Plan))


def run(problem: Problem, backend: str = "auto", need: Need = "output") -> Result:
    """Plan a problem, zero its padding if the plan reads it, run it, and add the sink."""
    chosen = plan(problem, backend, need)
    if chosen.reads_padding and problem.mask is not None:
        problem = zero_padding(problem)
    result = chosen.run(problem)
    return result if problem.sink is None else _add_sink(result, problem.sink)


def zero_padding(problem: Problem) -> Problem:
    """Return the problem with 0 for keys and values that are padding.

    Padding may hold any finite number: its score could overflow, and 0 * inf in a gradient is NaN. Keys of a callable
    score stay as they are, because 0 might not be in its domain.
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
    """Return which backend runs a problem, its promised error, and why every other backend does not."""
    chosen = plan(problem, backend, need)
    if problem.sink is not None and need == "output":
        need = "log_mass"
    refusals = {}
    for name, other in BACKENDS.items():
        if name == chosen.backend:
            continue
        found = other.plan(problem, need)
        if isinstance(found, Refusal):
            refusals[name] = found.reason
        elif name == "reference" and problem.elements > (limit := small_limit(problem)):
            refusals[name] = f"it would materialise {problem.elements} elements; auto takes it up to {limit}"
        else:
            refusals[name] = f"{chosen.backend} is faster here, or was asked for"
    return Why(chosen.backend, BACKENDS[chosen.backend].error_bound(zero_padding(problem)), refusals)


def check_backend_name(name: str) -> None:
    """Raise unless `name` is "auto" or the name of a backend."""
    if not isinstance(name, str) or name not in ("auto", *BACKENDS):
        raise RegardError(
            "backend",
            got=repr(name),
            needed=f'"auto" or one of {", ".join(sorted(BACKENDS))}',
            repair='Leave it at "auto" unless you compare backends.',
        )


def _add_sink(result: Result, sink: Tensor) -> Result:
    """Return the result with one more key, whose value is 0 and whose score is `sink`."""
    output, log_mass, weights = result
    assert log_mass is not None
    if log_mass.shape[:-1][-sink.ndim :] != sink.shape:
        raise RegardError(
            "score",
            got=f"a sink for {tuple(sink.shape)} heads and batch axes {tuple(log_mass.shape[:-1])}",
            needed="the heads of the sink as the last batch axes",
            repair="Build the score with sink=heads for the heads it is called with.",
        )
    with_sink = torch.logaddexp(log_mass, sink.to(log_mass.dtype).unsqueeze(-1))
    share = (log_mass - with_sink.masked_fill(with_sink == -torch.inf, 0.0)).exp().unsqueeze(-1)
    return Result((output * share).to(output.dtype), with_sink, None if weights is None else weights * share)
