"""`attend` for sequences whose tokens are distributed over several ranks, and the problem that each rank prepares."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.attention import Attended, merge
from regard.attention.prepare import Options, add_result_check, cast_for_autocast, keep_autocast, to_problem
from regard.backends.base import Bias, Problem
from regard.checks import common_batch
from regard.errors import RegardError
from regard.masks import Mask
from regard.scores.base import CallablePair, PairScore, Score
from regard.scores.names import ScoreLike, check_score, score_by_name
from regard.sharding.exchange import Route, ShardedProblem, run
from regard.sharding.layout import Layout
from regard.sharding.traffic import choose_travel, count_bytes, count_hops

if TYPE_CHECKING:
    from regard.sharding.ring import Group

MakeProblem = Callable[[PairScore, Tensor, Options, Tensor | None], Problem]
"""Takes a pair score, values, options and the sink of the score, and returns their problem; see `to_problem`."""


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
    """Attend from this rank's queries to the keys of all ranks.

    Each rank holds some tokens of the sequences. Joined, the outputs of all ranks are the output of `regard.attend` for
    the whole sequences. All ranks of the group must call this function with the same options, and if one rank runs the
    backward pass, all must. Either keys and values travel around the ranks, or queries travel and their results return.
    No rank ever holds all keys. In the backward pass all tensors travel once more. Dropout is not supported.

    Gradients of query, key and value are those of the sum of the losses of all ranks. Gradients of a score's parameters
    and of a bias are this rank's share. Sum them over the ranks, as for every parameter that all ranks hold;
    DistributedDataParallel computes their mean.

    Args:
        query: (*batch, own queries, query_dim). The number of tokens may differ between ranks and may be 0.
        key: (*batch, own keys, key_dim).
        value: (*batch, own keys, value_dim).
        score: as for `regard.attend`. A callable with parameters must be a module.
        mask: as for `regard.attend`, on positions of the whole sequences. Its tensors cover the tokens of all ranks.
        group: the ranks: a process group, or a DeviceMesh with one axis.
        order: which tokens a rank holds: "contiguous", or "balanced" for shards of `regard.sharding.split` with
            order="balanced", which gives all ranks the same work under a causal mask.
        bias: as for `regard.attend`, on positions of the whole sequences: a tensor that broadcasts to (*batch, all
            queries, all keys), or a callable of positions.
        tolerance: as for `regard.attend`.
        travel: what travels around the ranks: "keys" (with values), "queries", or "auto" for fewer bytes.
        backend: "auto", or the name of the backend that must run each block.

    Returns:
        (*batch, own queries, value_dim) in the dtype of value.

    Raises:
        RegardError: as for `regard.attend`, and on every rank if the ranks' arguments differ.

    >>> import torch, regard
    >>> from torch import distributed
    >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    >>> x, mask = torch.randn(2, 6, 4), regard.Mask.causal()
    >>> output = attend(x, x, x, mask=mask, group=distributed.group.WORLD)  # one rank holds all tokens
    >>> torch.allclose(output, regard.attend(x, x, x, mask=mask), atol=1e-6)
    True
    >>> distributed.destroy_process_group()
    """
    return attend_shards(
        (query, key, value),
        score,
        Options(mask, bias, tolerance=tolerance),
        group=group,
        order=order,
        project=partial(_cast_tokens, score),
        make_problem=to_problem,
        travel=travel,
        backend=backend,
    )


def attend_shards(
    tokens: tuple[Tensor, Tensor, Tensor],
    score: ScoreLike,
    options: Options,
    *,
    group: "Group",
    order: str,
    project: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
    make_problem: MakeProblem,
    travel: str = "auto",
    backend: str = "auto",
) -> Tensor:
    """Return the output of this rank's queries over the keys of all ranks. `attend` and the layers call it.

    Args:
        tokens: query, key and value of this rank, as the user passed them.
        score: as for `attend`.
        options: the other arguments; mask and bias are those of the whole sequences.
        group: as for `attend`.
        order: as for `attend`.
        project: applied to query, key and value before the score prepares them.
        make_problem: makes the problem of a pair score.
        travel: as for `attend`.
        backend: as for `attend`.

    Returns:
        (*batch, own queries, value_dim).

    Raises:
        RegardError: as for `attend`.
    """
    biases = (options.bias, options.layer_bias)
    texts = {
        "score": _describe_option(score),
        "mask": f"{options.mask}",
        "travel": f"{travel}",
        "bias": " and ".join(_describe_option(bias) for bias in biases if bias is not None) or "None",
        "backend": f"{backend}",
    }
    layout = Layout.gather(group, order, *tokens, texts)
    pair, value, sink = _prepare_shard(layout, *project(*tokens), score)
    problem = problem_on_shards(layout, make_problem, pair, value, sink, options)
    sink, problem = problem.sink, problem._replace(sink=None)
    parameters = callable_parameters(problem, score, biases)
    hops = count_hops(problem.mask, layout.query_spans, layout.key_spans)
    travel = choose_travel(count_bytes(layout, problem), hops, travel, backward=torch.is_grad_enabled())
    record = run(ShardedProblem(layout, problem, backend), Route(travel, hops[travel]), parameters)
    return record.output if sink is None else _merge_sink(record, problem, sink)


def problem_on_shards(
    layout: Layout, make_problem: MakeProblem, pair: PairScore, value: Tensor, sink: Tensor | None, options: Options
) -> Problem:
    """Return the problem of this rank's tokens, with the mask and the bias of the whole sequences.

    Mask and bias are checked against placeholders of the whole sequences, which store a single element.

    Args:
        layout: which tokens each rank holds.
        make_problem: makes the problem of a pair score.
        pair: the score of this rank's prepared tokens.
        value: (*batch, own keys, value_dim).
        sink: logits of the score's sink.
        options: the other arguments.

    Returns:
        The problem.

    Raises:
        RegardError: if mask or bias do not fit the whole sequences, or if there is dropout or a parameter per query.
    """
    if options.dropout:
        raise RegardError(
            "dropout",
            got=f"{options.dropout} with sharded tokens",
            needed="0, because the backward pass recomputes blocks and would drop other weights",
            repair="Create the layer with dropout=0.0, or apply dropout outside of attention.",
        )
    if any(parameter.shape[-2] != 1 for parameter in pair.parameters()):
        raise RegardError(
            "score",
            got="a parameter for each query",
            needed="parameters that all queries share",
            repair="Pass such a score as a callable.",
        )
    problem = make_problem(pair, value, Options(tolerance=options.tolerance), sink)
    queries, keys = sum(layout.queries), sum(layout.keys)
    whole_pair = pair.replace(_placeholder(pair.query, queries), _placeholder(pair.key, keys), *pair.parameters())
    try:
        whole_problem = make_problem(whole_pair, _placeholder(value, keys), options, sink)
    except RegardError as error:
        repair = f"{error.repair} Mask and bias cover the tokens of all ranks, {queries} queries and {keys} keys."
        raise RegardError(error.argument, got=error.got, needed=error.needed, repair=repair) from None
    return problem._replace(mask=whole_problem.mask, bias=whole_problem.bias)


def callable_parameters(problem: Problem, score: object, biases: Sequence[object]) -> tuple[Tensor, ...]:
    """Return the parameters of a callable score and of callable biases that require a gradient.

    Each callable is called once, on one pair that is the same on every rank, to find the tensors that its result
    depends on. The backward pass recomputes blocks, so gradients of tensors other than parameters would be lost.

    Args:
        problem: the problem that calls them.
        score: the score of the call.
        biases: the biases of the call and of the layer.

    Returns:
        The parameters; none if gradients are disabled.

    Raises:
        RegardError: if a callable depends on another tensor that requires a gradient, or draws random numbers.
    """
    if not problem.uses_callable or not torch.is_grad_enabled():
        return ()
    found: dict[int, Tensor] = {}
    pair, device = problem.pair, problem.value.device
    if isinstance(pair, CallablePair):
        result = _call_once("score", device, pair.function, _one_token(pair.query), _one_token(pair.key))
        found |= _find_parameters("score", [score], result)
    if problem.bias is not None and not isinstance(problem.bias, Tensor):
        position = torch.arange(1, device=device)
        result = _call_once("bias", device, problem.bias, position, position)
        found |= _find_parameters("bias", biases, result)
    return tuple(found.values())


def _cast_tokens(score: ScoreLike, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens in the dtypes that autocast gives them in `regard.attend`."""
    score = score_by_name(score) if isinstance(score, str) else score
    return cast_for_autocast(query, score), cast_for_autocast(key, score), cast_for_autocast(value)


