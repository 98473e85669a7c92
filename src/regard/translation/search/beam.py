"""Beam search over any step function: batched, without a loop over sentences or beams."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.translation.search.contest import Contest
from regard.translation.search.effort import Effort
from regard.translation.search.history import History
from regard.translation.search.hypothesis import Hypothesis
from regard.translation.search.limits import NEVER_WRITTEN, Limits
from regard.translation.search.penalty import checked_strength
from regard.translation.search.step import State, Step, check_normalised, check_numbers, check_shape
from regard.translation.search.width import width_of
from regard.translation.vocabulary import BEGIN


@torch.no_grad()
def beam(
    step: Step,
    state: State,
    batch: int,
    *,
    longest: int | Tensor,
    beams: int = 5,
    nbest: int = 1,
    length_penalty: float = 1.0,
    shortest: int = 0,
    forbidden: Sequence[int] = NEVER_WRITTEN,
    source_lengths: Tensor | None = None,
    device: torch.device | str = "cpu",
    effort: Effort | None = None,
) -> list[list[Hypothesis]]:
    """The best translations of every sentence that a beam of this width finds.

    At each step a sentence's beams propose their words, and the best proposals by total log-probability go on, as
    many as there are beams. One that proposes END is finished and keeps its place: the beam is narrower from then on,
    as in Bahdanau et al. (arXiv 1409.0473), and a beam of 1 is greedy search. A sentence is over when every place is
    finished, when it has reached its longest length, or when no unfinished beam can enter its n best any more: log-
    probabilities only fall, so a beam's last chance is its present total at the most favourable length left.

    Ties: of equal totals the smaller token, then the smaller beam, goes first; of equal scores the hypothesis that
    finished first. Totals are sums in float64 of log-probabilities in float32.

    Args:
        step: tokens int64 (batch, beams), state -> Stepped.
        state: of all sentences, with one beam, before BEGIN is read.
        batch: how many sentences there are.
        longest: the most tokens of a hypothesis, END included; one number, or int64 (batch,).
        beams: how many hypotheses a sentence has at a time.
        nbest: how many are returned for each sentence, at most `beams`.
        length_penalty: log-probabilities are divided by ((5 + length) / 6) ** length_penalty; 0 is none.
        shortest: the fewest tokens of a hypothesis, END included.
        forbidden: words that are never written.
        source_lengths: int64 (batch,), to cut alignments to their sentence; without it they keep the batch's width.
        device: where the step function expects its tokens.
        effort: how work is saved; without it, what pays on the device.

    Returns:
        For each sentence up to `nbest` hypotheses, best first: the finished ones by score, then those that were cut
        off at the longest length. There are fewer only where words run out: a tiny vocabulary, or words at -inf.
    """
    beams, nbest = width_of(beams, nbest)
    effort = Effort.on(device) if effort is None else effort
    strength = checked_strength(length_penalty)
    limits = Limits.checked(batch, shortest, longest, forbidden, device)
    contest = Contest.begin(batch, beams, nbest, strength, limits, device)
    results, history = contest.ends, History()
    tokens = torch.full((batch, 1), BEGIN, device=device)
    for length in range(1, limits.most + 1):
        stepped = step(tokens, state)
        check_shape(stepped.log_probabilities, *tokens.shape)
        if length == 1:
            check_normalised(stepped.log_probabilities)
        chosen = contest.choose(stepped, length)
        history.write(contest.rows, chosen.tokens, chosen.parents, stepped.weights)
        contest = contest.after(chosen, length, stop_early=effort.stop_early)
        contest = contest.narrowed() if effort.narrow else contest
        width = contest.totals.shape[1]
        tokens, state = chosen.tokens[:, :width], stepped.state.reorder(chosen.parents[:, :width])
        kept = effort.survivors(contest.going, length)
        if kept is not None:
            check_numbers(contest.broken, contest.rows, length)
            results = results.put(contest.rows, contest.ends)
            if not len(kept):
                break
            contest, tokens, state = contest.keep(kept), tokens[kept], state.keep(kept)
    check_numbers(contest.broken, contest.rows, limits.most)
    results = results.put(contest.rows, contest.ends)
    return history.trace(results, strength, source_lengths)
