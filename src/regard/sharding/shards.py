"""Where the tokens of a call are: the ring, and the runs of the sequence that each of its ranks holds."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.shapes import check_inputs
from regard.sharding.agreement import agree, refuse
from regard.sharding.order import Runs, check_order, runs_of
from regard.sharding.ring import Ring

if TYPE_CHECKING:
    from regard.sharding.ring import Group

OWN = ("queries", "keys")


class Shards(NamedTuple):
    """The ring of a call, and for each rank the runs of its queries and of its keys."""

    ring: Ring
    query_runs: tuple[Runs, ...]
    key_runs: tuple[Runs, ...]

    @staticmethod
    def meet(
        group: "Group", order: str, query: Tensor, key: Tensor, value: Tensor, settings: dict[str, str]
    ) -> "Shards":
        """Check the inputs of this rank, hear of those of the others, and find out where all tokens are.

        query: (*batch, queries, query_dim), key: (*batch, keys, key_dim), value: (*batch, keys, value_dim), of any
        numbers of tokens. settings: what else must be the same everywhere, told by its text.
        """
        ring = Ring.of(group)
        device = query.device if isinstance(query, Tensor) else torch.device("cpu")
        try:
            check_order(order)
            check_inputs(query, key, value)
        except RegardError as error:
            refuse(ring, error, device)
            raise
        facts: dict[str, object] = {"queries": query.shape[-2], "keys": key.shape[-2], "order": order}
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            facts[name] = _description(tensor)
        # A device's number is each rank's own.
        settings = {name: re.sub(r" on (\w+):\d+", r" on \1", text) for name, text in settings.items()}
        settings["gradients"] = "wanted" if torch.is_grad_enabled() else "not wanted"
        everyone = agree(ring, facts | settings, OWN, device)
        runs = [tuple(runs_of([_number(told[name]) for told in everyone], order, name)) for name in OWN]
        return Shards(ring, *runs)

    @property
    def queries(self) -> list[int]:
        """How many queries each rank has."""
        return [_tokens(runs) for runs in self.query_runs]

    @property
    def keys(self) -> list[int]:
        """How many keys each rank has."""
        return [_tokens(runs) for runs in self.key_runs]

    def prepared_query(self, prepare: Callable[[Tensor, int], Tensor], query: Tensor) -> Tensor:
        """What a score's `prepare_query` makes of this rank's queries, each at its position in the whole sequence."""
        return _by_runs(prepare, query, self.query_runs[self.ring.rank])

    def prepared_key(self, prepare: Callable[[Tensor, int], Tensor], key: Tensor) -> Tensor:
        """The same for keys and `prepare_key`."""
        return _by_runs(prepare, key, self.key_runs[self.ring.rank])


def pieces(runs: Runs) -> list[tuple[slice, slice]]:
    """For each run of a rank: where its tokens are on that rank, and where in the whole sequence."""
    found, start = [], 0
    for run in runs:
        stop = start + run.stop - run.start
        found.append((slice(start, stop), run))
        start = stop
    return found


def _by_runs(prepare: Callable[[Tensor, int], Tensor], tokens: Tensor, runs: Runs) -> Tensor:
    if len(runs) <= 1:
        return prepare(tokens, runs[0].start if runs else 0)
    return torch.cat([prepare(tokens[..., here, :], run.start) for here, run in pieces(runs)], dim=-2)


def _tokens(runs: Runs) -> int:
    return sum(run.stop - run.start for run in runs)


def _description(tensor: Tensor) -> str:
    """All but the number of tokens, and whether a gradient is wanted: backward passes meet as forward ones do."""
    *batch, _, dim = tensor.shape
    dtype = str(tensor.dtype).removeprefix("torch.")
    gradient = " with a gradient" if tensor.requires_grad and torch.is_grad_enabled() else ""
    return f"{dtype} ({', '.join(map(str, [*batch, 'tokens', dim]))}) on {tensor.device.type}{gradient}"


def _number(fact: object) -> int:
    assert isinstance(fact, int)
    return fact
