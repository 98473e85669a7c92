"""Beam search over any step function, forced scoring of given translations, and ensembles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from numbers import Integral, Real
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError
from regard.translation.options import count_of
from regard.translation.vocabulary import BEGIN, END, PAD


class State(Protocol):
    """What a decoder carries from one step to the next, for all beams of all sentences; never changed in place.

    Beams are an axis of their own, (batch, beams, ...): the beams of a sentence are so many queries to its one
    memory, which is never copied for them. A first state has one beam.
    """

    def reorder(self, beams: Tensor) -> Self:
        """The state in which each new beam continues an old one of the same sentence.

        beams: int64 (batch, new beams), numbers of old beams; any of them any number of times.
        """
        ...

    def keep(self, rows: Tensor) -> Self:
        """The state of some sentences alone; their memories shrink with it.

        rows: int64 (kept,), numbers of sentences, in order.
        """
        ...


@dataclass(frozen=True, eq=False)
class Stepped:
    """What one step of a decoder gives.

    log_probabilities: (batch, beams, vocabulary), of the next word; normalised, or with words left out at -inf.
    weights: (batch, beams, source), the attention of this step, 0 at padding; None without attention. A search keeps
        them to its end: a step must not write into them again.
    state: what the next step continues from.
    """

    log_probabilities: Tensor
    weights: Tensor | None
    state: State


Step = Callable[[Tensor, State], Stepped]
"""tokens, state -> Stepped. tokens: int64 (batch, beams), the words just written; `symbols.BEGIN` at first."""

# Half precision may round a sum of probabilities up by a few hundredths of its logarithm; logits miss by far more.
MOST_LOG_SUM = 0.1


def check_shape(log_probabilities: Tensor, batch: int, beams: int) -> None:
    """Refuse what a step function may not return, before its axes are mistaken for others."""
    if log_probabilities.ndim != 3 or log_probabilities.shape[:2] != (batch, beams):
        raise RegardError(
            "log_probabilities",
            got=f"{describe(log_probabilities)} from the step function",
            needed=f"(batch, beams, vocabulary) with batch {batch} and beams {beams}, as the tokens it was given",
            repair="Return a row for every token; reorder and keep must have changed the state accordingly.",
        )


def check_normalised(log_probabilities: Tensor) -> None:
    """Refuse logits in the place of log-probabilities; words left out, at -inf, are welcome."""
    largest = float(log_probabilities.detach().float().logsumexp(-1).amax()) if log_probabilities.numel() else 0.0
    if largest > MOST_LOG_SUM:
        raise RegardError(
            "log_probabilities",
            got=f"probabilities that sum to e^{largest:.3g} at the first step",
            needed="logarithms of probabilities, which sum to at most 1 over the vocabulary",
            repair="Return logits.log_softmax(-1) from the step function.",
        )


def check_numbers(broken: Tensor, rows: Tensor, length: int) -> None:
    """Refuse to go on with what is not a number; it waits for the device.

    broken: bool (active,), which of the sentences `rows` have met a NaN in their first `length` steps.
    """
    if bool(broken.any()):
        sentence = int(rows[broken][0])
        raise RegardError(
            "log_probabilities",
            got=f"NaN from the step function, for sentence {sentence}, within its first {length} steps",
            needed="numbers",
            repair="Look for weights that are not finite in the model, or for a float16 that overflowed.",
        )


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One translation.

    tokens: its words, without BEGIN and END.
    score: what ranks it: its log-probability, divided by the length penalty.
    log_probability: of all its tokens, END included.
    alignment: (tokens + 1, source), the attention of every step, the last for END; one row less when it is
        unfinished, None when the model has no attention.
    finished: whether it wrote END; else it was cut off at the longest length allowed.
    """

    tokens: tuple[int, ...]
    score: float
    log_probability: float
    alignment: Tensor | None
    finished: bool = True

    @property
    def length(self) -> int:
        """How many steps it took: its tokens, and END where it is finished."""
        return len(self.tokens) + self.finished


STRONGEST = 20  # a length penalty beyond it overflows, and ranks by length alone long before
Lengths = TypeVar("Lengths", float, Tensor)


def penalty(length: Lengths, strength: float) -> Lengths:
    """((5 + length) / 6) ** strength (Wu et al. 2016, arXiv 1609.08144, eq. 14): what a log-probability is divided by.

    length: of the hypothesis, END included; at 1 the penalty is 1.
    strength: 0 ranks by the log-probability alone; 1 nearly by its mean over the tokens.

    >>> penalty(7, 1.0)
    2.0
    """
    return ((5 + length) / 6) ** strength


