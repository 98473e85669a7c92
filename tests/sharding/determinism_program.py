"""A call on shards beside the same call on one process, where the call is not one of the contracts' cases."""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from tests import bounds
from tests.sharding.judged import all_of
from torch import Tensor

from regard import sharding

Call = Callable[..., Tensor]
ROUNDINGS = 64


def differences(
    whole: Call,
    sharded: Call,
    tokens: Iterable[Tensor],
    group: dist.ProcessGroup,
    parameters: Iterable[Tensor] = (),
    order: str = "contiguous",
) -> list[str]:
    """What differs of output, gradients of tokens and gradients of parameters, beyond some float64 roundings.

    whole, sharded: functions of the same tokens, all of them or a rank's own. And are differentiated with the same
    gradient of the output; gradients of parameters are summed over the ranks.
    """
    tokens, parameters = [x.detach().requires_grad_() for x in tokens], list(parameters)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    wanted = whole(*tokens)
    grad = torch.randn_like(wanted)
    right = [wanted, *torch.autograd.grad(wanted, [*tokens, *parameters], grad)]
    own = [sharding.split(x, ranks, order)[rank].detach().requires_grad_() for x in tokens]
    output = sharded(*own)
    found = [output, *torch.autograd.grad(output, [*own, *parameters], sharding.split(grad, ranks, order)[rank])]
    everyone = all_of({str(i): x for i, x in enumerate(found)}, group)
    wrong = []
    for i, exact in enumerate(right):
        parts = [received[str(i)] for received in everyone]
        joined = sharding.join(parts, order) if i <= len(tokens) else torch.stack(parts).sum(0)
        measured, allowed = bounds.error(joined, exact), bounds.roundings(exact, ROUNDINGS)
        if not measured <= allowed:
            wrong.append(f"tensor {i}: error {measured:.3g}, allowed {allowed:.3g}")
    return wrong
