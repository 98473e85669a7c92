"""Additive scores (eq. 12) on a GPU: the plan of a problem, and its forward and backward pass.

A problem is computed in one of two forms. The exact form (`exact`) needs no tanh for each pair. The lift (`lift`,
`lifted`) is a low-rank expansion of tanh(a + b), so that scores become wide dot products; its error is bounded, and it
is chosen where the tolerance allows it.

Scores exist for one slab at a time: some queries of some batch elements, and all of their keys. The forward pass
computes the scores of a slab and pools its values (`softmax`). The backward pass computes the scores again, then their
gradients (`softmax`), then those of the tokens (`exact` or `lifted`). With few keys, one kernel does the whole forward
pass (`short`), and its scores are kept for the backward pass.

The modules with kernels import Triton, so functions here import them when they run.
"""

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends.base import Problem, full_precision
from regard.backends.custom_op import ForwardResults, Gradients, Needs, Operator, OperatorFunctions, Shapes
from regard.backends.encoding import Options
from regard.backends.triton.additive.lift import MAX_PRODUCT, error_bound, smallest_rank, tables_on
from regard.backends.triton.launch import NO_BAND, empty_float32, fold, kernel_mask_of, unfold
from regard.checks import needs_grad
from regard.scores.additive import AdditivePair
from regard.torch_compat import in_transform

Constant = TypeVar("Constant")


class PerForm(NamedTuple, Generic[Constant]):
    """A constant of the exact form and that of the lift."""

    exact: Constant
    lifted: Constant

    def of(self, rank: int) -> Constant:
        """Return the constant of a rank, which is 0 for the exact form."""
        return self.lifted if rank else self.exact


# Bound on the error of each tanh of an exact score, and of its derivative: 16 times the distance from 1 to the next
# float32, for the few roundings and the error of exp. Tests of random activations of any size check it.
EXACT_ERROR = 16 * torch.finfo(torch.float32).eps
# The rounding of coarse dtypes, which is their tolerance if a call has none.
DTYPE_TOLERANCE = {torch.bfloat16: 2.0**-8}
# Below this number of pairs times hidden units the exact form is faster, because it has half as many launches.
MIN_LIFT_WORK = 2**31
# With fewer queries or keys, features cost more time than they save.
MIN_LIFT_TOKENS = 128
# Calls of at most this number of keys and of pairs times hidden units are short. The limit of keys also keeps memory
# linear in queries, because short calls keep their scores. `python -m benchmarks map --cuda`.
MAX_SHORT_KEYS = 256
MAX_SHORT_ELEMENTS = 2**28
# Pairs of a slab: 256 and 512 MiB of scores. Smaller lifted slabs would be launch-bound.
SLAB_PAIRS = PerForm(exact=2**26, lifted=2**27)
# The number of hidden units is padded to a multiple of 4, because 4 units share a reciprocal.
GROUP = 4


# --- Plan ------------------------------------------------------------------------------------------------------


class PlanOptions(NamedTuple):
    """The options of the operator: a plan without its error.

    Attributes:
        rank: number of features of the lift for each hidden unit; 0 for the exact form.
        query_range: range of the lift for queries, 0 for the exact form.
        key_range: range of the lift for keys, 0 for the exact form.
        is_short: whether one kernel does the whole forward pass.
    """

    rank: int
    query_range: float
    key_range: float
    is_short: bool


class Plan(NamedTuple):
    """How tanh is computed, and its error.

    Attributes:
        rank: number of features of the lift for each hidden unit; 0 for the exact form.
        query_range: range of the lift for queries, 0 for the exact form.
        key_range: range of the lift for keys, 0 for the exact form.
        is_short: whether one kernel does the whole forward pass.
        error: bound on the error of each tanh, and of its derivative if gradients are needed.
    """

    rank: int
    query_range: float
    key_range: float
    is_short: bool
    error: float

    @property
    def options(self) -> PlanOptions:
        """The options of the operator."""
        return PlanOptions(self.rank, self.query_range, self.key_range, self.is_short)


