"""Beam search over a step function, forced scoring of given translations, and ensembles.

The search follows Bahdanau et al. (arXiv 1409.0473, section 4.2 and appendix B.2): at each step the best continuations
of all beams go on, and a beam that writes END is finished. Hypotheses are ranked with the length penalty of Wu et al.
(arXiv 1609.08144, eq. 14). Nothing here depends on the model: a step function takes the last words and a state, and
returns log-probabilities, attention weights and the next state.

`beam_search` is the loop. `Beams` decides which continuations are kept, `Finished` holds the best hypotheses so far,
and `BackPointers` turns the recorded steps into sentences with their alignments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError
from regard.translation.options import MAX_LENGTH, SearchOptions
from regard.translation.vocabulary import BEGIN, END, PAD

UNFINISHED = -1e300
"""Ranking key of hypotheses that were cut off: below every finished one. Equal keys stay in order (stable sort)."""
MAX_LOG_SUM = 0.1
"""Half precision may raise the logarithm of a sum of probabilities to a few hundredths; logits exceed this by far."""
CHECK_EVERY_ON_GPU = 8
"""Steps between two checks for finished sentences on a GPU, because each check waits for it; a CPU checks each step."""
PACK_SHARE = 0.125
"""On a CPU, finished sentences are removed from the batch as soon as they are this share of it."""
BLOCK = 32
"""Entries of a block in `top_k_stable`."""
SIGN_MASK = 2**31 - 1

Length = TypeVar("Length", float, Tensor)


# --- What a search needs of a model ---------------------------------------------------------------------------------


class State(Protocol):
    """What a decoder carries from one step to the next, for all beams of all sentences. It is never changed in place.

    Beams are an axis, (batch, beams, ...): the beams of a sentence are several queries to one memory, which is not
    copied for them. The first state has one beam.
    """

    def reorder(self, beams: Tensor) -> Self:
        """Return the state in which beam b continues the old beam beams[:, b].

        Args:
            beams: int64 (batch, new beams), numbers of old beams of the same sentence, in any order and number.
        """
        ...

    def select(self, sentences: Tensor) -> Self:
        """Return the state of these sentences only.

        Args:
            sentences: int64 (selected,), positions in the batch.
        """
        ...


class StepOutput(NamedTuple):
    """What one step of a decoder returns.

    Attributes:
        log_probabilities: (batch, beams, vocabulary), of the next word: normalised, or with some words at -inf.
        weights: (batch, beams, source), the attention weights of this step, 0 at padding; None without attention. A
            search keeps them until it ends, so a step must not write into them again.
        state: what the next step continues from.
    """

    log_probabilities: Tensor
    weights: Tensor | None
    state: State


Step = Callable[[Tensor, State], StepOutput]
"""Takes int64 (batch, beams), the words just written (BEGIN at first), and the state."""


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One translation found by a search.

    Attributes:
        tokens: its words, without BEGIN and END.
        score: the log-probability divided by the length penalty; hypotheses are ranked by it.
        log_probability: of all tokens, END included.
        alignment: (tokens + 1, source), the attention weights of each step, the last one for END; one row less if the
            hypothesis is unfinished. None without attention.
        finished: whether END was written; otherwise the hypothesis was cut off at its maximum length.
    """

    tokens: tuple[int, ...]
    score: float
    log_probability: float
    alignment: Tensor | None
    finished: bool = True

    @property
    def length(self) -> int:
        """Number of steps: the tokens, and END if it was written."""
        return len(self.tokens) + self.finished


def length_penalty(length: Length, strength: float) -> Length:
    """Return ((5 + length) / 6) ** strength, by which a log-probability is divided (arXiv 1609.08144, eq. 14).

    Args:
        length: of the hypothesis, END included. The penalty of length 1 is 1.
        strength: 0 ranks by the log-probability alone, 1 nearly by its mean over the tokens.

    >>> length_penalty(7, 1.0)
    2.0
    """
    return ((5 + length) / 6) ** strength