def penalties(longest: int, strength: float, device: torch.device | str = "cpu") -> Tensor:
    """float64 (longest + 1,): the penalty of every length from 0 on.

    A search compares scores that it computed in different places: one table keeps them equal to the last bit.
    """
    each = [penalty(length, strength) for length in range(longest + 1)]
    return torch.tensor(each, dtype=torch.float64, device=device)


def checked_strength(strength: object) -> float:
    """Of a length penalty, if it is a number that does not overflow."""
    try:
        number = float(strength) if isinstance(strength, Real) and not isinstance(strength, bool) else math.nan
    except OverflowError:  # a whole number beyond the largest float
        number = math.inf
    if not abs(number) <= STRONGEST:
        raise RegardError(
            "length_penalty",
            got=f"{strength!r}",
            needed=f"a number from -{STRONGEST} to {STRONGEST}",
            repair="0 ranks by probability alone, 1 nearly by the mean over tokens.",
        )
    return number


def width_of(beams: int, nbest: int) -> tuple[int, int]:
    """Both as ints, if such a beam can give so many back."""
    beams = count_of("beams", beams, least=1, needed="1 or more", repair="1 is greedy search, 5 is usual.")
    nbest = count_of(
        "nbest",
        nbest,
        least=1,
        most=beams,
        needed=f"1 to {beams}, as many hypotheses as there are beams",
        repair="Raise beams to at least nbest.",
    )
    return beams, nbest


BLOCK = 32
WITHOUT_SIGN = 2**31 - 1