def plan(problem: Problem, *, gradient: bool) -> Plan:
    """Return the plan of a problem: the lift where the tolerance allows it and it is faster, else the exact form.

    Args:
        problem: a problem with an additive score.
        gradient: whether a gradient is needed.
    """
    pair = problem.pair
    assert isinstance(pair, AdditivePair)
    is_short = problem.keys <= MAX_SHORT_KEYS and problem.elements <= MAX_SHORT_ELEMENTS
    exact = Plan(0, 0.0, 0.0, is_short, EXACT_ERROR)
    tolerance = problem.tolerance
    # A compiled caller may be captured in a CUDA graph, where the lift is faster at any size.
    ignores_size = tolerance is not None and torch.compiler.is_compiling()
    if not ignores_size and problem.elements < MIN_LIFT_WORK:
        return exact
    if tolerance is None:
        tolerance = DTYPE_TOLERANCE.get(pair.query.dtype)
    if tolerance is None or tolerance <= EXACT_ERROR or min(problem.queries, problem.keys) < MIN_LIFT_TOKENS:
        return exact
    rank, error = _smallest_lift(problem.value.device, *pair.reach, tolerance, gradient)
    if not rank or rank * pair.query.shape[-1] > MAX_PRODUCT:
        return exact
    return Plan(rank, *pair.reach, False, error)


def _smallest_lift(
    device: torch.device, query_range: float, key_range: float, tolerance: float, gradient: bool
) -> tuple[int, float]:
    """Return rank and error bound of the lift of the smallest rank within a tolerance, 0 and 0 if there is none."""
    rank = smallest_rank(query_range, key_range, tolerance, gradient)
    if rank is None:
        return 0, 0.0
    if not in_transform():
        # Cache the tables before the operator runs: the memory of a captured CUDA graph must not hold them.
        tables_on(device, query_range, key_range, rank)
    value_error, slope_error = error_bound(query_range, key_range, rank)
    return rank, max(value_error, slope_error) if gradient else value_error


# torch.compile need not trace this function. torch.compiler.assume_constant_result does the same, but imports the
# compiler.
setattr(_smallest_lift, "_dynamo_marked_constant", True)  # noqa: B010 - functions have no such attribute for pyrefly


def _choose(problem: Problem) -> Options:
    """Return the options of the operator, `PlanOptions`."""
    return plan(problem, gradient=needs_grad(*problem.operands())).options


# --- Problems and slabs as the kernels read them -----------------------------------------------------------------


class FoldedProblem(NamedTuple):
    """A problem with two batch axes; an axis along which a tensor is shared has size 1.

    Attributes:
        query: (outer or 1, inner or 1, queries, units), in the dtype of the problem. The number of hidden units is a
            multiple of 4.
        key: (outer or 1, inner or 1, keys, units), in the dtype of the problem.
        weight: (outer or 1, inner or 1, units), float32; 0 for units that are padding.
        value: (outer or 1, inner or 1, keys, value_dim), in the dtype of the problem.
        bias: (outer or 1, inner or 1, queries or 1, keys or 1), or None.
        allowed: a mask that is not made of key masks and a band, (outer or 1, inner or 1, queries or 1, keys or 1).
        key_bias: 0, or minus infinity for masked keys, (outer or 1, inner or 1, padded keys), float32.
        band: bounds of the offset key - query, see `launch.KernelMask`.
        dropout: probability with which a weight is dropped.
        seed: of dropout, int64; it may have the first batch axes.
        rank: rank of the lift, 0 for the exact form.
        batch: the batch axes before they were folded.
        bias_batch: the batch axes of the bias before they were folded.
        outer: size of the first batch axis.
        inner: size of the second batch axis.
    """

    query: Tensor
    key: Tensor
    weight: Tensor
    value: Tensor
    bias: Tensor | None
    allowed: Tensor | None
    key_bias: Tensor | None
    band: tuple[int, int, int, int]
    dropout: float
    seed: Tensor | None
    rank: int
    batch: Sequence[int]
    bias_batch: Sequence[int]
    outer: int
    inner: int

    @property
    def batch_size(self) -> int:
        """Number of batch elements."""
        return self.outer * self.inner

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.query.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.key.shape[-2]

    @property
    def units(self) -> int:
        """Number of hidden units, a multiple of 4."""
        return self.query.shape[-1]


