"""Which backend runs a problem, and why the others do not."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends import blocked, fused, reference, torch_sdpa
from regard.backends.problem import Problem
from regard.errors import RegardError
from regard.scores.forms import AdditiveForm, DistanceForm
from regard.watched import is_exporting

# Below this many elements the textbook form in plain operations beats the fixed cost of an operator with tiles: on a
# GPU, where an operation costs its launch and little else, far longer.
SMALL = {"cpu": 2**16, "cuda": 2**27}
# With a gradient the textbook form of an additive score is faster on a CPU up to here.
SMALL_ADDITIVE = 2**19
# The steps of a decoder: a few queries, one for each beam. The textbook form holds these few times the keys, and tiles
# have nothing to share among so few rows. On a CPU, where a tanh is dear, additive scores have fewer.
FEW_QUERIES, FEW_ADDITIVE, FEW_LIMIT = 8, 2, 2**25
# From this many elements on a GPU's fused kernels, whose launch costs more than a few plain operations, are faster.
FUSED_FROM: dict[type, int] = {DistanceForm: 2**25, AdditiveForm: 2**27}


class Backend(NamedTuple):
    """A way to run a problem: its name, its reasons to refuse, and the run itself."""

    name: str
    refuse: Callable[[Problem, bool], str | None]
    run: Callable[[Problem], tuple[Tensor, Tensor | None]]


BACKENDS = {
    module.NAME: Backend(module.NAME, module.refuse, module.run) for module in (torch_sdpa, fused, reference, blocked)
}
TORCH, TRITON, REFERENCE, BLOCKED = (BACKENDS[name] for name in ("torch", "triton", "reference", "blocked"))


def choose(problem: Problem, name: str, *, log_mass: bool) -> Backend:
    """The backend of that name, or with "auto" the best that does not refuse.

    torch has the fastest dot products, triton on a GPU the fastest distances and additive scores; small problems take
    plain operations; everything else takes blocks, and what even those refuse (empty inputs) is left to the equations.
    """
    if name == "auto":
        if TORCH.refuse(problem, log_mass) is None:
            return TORCH
        if is_exporting():
            # One program for every length: no size is looked at.
            return REFERENCE if problem.is_code or BLOCKED.refuse(problem, log_mass) is not None else BLOCKED
        if _is_fused(problem, log_mass):
            return TRITON
        if _needs_operator(problem) and BLOCKED.refuse(problem, log_mass) is None:
            return BLOCKED if TRITON.refuse(problem, log_mass) is not None else TRITON
        if problem.work <= _small(problem) or BLOCKED.refuse(problem, log_mass) is not None:
            return REFERENCE
        return BLOCKED
    check_backend_name(name)
    backend = BACKENDS[name]
    reason = backend.refuse(problem, log_mass)
    if reason is not None:
        raise RegardError(
            "backend",
            got=repr(name),
            needed=f"a backend that can run this call; {name} refuses: {reason}",
            repair='Use backend="auto", or see regard.why(...) for what each backend says.',
        )
    return backend


def check_backend_name(name: str) -> None:
    """Raise unless `name` is "auto" or the name of a backend."""
    if not isinstance(name, str) or name not in ("auto", *BACKENDS):
        raise RegardError(
            "backend",
            got=repr(name),
            needed=f'"auto" or one of {", ".join(sorted(BACKENDS))}',
            repair='Leave it at "auto" unless you compare backends.',
        )


def refusals(problem: Problem, *, log_mass: bool, chosen: Backend) -> dict[str, str]:
    """What speaks against every backend that was not chosen."""
    reasons = {}
    for backend in BACKENDS.values():
        if backend is chosen:
            continue
        reason = backend.refuse(problem, log_mass)
        if reason is None and backend is REFERENCE and problem.work > _small(problem):
            reason = f"it would materialise {problem.work} elements; auto takes it up to {_small(problem)}"
        reasons[backend.name] = reason or f"{chosen.name} is faster here, or was asked for"
    return reasons


def _is_fused(problem: Problem, log_mass: bool) -> bool:
    """Never on a CPU: there the kernels run in an interpreter, for tests."""
    on_gpu = problem.value.device.type == "cuda"
    enough = FUSED_FROM.get(type(problem.form), 0)
    return on_gpu and problem.work >= enough and TRITON.refuse(problem, log_mass) is None


def _needs_operator(problem: Problem) -> bool:
    """Whether inductor must not compile the plain equations of this problem.

    When inductor (torch 2.11) compiles |q - k|^2 for a GPU, it writes the gradient of transposed keys with one set of
    strides and reads it with another: `python -m tests.layers.compiled --device cuda` shows the wrong gradients.
    Operators are opaque to inductor.
    """
    is_compiled = torch.compiler.is_compiling() and torch.is_grad_enabled() and problem.value.is_cuda
    return is_compiled and isinstance(problem.form, DistanceForm)


def _small(problem: Problem) -> int:
    device = problem.value.device.type
    is_additive = isinstance(problem.form, AdditiveForm)
    few = FEW_ADDITIVE if is_additive and device == "cpu" else FEW_QUERIES
    return max(
        FEW_LIMIT if problem.queries <= few else 0,
        SMALL_ADDITIVE if is_additive else 0,
        SMALL.get(device, SMALL["cuda"]),
    )
