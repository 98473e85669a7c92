"""What a call would do and what it promises: the backend, its error bound, and why not another backend."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.backends.blocked.additive import keeps, promised
from regard.backends.choice import choose, refusals
from regard.backends.fused.additive.plan import plan
from regard.backends.problem import Bias, Problem
from regard.masks import Mask
from regard.pooling.prepare import Settings, prepare
from regard.scores.forms import AdditiveForm
from regard.scores.names import ScoreLike
from regard.shapes import accumulation_dtype


@dataclass(frozen=True)
class Why:
    """backend: what runs. bound: the promised error of each score. refusals: what speaks against each other one."""

    backend: str
    bound: str
    refusals: dict[str, str]

    def __str__(self) -> str:
        """One line each."""
        others = [f"  not {name}: {reason}" for name, reason in self.refusals.items()]
        return "\n".join([f"backend: {self.backend}", f"  error of a score: {self.bound}", *others])


def why(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: ScoreLike = "scaled_dot",
    mask: Mask | None = None,
    *,
    bias: Bias | None = None,
    dropout: float = 0.0,
    tolerance: float | None = None,
    backend: str = "auto",
) -> Why:
    """Explain the choice that `attend` makes for the same arguments, without pooling anything.

    >>> import torch, regard
    >>> x = torch.randn(2, 7, 4)
    >>> print(regard.why(x, x, x).backend)
    torch
    """
    problem, sink = prepare(query, key, value, score, Settings(mask, bias, dropout, tolerance))
    log_mass = sink is not None
    chosen = choose(problem, backend, log_mass=log_mass)
    bound = _bound(problem.without_padding(), chosen.name)
    return Why(chosen.name, bound, refusals(problem, log_mass=log_mass, chosen=chosen))


def _bound(problem: Problem, backend: str) -> str:
    dtype = accumulation_dtype(problem.form.query.dtype)
    name = str(dtype).removeprefix("torch.")
    if isinstance(problem.form, AdditiveForm):
        each, how = _tanh_bound(problem, problem.form, backend)
        total = each * float(problem.form.weight.detach().abs().sum(-1).max())
        return f"at most {each:.2g} for each tanh, {total:.2g} for the sum over hidden units{how}"
    return f"the rounding of {name}, in which scores, softmax and sums are formed"


def _tanh_bound(problem: Problem, form: AdditiveForm, backend: str) -> tuple[float, str]:
    """The error promised for each tanh, and what the backend does to keep it."""
    dtype = accumulation_dtype(form.query.dtype)
    if backend == "blocked" and keeps(problem.tolerance, form.query.dtype):
        return promised(form.query.dtype), ""
    if backend != "triton":
        return torch.finfo(dtype).eps, ""
    learning = [*form[:3], problem.value, *([problem.bias] if isinstance(problem.bias, Tensor) else [])]
    gradient = torch.is_grad_enabled() and any(x.requires_grad for x in learning)
    chosen = plan(problem, gradient=gradient)
    if not chosen.rank:
        return chosen.error, ""
    beyond = [_share_beyond(tokens, reach) for tokens, reach in zip(form[:2], form.reach, strict=True)]
    ranges = "queries up to {:g}, keys up to {:g}".format(*form.reach)
    shares = "{:.2%} and {:.2%} of the tokens have activations beyond it, corrected one by one".format(*beyond)
    return chosen.error, f"; tanh as {chosen.rank} products a hidden unit in the range of {ranges}: {shares}"


def _share_beyond(tokens: Tensor, reach: float) -> float:
    """The share of tokens (*batch, tokens, hidden) with an activation beyond the range."""
    return float((tokens.detach().abs().amax(-1) > reach).double().mean())