class Side(NamedTuple):
    """A slab from the side of its queries or of its keys: their own tokens, and the tokens of the other side.

    Attributes:
        first_own: the first own token.
        first_other: the first other token.
        own_extent: number of own tokens in the slab, with padding.
        other_extent: number of other tokens in the slab, with padding.
        own_step: stride of own tokens in the scores of a slab.
        other_step: stride of other tokens.
    """

    first_own: int
    first_other: int
    own_extent: int
    other_extent: int
    own_step: int
    other_step: int


class Slab(NamedTuple):
    """Some queries of some consecutive batch elements, and all of their keys; scores are (num_batch, rows, columns).

    Attributes:
        first_batch: the first batch element.
        num_batch: number of batch elements. They have the same outer index, or they are all elements of several outer
            indices if the form is exact.
        first_row: the first query, at the start of a block.
        rows: number of queries with padding, whole blocks.
        is_last: whether it has the last queries of its batch elements.
    """

    first_batch: int
    num_batch: int
    first_row: int
    rows: int
    is_last: bool

    def of(self, scores: Tensor) -> Tensor:
        """Return the part of all scores (batch, padded queries, columns) that belongs to the slab."""
        part = scores[self.first_batch : self.first_batch + self.num_batch]
        return part[:, self.first_row : self.first_row + self.rows].contiguous()

    def side(self, columns: int, *, is_query: bool) -> Side:
        """Return the slab from the side of its queries or of its keys; columns: number of keys with padding."""
        if is_query:
            return Side(self.first_row, 0, self.rows, columns, columns, 1)
        return Side(0, self.first_row, columns, self.rows, 1, columns)


