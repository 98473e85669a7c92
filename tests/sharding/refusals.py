"""What several processes refuse together: every rank says the same, and none is left waiting."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import regard
from regard import Mask, RegardError, scores, sharding

TOGETHER = "Mask and bias cover the tokens of all ranks, 10 queries and 10 keys."


def refused(call, *words):
    """A complaint unless the call is refused in these words."""
    try:
        call()
    except RegardError as error:
        return [f"{word!r} is not in: {error}" for word in words if word not in f"{error}"]
    return [f"nobody refused what needs {words}"]


def tokens(count=5, dim=3, **settings):
    return torch.randn(2, count, dim, **settings)


def attend(group, query=None, key=None, value=None, *arguments, **settings):
    query = tokens() if query is None else query
    key = query if key is None else key
    return sharding.attend(query, key, key if value is None else value, *arguments, group=group, **settings)


def ranks_of_different_width(group):
    query = tokens(dim=3 + dist.get_rank(group))
    return refused(
        lambda: attend(group, query),
        "query: got float32 (2, tokens, 3) on cpu on rank 0 and float32 (2, tokens, 4) on cpu on rank 1",
        "needed the same on all ranks of the group; only the number of tokens may differ",
        "Pass each rank its shard of one sequence, and the same other arguments on all ranks.",
    )


def ranks_of_different_dtype(group):
    dtype = torch.float64 if dist.get_rank(group) else torch.float32
    return refused(lambda: attend(group, tokens(dtype=dtype)), "query: got float32 (2", "and float64 (2")


def a_gradient_on_one_rank(group):
    query = tokens(requires_grad=dist.get_rank(group) == 0)
    return refused(
        lambda: attend(group, query), "on cpu with a gradient on rank 0 and float32 (2, tokens, 3) on cpu on"
    )


def ranks_with_different_masks(group):
    mask = Mask.causal() if dist.get_rank(group) else None
    return refused(lambda: attend(group, mask=mask), "mask: got None on rank 0 and Mask.causal() on rank 1")


def ranks_with_different_scores(group):
    score = "gaussian" if dist.get_rank(group) else scores.Gaussian(2.0)
    return refused(
        lambda: attend(group, score=score), "score: got Gaussian with 0 trainable tensors on rank 0 and gaussian"
    )


def one_rank_refuses(group):
    """The rank with the mistake says what it is, the others which rank it was."""
    if dist.get_rank(group) == 1:
        return refused(lambda: attend(group, tokens(), tokens(4), tokens(5)), "value: got 5 rows for 4 keys")
    return refused(
        lambda: attend(group),
        "group: got an error on rank 1 (value: got 5 rows for 4 keys",
        "needed arguments that are valid on every rank. Fix the arguments on rank 1; see the error raised there.",
    )


def a_mask_of_one_rank(group):
    own = torch.ones(2, 5, dtype=torch.bool)
    return refused(
        lambda: attend(group, mask=Mask.keys(own)),
        "Mask.keys: got bool (2, 5) on cpu in a call with 10 queries and 10 keys",
        TOGETHER,
    ) + refused(lambda: attend(group, mask=Mask.keep(torch.ones(5, 5, dtype=torch.bool))), "Mask.keep: got", TOGETHER)


def a_bias_of_one_rank(group):
    return refused(lambda: attend(group, bias=torch.zeros(5, 5)), "bias: got shape (5, 5)", TOGETHER)


def a_causal_mask_without_a_place(group):
    query, key = tokens(5), tokens(6)
    told = "Mask.causal(): got 10 queries and 12 keys"
    return refused(lambda: attend(group, query, key, mask=Mask.causal()), told, 'align="lower_right"')


def an_order_that_is_not_known(group):
    return refused(lambda: attend(group, order="zigzag"), 'order: got \'zigzag\'; needed "contiguous" or "balanced"')


def a_deal_that_is_not_balanced(group):
    query = tokens(3 + 2 * dist.get_rank(group))
    return refused(
        lambda: attend(group, query, order="balanced"),
        'queries: got [3, 5] tokens on the ranks; needed [4, 4], the sizes of order="balanced" for 8 tokens',
        'Split the sequence with regard.sharding.split(x, ranks, "balanced").',
    )


def a_traveller_that_is_not_known(group):
    return refused(lambda: attend(group, travel="values"), 'travel: got \'values\'; needed "auto", "keys" or "queries"')


def a_closure_that_learns(group):
    weight = torch.ones(3, requires_grad=True)
    told = "got a callable that depends on tensors of shape (3,), which require gradients and are not its parameters"
    wrong = refused(lambda: attend(group, score=lambda q, k: (q * weight) @ k.mT), f"score: {told}")
    return wrong + refused(lambda: attend(group, bias=lambda q, k: weight[0] * (q[:, None] - k)), f"bias: {told}")


class Scaled(nn.Module):
    """A score or a bias with one parameter of its own, and whatever else its function closes over."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, query, key):
        return self.factor * self.function(query, key)