def length_penalties(longest: int, strength: float, device: torch.device | str = "cpu") -> Tensor:
    """Return float64 (longest + 1,), the penalty of every length from 0 on.

    Scores are compared that were computed in different places; one table makes them equal to the last bit.
    """
    penalties = [length_penalty(length, strength) for length in range(longest + 1)]
    return torch.tensor(penalties, dtype=torch.float64, device=device)


# --- Beam search ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def beam_search(
    step: Step, state: State, source_lengths: Tensor, max_lengths: Tensor, options: SearchOptions | None = None
) -> list[list[Hypothesis]]:
    """Return the n best translations of each sentence, best first. One beam is greedy search.

    At each step the beams of a sentence propose their words, and the best proposals by total log-probability go on, as
    many as there are open beams. A proposal that ends with END is finished and closes its beam. A sentence is over
    when all beams are closed, when it has reached its maximum length, or when no open beam can enter its n best: log-
    probabilities only fall, so the best score left to a beam is its present total at the most favourable length.

    Ties: of equal totals the smaller token comes first, then the smaller beam; of equal scores the hypothesis that
    finished first. Totals are sums in float64 of log-probabilities in float32.

    Args:
        step: the step function of a model or an ensemble.
        state: of all sentences, with one beam, before BEGIN is read.
        source_lengths: int64 (batch,), to which alignments are cut.
        max_lengths: int64 (batch,), the maximum number of tokens of each translation, END included.
        options: `beams`, `nbest`, `length_penalty` (None is 1) and `shortest` are used; None for the defaults.

    Returns:
        For each sentence up to `nbest` hypotheses: the finished ones by score, then those that were cut off. There are
        fewer only if there are too few possible words: a tiny vocabulary, or words at -inf.

    Raises:
        RegardError: if the step function returns logits, NaN or tensors of another shape, if no word is possible, or if
            `max_lengths` does not fit.
    """
    options = SearchOptions() if options is None else options
    strength = 1.0 if options.length_penalty is None else options.length_penalty
    _check_max_lengths(max_lengths, len(source_lengths))
    longest = int(max_lengths.max()) if len(max_lengths) else 0
    beams = Beams.start(max_lengths, longest, strength, options)
    finished, history = beams.finished, BackPointers()
    tokens = torch.full((len(max_lengths), 1), BEGIN, device=max_lengths.device)
    for length in range(1, longest + 1):
        output = step(tokens, state)
        check_shape(output.log_probabilities, *tokens.shape)
        if length == 1:
            check_normalised(output.log_probabilities)
        chosen = beams.expand(output.log_probabilities, length)
        history.append(beams.sentences, chosen, output.weights)
        beams = beams.advance(chosen, length)
        tokens = chosen.tokens
        state = output.state if options.beams == 1 else output.state.reorder(chosen.parents)
        active = _active_sentences(beams.is_active, length)
        if active is not None:
            check_no_nan(beams.has_nan, beams.sentences, length)
            finished = finished.scatter(beams.sentences, beams.finished)
            if not len(active):
                break
            beams, tokens, state = beams.select(active), tokens[active], state.select(active)
    check_no_nan(beams.has_nan, beams.sentences, longest)
    finished = finished.scatter(beams.sentences, beams.finished)
    return history.backtrace(finished, strength, source_lengths)


def _active_sentences(is_active: Tensor, length: int) -> Tensor | None:
    """Return the sentences to go on with: none if the search is over, None to leave the batch as it is.

    is_active: bool (active,), which sentences have an open beam after `length` steps.
    """
    on_cpu = is_active.device.type == "cpu"
    if not on_cpu and length % CHECK_EVERY_ON_GPU:
        return None
    count = int(is_active.sum())
    done = len(is_active) - count
    if count and (not on_cpu or not done or done < PACK_SHARE * len(is_active)):
        return None
    return is_active.nonzero()[:, 0]


