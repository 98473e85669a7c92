"""A pooling over shards from its beginning to its end: ranks meet, tokens are prepared, parcels travel.

`regard.sharding.attend` and the layers call it, each with what it does to tokens before.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.backends.problem import Problem
from regard.pooling import Attended, merge
from regard.pooling.attend import pool_inspect
from regard.pooling.prepare import Settings, checked_callable, under_autocast
from regard.scores.forms import CallableForm, Form
from regard.scores.names import ScoreLike, check_score, named_score
from regard.scores.score import Score
from regard.shapes import common_batch
from regard.sharding.blocks import Blocks
from regard.sharding.code import learned_by_code
from regard.sharding.exchange import Route
from regard.sharding.function import run
from regard.sharding.pose import Pose, pose_on_shards
from regard.sharding.shards import Shards
from regard.sharding.traffic import choose, hops_of, load_of

if TYPE_CHECKING:
    from regard.sharding.ring import Group


def pool_shards(
    tokens: tuple[Tensor, Tensor, Tensor],
    score: ScoreLike,
    settings: Settings,
    *,
    group: "Group",
    order: str,
    project: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
    pose: Pose,
    travel: str = "auto",
    backend: str = "auto",
) -> Tensor:
    """The pooled values of this rank's queries over the keys of all ranks, (*batch, own queries, value_dim).

    tokens: query, key and value of this rank, as the user gave them. settings: with a mask and a bias of the whole
    sequences. project: what happens to tokens before the score prepares them. pose: what makes a problem of a form.
    """
    biases = (settings.bias, settings.layer_bias)
    told = {"score": _told(score), "mask": f"{settings.mask}", "travel": f"{travel}"}
    told["bias"] = " and ".join(_told(bias) for bias in biases if bias is not None) or "None"
    shards = Shards.meet(group, order, *tokens, told | {"backend": f"{backend}"})
    form, value, sink = _prepared(shards, *project(*tokens), score)
    problem, sink = pose_on_shards(shards, pose, form, value, sink, settings)
    learned = learned_by_code(problem, score, biases)
    hops = hops_of(problem.mask, shards.query_runs, shards.key_runs)
    traveller = choose(load_of(shards, problem), hops, travel, backward=torch.is_grad_enabled())
    record = run(Blocks(shards, problem, backend), Route(traveller, hops[traveller]), learned)
    return record.output if sink is None else _with_sink(record, problem, sink)


def _prepared(
    shards: Shards, query: Tensor, key: Tensor, value: Tensor, score: ScoreLike
) -> tuple[Form, Tensor, Tensor | None]:
    """The form of this rank's tokens, prepared once, where they live; the values; the logits of the score's sink."""
    if isinstance(score, str):
        score = named_score(score)
    if isinstance(score, Score):
        query = shards.prepared_query(score.prepare_query, query)
        return score.pair(query, shards.prepared_key(score.prepare_key, key)), value, score.sink_logits()
    check_score(score)
    function = under_autocast(score, query.device)
    return CallableForm(query, key, checked_callable(function, common_batch(query, key, value))), value, None


def _with_sink(record: Attended, problem: Problem, sink: Tensor) -> Tensor:
    """The sink is a part of its own, counted once: what a pooling over no key at all makes of it."""
    form = problem.form._replace(key=problem.form.key[..., :0, :])
    alone = pool_inspect(Problem(form, problem.value[..., :0, :]), sink, "reference")
    return merge([record, Attended(alone.output, alone.log_mass)]).output


def _told(part: object) -> str:
    """What ranks can compare: kinds, shapes, and how much learns; no addresses and no numbers."""
    if isinstance(part, Tensor):
        return f"a tensor {tuple(part.shape)}" + ", learning" * part.requires_grad
    if part is None or isinstance(part, str):
        return f"{part}"
    learning = sum(x.requires_grad for x in part.parameters()) if isinstance(part, nn.Module) else 0
    return f"{type(part).__name__}, {learning} tensors learning"
