"""A process group as a ring of ranks, around which tensors are sent (ring attention, Liu et al. 2023).

Tensors are sent by torch.distributed's point-to-point operations.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from regard.errors import RegardError

if TYPE_CHECKING:
    # For type checkers only, because torch built without distributed has no ProcessGroup.
    Group = dist.ProcessGroup | DeviceMesh

Tensors = list[Tensor]
"""Tensors that are sent together, each (*batch, tokens, dim)."""


class Transfer(NamedTuple):
    """A transfer of tensors that is running.

    Attributes:
        works: the operations to wait for.
        received: buffers for the tensors to receive.
        sent: the tensors to send, referenced here so that their memory is not freed before the transfer ends.
    """

    works: "list[dist.Work]"
    received: Tensors
    sent: Tensors

    def wait(self) -> Tensors:
        """Wait for the transfer and return the received tensors."""
        for work in self.works:
            work.wait()
        return self.received


class Ring(NamedTuple):
    """A process group and the place of this process in it.

    Attributes:
        group: the process group.
        rank: rank of this process in the group.
        world_size: number of ranks.
    """

    group: "dist.ProcessGroup"
    rank: int
    world_size: int

    @classmethod
    def of(cls, group: "Group") -> "Ring":
        """Return the ring of a process group or of a DeviceMesh with one axis.

        Args:
            group: the process group or the mesh.

        Returns:
            The ring.

        Raises:
            RegardError: if torch.distributed is not initialised, if `group` is something else, or if this process is
                not in it.
        """
        if not (dist.is_available() and dist.is_initialized()):
            raise _group_error("no initialised torch.distributed", "Call torch.distributed.init_process_group() first.")
        if isinstance(group, DeviceMesh):
            if group.ndim != 1:
                raise _group_error(f"a DeviceMesh with {group.ndim} axes", 'Pass one of its axes, as mesh["sequence"].')
            group = group.get_group()
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise _group_error("a group that this process is not in", "Call attend on the ranks of the group only.")
        if not isinstance(group, dist.ProcessGroup):
            raise _group_error(f"{group!r:.60}", "Pass torch.distributed.group.WORLD for all processes.")
        return cls(group, dist.get_rank(group), dist.get_world_size(group))

    def owner(self, hops: int) -> int:
        """Return the rank that owns the tensors which reach this rank after `hops` hops."""
        return (self.rank - hops) % self.world_size

    def send_recv(self, tensors: Tensors, like: Sequence[Tensor], tokens: int, *, hops: int) -> Transfer:
        """Start to send tensors to the rank `hops` places after this one and to receive from the rank `hops` before.

        Args:
            tensors: the tensors to send, each (*batch, tokens, dim).
            like: tensors with the dtypes, batch axes and dims of the tensors to receive.
            tokens: number of tokens to receive.
            hops: distance in ranks; negative to send backwards.

        Returns:
            The running transfer.
        """
        received = [tensor.new_empty((*tensor.shape[:-2], tokens, tensor.shape[-1])) for tensor in like]
        sent = [tensor.contiguous() for tensor in tensors]
        target = dist.get_global_rank(self.group, (self.rank + hops) % self.world_size)
        source = dist.get_global_rank(self.group, (self.rank - hops) % self.world_size)
        # Skip empty tensors; both ranks know the sizes.
        operations = [dist.P2POp(dist.isend, tensor, target, self.group) for tensor in sent if tensor.numel()]
        operations += [dist.P2POp(dist.irecv, tensor, source, self.group) for tensor in received if tensor.numel()]
        return Transfer(dist.batch_isend_irecv(operations) if operations else [], received, sent)


def pass_around(
    ring: Ring,
    hops: int,
    sizes: Sequence[int],
    tensors: Tensors,
    at_each_rank: Callable[[int, Tensors], Tensors],
    add: Callable[[Tensors, Tensors], Tensors],
) -> Tensors:
    """Send the tensors of every rank to the next `hops` ranks in turn, and return the sum of what these ranks compute.

    The next tensors are sent while the current ones are used. The partial sum follows its tensors one hop later, and
    its last hop returns it to their owner. So each rank sends tensors `hops` times and a sum `hops` times.

    Args:
        ring: the ranks.
        hops: number of hops.
        sizes: number of tokens in the tensors of each rank.
        tensors: the tensors of this rank.
        at_each_rank: takes an owner's rank and its tensors; returns what this rank computes for the owner, or an empty
            list if nothing is sent back.
        add: returns the sum of two results; it may overwrite the first.

    Returns:
        The sum for the tensors of this rank, or an empty list.
    """
    incoming: Transfer | None = None
    incoming_sum: Transfer | None = None
    try:
        incoming = ring.send_recv(tensors, tensors, sizes[ring.owner(1)], hops=1) if hops else None
        own_result = at_each_rank(ring.rank, tensors)
        for hop in range(1, hops + 1):
            assert incoming is not None
            current = incoming.wait()
            if hop < hops:
                incoming = ring.send_recv(current, current, sizes[ring.owner(hop + 1)], hops=1)
            result = at_each_rank(ring.owner(hop), current)
            if not own_result:
                continue
            if incoming_sum is not None:
                result = add(incoming_sum.wait(), result)
            if hop < hops:
                incoming_sum = ring.send_recv(result, result, sizes[ring.owner(hop + 1)], hops=1)
            else:
                incoming_sum = ring.send_recv(result, result, sizes[ring.rank], hops=-hop)
        return own_result if incoming_sum is None else add(incoming_sum.wait(), own_result)
    except Exception:
        # Finish open transfers; otherwise the next call would receive their tensors. The ranks have equal arguments, so
        # an error that the arguments cause is raised on all of them. After an error of one rank alone this may wait for
        # the timeout of the group.
        for transfer in (incoming, incoming_sum):
            if transfer is not None:
                transfer.wait()
        raise


def _group_error(got: str, repair: str) -> RegardError:
    """Return the error for an invalid process group."""
    needed = "a torch.distributed process group that this process is in, or a DeviceMesh with one axis"
    return RegardError("group", got=got, needed=needed, repair=repair)