class Continuations(NamedTuple):
    """The proposals that a step accepted: each (active, beams), open beams first, best first. A total of -inf is empty.

    Attributes:
        totals: float64, log-probabilities up to here.
        tokens: int64, the words written.
        parents: int64, the old beam that each continues.
    """

    totals: Tensor
    tokens: Tensor
    parents: Tensor


@dataclass(frozen=True, eq=False)
class Beams:
    """The sentences that are still being searched, and their beams.

    Attributes:
        sentences: int64 (active,), their positions in the batch.
        totals: float64 (active, beams), log-probabilities so far; -inf for a closed or empty beam.
        open_beams: int64 (active, 1), how many beams are not closed.
        finished: the best hypotheses so far, (active, nbest).
        has_nan: bool (active,), whether a NaN was met.
        max_lengths: int64 (active,).
        penalties: float64 (longest + 2,), the length penalty of each length.
        options: of the search.
    """

    sentences: Tensor
    totals: Tensor
    open_beams: Tensor
    finished: Finished
    has_nan: Tensor
    max_lengths: Tensor
    penalties: Tensor
    options: SearchOptions

    @classmethod
    def start(cls, max_lengths: Tensor, longest: int, strength: float, options: SearchOptions) -> Self:
        """Return all sentences with one beam, before the first word."""
        batch, device = len(max_lengths), max_lengths.device
        return cls(
            sentences=torch.arange(batch, device=device),
            totals=torch.zeros((batch, 1), dtype=torch.float64, device=device),
            open_beams=torch.full((batch, 1), options.beams, device=device),
            finished=Finished.empty(batch, options.nbest, device),
            has_nan=torch.zeros(batch, dtype=torch.bool, device=device),
            max_lengths=max_lengths,
            penalties=length_penalties(longest + 1, strength, device),
            options=options,
        )

    @property
    def is_active(self) -> Tensor:
        """bool (active,): which sentences have an open beam."""
        return self.totals.amax(1) > -torch.inf

    def expand(self, log_probabilities: Tensor, length: int) -> Continuations:
        """Return the best continuations of all beams by (total, -token, -beam), as many as there are open beams."""
        can_end = length >= self.options.shortest
        # As many words more as may be forbidden: PAD, BEGIN, and END before the minimum length.
        words, tokens = top_k_stable(log_probabilities, self.options.beams + 2 + (not can_end))
        # Rounding can give a certain word a log-probability above 0; the bound of the early stop needs falling totals.
        totals = self.totals[..., None] + words.clamp(max=0.0)
        forbidden = (tokens == PAD) | (tokens == BEGIN)
        if not can_end:
            forbidden |= tokens == END
        forbidden &= ~words.isnan()  # NaN stays, to be reported
        closed = (self.totals == -torch.inf)[..., None]
        totals, tokens = totals.masked_fill(closed | forbidden, -torch.inf).flatten(1), tokens.flatten(1)
        if self.options.beams == 1:  # greedy search: the first proposal that is not forbidden
            place = totals.argmax(1, keepdim=True)
            return Continuations(totals.gather(1, place), tokens.gather(1, place), torch.zeros_like(place))
        beam = torch.arange(self.totals.shape[1], device=tokens.device).repeat_interleave(words.shape[-1])
        # Three keys by two stable sorts: the proposals are in the order of their beams already.
        by_token = tokens.argsort(dim=1, stable=True)
        totals, order = totals.gather(1, by_token).sort(dim=1, descending=True, stable=True)
        order = by_token.gather(1, order[:, : self.options.beams])
        totals = totals[:, : self.options.beams]
        rank = torch.arange(totals.shape[1], device=tokens.device)
        totals = totals.masked_fill(rank >= self.open_beams, -torch.inf)
        tokens, parents = tokens.gather(1, order), beam[order]
        # Open beams come first.
        ends = (totals == -torch.inf) | (tokens == END) | (self.max_lengths == length)[:, None]
        order = ends.to(torch.uint8).argsort(dim=1, stable=True)
        return Continuations(totals.gather(1, order), tokens.gather(1, order), parents.gather(1, order))

    def advance(self, chosen: Continuations, length: int) -> Beams:
        """Return the beams after a step: some are finished, some cut off, some cannot enter the n best any more."""
        exists = chosen.totals > -torch.inf
        ended = exists & (chosen.tokens == END)
        cut_off = exists & ~ended & (self.max_lengths == length)[:, None]
        scores = chosen.totals / self.penalties[length]
        key = scores.masked_fill(~ended, -torch.inf).masked_fill(cut_off, UNFINISHED)
        step = torch.full_like(chosen.tokens, length - 1)
        beam = torch.arange(key.shape[1], device=key.device).expand(key.shape)
        finished = self.finished.merge_best(Finished(key, chosen.totals, step, beam))
        totals = chosen.totals.masked_fill(ended | cut_off, -torch.inf)
        if self.options.beams > 1:  # a single beam is not open any more when something is finished
            hopeless = self._best_score_left(totals, length) <= finished.key[:, -1:]
            totals = totals.masked_fill(hopeless, -torch.inf)
        return replace(
            self,
            totals=totals,
            open_beams=self.open_beams - ended.sum(1, keepdim=True),
            finished=finished,
            has_nan=self.has_nan | chosen.totals.isnan().any(1),
        )

    def _best_score_left(self, totals: Tensor, length: int) -> Tensor:
        """Return an upper bound of the scores that each beam can still reach, (active, beams).

        A total cannot rise, and total / penalty is monotone in the length: its maximum is at one of the ends.
        """
        at_max_length = self.penalties[self.max_lengths][:, None]
        return torch.maximum(totals / self.penalties[length + 1], totals / at_max_length)

    def select(self, active: Tensor) -> Beams:
        """Return the beams of these sentences only."""
        return replace(
            self,
            sentences=self.sentences[active],
            totals=self.totals[active],
            open_beams=self.open_beams[active],
            finished=self.finished.select(active),
            has_nan=self.has_nan[active],
            max_lengths=self.max_lengths[active],
        )


