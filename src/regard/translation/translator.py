"""Sentences in, translations with alignments out: one model, or several that agree on a word at a time."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.translation import folder
from regard.translation.batching import batches_by_length, pad
from regard.translation.counts import count_of
from regard.translation.folder import Loaded
from regard.translation.inputs import Search, batch_size_of, check_models, sentences_in, strength_of, usable_device
from regard.translation.search import Hypothesis, State, States, Step, beam, ensemble, forced, greedy
from regard.translation.sentence import Sentence
from regard.translation.text import normalise
from regard.translation.translated import Translation
from regard.translation.vocabulary import END, Vocabulary

BATCH_SIZE = 64
MOST_RATIO = 100.0  # of target to source tokens, that a model folder is believed
# How many sentences a stream reads ahead: enough to put sentences of one length together.
AHEAD = 1024


class Translator:
    """A trained model, or an ensemble, ready to translate.

    A translation does not depend on the other sentences of a call, nor on the size of the batches.

    models: as `folder.load` gives them; several must have the same vocabularies. They translate in evaluation mode;
        a model that is in training mode is put back into it afterwards.
    """

    def __init__(self, models: Sequence[Loaded]) -> None:
        check_models(models)
        self.models = tuple(models)
        self.device = next(models[0].model.parameters()).device
        steps = [cast(Step, loaded.model.step) for loaded in models]  # each with its own kind of state
        self._step = steps[0] if len(steps) == 1 else ensemble(steps)

    @classmethod
    def load(cls, *folders: Path | str, device: torch.device | str = "cpu") -> "Translator":
        """Read a model folder; of several, an ensemble whose probabilities are the mean of its models'."""
        device = usable_device(device)
        return cls([folder.load(path, device) for path in folders])

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
