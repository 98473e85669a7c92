"""One walk per beam, none of which competes with another: what greedy search and sampling have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.translation.search.effort import Effort
from regard.translation.search.history import Ends, History
from regard.translation.search.limits import Limits
from regard.translation.search.step import State, Step, check_normalised, check_numbers, check_shape
from regard.translation.vocabulary import BEGIN, END

Choose = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""log_probabilities (active, beams, vocabulary), rows (active,), length -> log-probabilities and tokens chosen."""


def walk(
    step: Step, state: State, batch: int, choose: Choose, *, count: int, limits: Limits, effort: Effort
) -> tuple[History, Ends]:
    """Let `count` beams of every sentence write word after word until END or the longest length.

    choose: log_probabilities (active, beams, vocabulary), rows int64 (active,) that say which sentences these are,
        and the length that the word will make -> (log-probabilities, tokens), each (active, beams).
    """
    device = limits.longest.device
    rows, history = torch.arange(batch, device=device), History()
    totals = torch.zeros((batch, count), dtype=torch.float64, device=device)
    steps = torch.zeros((batch, count), dtype=torch.int64, device=device)
    going = torch.ones((batch, count), dtype=torch.bool, device=device)
    results = Ends(totals, totals, steps, torch.arange(count, device=device).expand(batch, count))
    tokens, parents = torch.full((batch, 1), BEGIN, device=device), steps
    for length in range(1, limits.most + 1):
        stepped = step(tokens, state)
        check_shape(stepped.log_probabilities, *tokens.shape)
        state = stepped.state
        if length == 1:
            check_normalised(stepped.log_probabilities)
            state = state.reorder(parents) if count > 1 else state
        words, tokens = choose(stepped.log_probabilities.expand(-1, count, -1), rows, length)
        history.write(rows, tokens, parents, stepped.weights)
        totals = torch.where(going, totals + words.clamp(max=0.0), totals)
        steps = torch.where(going, length - 1, steps)
        going = going & (tokens != END) & (limits.longest > length)[:, None]
        if length == 1:
            parents = results.slot
        kept = effort.survivors(going.any(1), length)
        if kept is not None or length == limits.most:
            check_numbers(totals.isnan().any(1), rows, length)
            results = results.put(rows, Ends(totals, totals, steps, results.slot[rows]))
        if kept is not None:
            if not len(kept):
                break
            rows, totals, steps, going, parents = (x[kept] for x in (rows, totals, steps, going, parents))
            tokens, state, limits = tokens[kept], state.keep(kept), limits.keep(kept)
    return history, results
