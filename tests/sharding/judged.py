"""Does a sharded call agree with the reference on one process? Judged by the band of the contracts."""

import torch
import torch.distributed as dist
from tests import bounds
from tests.contracts.agreement import Call, bands, build, exact, identity_bounds
from tests.sharding.cases import Sharded, dealt
from torch import Tensor

from regard import sharding


def disagreements(sharded: Sharded, group: dist.ProcessGroup) -> list[str]:
    """What the ranks together get wrong, as the first of them says: one line for each result outside its band."""
    case = sharded.case
    found = gathered(sharded, group)
    if dist.get_rank(group):
        return []
    allowances, extra = bands(case), identity_bounds(case, sharded.backend)
    wrong = []
    for name, right in exact(case).items():
        # What the ranks have is added up once more.
        allowed = allowances[name] + extra.get(name, 0.0) + bounds.band(right, 0.0, case.dtype)
        measured = bounds.error(found[name], right)
        if not measured <= allowed:
            wrong.append(f"{name}: error {measured:.3g}, allowed {allowed:.3g}")
        if found[name].dtype != case.dtype:
            wrong.append(f"{name}: {found[name].dtype} instead of {case.dtype}")
    return wrong


def gathered(sharded: Sharded, group: dist.ProcessGroup) -> dict[str, Tensor]:
    """Output and every gradient of the whole, joined from what the ranks have."""
    call, ranks = build(sharded.case, sharded.case.dtype), dist.get_world_size(group)
    own, grad_output = shards_of(call, sharded, dist.get_rank(group), ranks)
    output = sharding.attend(
        *own,
        call.score,
        call.mask,
        bias=call.bias,
        group=group,
        order=sharded.order,
        travel=sharded.travel,
        backend=sharded.backend,
    )
    parameters = {name: p for name, p in call.score.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(
        output, [*own, *parameters.values()], grad_output, allow_unused=True, materialize_grads=True
    )
    found = dict(zip(("output", "query", "key", "value", *parameters), (output, *grads), strict=True))
    everyone = all_of(found, group)
    joined = {
        name: sharding.join([own[name] for own in everyone], sharded.order)
        for name in ("output", "query", "key", "value")
    }
    return joined | {name: torch.stack([own[name] for own in everyone]).sum(0) for name in parameters}


def shards_of(call: Call, sharded: Sharded, rank: int, ranks: int) -> tuple[list[Tensor], Tensor]:
    """The query, key and value of a rank, and the gradient of its output."""

    def own(tensor: Tensor) -> Tensor:
        if sharded.order == "balanced":
            return sharding.split(tensor, ranks, "balanced")[rank]
        return tensor.split(dealt(tensor.shape[-2], ranks, sharded.sizes), dim=-2)[rank]

    tokens = [own(tensor.detach()).requires_grad_() for tensor in (call.query, call.key, call.value)]
    return tokens, own(call.grad_output)


def all_of(tensors: dict[str, Tensor], group: dist.ProcessGroup) -> list[dict[str, Tensor]]:
    """The tensors of all ranks, whatever their shapes."""
    found: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, {name: tensor.detach() for name, tensor in tensors.items()}, group=group)
    return found
