"""Attention over sequences whose tokens are distributed over several ranks: `attend`, and what each rank prepares."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.attention import Attended, merge
from regard.attention.prepare import Options, checked_callable, to_autocast, to_problem, under_autocast
from regard.backends.base import Bias, Problem
from regard.checks import common_batch
from regard.errors import RegardError
from regard.masks import Mask
from regard.scores.base import CallablePair, PairScore, Score
from regard.scores.names import ScoreLike, check_score, score_by_name
from regard.sharding.exchange import Route, ShardedProblem, run
from regard.sharding.layout import Layout
from regard.sharding.traffic import choose_moving, count_bytes, count_hops

if TYPE_CHECKING:
    from regard.sharding.ring import Group

MakeProblem = Callable[[PairScore, Tensor, Options, Tensor | None], Problem]
"""Makes the problem of a pair score, values, options and the sink of the score."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: ScoreLike = "scaled_dot",
    mask: Mask | None = None,
    *,
    group: "Group",
    order: str = "contiguous",
    bias: Bias | None = None,
    tolerance: float | None = None,
    travel: str = "auto",
    backend: str = "auto",
) -> Tensor:
    """Return this rank's part of `regard.attend` on the whole sequences, of which each rank holds some tokens.

    Every rank of the group calls it with the same options, and if one rank runs the backward pass, all must. Either
    keys and values are sent around the ranks, or queries are sent around and their results return; no rank ever holds
    all keys. The backward pass sends all tensors around once more. There is no dropout.

    Gradients of query, key and value are those of the sum of all ranks' losses. Gradients of a score's parameters and
    of a bias are this rank's share of it. Sum them over the ranks, as for every parameter that all ranks hold;
    DistributedDataParallel takes their mean.

    Args:
        query: (*batch, own queries, query_dim). The number of tokens may differ between ranks and may be 0.
        key: (*batch, own keys, key_dim).
        value: (*batch, own keys, value_dim).
        score: as for `regard.attend`; a callable with parameters must be a module.
        mask: as for `regard.attend`, on positions of the whole sequences. Its tensors cover all tokens, and each rank
            uses the part that it needs.
        group: the ranks: a process group, or a DeviceMesh with one axis.
        order: which tokens a rank holds: "contiguous", or "balanced" for shards of `regard.sharding.split` with
            order="balanced", which gives all ranks the same work under a causal mask.
        bias: as for `regard.attend`, on positions of the whole sequences: a tensor that broadcasts to (*batch, all
            queries, all keys), or a callable of positions.
        tolerance: as for `regard.attend`.
        travel: "keys", "queries", or "auto" for the one that moves fewer bytes.
        backend: what runs the blocks, as for `regard.attend`.

    Returns:
        (*batch, own queries, value_dim) in the dtype of value.

    Raises:
        RegardError: as for `regard.attend`, and on every rank if the ranks' arguments differ.
    """
    return pool_shards(
        (query, key, value),
        score,
        Options(mask, bias, tolerance=tolerance),
        group=group,
        order=order,
        project=partial(_cast, score),
        pose=to_problem,
        travel=travel,
        backend=backend,
    )


