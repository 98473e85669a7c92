"""What all ranks must agree on before a tensor travels: one small message each, and an error for all where they differ.

Without it a rank with another shape, or one that refuses its arguments, would leave the others waiting.
"""

import json
from collections.abc import Sequence

import torch
import torch.distributed as dist

from regard.errors import RegardError
from regard.sharding.ring import Ring

LENGTH = 4096
LONGEST_FACT = 200

Facts = dict[str, object]
"""What one rank says of its call: numbers, and text of which the beginning counts."""


def agree(ring: Ring, facts: Facts, own: Sequence[str], device: torch.device) -> list[Facts]:
    """The facts of all ranks, which are equal but for those named in `own`; the same error on all ranks otherwise."""
    everyone = _exchange(ring, facts, device)
    for rank, told in enumerate(everyone):
        if "refusal" in told:
            raise RegardError(
                "group",
                got=f"a refusal of rank {rank} ({told['refusal']})",
                needed="arguments that every rank accepts",
                repair=f"Mend the call of rank {rank}; its own error says how.",
            )
    first = everyone[0]
    for rank, told in enumerate(everyone):
        for name in first:
            if name not in own and told.get(name) != first[name]:
                raise RegardError(
                    name,
                    got=f"{first[name]} on rank 0 and {told.get(name)} on rank {rank}",
                    needed="the same on all ranks of the group; only the number of tokens may differ",
                    repair="Pass on every rank its shard of one sequence, with the same settings.",
                )
    return everyone


def refuse(ring: Ring, error: RegardError, device: torch.device) -> None:
    """Tell the others that this rank cannot go on, so that they do not wait for it."""
    _exchange(ring, {"refusal": f"{error}"}, device)


def _exchange(ring: Ring, facts: Facts, device: torch.device) -> list[Facts]:
    short = {name: fact[:LONGEST_FACT] if isinstance(fact, str) else fact for name, fact in facts.items()}
    text = json.dumps(short).encode().ljust(LENGTH)
    message = torch.frombuffer(bytearray(text[:LENGTH]), dtype=torch.uint8).to(device)
    messages = [torch.empty_like(message) for _ in range(ring.ranks)]
    dist.all_gather(messages, message, group=ring.group)
    return [json.loads(bytes(told.tolist())) for told in messages]