class Finished(NamedTuple):
    """Where hypotheses end: each tensor is (batch, hypotheses).

    Attributes:
        key: float64, the ranking key; -inf where there is no hypothesis.
        total: float64, the log-probability.
        step: int64, the last step, counted from 0.
        beam: int64, the beam at that step.
    """

    key: Tensor
    total: Tensor
    step: Tensor
    beam: Tensor

    @classmethod
    def empty(cls, batch: int, count: int, device: torch.device) -> Self:
        """Return an empty table of `count` hypotheses per sentence."""
        numbers = torch.full((batch, count), -torch.inf, dtype=torch.float64, device=device)
        positions = torch.zeros((batch, count), dtype=torch.int64, device=device)
        return cls(numbers, numbers, positions, positions)

    def select(self, sentences: Tensor) -> Finished:
        """Return those of some sentences."""
        return Finished(*(field[sentences] for field in self))

    def scatter(self, sentences: Tensor, others: Finished) -> Finished:
        """Return these with the rows of some sentences replaced."""
        return Finished(*(old.index_copy(0, sentences, new) for old, new in zip(self, others, strict=True)))

    def merge_best(self, others: Finished) -> Finished:
        """Return as many as there are here, best first; of equal ones the earlier, then that of the smaller beam."""
        if self.key.shape[1] == others.key.shape[1] == 1:
            is_better = others.key > self.key
            return Finished(*(torch.where(is_better, new, old) for old, new in zip(self, others, strict=True)))
        both = [torch.cat(pair, 1) for pair in zip(self, others, strict=True)]
        order = both[0].sort(dim=1, descending=True, stable=True).indices[:, : self.key.shape[1]]
        return Finished(*(field.gather(1, order) for field in both))


