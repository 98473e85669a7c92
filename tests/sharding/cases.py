"""Sharded calls that must equal the call on one process, by the names of their scores, masks, orders and sizes."""

from typing import NamedTuple

import torch
from tests.contracts.agreement import Case
from tests.contracts.cases import POSITIONED, SCORES

TOKENS = 23


class Sharded(NamedTuple):
    """A case of the contracts, and how its tokens are dealt out and travel.

    sizes: "even" as split gives them, or "uneven": some ranks have none, the last has most.
    """

    case: Case
    order: str = "contiguous"
    travel: str = "auto"
    sizes: str = "even"
    backend: str = "auto"

    def __str__(self) -> str:
        """A name for a test."""
        return f"{self.case}-{self.order}-{self.travel}-{self.sizes}-{self.backend}"


def dealt(count: int, ranks: int, sizes: str) -> list[int]:
    """How many of `count` tokens each rank holds, in contiguous order."""
    if sizes == "even":
        return [len(part) for part in torch.arange(count).tensor_split(ranks)]
    own = [rank % 3 for rank in range(ranks - 1)]
    return [*own, count - sum(own)]


def _case(score: str, mask: str = "none", dtype: torch.dtype = torch.float64, queries=TOKENS, keys=TOKENS) -> Case:
    return Case(score, mask, dtype, queries, keys, log_mass=False)


def _core(travel_of: dict[str, tuple[str, ...]]) -> list[Sharded]:
    """One dot product, one additive score, one kernel, with the masks that sharding must get right."""
    return [
        Sharded(_case(score, mask), order, travel)
        for score in ("scaled_dot", "additive", "gaussian learnable")
        for mask in ("none", "causal", "lengths")
        for order in ("contiguous", "balanced")
        for travel in travel_of[order]
    ]


def _sizes() -> list[Sharded]:
    """Ranks with different numbers of tokens, ranks without any, and more keys than queries."""
    return [
        sharded
        for travel in ("keys", "queries")
        for sharded in (
            Sharded(_case("scaled_dot", "lengths"), travel=travel, sizes="uneven"),
            Sharded(_case("gaussian learnable", "causal", queries=3, keys=3), "balanced", travel),
            Sharded(_case("additive", "top_left", queries=7, keys=29), travel=travel),
        )
    ]


def _variety() -> list[Sharded]:
    """Every score, every mask, every dtype once."""
    # A kernel whose bandwidth learns is one more of its kind: one of them is in the core.
    chosen = [score for score in (*SCORES, *POSITIONED) if not score.endswith("learnable")]
    found = [Sharded(_case(score, "combination")) for score in chosen]
    for mask in ("lengths_per_query", "documents", "keep"):
        found += [Sharded(_case("scaled_dot", mask, keys=31), order) for order in ("contiguous", "balanced")]
    for score in ("scaled_dot", "additive", "gaussian"):
        found.append(Sharded(_case(score, "causal", torch.float32), "balanced"))
        found.append(Sharded(_case(score, "top_left", keys=29), "balanced", backend="blocked"))
    found += [Sharded(_case("rotary", "causal"), "balanced", travel) for travel in ("keys", "queries")]
    found += [Sharded(_case("scaled_dot", "causal", dtype), "balanced") for dtype in (torch.bfloat16, torch.float16)]
    return found


def _named(*parts: list[Sharded]) -> dict[str, Sharded]:
    return {str(case): case for part in parts for case in part}


# What two processes get right in both ways, four get right in one way each: their start takes most of the time.
CASES = {
    2: _named(_core(dict.fromkeys(("contiguous", "balanced"), ("keys", "queries"))), _sizes(), _variety()),
    4: _named(_core({"contiguous": ("queries",), "balanced": ("keys",)}), _sizes()),
}
