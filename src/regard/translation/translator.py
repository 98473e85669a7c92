"""Sentences in, translations with alignments out: one model, or an ensemble."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.translation.alignment import Alignment
from regard.translation.batching import batches_by_length, pad
from regard.translation.model_folder import TrainedModel
from regard.translation.options import MAX_LENGTH, SearchOptions, checked_length_penalty, whole_number
from regard.translation.search import (
    EnsembleState,
    Hypothesis,
    State,
    Step,
    beam_search,
    ensemble,
    score_targets,
)
from regard.translation.text import normalise
from regard.translation.vocabulary import END, Vocabulary

BATCH_SIZE = SearchOptions.batch_size
MAX_LENGTH_RATIO = 100.0
"""If a model folder has a larger ratio of target to source tokens, 2 is used instead."""
READ_AHEAD = 1024
"""Sentences that a stream reads ahead: enough to find sentences of equal length."""


@dataclass(frozen=True, eq=False)
class Sentence:
    """A sentence and its tokens, as a model reads or writes it.

    Attributes:
        text: the normalised text.
        ids: its tokens, without BEGIN and END.
        vocabulary: the vocabulary of the ids.
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
        """The words between blanks. A word that the vocabulary cannot spell is shown as it was written."""
        written, spelt = self.text.split(), self.vocabulary.decode(self.ids).split()
        # They differ if the text contains a character that the vocabulary reads as a blank.
        return tuple(written if len(written) == len(spelt) else spelt)

    @cached_property
    def word_indices(self) -> tuple[int, ...]:
        """For each token the number of its word; -1 for none."""
        return tuple(self.vocabulary.word_indices(self.ids))