class _Recorded(NamedTuple):
    """One step: the sentences that took it, the words and parents of their beams, and the attention weights."""

    sentences: Tensor
    tokens: Tensor
    parents: Tensor
    weights: Tensor | None


class BackPointers:
    """What every step wrote. The weights of all beams are kept, because any of them may turn out to be the best."""

    def __init__(self) -> None:
        self._steps: list[_Recorded] = []

    def append(self, sentences: Tensor, chosen: Continuations, weights: Tensor | None) -> None:
        """Record a step.

        Args:
            sentences: int64 (active,), the sentences that took it.
            chosen: what their beams wrote.
            weights: (active, old beams, source), the attention of the old beams.
        """
        self._steps.append(_Recorded(sentences, chosen.tokens, chosen.parents, weights))

    def backtrace(self, finished: Finished, strength: float, source_lengths: Tensor) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, scored with the length penalty.

        Raises:
            RegardError: if a sentence has none.
        """
        _check_found(finished)
        tokens, weights = self._follow(finished)
        lengths = finished.step + 1
        scores = (finished.total / length_penalties(len(self._steps), strength, lengths.device)[lengths]).tolist()
        exists, written, totals = (finished.key > -torch.inf).tolist(), tokens.tolist(), finished.total.tolist()
        sizes, widths = lengths.tolist(), source_lengths.tolist()

        def hypothesis(row: int, column: int) -> Hypothesis:
            size = sizes[row][column]
            words = tuple(written[row][column][:size])
            is_finished = words[-1] == END
            alignment = None if weights is None else weights[row, column, :size, : widths[row]].clone()
            return Hypothesis(
                words[:-1] if is_finished else words, scores[row][column], totals[row][column], alignment, is_finished
            )

        return [
            [hypothesis(row, column) for column, found in enumerate(columns) if found]
            for row, columns in enumerate(exists)
        ]

    def _follow(self, finished: Finished) -> tuple[Tensor, Tensor | None]:
        """Follow the back-pointers of all hypotheses at once.

        Returns:
            tokens (batch, hypotheses, steps), and weights (batch, hypotheses, steps, source) or None.
        """
        batch, count = finished.step.shape
        tokens = finished.step.new_zeros(batch, count, len(self._steps))
        weights = self._empty_weights(batch, count)
        beams = finished.beam
        for number in range(len(self._steps) - 1, -1, -1):
            recorded = self._steps[number]
            sentences, here = recorded.sentences, beams[recorded.sentences]
            is_reached = finished.step[sentences] >= number  # the others end earlier, and keep their beam
            beam = torch.where(is_reached, here, 0)
            tokens[sentences, :, number] = recorded.tokens.gather(1, beam)
            parent = recorded.parents.gather(1, beam)
            if weights is not None and recorded.weights is not None:
                source = recorded.weights.shape[-1]
                index = parent[..., None].expand(-1, -1, source)
                weights[sentences, :, number, :source] = recorded.weights.gather(1, index)
            beams = beams.index_copy(0, sentences, torch.where(is_reached, parent, here))
        return tokens, None if weights is None else weights.cpu()

    def _empty_weights(self, batch: int, count: int) -> Tensor | None:
        kept = [recorded.weights for recorded in self._steps if recorded.weights is not None]
        if not kept:
            return None
        return kept[0].new_zeros(batch, count, len(self._steps), max(weights.shape[-1] for weights in kept))


def top_k_stable(log_probabilities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest entries of the last axis, by value and then by index, each (..., count).

    `torch.topk` leaves the order of ties open, and which of them it takes depends on the device and the size. Here
    value and index are packed into one integer, and no two integers are equal. To rank few of them, the axis is cut
    into blocks. The best `count` entries lie in the best `count` blocks, ordered by maximum and then by position: an
    entry of a later block has an entry before it in each of those.

    Args:
        log_probabilities: (..., vocabulary), compared as float32. What rounding raised above 0 counts as 0, and so
            does NaN, so that it is reported instead of ranked last.
        count: how many entries to return.

    Returns:
        The entries in float32, and their indices.

    >>> top_k_stable(torch.tensor([0.1, 0.4, 0.4, 0.1]).log(), 3)[1]
    tensor([1, 2, 0])
    """
    vocabulary = log_probabilities.shape[-1]
    count = min(count, vocabulary)
    if vocabulary <= BLOCK * count:
        index = torch.arange(vocabulary, device=log_probabilities.device)
        return _top_k(log_probabilities.float(), index.expand(log_probabilities.shape), count)
    highest = _block_maxima(log_probabilities).float()
    block = torch.arange(highest.shape[-1], device=highest.device).expand(highest.shape)
    best_blocks = _top_k(highest, block, count)[1]
    inside = torch.arange(BLOCK, device=highest.device)
    index = (best_blocks[..., None] * BLOCK + inside).flatten(-2)
    entries = log_probabilities.gather(-1, index.clamp(max=vocabulary - 1)).float()
    if vocabulary % BLOCK:  # the last block is short
        entries = entries.masked_fill(index >= vocabulary, -torch.inf)
    return _top_k(entries, index, count)