def _prepare_shard(
    layout: Layout, query: Tensor, key: Tensor, value: Tensor, score: ScoreLike
) -> tuple[PairScore, Tensor, Tensor | None]:
    """Return the pair score of this rank's prepared tokens, the values, and the logits of the score's sink."""
    if isinstance(score, str):
        score = score_by_name(score)
    if isinstance(score, Score):
        query = layout.prepare_query(score.prepare_query, query)
        return score.pair(query, layout.prepare_key(score.prepare_key, key)), value, score.sink_logits()
    check_score(score)
    function = keep_autocast(score, query.device)
    return CallablePair(query, key, add_result_check(function, common_batch(query, key, value))), value, None


def _merge_sink(record: Attended, problem: Problem, sink: Tensor) -> Tensor:
    """Return the output with the sink, which is merged once, as the record of a call without keys."""
    pair = problem.pair
    pair = pair.replace(pair.query, pair.key[..., :0, :], *pair.parameters())
    sink_record = Attended.of(Problem(pair, problem.value[..., :0, :], sink=sink), "reference")
    return merge([record, Attended(sink_record.output, sink_record.log_mass)]).output


def _describe_option(argument: object) -> str:
    """Describe a score or a bias by its type, its shape and what is trainable, which must be equal on all ranks."""
    if isinstance(argument, Tensor):
        return f"a tensor {tuple(argument.shape)}" + " that requires a gradient" * argument.requires_grad
    if argument is None or isinstance(argument, str):
        return f"{argument}"
    trainable = sum(x.requires_grad for x in argument.parameters()) if isinstance(argument, nn.Module) else 0
    return f"{type(argument).__name__} with {trainable} trainable tensors"