def code_that_draws_numbers(group):
    def noisy(query, key):
        return nn.functional.dropout(query @ key.mT)

    def noise(queries, keys):
        return torch.rand(len(queries), len(keys))

    wrong = refused(
        lambda: attend(group, tokens(requires_grad=True), score=noisy),
        "score: got a callable that draws random numbers; needed a function of its tokens alone",
    )
    wrong += refused(lambda: attend(group, tokens(requires_grad=True), bias=noise), "bias: got a callable that draws")
    with torch.no_grad():
        return wrong if attend(group, score=noisy).isfinite().all() else [*wrong, "not finite"]


def a_module_that_closes_over_what_learns(group):
    """Its own parameter is found; the gradient of the other tensor, also behind an operation, would be lost."""
    weight = torch.ones(3, requires_grad=True)
    doubled = 2 * weight
    told = "depends on tensors of shape (3,), which require gradients and are not its parameters; needed"
    wrong = []
    for other in (weight, doubled):
        score, bias = (
            Scaled(lambda q, k, w=other: (q * w) @ k.mT),
            Scaled(lambda q, k, w=other: w[0] * (q[:, None] - k)),
        )
        wrong += refused(lambda score=score: attend(group, score=score), f"score: got a callable that {told}")
        wrong += refused(lambda bias=bias: attend(group, bias=bias), f"bias: got a callable that {told}")
    with torch.no_grad():
        attend(group, score=Scaled(lambda q, k: (q * weight) @ k.mT))
    return wrong


def a_width_for_each_query(group):
    class Wide(scores.Gaussian):
        def pair(self, query, key):
            return super().pair(query, key).replace(query, key, query[..., :1].abs())

    return refused(lambda: attend(group, score=Wide()), "score: got a parameter for each query; needed parameters")


def what_fails_leaves_nothing_on_its_way(group):
    """The next call on the group is right, and not held up."""

    def failing(query, key):
        raise RegardError("score", got="nothing", needed="nothing", repair="nothing")

    torch.manual_seed(5)
    whole, rank = tokens(10), dist.get_rank(group)
    mine = whole.chunk(2, -2)[rank]
    wrong = []
    for settings, word in (({"backend": "torch"}, "log_mass"), ({"score": failing}, "score: got nothing")):
        wrong += refused(lambda settings=settings: attend(group, mine, **settings), word)
        right = regard.attend(whole, whole, whole).chunk(2, -2)[rank]
        wrong += [] if torch.allclose(attend(group, mine), right, atol=1e-5) else [f"wrong after {settings}"]
    return wrong


def what_is_no_group(group):
    mesh = DeviceMesh("cpu", [list(range(dist.get_world_size(group)))])
    needed = "needed a torch.distributed process group that this process is in, or a DeviceMesh with one axis"
    return refused(lambda: attend("world"), "group: got 'world'", needed, "group.WORLD") + refused(
        lambda: attend(mesh), "group: got a DeviceMesh with 2 axes", 'mesh["sequence"]'
    )


REFUSALS = [
    ranks_of_different_width,
    ranks_of_different_dtype,
    a_gradient_on_one_rank,
    ranks_with_different_masks,
    ranks_with_different_scores,
    one_rank_refuses,
    a_mask_of_one_rank,
    a_bias_of_one_rank,
    a_causal_mask_without_a_place,
    an_order_that_is_not_known,
    a_deal_that_is_not_balanced,
    a_traveller_that_is_not_known,
    a_closure_that_learns,
    code_that_draws_numbers,
    a_module_that_closes_over_what_learns,
    a_width_for_each_query,
    what_fails_leaves_nothing_on_its_way,
    what_is_no_group,
]