def _block_maxima(entries: Tensor) -> Tensor:
    """Return the maximum of each block: (..., vocabulary) -> (..., blocks). NaN is a maximum."""
    whole = entries.shape[-1] // BLOCK * BLOCK
    maxima = entries[..., :whole].unflatten(-1, (-1, BLOCK)).amax(-1)
    if whole == entries.shape[-1]:
        return maxima
    return torch.cat((maxima, entries[..., whole:].amax(-1, keepdim=True)), -1)


def _top_k(entries: Tensor, index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the best by (entry, -index), both packed into one integer of 64 bits.

    The bits of a float without its sign grow with its magnitude, and an entry is better the nearer it is to 0.
    """
    at_most_0 = entries.nan_to_num(nan=0.0, posinf=0.0, neginf=-torch.inf).clamp_(max=0.0)
    magnitude = at_most_0.view(torch.int32).bitwise_and_(SIGN_MASK)
    best = (magnitude.long().bitwise_left_shift_(32) + index).topk(count, largest=False).indices
    return entries.gather(-1, best), index.gather(-1, best)


# --- Forced scoring -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ForcedScores:
    """What a model thinks of given translations; END is their last token.

    Attributes:
        log_probabilities: (batch, target + 1), of each token given those before it; 0 after END.
        lengths: int64 (batch,), number of tokens, END included.
        weights: (batch, target + 1, source), the attention of each step, 0 after END; None without attention.
    """

    log_probabilities: Tensor
    lengths: Tensor
    weights: Tensor | None

    @property
    def totals(self) -> Tensor:
        """The log-probability of each translation, float64 (batch,)."""
        return self.log_probabilities.double().sum(1)

    def alignment(self, sentence: int, source_length: int) -> Tensor | None:
        """Return the weights of one sentence, (tokens + 1, source)."""
        if self.weights is None:
            return None
        return self.weights[sentence, : int(self.lengths[sentence]), :source_length]


def score_targets(step: Step, state: State, targets: Tensor, lengths: Tensor) -> ForcedScores:
    """Return log-probabilities and attention weights of given translations. Differentiable if the step function is.

    Args:
        step: the step function of a model or an ensemble.
        state: of all sentences, with one beam, before BEGIN is read.
        targets: int64 (batch, target), without BEGIN and END, padded with anything.
        lengths: int64 (batch,), the number of tokens of each.

    Raises:
        RegardError: if targets and lengths do not fit, or the step function returns something else than
            log-probabilities.
    """
    _check_targets(targets, lengths)
    device = targets.device
    batch, longest = len(targets), int(lengths.max()) if len(targets) else 0
    lengths = lengths.to(device)
    position = torch.arange(longest + 1, device=device)
    wanted = torch.cat((targets[:, :longest], targets.new_zeros(batch, 1)), 1)
    # After its end a sentence reads END; those outputs are masked below.
    wanted = wanted.masked_fill(position >= lengths[:, None], END)
    read = torch.full((batch, 1), BEGIN, device=device)
    words, weights = [], []
    for column in range(longest + 1 if batch else 0):
        output = step(read, state)
        check_shape(output.log_probabilities, batch, 1)
        if column == 0:
            check_normalised(output.log_probabilities)
        read, state = wanted[:, column, None], output.state
        words.append(output.log_probabilities.gather(2, read[..., None])[:, 0, 0].float())
        if output.weights is not None:
            weights.append(output.weights[:, 0])
    after_end = position > lengths[:, None]
    scores = torch.stack(words, 1) if words else torch.zeros(batch, longest + 1, device=device)
    scores = scores.masked_fill(after_end, 0.0)
    check_no_nan(scores.isnan().any(1), torch.arange(batch, device=device), longest + 1)
    attention = torch.stack(weights, 1).masked_fill(after_end[..., None], 0.0) if weights else None
    return ForcedScores(scores, lengths + 1, attention)


# --- Ensembles ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EnsembleState:
    """The states of several models: the state of their ensemble."""

    states: tuple[State, ...]

    def reorder(self, beams: Tensor) -> EnsembleState:
        """Reorder every state; beams: int64 (batch, new beams)."""
        return EnsembleState(tuple(state.reorder(beams) for state in self.states))

    def select(self, sentences: Tensor) -> EnsembleState:
        """Keep some sentences of every state; sentences: int64 (selected,)."""
        return EnsembleState(tuple(state.select(sentences) for state in self.states))


def ensemble(steps: Sequence[Step]) -> Step:
    """Return the step function of several models: the log of the mean of their probabilities.

    Its state is an `EnsembleState`. Attention weights are the mean over the models that have them, so the models must
    read the same source tokens and have the same target vocabulary.

    Args:
        steps: the step function of each model.

    Raises:
        RegardError: if there is none; the returned step raises it if states, vocabularies or sources do not fit.
    """
    if not steps:
        raise RegardError(
            "steps", got="no step function", needed="one for each model", repair="Pass the steps of at least one model."
        )

    def step(tokens: Tensor, state: State) -> StepOutput:
        if not isinstance(state, EnsembleState) or len(state.states) != len(steps):
            raise RegardError(
                "state",
                got=f"{type(state).__name__}",
                needed=f"EnsembleState with the states of {len(steps)} models, in the order of their steps",
                repair="Pass EnsembleState((state_of_first, state_of_second, ...)).",
            )
        outputs = [one(tokens, its) for one, its in zip(steps, state.states, strict=True)]
        states = EnsembleState(tuple(output.state for output in outputs))
        return StepOutput(_log_mean(outputs), _mean_weights(outputs), states)

    return step


def _log_mean(outputs: Sequence[StepOutput]) -> Tensor:
    """Return log(mean of probabilities), without a table of all models at once."""
    total = outputs[0].log_probabilities
    for number, output in enumerate(outputs[1:], 1):
        if output.log_probabilities.shape != total.shape:
            raise RegardError(
                "steps",
                got=f"log-probabilities of {describe(total)} from model 0, {describe(output.log_probabilities)} "
                f"from model {number}",
                needed="the same vocabulary in every model",
                repair="Train the models of an ensemble with one vocabulary.",
            )
        total = torch.logaddexp(total, output.log_probabilities)
    return total - log(len(outputs)) if len(outputs) > 1 else total


def _mean_weights(outputs: Sequence[StepOutput]) -> Tensor | None:
    weights = [output.weights for output in outputs if output.weights is not None]
    if any(one.shape != weights[0].shape for one in weights):
        raise RegardError(
            "weights",
            got=f"attention over {' and '.join(str(one.shape[-1]) for one in weights)} source tokens",
            needed="the same source tokens in every model",
            repair="Use models that share their source vocabulary.",
        )
    return torch.stack(weights).mean(0) if weights else None


# --- Checks ---------------------------------------------------------------------------------------------------------


def check_shape(log_probabilities: Tensor, batch: int, beams: int) -> None:
    """Raise unless the log-probabilities are (batch, beams, vocabulary)."""
    if log_probabilities.ndim != 3 or log_probabilities.shape[:2] != (batch, beams):
        raise RegardError(
            "log_probabilities",
            got=f"{describe(log_probabilities)} from the step function",
            needed=f"(batch, beams, vocabulary) with batch {batch} and beams {beams}, as the tokens it was given",
            repair="Return a row for every token; reorder and select must have changed the state accordingly.",
        )


def check_normalised(log_probabilities: Tensor) -> None:
    """Raise if these are logits and not log-probabilities. Words may be left out, at -inf."""
    largest = float(log_probabilities.detach().float().logsumexp(-1).amax()) if log_probabilities.numel() else 0.0
    if largest > MAX_LOG_SUM:
        raise RegardError(
            "log_probabilities",
            got=f"probabilities that sum to e^{largest:.3g} at the first step",
            needed="logarithms of probabilities, which sum to at most 1 over the vocabulary",
            repair="Return logits.log_softmax(-1) from the step function.",
        )


def check_no_nan(has_nan: Tensor, sentences: Tensor, length: int) -> None:
    """Raise if one of the sentences has met a NaN in its first `length` steps. Waits for the device.

    Args:
        has_nan: bool (active,).
        sentences: int64 (active,), their positions in the batch.
        length: for the message.
    """
    if bool(has_nan.any()):
        raise RegardError(
            "log_probabilities",
            got=f"NaN from the step function, for sentence {int(sentences[has_nan][0])}, within its first "
            f"{length} steps",
            needed="numbers",
            repair="Look for weights that are not finite in the model, or for a float16 that overflowed.",
        )


def _check_max_lengths(max_lengths: Tensor, batch: int) -> None:
    fits = max_lengths.dtype == torch.int64 and max_lengths.shape == (batch,)
    if not fits or (batch and not 1 <= int(max_lengths.min()) <= int(max_lengths.max()) <= MAX_LENGTH):
        raise RegardError(
            "max_lengths",
            got=describe(max_lengths) + (f" up to {int(max_lengths.max())}" if fits else ""),
            needed=f"int64 ({batch},), a length from 1 to {MAX_LENGTH:,} for each sentence, END included",
            repair="For example twice the length of the source and ten more.",
        )


def _check_targets(targets: Tensor, lengths: Tensor) -> None:
    if targets.ndim != 2 or targets.dtype != torch.int64:
        raise RegardError(
            "targets",
            got=describe(targets),
            needed="int64 (batch, target), tokens without BEGIN and END",
            repair="Pad the targets to one length and pass their lengths beside them.",
        )
    fits = lengths.shape == targets.shape[:1] and not lengths.is_floating_point()
    if not fits or (len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= targets.shape[1]):
        raise RegardError(
            "lengths",
            got=f"{describe(lengths)}" + (f" up to {int(lengths.max())}" if fits else ""),
            needed=f"an integer from 0 to {targets.shape[1]} for each of {len(targets)} targets",
            repair="Count the tokens of each target, without BEGIN, END and padding.",
        )


def _check_found(finished: Finished) -> None:
    """Raise if a sentence has no hypothesis, instead of returning nothing for it."""
    missing = (finished.key == -torch.inf).all(1)
    if bool(missing.any()):
        raise RegardError(
            "log_probabilities",
            got=f"-inf for every word that sentence {int(missing.nonzero()[0])} might have written",
            needed="at least one word that is possible and not forbidden at every step",
            repair="Lower shortest, or leave more words possible in the step function.",
        )