def _placeholder(tensor: Tensor, tokens: int) -> Tensor:
    """Return a tensor of (*batch, tokens, dim) that stores a single element."""
    return tensor.new_empty((1,) * tensor.ndim).expand(*tensor.shape[:-2], tokens, tensor.shape[-1])


def _call_once(argument: str, device: torch.device, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return the result of a callable; raise if it draws random numbers."""
    before = _random_state(device)
    result = function(*inputs)
    if not torch.equal(before, _random_state(device)):
        raise RegardError(
            argument,
            got="a callable that draws random numbers",
            needed="a function of its tokens alone, because the backward pass recomputes blocks with other numbers",
            repair="Call eval() on a module with dropout, or add the noise to the tokens before this call.",
        )
    return result


def _random_state(device: torch.device) -> Tensor:
    """Return the state of torch's random number generator of a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _find_parameters(argument: str, sources: Sequence[object], result: Tensor) -> dict[int, Tensor]:
    """Return the parameters that require a gradient, by id; raise if the result depends on other trainable tensors.

    Args:
        argument: name of the argument for the error message.
        sources: what the user passed: tensors, modules and other callables.
        result: what the sources computed.
    """
    parameters: list[Tensor] = [source for source in sources if isinstance(source, Tensor)]
    for source in sources:
        parameters += source.parameters() if isinstance(source, nn.Module) else ()
    found: dict[int, Tensor] = {id(parameter): parameter for parameter in parameters if parameter.requires_grad}
    others = [leaf for leaf in _find_leaves(result, found.values()) if id(leaf) not in found]
    if others:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in others)
        raise RegardError(
            argument,
            got=f"a callable that depends on tensors of shape {shapes}, which require gradients and are not "
            "its parameters",
            needed="a torch.nn.Module, whose parameters can be found",
            repair="Write it as a torch.nn.Module that has these tensors as parameters.",
        )
    return found


def _find_leaves(result: Tensor, parameters: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield each leaf tensor of the autograd graph of a result once.

    The graph of `parameters` is not searched, because `torch.func.functional_call` accepts computed tensors as
    parameters.
    """
    pending, seen = [result.grad_fn], {x.grad_fn for x in parameters if x.grad_fn is not None}
    if result.is_leaf and result.requires_grad:
        yield result
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            yield leaf
        pending += [next_node for next_node, _ in node.next_functions]


def _one_token(tokens: Tensor) -> Tensor:
    """Return ones of shape (*batch, 1, dim)."""
    return tokens.new_ones((*tokens.shape[:-2], 1, tokens.shape[-1]))