@dataclass(frozen=True, eq=False)
class Translation:
    """One translation of one sentence.

    Attributes:
        source: the sentence that was read.
        target: the sentence that was written.
        score: the log-probability divided by the length penalty; translations are ranked by it.
        log_probability: of all tokens, END included.
        finished: whether the model wrote END; otherwise the translation was cut off at its maximum length.
        weights: (target tokens + 1, source tokens + 1), the attention weights of each step, END last on both sides;
            one row less if the translation is unfinished. None without attention.
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
        """Number of tokens that the model wrote: those of the text, and END if the translation is finished."""
        return len(self.target.ids) + self.finished

    @cached_property
    def alignment(self) -> Alignment | None:
        """How much each target word attended to each source word.

        None for a model without attention, and for an empty source.
        """
        if self.weights is None:
            return None
        end = (-1,) if self.finished else ()  # the row of END belongs to no word
        return Alignment.from_tokens(
            self.weights,
            source_words=self.source.words,
            target_words=self.target.words,
            source_word_indices=self.source.word_indices,
            target_word_indices=(*self.target.word_indices, *end),
        )

    @cached_property
    def alignment_of_tokens(self) -> Alignment | None:
        """Like `alignment`, but between tokens instead of words, for text without blanks between words."""
        if self.weights is None:
            return None
        rows, columns = len(self.target.pieces), len(self.source.pieces)
        return Alignment(self.source.pieces, self.target.pieces, self.weights[:rows, :columns])


class Translator:
    """A trained model, or an ensemble, ready to translate.

    A translation does not depend on the other sentences of a call, nor on the batch size. The models translate in
    evaluation mode; a model that is in training mode is put back into it afterwards.

    Args:
        models: the models of the ensemble, which must have the same vocabularies.
    """

    def __init__(self, models: Sequence[TrainedModel]) -> None:
        check_same_vocabularies(models)
        self.models = tuple(models)
        self.device = next(models[0].model.parameters()).device
        steps = [cast(Step, trained.model.step) for trained in models]  # each has its own type of state
        self._step = steps[0] if len(steps) == 1 else ensemble(steps)

    @classmethod
    def load(cls, *folders: Path | str, device: torch.device | str = "cpu") -> Translator:
        """Read a model folder, or several for an ensemble, whose probabilities are the mean of its models'.

        Args:
            *folders: the model folders.
            device: where to translate.

        Returns:
            The translator.

        Raises:
            RegardError: if a folder is damaged, or the device cannot be used.
        """
        device = usable_device(device)
        return cls([TrainedModel.load(folder, device) for folder in folders])

    @property
    def source_vocabulary(self) -> Vocabulary:
        """The vocabulary of the sentences that are read."""
        return self.models[0].source_vocabulary

    @property
    def target_vocabulary(self) -> Vocabulary:
        """The vocabulary of the sentences that are written."""
        return self.models[0].target_vocabulary

    @property
    def length_penalty(self) -> float:
        """The strength that was best on the validation data of the first model; 1 if none was stored."""
        stored = self.models[0].metadata.get("length_penalty")
        return 1.0 if stored is None else checked_length_penalty(stored)

    def translate(
        self,
        sentences: Iterable[str],
        *,
        beams: int = SearchOptions.beams,
        nbest: int = SearchOptions.nbest,
        length_penalty: float | None = None,
        shortest: int = 0,
        longest: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> list[Translation]:
        """Translate sentences; the results are in their order. The translation of an empty sentence is empty.

        Args:
            sentences: each is normalised as the training data were.
            beams: number of hypotheses that the search follows; 1 is greedy search.
            nbest: number of translations of each sentence, at most `beams`; see `Translation.others`.
            length_penalty: how much long translations are favoured; None for `self.length_penalty`.
            shortest: minimum number of tokens of a translation, END included.
            longest: maximum number of tokens, END included; None for what the training data allow, and at least twice
                the source's and 10.
            batch_size: number of sentences that are translated at a time.

        Returns:
            The best translation of each sentence.

        Raises:
            RegardError: if an option is out of range, or a sentence is not text.
        """
        options = self._options(SearchOptions(nbest, beams, length_penalty, shortest, longest, batch_size))
        return self._translate(check_texts("sentences", sentences), options)

    def stream(
        self,
        sentences: Iterable[str],
        *,
        beams: int = SearchOptions.beams,
        nbest: int = SearchOptions.nbest,
        length_penalty: float | None = None,
        shortest: int = 0,
        longest: int | None = None,
        batch_size: int = BATCH_SIZE,
        ahead: int = READ_AHEAD,
    ) -> Iterator[Translation]:
        """Translate sentences as they arrive, in order and in constant memory.

        Args:
            sentences: see `translate`.
            beams: see `translate`.
            nbest: see `translate`.
            length_penalty: see `translate`.
            shortest: see `translate`.
            longest: see `translate`.
            batch_size: see `translate`.
            ahead: number of sentences that are read before the first is translated. Sentences of equal length are
                translated fastest together.

        Returns:
            An iterator over the best translation of each sentence.

        Raises:
            RegardError: if an option is out of range; while iterating, if a sentence is not text.
        """
        options = self._options(SearchOptions(nbest, beams, length_penalty, shortest, longest, batch_size))
        ahead = whole_number("ahead", ahead, 1, 2**31, "Leave it out.")
        texts = check_texts("sentences", sentences)
        return self._stream(texts, options, ahead)

    def force(
        self, sources: Iterable[str], targets: Iterable[str], *, batch_size: int = BATCH_SIZE
    ) -> list[Translation]:
        """Return given translations with the probability and the alignment that the model gives them.

        Args:
            sources: the sentences.
            targets: a translation of each.
            batch_size: number of sentences at a time.

        Returns:
            The translations; their score is the log-probability.

        Raises:
            RegardError: if there are not as many targets as sources.
        """
        batch_size = SearchOptions(batch_size=batch_size).batch_size
        read = self._sentences(check_texts("sources", sources), self.source_vocabulary)
        given = self._sentences(check_texts("targets", targets), self.target_vocabulary)
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
                state, source_lengths = self._start([read[row] for row in rows])
                ids, lengths = pad([given[row].ids for row in rows], self.device)
                scores = score_targets(self._step, state, ids, lengths)
                totals, widths = scores.totals.tolist(), source_lengths.tolist()
                for place, row in enumerate(rows):
                    weights = scores.alignment(place, widths[place])
                    weights = None if weights is None else weights.cpu()
                    results[row] = Translation(read[row], given[row], totals[place], totals[place], weights=weights)
        return [results[row] for row in range(len(read))]

    def score(self, sources: Iterable[str], targets: Iterable[str], *, batch_size: int = BATCH_SIZE) -> list[float]:
        """Return the log-probability of each given translation, END included; arguments as in `force`."""
        return [given.log_probability for given in self.force(sources, targets, batch_size=batch_size)]

    def perplexity(self, sources: Iterable[str], targets: Iterable[str], *, batch_size: int = BATCH_SIZE) -> float:
        """Return exp(- mean log-probability of a token) over the given translations, END included; see `force`."""
        return perplexity(self.force(sources, targets, batch_size=batch_size))

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Put every module that is in training mode into evaluation mode, and back at the end."""
        training = [module for trained in self.models for module in trained.model.modules() if module.training]
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True

    def _options(self, options: SearchOptions) -> SearchOptions:
        """Return the options with the length penalty of the model, if none is given."""
        return options if options.length_penalty is not None else replace(options, length_penalty=self.length_penalty)

    def _sentences(self, texts: Iterable[str], vocabulary: Vocabulary) -> list[Sentence]:
        normalised = [normalise(text) for text in texts]
        ids = vocabulary.encode_all(normalised)
        return [Sentence(text, tuple(tokens), vocabulary) for text, tokens in zip(normalised, ids, strict=True)]

    def _translate(self, texts: Iterable[str], options: SearchOptions) -> list[Translation]:
        sources = self._sentences(texts, self.source_vocabulary)
        nothing = Sentence("", (), self.target_vocabulary)
        results = [Translation(source, nothing, score=0.0, log_probability=0.0) for source in sources]
        not_empty = [row for row, source in enumerate(sources) if source.ids]
        with torch.inference_mode(), self._evaluation_mode():
            for batch in batches_by_length([len(sources[row].ids) for row in not_empty], options.batch_size):
                rows = [not_empty[place] for place in batch]
                state, lengths = self._start([sources[row] for row in rows])
                found = beam_search(self._step, state, lengths, self._max_lengths(lengths, options), options)
                for row, hypotheses in zip(rows, found, strict=True):
                    results[row] = self._translation(sources[row], hypotheses)
        return results

    def _stream(self, texts: Iterator[str], options: SearchOptions, ahead: int) -> Iterator[Translation]:
        while chunk := list(islice(texts, ahead)):
            yield from self._translate(chunk, options)

    def _max_lengths(self, lengths: Tensor, options: SearchOptions) -> Tensor:
        """Return the maximum length of each translation: that of the options, or what the training data allow.

        Without the option it is max(2, length ratio) * (source tokens + 1 for END) + 8, rounded up.
        """
        if options.longest is not None:
            return torch.full_like(lengths, options.longest)
        ratios = [_length_ratio(trained.metadata.get("target_per_source")) for trained in self.models]
        return ((max(2.0, *ratios) * lengths).ceil().long() + 8).clamp_(min=options.shortest, max=MAX_LENGTH)

    def _start(self, sources: Sequence[Sentence]) -> tuple[State, Tensor]:
        """Return the state of every model before the first word, and the lengths of the sources, int64 (batch,)."""
        ids, lengths = pad([[*source.ids, END] for source in sources], self.device)
        states: list[State] = [trained.model.start(ids, lengths) for trained in self.models]
        return (states[0] if len(states) == 1 else EnsembleState(tuple(states))), lengths

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