def pool_shards(
    tokens: tuple[Tensor, Tensor, Tensor],
    score: ScoreLike,
    options: Options,
    *,
    group: "Group",
    order: str,
    project: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
    pose: MakeProblem,
    travel: str = "auto",
    backend: str = "auto",
) -> Tensor:
    """Return the output of this rank's queries over the keys of all ranks; `attend` and the layers call it.

    Args:
        tokens: query, key and value of this rank, as the user passed them.
        score: as for `attend`.
        options: the other arguments; mask and bias are those of the whole sequences.
        group: as for `attend`.
        order: as for `attend`.
        project: applied to the tokens before the score prepares them.
        pose: makes a problem of a pair score.
        travel: as for `attend`.
        backend: as for `attend`.

    Returns:
        (*batch, own queries, value_dim).

    Raises:
        RegardError: as for `attend`.
    """
    biases = (options.bias, options.layer_bias)
    texts = {
        "score": _describe(score),
        "mask": f"{options.mask}",
        "travel": f"{travel}",
        "bias": " and ".join(_describe(bias) for bias in biases if bias is not None) or "None",
        "backend": f"{backend}",
    }
    layout = Layout.gather(group, order, *tokens, texts)
    pair, value, sink = _prepare(layout, *project(*tokens), score)
    problem = problem_on_shards(layout, pose, pair, value, sink, options)
    sink, problem = problem.sink, problem._replace(sink=None)
    parameters = callable_parameters(problem, score, biases)
    hops = count_hops(problem.mask, layout.query_spans, layout.key_spans)
    moving = choose_moving(count_bytes(layout, problem), hops, travel, backward=torch.is_grad_enabled())
    record = run(ShardedProblem(layout, problem, backend), Route(moving, hops[moving]), parameters)
    return record.output if sink is None else _add_sink(record, problem, sink)


def problem_on_shards(
    layout: Layout, pose: MakeProblem, pair: PairScore, value: Tensor, sink: Tensor | None, options: Options
) -> Problem:
    """Return the problem of this rank's tokens, with the mask and the bias of the whole sequences.

    Mask and bias are checked against placeholders of the whole sequences, which expand one number.

    Args:
        layout: which tokens each rank holds.
        pose: makes a problem of a pair score.
        pair: the score of this rank's prepared tokens.
        value: (*batch, own keys, value_dim).
        sink: logits of the score's sink.
        options: the other arguments.

    Raises:
        RegardError: if mask or bias do not fit the whole sequences, or for what shards do not support.
    """
    if options.dropout:
        raise RegardError(
            "dropout",
            got=f"{options.dropout} with sharded tokens",
            needed="0, because the backward pass recomputes blocks and would drop other weights",
            repair="Build the layer with dropout=0.0, or apply dropout outside of attention.",
        )
    if any(parameter.shape[-2] != 1 for parameter in pair.parameters()):
        raise RegardError(
            "score",
            got="a width for each query",
            needed="parameters that all queries share",
            repair="Write such a score as a callable.",
        )
    problem = pose(pair, value, Options(tolerance=options.tolerance), sink)
    queries, keys = sum(layout.queries), sum(layout.keys)
    whole = pair.replace(_placeholder(pair.query, queries), _placeholder(pair.key, keys), *pair.parameters())
    try:
        bound = pose(whole, _placeholder(value, keys), options, sink)
    except RegardError as error:
        repair = f"{error.repair} Mask and bias cover the tokens of all ranks, {queries} queries and {keys} keys."
        raise RegardError(error.argument, got=error.got, needed=error.needed, repair=repair) from None
    return problem._replace(mask=bound.mask, bias=bound.bias)


def callable_parameters(problem: Problem, score: object, biases: Sequence[object]) -> tuple[Tensor, ...]:
    """Return the parameters of callables among `score` and `biases` that require a gradient.

    Each callable is called once, on one pair that is the same on every rank, to find all tensors that its result
    depends on. The backward pass recomputes blocks, so the gradient of any other tensor would be lost.

    Args:
        problem: the problem that calls them.
        score: the score of the call.
        biases: the biases of the call and of the layer.

    Raises:
        RegardError: if a callable depends on another tensor that requires a gradient, or draws random numbers.
    """
    if not problem.uses_callable or not torch.is_grad_enabled():
        return ()
    found: dict[int, Tensor] = {}
    pair, device = problem.pair, problem.value.device
    if isinstance(pair, CallablePair):
        tile = _call_once("score", device, pair.function, _one_token(pair.query), _one_token(pair.key))
        found |= _parameters("score", [score], tile)
    if problem.bias is not None and not isinstance(problem.bias, Tensor):
        position = torch.arange(1, device=device)
        found |= _parameters("bias", biases, _call_once("bias", device, problem.bias, position, position))
    return tuple(found.values())


