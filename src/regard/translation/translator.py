"""Sentences in, translations with alignments out: one model, or several that agree on a word at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.translation import model_folder
from regard.translation.alignment import Alignment
from regard.translation.batching import batches_by_length, pad
from regard.translation.model_folder import Loaded
from regard.translation.options import count_of
from regard.translation.search import (
    MOST_TOKENS,
    Hypothesis,
    Limits,
    State,
    States,
    Step,
    beam,
    checked_strength,
    ensemble,
    forced,
    greedy,
    width_of,
)
from regard.translation.text import normalise
from regard.translation.vocabulary import END, Vocabulary


@dataclass(frozen=True, eq=False)
class Sentence:
    """Text and tokens.

    text: as `normalise` leaves it.
    ids: its tokens, without BEGIN and END.
    vocabulary: what the ids are numbers in.
    """

    text: str
    ids: tuple[int, ...]
    vocabulary: Vocabulary

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """Each token in print; ▁ is a blank."""
        return tuple(self.vocabulary.pieces(self.ids))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """What stands between blanks; a word that the vocabulary cannot spell is shown as it was written."""
        written, spelt = self.text.split(), self.vocabulary.decode(self.ids).split()
        # They differ where the text has a sign that the vocabulary takes for a blank.
        return tuple(written if len(written) == len(spelt) else spelt)

    @cached_property
    def word_of_each(self) -> tuple[int, ...]:
        """For each token the number of its word; -1 for none."""
        return tuple(self.vocabulary.words(self.ids))


@dataclass(frozen=True, eq=False)
class Translation:
    """One translation of one sentence.

    source, target: both sentences with their tokens.
    score: what ranks it: its log-probability, divided by the length penalty.
    log_probability: of all its tokens, END included.
    finished: whether the model ended it; else it was cut off at the longest length.
    weights: (target tokens + 1, source tokens + 1), the attention of every step, END last on both sides; one row less
        when it is unfinished, None without attention.
    others: further translations of the sentence, the next best first.
    """

    source: Sentence
    target: Sentence
    score: float
    log_probability: float
    finished: bool = True
    weights: Tensor | None = None
    others: tuple[Translation, ...] = ()

    @property
    def text(self) -> str:
        """The translation."""
        return self.target.text

    @property
    def tokens(self) -> tuple[str, ...]:
        """The translation's tokens in print; ▁ is a blank."""
        return self.target.pieces

    @property
    def length(self) -> int:
        """How many tokens the model chose: those of the text, and END where it is finished."""
        return len(self.target.ids) + self.finished

    @cached_property
    def alignment(self) -> Alignment | None:
        """How much each word of the target looked at each word of the source.

        None where there is nothing to tell: a model without attention, or an empty source.
        """
        if self.weights is None:
            return None
        return Alignment.from_tokens(
            self.weights,
            source_words=self.source.words,
            target_words=self.target.words,
            source_word_of_each=self.source.word_of_each,
            target_word_of_each=self._of_every_row(self.target.word_of_each),
        )

    @cached_property
    def alignment_of_tokens(self) -> Alignment | None:
        """The same token by token, for text that has no blanks between its words."""
        if self.weights is None:
            return None
        rows, columns = len(self.target.pieces), len(self.source.pieces)
        return Alignment(self.source.pieces, self.target.pieces, self.weights[:rows, :columns])

    def _of_every_row(self, words: tuple[int, ...]) -> tuple[int, ...]:
        """With -1 for the row of END."""
        return (*words, -1) if self.finished else words


# What a command takes.
MOST_AT_ONCE, MOST_BEAMS = 2**20, 1000


@dataclass(frozen=True)
class Search:
    """How to search, as `Translator.translate` explains it; strength: of the length penalty."""

    beams: int
    nbest: int
    strength: float
    shortest: int
    longest: int | None
    batch_size: int

    @classmethod
    def checked(
        cls, beams: int, nbest: int, strength: object, shortest: int, longest: int | None, batch_size: int
    ) -> Self:
        """As a user writes it: refused at once, and not only when a sentence comes."""
        limits = Limits.checked(1, shortest, MOST_TOKENS if longest is None else longest, (), "cpu")
        return cls(
            *width_of(beams, nbest),
            strength=strength_of(strength),
            shortest=limits.shortest,
            longest=None if longest is None else limits.most,
            batch_size=batch_size_of(batch_size),
        )


