"""The ranks of a process group as a ring: who we are in it, and tensors that travel from rank to rank.

PyTorch's point-to-point operations do the transport; nothing is gathered.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from regard.errors import RegardError

if TYPE_CHECKING:
    # Only for readers: a torch without distributed has no such names, and still refuses with a sentence.
    Group = dist.ProcessGroup | DeviceMesh

Parcel = list[Tensor]
"""Tensors that travel together; each has its tokens on axis -2."""


class Underway(NamedTuple):
    """A parcel on its way. What was sent is kept until it is gone."""

    works: "list[dist.Work]"
    parcel: Parcel
    sent: Parcel

    def wait(self) -> Parcel:
        """The parcel, when it is here."""
        for work in self.works:
            work.wait()
        return self.parcel


class Ring(NamedTuple):
    """A process group and the place of this process in it."""

    group: "dist.ProcessGroup"
    rank: int
    ranks: int

    @staticmethod
    def of(group: "Group") -> "Ring":
        """The ring of a process group, or of a mesh with one axis."""
        if not (dist.is_available() and dist.is_initialized()):
            raise _refusal("no initialised torch.distributed", "Call torch.distributed.init_process_group() first.")
        if isinstance(group, DeviceMesh):
            if group.ndim != 1:
                raise _refusal(f"a DeviceMesh with {group.ndim} axes", 'Pass one of its axes, as mesh["sequence"].')
            group = group.get_group()
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise _refusal("a group that this process is not in", "Call it on the ranks of the group only.")
        if not isinstance(group, dist.ProcessGroup):
            raise _refusal(f"{group!r:.60}", "Pass torch.distributed.group.WORLD for all processes.")
        return Ring(group, dist.get_rank(group), dist.get_world_size(group))

    def owner(self, hops: int) -> int:
        """Whose parcel is here after so many hops."""
        return (self.rank - hops) % self.ranks

    def swap(self, parcel: Parcel, like: Sequence[Tensor], tokens: int, *, hops: int) -> Underway:
        """Send a parcel `hops` ranks on, and receive one from as many ranks back.

        like: tensors with the dtypes and, but for axis -2, the shapes of what comes; tokens: its size there.
        """
        coming = [tensor.new_empty((*tensor.shape[:-2], tokens, tensor.shape[-1])) for tensor in like]
        sent = [tensor.contiguous() for tensor in parcel]
        on = dist.get_global_rank(self.group, (self.rank + hops) % self.ranks)
        back = dist.get_global_rank(self.group, (self.rank - hops) % self.ranks)
        # Nobody sends nothing: both sides know the sizes, and leave empty tensors out.
        moves = [dist.P2POp(dist.isend, tensor, on, self.group) for tensor in sent if tensor.numel()]
        moves += [dist.P2POp(dist.irecv, tensor, back, self.group) for tensor in coming if tensor.numel()]
        return Underway(dist.batch_isend_irecv(moves) if moves else [], coming, sent)


def circulate(
    ring: Ring,
    hops: int,
    sizes: Sequence[int],
    parcel: Parcel,
    visit: Callable[[int, Parcel], Parcel],
    add: Callable[[Parcel, Parcel], Parcel],
) -> Parcel:
    """Let the parcel of every rank visit the `hops` ranks after its own; what its visits yield is added up for it.

    visit: what this rank has for the parcel of an owner, which is the owner's number and the parcel's tensors; an
        empty list where nothing is to come home.
    add: the sum of two yields; it may overwrite the first, which has just arrived.
    sizes: how many tokens the parcel of each rank has.

    The next parcel is on its way while this one is visited. The yield follows one hop behind, and its last hop leads
    home, so that what moves in all is `hops` times the parcel and `hops` times the yield.
    """
    coming: Underway | None = None
    following: Underway | None = None
    try:
        coming = ring.swap(parcel, parcel, sizes[ring.owner(1)], hops=1) if hops else None
        own = visit(ring.rank, parcel)
        for hop in range(1, hops + 1):
            assert coming is not None
            here = coming.wait()
            if hop < hops:
                coming = ring.swap(here, here, sizes[ring.owner(hop + 1)], hops=1)
            found = visit(ring.owner(hop), here)
            if not own:
                continue
            if following is not None:
                found = add(following.wait(), found)
            if hop < hops:
                following = ring.swap(found, found, sizes[ring.owner(hop + 1)], hops=1)
            else:
                following = ring.swap(found, found, sizes[ring.rank], hops=-hop)
        return own if following is None else add(following.wait(), own)
    except Exception:
        # Every rank fails alike: what is on its way arrives, or the next call would take it for its own.
        for underway in (coming, following):
            if underway is not None:
                underway.wait()
        raise


def _refusal(got: str, repair: str) -> RegardError:
    needed = "a torch.distributed process group that this process is in, or a DeviceMesh with one axis"
    return RegardError("group", got=got, needed=needed, repair=repair)