def _cast(score: ScoreLike, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens in the dtypes that autocast gives them in `regard.attend`."""
    score = score_by_name(score) if isinstance(score, str) else score
    return to_autocast(query, score), to_autocast(key, score), to_autocast(value)


def _prepare(
    layout: Layout, query: Tensor, key: Tensor, value: Tensor, score: ScoreLike
) -> tuple[PairScore, Tensor, Tensor | None]:
    """Return the pair score of this rank's prepared tokens, the values, and the logits of the score's sink."""
    if isinstance(score, str):
        score = score_by_name(score)
    if isinstance(score, Score):
        query = layout.prepare_query(score.prepare_query, query)
        return score.pair(query, layout.prepare_key(score.prepare_key, key)), value, score.sink_logits()
    check_score(score)
    function = under_autocast(score, query.device)
    return CallablePair(query, key, checked_callable(function, common_batch(query, key, value))), value, None


def _add_sink(record: Attended, problem: Problem, sink: Tensor) -> Tensor:
    """Return the output with the sink, which is merged once as the result of a call without keys."""
    pair = problem.pair
    pair = pair.replace(pair.query, pair.key[..., :0, :], *pair.parameters())
    alone = Attended.of(Problem(pair, problem.value[..., :0, :], sink=sink), "reference")
    return merge([record, Attended(alone.output, alone.log_mass)]).output


def _describe(part: object) -> str:
    """Describe a score or a bias by its type, shape and number of trained tensors, which must agree on all ranks."""
    if isinstance(part, Tensor):
        return f"a tensor {tuple(part.shape)}" + " that requires a gradient" * part.requires_grad
    if part is None or isinstance(part, str):
        return f"{part}"
    trained = sum(x.requires_grad for x in part.parameters()) if isinstance(part, nn.Module) else 0
    return f"{type(part).__name__} with {trained} trainable tensors"


def _placeholder(tensor: Tensor, tokens: int) -> Tensor:
    return tensor.new_empty((1,) * tensor.ndim).expand(*tensor.shape[:-2], tokens, tensor.shape[-1])


def _call_once(argument: str, device: torch.device, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return what a callable returns for one pair; raise if it draws random numbers."""
    before = _random_state(device)
    tile = function(*inputs)
    if not torch.equal(before, _random_state(device)):
        raise RegardError(
            argument,
            got="a callable that draws random numbers",
            needed="a function of its tokens alone, because the backward pass recomputes blocks with other numbers",
            repair="Call eval() on a module with dropout, or add the noise to the tokens before.",
        )
    return tile


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _parameters(argument: str, sources: Sequence[object], tile: Tensor) -> dict[int, Tensor]:
    """Return the parameters of modules and the tensors among `sources` that require a gradient, by id."""
    parameters: list[Tensor] = [source for source in sources if isinstance(source, Tensor)]
    for source in sources:
        parameters += source.parameters() if isinstance(source, nn.Module) else ()
    found: dict[int, Tensor] = {id(parameter): parameter for parameter in parameters if parameter.requires_grad}
    others = [leaf for leaf in _leaves(tile, found.values()) if id(leaf) not in found]
    if others:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in others)
        detail = f" and are not parameters of it, of shape {shapes}" if found else ""
        raise RegardError(
            argument,
            got=f"a callable that depends on tensors which require gradients{detail}",
            needed="a torch.nn.Module, whose parameters can be found",
            repair="Write it as a Module that has these tensors as parameters.",
        )
    return found


def _leaves(tile: Tensor, owned: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield each leaf tensor of the autograd graph of a tile once.

    owned: parameters. The graph behind them is not searched: `torch.func.functional_call` makes parameters of others.
    """
    pending, seen = [tile.grad_fn], {parameter.grad_fn for parameter in owned if parameter.grad_fn is not None}
    if tile.is_leaf and tile.requires_grad:
        yield tile
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            yield leaf
        pending += [following for following, _ in node.next_functions]


def _one_token(tokens: Tensor) -> Tensor:
    """Return ones of shape (*batch, 1, dim)."""
    return tokens.new_ones((*tokens.shape[:-2], 1, tokens.shape[-1]))