def sentences_in(argument: str, texts: Iterable[str]) -> Iterator[str]:
    """The sentences one by one; a single string, or anything that is none, is refused."""
    try:
        coming = None if isinstance(texts, str) else iter(texts)
    except TypeError:
        coming = None
    if coming is None:
        raise RegardError(
            argument,
            got="one string" if isinstance(texts, str) else type(texts).__name__,
            needed="a list of sentences",
            repair="Pass [sentence] for a single one.",
        )
    return _strings_in(argument, coming)


def _strings_in(argument: str, texts: Iterator[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise RegardError(
                argument,
                got=f"{type(text).__name__} at number {number}",
                needed="sentences as strings",
                repair="Read files as UTF-8 text and leave out missing values.",
            )
        yield text


def strength_of(strength: object) -> float:
    """Of a length penalty; 1 where none is given."""
    return 1.0 if strength is None else checked_strength(strength)


def batch_size_of(batch_size: int) -> int:
    """Of a batch with a sentence in it."""
    return count_of("batch_size", batch_size, least=1, needed="1 or more", repair="64 suits most machines.")


def check_effort(beams: int, batch_size: int) -> None:
    """Refuse what a command would not come back from."""
    for argument, number, most, usual in (
        ("batch_size", batch_size, MOST_AT_ONCE, 64),
        ("beams", beams, MOST_BEAMS, 5),
    ):
        if not 1 <= number <= most:
            raise RegardError(
                argument, got=str(number), needed=f"from 1 to {most:,}", repair=f"Leave it out for {usual}."
            )


def check_models(models: Sequence[Loaded]) -> None:
    """Refuse models that cannot vote on one word."""
    if not models:
        raise RegardError("models", got="none", needed="at least one model", repair="Pass a model folder.")
    first = models[0]
    for number, other in enumerate(models[1:], 2):
        for side in ("source", "target"):
            mine, its = (getattr(loaded, f"{side}_vocabulary") for loaded in (first, other))
            if mine.to_bytes() != its.to_bytes():
                raise RegardError(
                    "models",
                    got=f"another {side} vocabulary in model {number} than in the first",
                    needed="one vocabulary for all models of an ensemble",
                    repair="Train them on the same data with different seeds.",
                )


def usable_device(device: torch.device | str) -> torch.device:
    """The device, if numbers can be written to it and read back."""
    try:
        wanted = torch.device(device)
        torch.zeros(1, device=wanted).item()
    except (RuntimeError, AssertionError):
        raise RegardError(
            "device",
            got=f"{str(device)!r}",
            needed="a device that torch can use here",
            repair='Pass "cpu", or see what regard doctor finds.',
        ) from None
    return wanted


BATCH_SIZE = 64
MOST_RATIO = 100.0  # of target to source tokens, that a model folder is believed
# How many sentences a stream reads ahead: enough to put sentences of one length together.
AHEAD = 1024


class Translator:
    """A trained model, or an ensemble, ready to translate.

    A translation does not depend on the other sentences of a call, nor on the size of the batches.

    models: as `model_folder.load` gives them; several must have the same vocabularies. They translate in evaluation
        mode; a model that is in training mode is put back into it afterwards.
    """

    def __init__(self, models: Sequence[Loaded]) -> None:
        check_models(models)
        self.models = tuple(models)
        self.device = next(models[0].model.parameters()).device
        steps = [cast(Step, loaded.model.step) for loaded in models]  # each with its own kind of state
        self._step = steps[0] if len(steps) == 1 else ensemble(steps)

    @classmethod
    def load(cls, *folders: Path | str, device: torch.device | str = "cpu") -> Translator:
        """Read a model folder; of several, an ensemble whose probabilities are the mean of its models'."""
        device = usable_device(device)
        return cls([model_folder.load(path, device) for path in folders])

    @property
    def source_vocabulary(self) -> Vocabulary:
        """Of the sentences that are read."""
        return self.models[0].source_vocabulary

    @property
    def target_vocabulary(self) -> Vocabulary:
        """Of the sentences that are written."""
        return self.models[0].target_vocabulary

    @property
    def length_penalty(self) -> float:
        """The strength that was found best on validation data, for the first model; 1 where none was stored."""
        return strength_of(self.models[0].facts.get("length_penalty"))

    def translate(
        self,
        sentences: Iterable[str],
        *,
        beams: int = 5,
        nbest: int = 1,
        length_penalty: float | None = None,
        shortest: int = 0,
        longest: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> list[Translation]:
        """Translate sentences; the results are in their order.

        The translation of an empty sentence is empty.

        Args:
            sentences: each is normalised as the training data were.
            beams: how many hypotheses are followed at a time; 1 is greedy search.
            nbest: how many translations are kept of each sentence, at most `beams`; see `Translation.others`.
            length_penalty: the strength with which long translations are favoured; without it `self.length_penalty`.
            shortest: the fewest tokens of a translation, END included.
            longest: the most tokens of a translation, END included; without it what the
                training data allow, at least twice those of the source and 10.
            batch_size: how many sentences are translated at a time.
        """
        strength = self.length_penalty if length_penalty is None else length_penalty
        search = Search.checked(beams, nbest, strength, shortest, longest, batch_size)
        return self._translate(sentences_in("sentences", sentences), search)

    def stream(
        self,
        sentences: Iterable[str],
        *,
        beams: int = 5,
        nbest: int = 1,
        length_penalty: float | None = None,
        shortest: int = 0,
        longest: int | None = None,
        batch_size: int = BATCH_SIZE,
        ahead: int = AHEAD,
    ) -> Iterator[Translation]:
        """Translate sentences as they come, in order and in constant memory.

        Arguments are those of `translate`, and `ahead`: so many sentences are read before the first is translated,
        since sentences of one length are translated fastest together.
        """
        strength = self.length_penalty if length_penalty is None else length_penalty
        search = Search.checked(beams, nbest, strength, shortest, longest, batch_size)
        ahead = count_of("ahead", ahead, least=1, needed="1 or more sentences", repair="Leave it out.")
        return self._stream(sentences_in("sentences", sentences), search, ahead)

    def force(
        self, sources: Iterable[str], targets: Iterable[str], *, batch_size: int = BATCH_SIZE
    ) -> list[Translation]:
        """Given translations as the model sees them: their probability and alignment; the score is the former."""
        batch_size = batch_size_of(batch_size)
        read = self._sentences(sentences_in("sources", sources), self.source_vocabulary)
        given = self._sentences(sentences_in("targets", targets), self.target_vocabulary)
        if len(read) != len(given):
            raise RegardError(
                "targets",
                got=f"{len(given)} for {len(read)} sources",
                needed="one for each source",
                repair="Check that both files have the same lines.",
            )
        results: dict[int, Translation] = {}
        with torch.inference_mode(), self._evaluation_mode():
            for rows in batches_by_length([len(sentence.ids) for sentence in given], batch_size):
                state, lengths = self._start([read[row] for row in rows])
                targets_, sizes = pad([given[row].ids for row in rows], self.device)
                seen = forced(self._step, state, targets_, sizes)
                totals, cuts = seen.totals.tolist(), lengths.tolist()
                for place, row in enumerate(rows):
                    weights = seen.alignment(place, cuts[place])
                    weights = None if weights is None else weights.cpu()
                    total = totals[place]
                    results[row] = Translation(read[row], given[row], total, total, weights=weights)
        return [results[row] for row in range(len(read))]

    def score(self, sources: Iterable[str], targets: Iterable[str], *, batch_size: int = BATCH_SIZE) -> list[float]:
        """The log-probability of each given translation, its END included."""
        return [given.log_probability for given in self.force(sources, targets, batch_size=batch_size)]

    def perplexity(self, sources: Iterable[str], targets: Iterable[str], *, batch_size: int = BATCH_SIZE) -> float:
        """exp(- mean log-probability of a token), over all tokens of the given translations, END included."""
        return perplexity(self.force(sources, targets, batch_size=batch_size))

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Put every module that is in training mode into evaluation mode, and back at the end."""
        training = [module for loaded in self.models for module in loaded.model.modules() if module.training]
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True

    def _sentences(self, texts: Iterable[str], vocabulary: Vocabulary) -> list[Sentence]:
        clean = [normalise(text) for text in texts]
        ids = vocabulary.encode_all(clean)
        return [Sentence(text, tuple(tokens), vocabulary) for text, tokens in zip(clean, ids, strict=True)]

    def _translate(self, texts: Iterable[str], search: Search) -> list[Translation]:
        sources = self._sentences(texts, self.source_vocabulary)
        results = [_empty(source, self.target_vocabulary) for source in sources]
        spoken = [index for index, source in enumerate(sources) if source.ids]
        with torch.inference_mode(), self._evaluation_mode():
            for batch in batches_by_length([len(sources[index].ids) for index in spoken], search.batch_size):
                rows = [spoken[place] for place in batch]
                found = self._search([sources[row] for row in rows], search)
                for row, hypotheses in zip(rows, found, strict=True):
                    results[row] = self._translation(sources[row], hypotheses)
        return results

    def _stream(self, coming: Iterator[str], search: Search, ahead: int) -> Iterator[Translation]:
        while chunk := list(islice(coming, ahead)):
            yield from self._translate(chunk, search)

    def _search(self, sources: Sequence[Sentence], search: Search) -> list[list[Hypothesis]]:
        state, lengths = self._start(sources)
        shortest, longest = search.shortest, search.longest
        most = self._most(lengths).clamp_(min=shortest) if longest is None else longest
        count, device = len(sources), self.device
        if search.beams == 1:
            found = greedy(
                self._step,
                state,
                count,
                shortest=shortest,
                longest=most,
                length_penalty=search.strength,
                source_lengths=lengths,
                device=device,
            )
            return [[one] for one in found]
        return beam(
            self._step,
            state,
            count,
            shortest=shortest,
            longest=most,
            beams=search.beams,
            nbest=search.nbest,
            length_penalty=search.strength,
            source_lengths=lengths,
            device=device,
        )

    def _most(self, lengths: Tensor) -> Tensor:
        """How long a translation may grow: as long as the training data say, at least twice the source and 8 more."""
        ratios = [_ratio(loaded.facts.get("target_per_source")) for loaded in self.models]
        return (max(2.0, *ratios) * lengths).ceil().long() + 8

    def _start(self, sources: Sequence[Sentence]) -> tuple[State, Tensor]:
        """Where every model stands before the first word, and the lengths of the sources, int64 (batch,)."""
        ids, lengths = pad([[*source.ids, END] for source in sources], self.device)
        states: list[State] = [loaded.model.start(ids, lengths) for loaded in self.models]
        return (states[0] if len(states) == 1 else States(tuple(states))), lengths

    def _translation(self, source: Sentence, hypotheses: Sequence[Hypothesis]) -> Translation:
        best, *others = (
            Translation(
                source,
                Sentence(self.target_vocabulary.decode(found.tokens), found.tokens, self.target_vocabulary),
                found.score,
                found.log_probability,
                found.finished,
                found.alignment,
            )
            for found in hypotheses
        )
        return replace(best, others=tuple(others))


def perplexity(given: Sequence[Translation]) -> float:
    """exp(- mean log-probability of a token), END included, over all translations."""
    tokens = sum(one.length for one in given)
    if not tokens:
        raise RegardError("targets", got="none", needed="at least one sentence", repair="Check the file.")
    mean = math.fsum(one.log_probability for one in given) / tokens
    try:
        return math.exp(-mean)
    except OverflowError:  # a token that the model holds to be impossible
        return math.inf


def _empty(source: Sentence, vocabulary: Vocabulary) -> Translation:
    return Translation(source, Sentence("", (), vocabulary), score=0.0, log_probability=0.0)


def _ratio(told: object) -> float:
    """What a model folder says of target tokens for each source token; 2 where it says nothing."""
    is_number = isinstance(told, int | float) and not isinstance(told, bool)
    return float(told) if is_number and 0 < told < MOST_RATIO else 2.0