def slabs(folded: FoldedProblem) -> Iterator[Slab]:
    """Yield slabs of bounded size; those of the same batch elements follow each other."""
    from regard.backends.triton.additive.exact import BLOCK, padded_count

    num_rows, num_columns = padded_count(folded.queries), padded_count(folded.keys)
    pairs = SLAB_PAIRS.of(folded.rank)
    fitting, group = pairs // (num_rows * num_columns), folded.inner
    if not folded.rank and fitting >= folded.inner:
        # Exact kernels find each batch element by its strides, so their slabs may have several outer indices.
        fitting, group = fitting // folded.inner * folded.inner, folded.batch_size
    num_batch = max(min(fitting, group), 1)
    rows = num_rows if fitting else min(max(pairs // num_columns // BLOCK, 1) * BLOCK, num_rows)
    for start in range(0, folded.batch_size, group):
        for first in range(start, start + group, num_batch):
            for row in range(0, num_rows, rows):
                count = min(rows, num_rows - row)
                yield Slab(first, min(num_batch, start + group - first), row, count, row + count == num_rows)


def fold_problem(problem: Problem, rank: int) -> FoldedProblem:
    """Return a problem with two batch axes, its mask in the form that kernels read.

    Args:
        problem: a problem with an additive score.
        rank: rank of the lift, 0 for the exact form.
    """
    from regard.backends.triton.additive.exact import padded_count

    pair, value, bias, keys, batch = problem.pair, problem.value, problem.bias, problem.keys, problem.full_batch
    assert isinstance(pair, AdditivePair)
    assert not callable(bias)
    mask, allowed, key_bias, band = kernel_mask_of(problem.mask), None, None, NO_BAND
    if mask is not None:
        key_bias, band = mask.key_bias(keys, value.device), mask.band
    elif problem.mask is not None:
        allowed = problem.mask.tile(slice(0, problem.queries), slice(0, keys), value.device)
    required, optional = [pair.query, pair.key, pair.weight, value], [bias, allowed, key_bias]
    folded = fold(batch, [*required, *(x for x in optional if x is not None)])
    query, key, weight, value, *rest = folded.tensors
    bias_batch = () if bias is None else folded.shapes[len(required)]  # a bias is the first optional tensor
    bias, allowed, key_bias = (None if x is None else rest.pop(0) for x in optional)
    weight = weight.squeeze(-2).float()
    if padding := -query.shape[-1] % GROUP:
        query, key, weight = (functional.pad(x, (0, padding)) for x in (query, key, weight))
    if key_bias is not None:
        key_bias = key_bias.squeeze(-2).float()
        # A mask may be one number for all keys.
        key_bias = functional.pad(key_bias.expand(*key_bias.shape[:2], keys), (0, padded_count(keys) - keys))
    seed = problem.seed
    if seed is not None:
        # With torch.vmap, each example has its own seed, or all share one.
        seed = seed.expand(batch[: seed.ndim]).contiguous()
    return FoldedProblem(
        query=query,
        key=key,
        weight=weight.contiguous(),
        value=value,
        bias=bias,
        allowed=allowed,
        key_bias=key_bias,
        band=band,
        dropout=problem.dropout,
        seed=seed,
        rank=rank,
        batch=batch,
        bias_batch=bias_batch,
        outer=folded.outer,
        inner=folded.inner,
    )


# --- Forward and backward pass -----------------------------------------------------------------------------------


class Scores(Protocol):
    """The scores of a problem, exact or lifted. It holds what is computed once for each token.

    Attributes:
        query_bias: what must be added to the scores of each query, (outer or 1, inner or 1, padded queries), or None.
        key_bias: what must be added to those of each key, (outer or 1, inner or 1, padded keys), or None.
    """

    query_bias: Tensor | None
    key_bias: Tensor | None

    def of_slab(self, slab: Slab) -> Tensor:
        """Return the scores of a slab without biases and mask, (num_batch, rows, columns) in float32."""
        ...

    def gradients(self, grad_scale: Tensor, d_log_mass: Tensor, needs: Sequence[bool]) -> "TokenGradients":
        """Return the gradients of query, key and weight, to which no slab has been added.

        Args:
            grad_scale: the factor of d_scores.
            d_log_mass: (batch, queries).
            needs: which of query, key and weight need a gradient.
        """
        ...


class TokenGradients(Protocol):
    """The gradients of query, key and weight, to which slabs are added in order."""

    def add(self, slab: Slab, d_scores: Tensor, sums: Tensor) -> None:
        """Add one slab.

        Args:
            slab: the slab.
            d_scores: times grad_scale, (num_batch, rows, columns).
            sums: their sums over rows, (num_batch, columns).
        """
        ...

    def results(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return (batch, queries, units), (batch, keys, units) and (batch, 1, units); maybe None if not needed."""
        ...


def prepare_scores(folded: FoldedProblem, options: PlanOptions) -> Scores:
    """Compute what exact or lifted scores need once for each token.

    Args:
        folded: the problem.
        options: the options of the operator.
    """
    from regard.backends.triton.additive.exact import ExactScores
    from regard.backends.triton.additive.lifted import LiftedScores

    rank, query_range, key_range, _ = options
    if not rank:
        return ExactScores(folded)
    return LiftedScores(folded, *tables_on(folded.value.device, query_range, key_range, rank))


def _forward(problem: Problem, options: Options) -> ForwardResults:
    """Return output (*batch, queries, value_dim) in the dtype of value, log_mass (*batch, queries), and kept scores."""
    from regard.backends.triton.additive import short, softmax

    value, plan_options = problem.value, PlanOptions(*options)
    with full_precision(value.device), torch.cuda.device_of(value):
        if plan_options.is_short:
            return short.attend(problem)
        folded = fold_problem(problem, plan_options.rank)
        output = value.new_empty(*folded.batch, folded.queries, value.shape[-1])
        log_mass = empty_float32(value, *folded.batch, folded.queries)
        scores = prepare_scores(folded, plan_options)
        for slab in slabs(folded):
            softmax.pool(folded, slab, scores.of_slab(slab), scores.query_bias, scores.key_bias, output, log_mass)
    return output, log_mass, empty_float32(value, *folded.batch, 0, 0)


def _kept_shapes(problem: Problem, options: Options) -> Shapes:
    """Return the shape of the scores that a short call keeps; other calls compute them again."""
    from regard.backends.triton.additive.exact import padded_count

    if not PlanOptions(*options).is_short:
        return [(*problem.full_batch, 0, 0)]
    return [(*problem.full_batch, padded_count(problem.queries), padded_count(problem.keys))]


def _backward(
    problem: Problem, options: Options, saved: ForwardResults, d_output: Tensor, d_log_mass: Tensor, needs: Needs
) -> Gradients:
    """Return the gradients of a problem in float32."""
    from regard.backends.triton.additive import softmax

    pair, value, bias, (output, log_mass, kept_scores) = problem.pair, problem.value, problem.bias, saved
    assert isinstance(pair, AdditivePair)
    plan_options = PlanOptions(*options)
    is_short = plan_options.is_short
    with full_precision(value.device), torch.cuda.device_of(value):
        folded = fold_problem(problem, plan_options.rank)
        scores = prepare_scores(folded, plan_options)
        kept_scores = kept_scores.reshape(-1, *kept_scores.shape[-2:]) if is_short else kept_scores
        terms = softmax.query_terms(folded, output, log_mass, d_output, d_log_mass)
        tokens = scores.gradients(terms.grad_scale, terms.d_log_mass, needs.pair)
        d_value = empty_float32(value, folded.batch_size, folded.keys, value.shape[-1])
        d_bias = torch.zeros_like(folded.bias, dtype=torch.float32) if needs.bias and folded.bias is not None else None
        for slab in slabs(folded):
            d_scores, sums = softmax.gradients(
                folded, slab, slab.of(kept_scores) if is_short else scores.of_slab(slab), scores.query_bias,
                scores.key_bias, terms, d_value, can_overwrite=not is_short,
            )  # fmt: skip
            if d_bias is not None:
                _add_bias_gradient(folded, slab, d_scores, terms.grad_scale, d_bias)
            tokens.add(slab, d_scores, sums)
    hidden, sources = pair.query.shape[-1], (pair.query, pair.key, pair.weight)
    d_pair = [
        unfold(grad[..., :hidden], folded.batch, source) if grad is not None and need else None
        for grad, source, need in zip(tokens.results(), sources, needs.pair, strict=True)
    ]
    if isinstance(bias, Tensor) and d_bias is not None:
        d_bias = d_bias.reshape(*folded.bias_batch, *d_bias.shape[-2:]).sum_to_size(bias.shape)
    return Gradients(d_pair, unfold(d_value, folded.batch, value) if needs.value else None, d_bias)


def _add_bias_gradient(folded: FoldedProblem, slab: Slab, d_scores: Tensor, grad_scale: Tensor, d_bias: Tensor) -> None:
    """Add the d_scores of a slab to the gradient of the bias, (outer or 1, inner or 1, queries or 1, keys or 1)."""
    rows = slice(slab.first_row, min(slab.first_row + slab.rows, folded.queries))
    added = d_scores[:, : rows.stop - rows.start, : folded.keys].float() / grad_scale
    outer, first = divmod(slab.first_batch, folded.inner)
    num_outer = max(slab.num_batch // folded.inner, 1)
    part = d_bias[outer : outer + num_outer] if d_bias.shape[0] > 1 else d_bias
    part = part[:, first : first + slab.num_batch] if d_bias.shape[1] > 1 else part
    part = part[..., rows, :] if part.shape[-2] > 1 else part
    part.add_(added.reshape(num_outer, -1, *added.shape[-2:]).sum_to_size(part.shape))


OPERATOR = Operator(
    "triton_additive", OperatorFunctions(_forward, _backward, _choose, _kept_shapes, num_kept=1), backend="triton"
)