def best_first(log_probabilities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest entries of the last axis, by value and then by index, each (..., count).

    `torch.topk` leaves the order of ties open, and which of them it takes: it differs between devices and sizes.
    Here value and index are one integer, and no two integers are equal. To rank few of them, the axis is cut into
    blocks. The best `count` entries lie in the best `count` blocks, ordered by maximum and then by position: an
    entry of a later block has an entry before it in each of those.

    log_probabilities: (..., vocabulary), compared as float32; what rounding lifted above 0 counts as 0, and a NaN
        too, so that it cannot hide at the end.

    Returns:
        The entries in float32, and their indices.

    >>> best_first(torch.tensor([0.1, 0.4, 0.4, 0.1]).log(), 3)[1]
    tensor([1, 2, 0])
    """
    vocabulary = log_probabilities.shape[-1]
    count = min(count, vocabulary)
    if vocabulary <= BLOCK * count:
        index = torch.arange(vocabulary, device=log_probabilities.device)
        return _ranked(log_probabilities.float(), index.expand(log_probabilities.shape), count)
    highest = _block_maxima(log_probabilities).float()
    block = torch.arange(highest.shape[-1], device=highest.device).expand(highest.shape)
    chosen = _ranked(highest, block, count)[1]
    inside = torch.arange(BLOCK, device=highest.device)
    index = (chosen[..., None] * BLOCK + inside).flatten(-2)
    entries = log_probabilities.gather(-1, index.clamp(max=vocabulary - 1)).float()
    if vocabulary % BLOCK:  # the last block is short
        entries = entries.masked_fill(index >= vocabulary, -torch.inf)
    return _ranked(entries, index, count)


def _block_maxima(entries: Tensor) -> Tensor:
    """(..., vocabulary) -> (..., blocks); a NaN is a maximum."""
    whole = entries.shape[-1] // BLOCK * BLOCK
    maxima = entries[..., :whole].unflatten(-1, (-1, BLOCK)).amax(-1)
    if whole == entries.shape[-1]:
        return maxima
    return torch.cat((maxima, entries[..., whole:].amax(-1, keepdim=True)), -1)


def _ranked(entries: Tensor, index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Best first by (entry, -index), both packed into one integer of 64 bits.

    The bits of a float without its sign grow with its magnitude, and an entry is the better the nearer it is to 0.
    """
    below = entries.nan_to_num(nan=0.0, posinf=0.0, neginf=-torch.inf).clamp_(max=0.0)
    magnitude = below.view(torch.int32).bitwise_and_(WITHOUT_SIGN)
    place = (magnitude.long().bitwise_left_shift_(32) + index).topk(count, largest=False).indices
    return entries.gather(-1, place), index.gather(-1, place)


@dataclass(frozen=True)
class Effort:
    """How a search saves work. Nothing here changes what it finds.

    stop_early: whether a sentence is left as soon as no unfinished beam can still enter its n best.
    look_every: steps between looks at who has finished; each look waits for the device.
    pack_at: the share of finished sentences at which the others are packed together; above 1, never.
    narrow: whether beams that are finished in every sentence are no longer computed.
    """

    stop_early: bool = True
    look_every: int = 1
    pack_at: float = 0.125
    narrow: bool = True

    def __post_init__(self) -> None:
        if self.look_every < 1:
            raise RegardError(
                "look_every",
                got=f"{self.look_every}",
                needed="a number of steps, 1 or more",
                repair="Look at every step on a CPU, seldom on a GPU.",
            )

    @classmethod
    def on(cls, device: torch.device | str) -> Effort:
        """What pays on this device: a CPU saves every row it can, a GPU waits for every answer."""
        return cls() if torch.device(device).type == "cpu" else cls(look_every=8, pack_at=inf, narrow=False)

    def survivors(self, going: Tensor, length: int) -> Tensor | None:
        """The rows to go on with, packed together: none at all when the search is over, None to leave all as they are.

        going: bool (active,), who has not finished after `length` steps.
        """
        if length % self.look_every:
            return None
        count = int(going.sum())
        finished = len(going) - count
        if count and (not finished or finished < self.pack_at * len(going)):
            return None
        return going.nonzero()[:, 0]


NEVER_WRITTEN = (PAD, BEGIN)
MOST_TOKENS = 100_000


@dataclass(frozen=True, eq=False)
class Limits:
    """The rules of one search; lengths count END, as the length penalty does.

    shortest: a sentence may not end with fewer tokens.
    longest: int64 (batch,); a sentence that has not ended at this length is cut off, unfinished.
    most: the largest of them.
    forbidden: int64 (words,), never written.
    """

    shortest: int
    longest: Tensor
    most: int
    forbidden: Tensor

    @classmethod
    def checked(
        cls, batch: int, shortest: int, longest: int | Tensor, forbidden: Sequence[int], device: torch.device | str
    ) -> Limits:
        """The rules as a user writes them."""
        shortest = count_of(
            "shortest",
            shortest,
            least=0,
            most=MOST_TOKENS,
            needed=f"0 to {MOST_TOKENS:,} tokens, END included",
            repair="0 lets all end.",
        )
        given = _lengths_of(longest, batch)
        # Where every sentence has its own longest length, a short one is cut off there all the same.
        if not given.ndim and shortest > int(given):
            raise RegardError(
                "longest",
                got=f"{int(given)}",
                needed=f"at least {shortest}, the shortest length",
                repair="Raise longest or lower shortest.",
            )
        forbidden = _words_of(forbidden)
        if END in forbidden:
            raise RegardError(
                "forbidden",
                got=f"{forbidden}, with END among them",
                needed="words other than END, which every sentence finishes with",
                repair="Use shortest to keep sentences from ending.",
            )
        each = given.to(device=device, dtype=torch.int64).expand(batch)
        words = torch.tensor(forbidden, dtype=torch.int64, device=device)
        return cls(shortest, each, int(given.max()) if batch else 0, words)

    def keep(self, rows: Tensor) -> Limits:
        """The rules for some of the sentences."""
        return replace(self, longest=self.longest[rows])

    def spare(self, length: int) -> int:
        """How many words may be refused at this length: so many more must be looked at."""
        return len(self.forbidden) + (length < self.shortest)

    def refused(self, tokens: Tensor, length: int) -> Tensor:
        """Which of the tokens may not be written as number `length` of their sentence (from 1); shaped as they are."""
        refused = torch.isin(tokens, self.forbidden)
        return refused | (tokens == END) if length < self.shortest else refused


def _words_of(forbidden: object) -> tuple[int, ...]:
    """Tokens, as any sequence of whole numbers."""
    repair = "Pass the ids of the words, for example (0, 2)."
    if not isinstance(forbidden, Iterable):
        raise RegardError("forbidden", got=f"{forbidden!r}", needed="a sequence of tokens", repair=repair)
    return tuple(count_of("forbidden", word, least=0, needed="tokens, from 0 on", repair=repair) for word in forbidden)


def _lengths_of(longest: int | Tensor, batch: int) -> Tensor:
    """One length, or one for each sentence, of any type of whole numbers."""
    if isinstance(longest, Integral) and longest > MOST_TOKENS:
        raise RegardError(
            "longest", got=f"{longest}", needed=f"up to {MOST_TOKENS:,} tokens", repair="No sentence is so long."
        )
    try:
        given = torch.as_tensor(longest)
    except (TypeError, ValueError, RuntimeError):
        given = None
    if given is None or not _are_lengths(given, batch):
        raise RegardError(
            "longest",
            got=f"{longest!r}" if given is None or not given.ndim else describe(given),
            needed=f"a length of at least 1, END included, or an integer tensor of {batch}, one a sentence",
            repair="For example twice the length of the source and ten more.",
        )
    return given


def _are_lengths(given: Tensor, batch: int) -> bool:
    is_whole = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
    return is_whole and given.shape in ((), (batch,)) and (not batch or int(given.min()) >= 1)


@dataclass(frozen=True, eq=False)
class Ends:
    """Where the hypotheses of each sentence end; every tensor is (batch, hypotheses).

    key: float64, what ranks them; -inf where there is none.
    total: float64, the log-probability up to there.
    step: int64, the last step, from 0.
    slot: int64, the beam at that step.
    """

    key: Tensor
    total: Tensor
    step: Tensor
    slot: Tensor

    @classmethod
    def none(cls, batch: int, count: int, device: torch.device | str) -> Ends:
        """Room for `count` hypotheses of each sentence."""
        numbers = torch.full((batch, count), -torch.inf, dtype=torch.float64, device=device)
        places = torch.zeros((batch, count), dtype=torch.int64, device=device)
        return cls(numbers, numbers, places, places)

    def _fields(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.key, self.total, self.step, self.slot

    def keep(self, rows: Tensor) -> Ends:
        """Those of some sentences."""
        return Ends(*(field[rows] for field in self._fields()))

    def put(self, rows: Tensor, ends: Ends) -> Ends:
        """These, with the rows of some sentences replaced."""
        return Ends(*(old.index_copy(0, rows, new) for old, new in zip(self._fields(), ends._fields(), strict=True)))

    def best_with(self, ends: Ends) -> Ends:
        """As many as there is room for, best first; of equal ones the earlier, then the earlier beam."""
        count = self.key.shape[1]
        both = [torch.cat(pair, 1) for pair in zip(self._fields(), ends._fields(), strict=True)]
        order = both[0].sort(dim=1, descending=True, stable=True).indices[:, :count]
        return Ends(*(field.gather(1, order) for field in both))


@dataclass(frozen=True, eq=False)
class _Moment:
    """One step: which sentences took it, what each beam wrote, which beam it came from, where it looked."""

    rows: Tensor
    tokens: Tensor
    parents: Tensor
    weights: Tensor | None


class History:
    """What every step of a search wrote. Weights are kept for every beam, since any may turn out to be the best."""

    def __init__(self) -> None:
        self._moments: list[_Moment] = []

    def write(self, rows: Tensor, tokens: Tensor, parents: Tensor, weights: Tensor | None) -> None:
        """Keep a step.

        rows: int64 (active,), the sentences that took it.
        tokens: int64 (active, beams), what was written.
        parents: int64 (active, beams), the old beam that each continues.
        weights: (active, old beams, source), where the old beams looked to write it.
        """
        self._moments.append(_Moment(rows, tokens, parents, weights))

    def trace(
        self, ends: Ends, strength: float, source_lengths: Tensor | None, *, each: bool = False
    ) -> list[list[Hypothesis]]:
        """The hypotheses that end there, sentence by sentence, scored with the length penalty.

        source_lengths: int64 (batch,), to cut alignments to their sentence. each: every one must have been found, not
        just one for each sentence.
        """
        _check_found(ends, each=each)
        tokens, weights = self._walk_back(ends)
        lengths = ends.step + 1
        scores = (ends.total / penalties(len(self._moments), strength, lengths.device)[lengths]).tolist()
        cuts = None if source_lengths is None else source_lengths.tolist()
        found, written, totals = (ends.key > -torch.inf).tolist(), tokens.tolist(), ends.total.tolist()
        sizes = lengths.tolist()
        results = []
        for row, there in enumerate(found):
            hypotheses = []
            for column, exists in enumerate(there):
                if not exists:
                    continue
                size = sizes[row][column]
                words = tuple(written[row][column][:size])
                finished = words[-1] == END
                alignment = None
                if weights is not None:
                    width = weights.shape[-1] if cuts is None else cuts[row]
                    alignment = weights[row, column, :size, :width].clone()
                hypotheses.append(
                    Hypothesis(
                        words[:-1] if finished else words,
                        scores[row][column],
                        totals[row][column],
                        alignment,
                        finished,
                    )
                )
            results.append(hypotheses)
        return results

    def _walk_back(self, ends: Ends) -> tuple[Tensor, Tensor | None]:
        """Follow the back-pointers of all hypotheses at once: (batch, hypotheses, steps), and the weights beside."""
        batch, count = ends.step.shape
        steps = len(self._moments)
        tokens = ends.step.new_zeros(batch, count, steps)
        weights = self._room_for_weights(batch, count)
        slots = ends.slot
        for step in range(steps - 1, -1, -1):
            moment = self._moments[step]
            rows, here = moment.rows, slots[moment.rows]
            passed = ends.step[rows] >= step  # the others end earlier: their slots stay where they are
            beam = torch.where(passed, here, 0)
            tokens[rows, :, step] = moment.tokens.gather(1, beam)
            old = moment.parents.gather(1, beam)
            if weights is not None and moment.weights is not None:
                source = moment.weights.shape[-1]
                weights[rows, :, step, :source] = moment.weights.gather(1, old[..., None].expand(-1, -1, source))
            slots = slots.index_copy(0, rows, torch.where(passed, old, here))
        return tokens, None if weights is None else weights.cpu()

    def _room_for_weights(self, batch: int, count: int) -> Tensor | None:
        kept = [moment.weights for moment in self._moments if moment.weights is not None]
        if not kept:
            return None
        return kept[0].new_zeros(batch, count, len(self._moments), max(weights.shape[-1] for weights in kept))


def _check_found(ends: Ends, *, each: bool) -> None:
    """Refuse to return nothing for a sentence, as if it had a translation, or fewer than were drawn."""
    missing = ends.key == -torch.inf
    lost = missing.any(1) if each else missing.all(1)
    if bool(lost.any()):
        raise RegardError(
            "log_probabilities",
            got=f"-inf for every word that sentence {int(lost.nonzero()[0])} might have written",
            needed="at least one word that is possible and not forbidden at every step",
            repair="Forbid fewer words, lower shortest, or leave more words possible in the step function.",
        )


# Ranks every unfinished hypothesis after every finished one; the unfinished of a sentence come in order, and a
# stable sort leaves them so.
UNFINISHED = -1e300


@dataclass(frozen=True, eq=False)
class Chosen:
    """The proposals that a step accepted, each (active, beams): those that go on, best first, then the others.

    A total of -inf is an empty place.
    """

    totals: Tensor
    tokens: Tensor
    parents: Tensor


@dataclass(frozen=True, eq=False)
class Contest:
    """The sentences that are still being searched.

    rows: int64 (active,), their numbers in the batch.
    totals: float64 (active, beams), log-probabilities so far; -inf in a place that is finished or empty.
    places: int64 (active, 1), how many beams are not finished.
    ends: (active, nbest), the best hypotheses so far.
    broken: bool (active,), who has met a NaN.
    beams: how many places a sentence has at first.
    penalties: float64 (longest + 2,), what a total of each length is divided by.
    """

    rows: Tensor
    totals: Tensor
    places: Tensor
    ends: Ends
    broken: Tensor
    limits: Limits
    beams: int
    penalties: Tensor

    @classmethod
    def begin(
        cls, batch: int, beams: int, nbest: int, strength: float, limits: Limits, device: torch.device | str
    ) -> Contest:
        """All sentences with one beam, before the first word."""
        return cls(
            rows=torch.arange(batch, device=device),
            totals=torch.zeros((batch, 1), dtype=torch.float64, device=device),
            places=torch.full((batch, 1), beams, device=device),
            ends=Ends.none(batch, nbest, device),
            broken=torch.zeros(batch, dtype=torch.bool, device=device),
            limits=limits,
            beams=beams,
            penalties=penalties(limits.most + 1, strength, device),
        )

    @property
    def going(self) -> Tensor:
        """bool (active,): who has a beam that goes on."""
        return self.totals.amax(1) > -torch.inf

    def choose(self, stepped: Stepped, length: int) -> Chosen:
        """The best proposals of all beams, by (total, -token, -beam); as many as there are places."""
        words, tokens = best_first(stepped.log_probabilities, self.beams + self.limits.spare(length))
        # Rounding may lift a certain word above 0, and a total that rose would outrun the bound of an early stop.
        totals = self.totals[..., None] + words.clamp(max=0.0)
        refused = self.limits.refused(tokens, length) & ~words.isnan()  # a NaN is let through, to be reported
        idle = (self.totals == -torch.inf)[..., None]
        totals, tokens = totals.masked_fill(idle | refused, -torch.inf).flatten(1), tokens.flatten(1)
        beam = torch.arange(self.totals.shape[1], device=tokens.device).repeat_interleave(words.shape[-1])
        # Three keys by two stable sorts: proposals stand in the order of their beams already.
        by_token = tokens.argsort(dim=1, stable=True)
        totals, order = totals.gather(1, by_token).sort(dim=1, descending=True, stable=True)
        order = by_token.gather(1, order[:, : self.beams])
        totals = totals[:, : self.beams]
        rank = torch.arange(totals.shape[1], device=tokens.device)
        totals = totals.masked_fill(rank >= self.places, -torch.inf)
        return self._arranged(Chosen(totals, tokens.gather(1, order), beam[order]), length)

    def _arranged(self, chosen: Chosen, length: int) -> Chosen:
        """The same, with those that go on in front."""
        stays = (chosen.totals == -torch.inf) | (chosen.tokens == END) | (self.limits.longest == length)[:, None]
        order = stays.to(torch.uint8).argsort(dim=1, stable=True)
        return Chosen(*(field.gather(1, order) for field in (chosen.totals, chosen.tokens, chosen.parents)))

    def after(self, chosen: Chosen, length: int, *, stop_early: bool) -> Contest:
        """The contest after a step: some have finished, some are cut off, some have no chance left."""
        there = chosen.totals > -torch.inf
        ended = there & (chosen.tokens == END)
        cut = there & ~ended & (self.limits.longest == length)[:, None]
        scores = chosen.totals / self.penalties[length]
        key = scores.masked_fill(~ended, -torch.inf).masked_fill(cut, UNFINISHED)
        step = torch.full_like(chosen.tokens, length - 1)
        slot = torch.arange(key.shape[1], device=key.device).expand(key.shape)
        ends = self.ends.best_with(Ends(key, chosen.totals, step, slot))
        totals = chosen.totals.masked_fill(ended | cut, -torch.inf)
        if stop_early:
            hopeless = self._last_chance(totals, length) <= ends.key[:, -1:]
            totals = totals.masked_fill(hopeless, -torch.inf)
        return replace(
            self,
            totals=totals,
            places=self.places - ended.sum(1, keepdim=True),
            ends=ends,
            broken=self.broken | chosen.totals.isnan().any(1),
        )

    def narrowed(self) -> Contest:
        """The contest without the places that no sentence uses any more; it waits for the device."""
        # Who goes on stands in front, best first, and who has no chance left is the last of them.
        width = max(1, int((self.totals > -torch.inf).sum(1).amax())) if len(self.totals) else 1
        return replace(self, totals=self.totals[:, :width])

    def _last_chance(self, totals: Tensor, length: int) -> Tensor:
        """No score above this is left to a beam: (active, beams).

        A total cannot rise, and total / penalty is monotone in the length: its maximum stands at one of the ends.
        """
        at_longest = self.penalties[self.limits.longest][:, None]
        return torch.maximum(totals / self.penalties[length + 1], totals / at_longest)

    def keep(self, kept: Tensor) -> Contest:
        """The contest of some of the sentences."""
        return replace(
            self,
            rows=self.rows[kept],
            totals=self.totals[kept],
            places=self.places[kept],
            ends=self.ends.keep(kept),
            broken=self.broken[kept],
            limits=self.limits.keep(kept),
        )


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


@torch.no_grad()
def greedy(
    step: Step,
    state: State,
    batch: int,
    *,
    longest: int | Tensor,
    length_penalty: float = 1.0,
    shortest: int = 0,
    forbidden: Sequence[int] = NEVER_WRITTEN,
    source_lengths: Tensor | None = None,
    device: torch.device | str = "cpu",
    effort: Effort | None = None,
) -> list[Hypothesis]:
    """One translation of every sentence, written a most probable word at a time; of equal words the smaller token.

    It is `beam` with one beam, number for number, without what only several beams need. The arguments are the same;
    the length penalty enters the score alone.
    """
    strength = checked_strength(length_penalty)
    limits = Limits.checked(batch, shortest, longest, forbidden, device)

    def choose(log_probabilities: Tensor, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        words, tokens = best_first(log_probabilities, 1 + limits.spare(length))
        allowed = ~limits.refused(tokens, length) | words.isnan()  # a NaN is let through, to be reported
        first = allowed.to(torch.uint8).argmax(-1, keepdim=True)  # of equal ones argmax gives the first
        return words.gather(-1, first)[..., 0], tokens.gather(-1, first)[..., 0]

    effort = Effort.on(device) if effort is None else effort
    history, ends = walk(step, state, batch, choose, count=1, limits=limits, effort=effort)
    return [hypotheses[0] for hypotheses in history.trace(ends, strength, source_lengths)]


@torch.no_grad()
def sample(
    step: Step,
    state: State,
    batch: int,
    *,
    longest: int | Tensor,
    generator: torch.Generator,
    count: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    length_penalty: float = 0.0,
    shortest: int = 0,
    forbidden: Sequence[int] = NEVER_WRITTEN,
    source_lengths: Tensor | None = None,
    device: torch.device | str = "cpu",
    effort: Effort | None = None,
) -> list[list[Hypothesis]]:
    """Draw `count` translations of every sentence, independent of each other, in the order drawn.

    Args:
        step: tokens int64 (batch, beams), state -> Stepped.
        state: of all sentences, with one beam, before BEGIN is read.
        batch: how many sentences there are.
        longest: the most tokens of a hypothesis, END included; one number, or int64 (batch,).
        generator: where chance comes from; one number is drawn for each sentence, walk and step.
        count: how many translations are drawn for each sentence.
        temperature: log-probabilities are divided by it: below 1 sharper, above 1 flatter.
        top_k: draw among the k most probable words only; of equal words the smaller token.
        top_p: draw among the fewest most probable words that hold at least this probability together.
        length_penalty: for the score alone.
        shortest: the fewest tokens of a hypothesis, END included.
        forbidden: words that are never written.
        source_lengths: int64 (batch,), to cut alignments to their sentence.
        device: where the step function expects its tokens.
        effort: how work is saved; without it, what pays on the device.

    Returns:
        For each sentence its hypotheses; log-probabilities are the model's own, whatever the temperature.
    """
    count = _checked_wishes(count, temperature, top_k, top_p)
    strength = checked_strength(length_penalty)
    limits = Limits.checked(batch, shortest, longest, forbidden, device)

    def choose(log_probabilities: Tensor, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        # Drawn for the whole batch, so that who has finished already does not shift the numbers of the others.
        chance = torch.rand(batch, count, 1, generator=generator, device=generator.device, dtype=torch.float64)
        forbidden = limits.forbidden[limits.forbidden < log_probabilities.shape[-1]]
        allowed = log_probabilities.float().index_fill(-1, forbidden, -torch.inf)
        if length < limits.shortest:
            allowed[..., END] = -torch.inf
        # Below the most probable word, so that no temperature makes all of them impossible.
        below = (allowed - allowed.amax(-1, keepdim=True)).double()
        probability = restrict(below / temperature, top_k, top_p).softmax(-1)
        tokens = _draw(probability, chance.to(device)[rows])
        words = allowed.gather(-1, tokens)[..., 0]
        return words.masked_fill(log_probabilities.isnan().any(-1), torch.nan), tokens[..., 0]

    effort = Effort.on(device) if effort is None else effort
    history, ends = walk(step, state, batch, choose, count=count, limits=limits, effort=effort)
    return history.trace(ends, strength, source_lengths, each=True)


def restrict(log_probabilities: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """The distribution with unlikely words at -inf: (..., vocabulary) -> (..., vocabulary).

    >>> restrict(torch.tensor([0.5, 0.3, 0.2]).log(), None, 0.6).exp()
    tensor([0.5000, 0.3000, 0.0000])
    """
    if top_k is None and top_p is None:
        return log_probabilities
    ranked, order = log_probabilities.sort(dim=-1, descending=True, stable=True)
    dropped = torch.zeros_like(ranked, dtype=torch.bool)
    if top_k is not None:
        dropped[..., top_k:] = True
    if top_p is not None:
        share = ranked.double().softmax(-1)
        dropped |= share.cumsum(-1) - share >= top_p  # what the better words hold is enough already
    return log_probabilities.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -torch.inf)


def _draw(probability: Tensor, chance: Tensor) -> Tensor:
    """The word at which the running sum passes `chance` of the total; a word of probability 0 is never drawn.

    probability: float64 (..., vocabulary). chance: float64 (..., 1), in [0, 1). Returns int64 (..., 1).
    """
    running = probability.cumsum(-1)
    drawn = torch.searchsorted(running, chance * running[..., -1:], right=True)
    return drawn.clamp(max=probability.shape[-1] - 1)  # of a NaN; it is reported with the totals


def _checked_wishes(count: int, temperature: float, top_k: int | None, top_p: float | None) -> int:
    """How many are drawn, if all wishes can be fulfilled."""
    if not _is_number(temperature) or not 0 < temperature < torch.inf:
        raise RegardError(
            "temperature",
            got=f"{temperature!r}",
            needed="a number above 0",
            repair="Towards 0 it is greedy search: use greedy for that; 1 is the model's own distribution.",
        )
    if top_k is not None:
        count_of("top_k", top_k, least=1, needed="1 or more words", repair="Pass None for all of them.")
    if top_p is not None and not (_is_number(top_p) and 0 < top_p <= 1):
        raise RegardError("top_p", got=f"{top_p!r}", needed="above 0, up to 1", repair="Pass None for all words.")
    return count_of("count", count, least=1, needed="1 or more", repair="Say how many translations to draw.")


def _is_number(given: object) -> bool:
    return isinstance(given, Real) and not isinstance(given, bool)


@dataclass(frozen=True, eq=False)
class States:
    """The states of several models, side by side: the state of their ensemble."""

    each: tuple[State, ...]

    def reorder(self, beams: Tensor) -> States:
        """Every state reordered; beams: int64 (batch, new beams)."""
        return States(tuple(state.reorder(beams) for state in self.each))

    def keep(self, rows: Tensor) -> States:
        """Every state with some sentences alone; rows: int64 (kept,)."""
        return States(tuple(state.keep(rows) for state in self.each))


def ensemble(steps: Sequence[Step]) -> Step:
    """The step function of several models: log of the mean of their probabilities; its state is `States`.

    Attention weights are the mean over the models that have them, so the models must read the same source tokens;
    vocabularies must be the same too.
    """
    if not steps:
        raise RegardError(
            "steps", got="no step function", needed="one for each model", repair="Pass the steps of at least one model."
        )

    def step(tokens: Tensor, state: State) -> Stepped:
        if not isinstance(state, States) or len(state.each) != len(steps):
            raise RegardError(
                "state",
                got=f"{type(state).__name__}",
                needed=f"States with the states of {len(steps)} models, in the order of their steps",
                repair="Pass States((state_of_first, state_of_second, ...)).",
            )
        every = [one(tokens, its) for one, its in zip(steps, state.each, strict=True)]
        return Stepped(_log_mean(every), _mean_weights(every), States(tuple(one.state for one in every)))

    return step


def _log_mean(every: Sequence[Stepped]) -> Tensor:
    """log(mean of probabilities), without a table of all models at once."""
    total = every[0].log_probabilities
    for number, one in enumerate(every[1:], 1):
        if one.log_probabilities.shape != total.shape:
            raise RegardError(
                "steps",
                got=f"log-probabilities of {describe(total)} from model 0, {describe(one.log_probabilities)} "
                f"from model {number}",
                needed="the same vocabulary in every model",
                repair="Train the models of an ensemble with one vocabulary.",
            )
        total = torch.logaddexp(total, one.log_probabilities)
    return total - log(len(every)) if len(every) > 1 else total


def _mean_weights(every: Sequence[Stepped]) -> Tensor | None:
    weights = [one.weights for one in every if one.weights is not None]
    if any(one.shape != weights[0].shape for one in weights):
        raise RegardError(
            "weights",
            got=f"attention over {' and '.join(str(one.shape[-1]) for one in weights)} source tokens",
            needed="the same source tokens in every model",
            repair="Use models that share their source vocabulary.",
        )
    return torch.stack(weights).mean(0) if weights else None


@dataclass(frozen=True, eq=False)
class Forced:
    """What a model thinks of given targets; END is their last token.

    log_probabilities: (batch, target + 1), of every token given those before it; 0 after END.
    lengths: int64 (batch,), tokens with END.
    weights: (batch, target + 1, source), the attention of every step, 0 after END; None without attention.
    """

    log_probabilities: Tensor
    lengths: Tensor
    weights: Tensor | None

    @property
    def totals(self) -> Tensor:
        """(batch,), the log-probability of every target; float64."""
        return self.log_probabilities.double().sum(1)

    def scores(self, length_penalty: float) -> Tensor:
        """(batch,), what `beam` would rank the targets by."""
        return self.totals / penalty(self.lengths.double(), length_penalty)

    def alignment(self, sentence: int, source_length: int | None = None) -> Tensor | None:
        """(tokens + 1, source), of one sentence alone."""
        if self.weights is None:
            return None
        return self.weights[sentence, : int(self.lengths[sentence]), :source_length]


def forced(step: Step, state: State, targets: Tensor, lengths: Tensor) -> Forced:
    """Read given targets, each after BEGIN and to its END.

    It is differentiable where the step function is.

    Args:
        step: tokens int64 (batch, beams), state -> Stepped.
        state: of all sentences, with one beam, before BEGIN is read.
        targets: int64 (batch, target), without BEGIN and END, padded with anything.
        lengths: int64 (batch,), how many tokens each has.
    """
    _check_targets(targets, lengths)
    device = targets.device
    batch, longest = len(targets), int(lengths.max()) if len(targets) else 0
    lengths = lengths.to(device)
    position = torch.arange(longest + 1, device=device)
    wanted = torch.cat((targets[:, :longest], targets.new_zeros(batch, 1)), 1)
    wanted = wanted.masked_fill(position >= lengths[:, None], END)  # also what is read after the end, unheard
    read = torch.full((batch, 1), BEGIN, device=device)
    words, weights = [], []
    for column in range(longest + 1 if batch else 0):
        stepped = step(read, state)
        check_shape(stepped.log_probabilities, batch, 1)
        if column == 0:
            check_normalised(stepped.log_probabilities)
        read, state = wanted[:, column, None], stepped.state
        words.append(stepped.log_probabilities.gather(2, read[..., None])[:, 0, 0].float())
        if stepped.weights is not None:
            weights.append(stepped.weights[:, 0])
    after = position > lengths[:, None]
    scores = torch.stack(words, 1) if words else torch.zeros(batch, longest + 1, device=device)
    scores = scores.masked_fill(after, 0.0)
    check_numbers(scores.isnan().any(1), torch.arange(batch, device=device), longest + 1)
    looked = torch.stack(weights, 1).masked_fill(after[..., None], 0.0) if weights else None
    return Forced(scores, lengths + 1, looked)


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
