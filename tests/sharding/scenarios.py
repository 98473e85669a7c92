"""Scenarios with several processes. Each runs on every rank and returns a list of failures."""

from unittest import mock

import torch
import torch.distributed as dist
from tests.sharding import determinism_program, layer_scenarios, refusals
from tests.sharding.cases import CASES
from tests.sharding.judged import disagreements
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import regard
from regard import Mask, sharding
from regard.masks.bound import Lengths
from regard.sharding import exchange, layout, ring
from regard.sharding.traffic import choose_travel, count_bytes, count_hops

WAYS = [("keys", "contiguous"), ("queries", "contiguous"), ("keys", "balanced"), ("queries", "balanced")]
TOKENS, DIM = 13, 3


def drawn(*shape):
    """Query, key and value, alike in size."""
    return [torch.randn(*shape, TOKENS, DIM, dtype=torch.float64) for _ in range(3)]


class Learned(nn.Module):
    """A score, or a bias, that is code and has a parameter."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))

    def forward(self, query, key):
        return self.function(self.weight, query, key)


def alike_in_all_ways(group, tokens, score, mask=None, bias=None, parameters=()):
    wrong = []
    for travel, order in WAYS:

        def on_shards(*own, travel=travel, order=order):
            return sharding.attend(*own, score, mask, bias=bias, group=group, order=order, travel=travel)

        def on_one(*all_tokens):
            return regard.attend(*all_tokens, score, mask, bias=bias, backend="reference")

        found = determinism_program.differences(on_one, on_shards, tokens, group, parameters, order)
        wrong += [f"{travel}, {order}: {line}" for line in found]
    return wrong


def a_callable(group):
    return alike_in_all_ways(group, drawn(2), lambda q, k: (q @ k.mT).tanh(), Mask.causal())


def a_callable_that_learns(group):
    score = Learned(lambda weight, q, k: (q * weight) @ k.mT)
    return alike_in_all_ways(group, drawn(2), score, Mask.window(4, 1), parameters=score.parameters())


def a_bias_that_learns(group):
    wrong = []
    for shape in ((2, TOKENS, TOKENS), (TOKENS,), (TOKENS, 1)):
        bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        wrong += alike_in_all_ways(group, drawn(2), "gaussian", Mask.causal(), bias, [bias])
    return wrong


def a_bias_of_positions(group):
    bias = Learned(
        lambda weight, q, k: weight[0] * (q[:, None] - k).abs() + weight[1] * k + weight[2].sin() * q[:, None]
    )
    return alike_in_all_ways(group, drawn(2), "scaled_dot", Mask.causal(), bias, bias.parameters())


def a_sink(group):
    score = regard.scores.ScaledDot(sink=2).double()
    nn.init.normal_(score.sink)
    return alike_in_all_ways(group, drawn(1, 2), score, Mask.causal(), parameters=score.parameters())


def ranks_that_hold_nothing_but_padding(group):
    """Lengths end within the first rank, and what comes after is garbage; a sequence without tokens gives 0."""
    lengths, tokens = torch.tensor([2, 3, 0]), drawn(3)
    for tensor in tokens[1:]:
        for length, rows in zip(lengths.tolist(), tensor, strict=True):
            rows[length:] = 1e30
    wrong = alike_in_all_ways(group, tokens, "scaled_dot", Mask.lengths(lengths))
    wrong += alike_in_all_ways(group, tokens, "gaussian", Mask.lengths(lengths) & Mask.causal())
    own = [sharding.split(x, dist.get_world_size(group))[dist.get_rank(group)].requires_grad_() for x in tokens]
    output = sharding.attend(*own, mask=Mask.lengths(lengths), group=group)
    grads = torch.autograd.grad(output.sum(), own)
    return wrong + [f"not 0: {x[2]}" for x in (output, *grads) if x[2].any()]


def axes_that_are_shared(group):
    """One sequence of keys for two heads, and one query for three rows."""
    query, key, value = drawn(3, 2)
    return alike_in_all_ways(group, (query, key[:, :1], value[:1]), "scaled_dot", Mask.causal())


def layers_upon_layers(group):
    """Keys are made from what the layer before gave, and one tensor is query, key and value at once."""

    def deep(attend):
        def run(tokens):
            once = attend(tokens, tokens, tokens)
            return attend(once + tokens, once, tokens)

        return run

    whole = deep(lambda *x: regard.attend(*x, mask=Mask.causal()))
    sharded = deep(lambda *x: sharding.attend(*x, mask=Mask.causal(), group=group, order="balanced"))
    return determinism_program.differences(whole, sharded, drawn(2)[:1], group, order="balanced")


def half_precision_under_autocast(group):
    own = [sharding.split(x.float(), dist.get_world_size(group))[dist.get_rank(group)] for x in drawn(2)]
    with torch.autocast("cpu", torch.bfloat16):
        output = sharding.attend(*own, group=group)
    whole = sharding.attend(*(x.bfloat16() for x in own), group=group)
    return [] if torch.equal(output, whole) and output.dtype == torch.bfloat16 else [f"{output - whole}"]


def a_module_under_autocast(group):
    class Bilinear(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3, bias=False)
            nn.init.eye_(self.layer.weight)

        def forward(self, query, key):
            return self.layer(query) @ key.mT

    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    tokens = [x.float()[..., :3] for x in drawn(2)]
    with torch.autocast("cpu", torch.bfloat16):
        output = sharding.attend(*(sharding.split(x, ranks)[rank] for x in tokens), Bilinear(), group=group)
        whole = sharding.split(regard.attend(*tokens, Bilinear()), ranks)[rank]
    return [] if torch.allclose(output, whole, atol=0.05) and output.dtype == whole.dtype else [f"{output - whole}"]


def a_mesh(group):
    ranks = dist.get_world_size(group)
    mesh = DeviceMesh("cpu", list(range(ranks)))
    return determinism_program.differences(
        regard.attend, lambda *own: sharding.attend(*own, group=mesh), drawn(), group
    )


def some_of_the_ranks(group):
    """Ranks of a group count from 0, whatever their numbers in the world are."""
    some = dist.new_group([1, 3])
    if dist.get_rank(group) not in (1, 3):
        return refusals.refused(lambda: sharding.attend(*drawn(), group=some), "group: got a group that this process")
    return alike_in_all_ways(some, drawn(2), "gaussian", Mask.causal())


def bytes_are_as_counted(group):
    """What is handed over to be sent is what the choice has counted, and "auto" hands over the least."""
    ranks, rank, wrong = dist.get_world_size(group), dist.get_rank(group), []
    masks = {"none": None, "causal": Mask.causal(), "window": Mask.window(1, 0)}
    for name, mask in masks.items():
        for queries in (TOKENS, 200):
            query = torch.randn(2, queries, DIM)
            key, value = torch.randn(2, queries, DIM), torch.randn(2, queries, 5)
            own = [sharding.split(x, ranks)[rank].requires_grad_() for x in (query, key, value)]
            found = {travel: sent(own, mask, group, travel) for travel in ("keys", "queries", "auto")}
            met = layout.Layout.gather(group, "contiguous", *own, {})
            problem = regard.inspect(*own)._problems[0]
            placed = (
                None if mask is None else mask.place(batch=(2,), queries=queries, keys=queries, device=query.device)
            )
            counts, hops = count_bytes(met, problem), count_hops(placed, met.query_spans, met.key_spans)
            for travel in ("keys", "queries"):
                counted = hops[travel] * counts.bytes_per_hop(travel, backward=True)
                if counted != found[travel]:
                    wrong.append(f"{name}, {travel}: counted {counted}, sent {found[travel]}")
            if found["auto"] != min(found["keys"], found["queries"]):
                chosen = choose_travel(counts, hops, "auto", backward=True)
                wrong.append(f"{name}: auto sent {found['auto']} of {found}, chose {chosen}")
            if name == "window" and hops["keys"] != 1:
                wrong.append(f"a window of two keys travels {hops['keys']} hops")
    return wrong


def sent(own, mask, group, travel):
    """Bytes that all ranks send in one forward and backward pass; no message is larger than the largest shard."""
    count, largest = [0], max(x.numel() for x in own) + own[0].numel()

    def counting(kind, tensor, *rest):
        if kind is dist.isend:
            count[0] += tensor.numel() * tensor.element_size()
            assert tensor.numel() <= largest
        return point_to_point(kind, tensor, *rest)

    point_to_point = dist.P2POp
    with mock.patch.object(ring.dist, "P2POp", counting):
        sharding.attend(*own, mask=mask, group=group, travel=travel).sum().backward()
    total = torch.tensor(count[0])
    dist.all_reduce(total, group=group)
    return int(total)


def saboteurs_are_noticed(group):
    """Broken on purpose, the exchange must be found wrong by the judge of all cases."""
    wrong = []
    cases = [case for case in CASES[dist.get_world_size(group)].values() if case.order == "balanced"]
    for what, (mask, target, broken) in SABOTAGE.items():
        case = next(case for case in cases if case.case.mask == mask)._replace(travel="keys")
        with mock.patch.multiple(target, **broken):
            found = disagreements(case, group)
        if dist.get_rank(group) == 0 and not found:
            wrong.append(f"nobody noticed that {what}")
    return wrong


def exactly_merged(total, part):
    """What `exchange._add_keys` returns, by the merge of the library."""
    return part if total is None else regard.merge([total, part])


SABOTAGE = {
    "masks stay where they were": ("lengths_per_query", Lengths, {"restrict": lambda mask, rows, cols: mask}),
    "parts of a block are not weighed": (
        "causal",
        exchange,
        {"merge": lambda parts: parts[-1], "_add_keys": exactly_merged},
    ),
    "parts of the ranks are not weighed": ("none", exchange, {"_add_keys": lambda total, part: part}),
    "gradients on the way are lost": ("none", exchange, {"_add_in_place": lambda left, right: left}),
}
TWO = [
    ranks_that_hold_nothing_but_padding,
    a_callable,
    a_callable_that_learns,
    a_bias_that_learns,
    a_bias_of_positions,
    a_sink,
    axes_that_are_shared,
    layers_upon_layers,
    half_precision_under_autocast,
    a_module_under_autocast,
    a_mesh,
    saboteurs_are_noticed,
]
FOUR = [ranks_that_hold_nothing_but_padding, some_of_the_ranks, bytes_are_as_counted]
SCENARIOS = {
    2: {scenario.__name__: scenario for scenario in [*TWO, *refusals.REFUSALS, *layer_scenarios.SCENARIOS]},
    4: {scenario.__name__: scenario for scenario in FOUR},
}