def perplexity(translations: Sequence[Translation]) -> float:
    """Return exp(- mean log-probability of a token), END included, over all translations."""
    tokens = sum(one.length for one in translations)
    if not tokens:
        raise RegardError("targets", got="none", needed="at least one sentence", repair="Check the file.")
    mean = math.fsum(one.log_probability for one in translations) / tokens
    try:
        return math.exp(-mean)
    except OverflowError:  # a token that has probability 0
        return math.inf


def check_texts(argument: str, texts: Iterable[str]) -> Iterator[str]:
    """Return the sentences one by one.

    Raises:
        RegardError: if a single string or no iterable is given; while iterating, if an item is not a string.
    """
    try:
        items = None if isinstance(texts, str) else iter(texts)
    except TypeError:
        items = None
    if items is None:
        raise RegardError(
            argument,
            got="one string" if isinstance(texts, str) else type(texts).__name__,
            needed="a list of sentences",
            repair="Pass [sentence] for a single one.",
        )
    return _check_strings(argument, items)


def _check_strings(argument: str, texts: Iterator[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise RegardError(
                argument,
                got=f"{type(text).__name__} at number {number}",
                needed="sentences as strings",
                repair="Read files as UTF-8 text and leave out missing values.",
            )
        yield text


def check_same_vocabularies(models: Sequence[TrainedModel]) -> None:
    """Raise unless there is a model, and all have the same vocabularies."""
    if not models:
        raise RegardError("models", got="none", needed="at least one model", repair="Pass a model folder.")
    for number, other in enumerate(models[1:], 2):
        for side in ("source", "target"):
            first, its = (getattr(trained, f"{side}_vocabulary") for trained in (models[0], other))
            if first.to_bytes() != its.to_bytes():
                raise RegardError(
                    "models",
                    got=f"another {side} vocabulary in model {number} than in the first",
                    needed="one vocabulary for all models of an ensemble",
                    repair="Train them on the same data with different seeds.",
                )


def usable_device(device: torch.device | str) -> torch.device:
    """Return the device.

    Raises:
        RegardError: if torch cannot compute there.
    """
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


def _length_ratio(stored: object) -> float:
    """Return the target tokens per source token that a model folder stores; 2 if the value is no such number."""
    is_number = isinstance(stored, int | float) and not isinstance(stored, bool)
    return float(stored) if is_number and 0 < stored < MAX_LENGTH_RATIO else 2.0
