"""Step functions to search over: a table of probabilities, and a small random model with real attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import regard
from regard.translation.search import StepOutput
from regard.translation.vocabulary import END, PAD


@dataclass(frozen=True, eq=False)
class Prefixes:
    """The state of a table: what each beam has read, as a number in base `vocabulary`, and its sentence."""

    sentence: Tensor  # (batch,)
    step: int
    prefix: Tensor  # (batch, beams)

    def reorder(self, beams: Tensor) -> Prefixes:
        return replace(self, prefix=self.prefix.gather(1, beams))

    def select(self, rows: Tensor) -> Prefixes:
        return replace(self, sentence=self.sentence[rows], prefix=self.prefix[rows])


class Table:
    """Any distribution over sentences: log-probabilities (sentences, steps, prefixes, vocabulary), words from 0 on.

    prefixes: vocabulary ** (steps - 1) rows, of which step t uses the first vocabulary ** t.
    """

    def __init__(self, log_probabilities: Tensor, source: int = 3):
        self.log_probabilities = log_probabilities
        self.vocabulary = log_probabilities.shape[-1]
        self.asked: list[tuple[int, int]] = []  # the shape of tokens at every step
        self.source = source

    def state(self, sentences: Tensor | None = None) -> Prefixes:
        rows = torch.arange(len(self.log_probabilities)) if sentences is None else sentences
        return Prefixes(rows, 0, torch.zeros(len(rows), 1, dtype=torch.int64))

    def __call__(self, tokens: Tensor, state: Prefixes) -> StepOutput:
        self.asked.append(tuple(tokens.shape))
        prefix = state.prefix * self.vocabulary + tokens if state.step else state.prefix
        rows = self.log_probabilities[state.sentence[:, None], state.step, prefix]
        weights = torch.stack([(prefix + 1.0 + place) for place in range(self.source)], -1)
        weights = weights / weights.sum(-1, keepdim=True)
        return StepOutput(rows, weights, replace(state, step=state.step + 1, prefix=prefix))


def random_table(sentences: int, steps: int, vocabulary: int, *, sharpness: float = 2.0, seed: int = 0) -> Table:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(sentences, steps, vocabulary ** (steps - 1), vocabulary, generator=generator) * sharpness
    return Table(logits.log_softmax(-1))


@dataclass(frozen=True, eq=False)
class Decoding:
    hidden: Tensor  # (batch, beams, dim)
    memory: regard.Memory

    def reorder(self, beams: Tensor) -> Decoding:
        return replace(self, hidden=self.hidden.gather(1, beams[..., None].expand(-1, -1, self.hidden.shape[-1])))

    def select(self, rows: Tensor) -> Decoding:
        return Decoding(self.hidden[rows], self.memory.select(rows))


class Toy(nn.Module):
    """Reads padded sources into a memory, and writes with a GRU that attends to it (eq. 13); random, never trained."""

    def __init__(self, vocabulary: int = 60, dim: int = 24, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.words = nn.Embedding(vocabulary, dim)
            self.cell = nn.GRUCell(2 * dim, dim)
            self.attention = regard.Attention("scaled_dot")
            self.out = nn.Linear(2 * dim, vocabulary)
            nn.init.normal_(self.out.weight, std=0.6)
            nn.init.normal_(self.cell.weight_hh, std=0.6)

    def read(self, sources: list[list[int]]) -> tuple[Decoding, Tensor]:
        lengths = torch.tensor([len(source) for source in sources])
        padded = torch.full((len(sources), int(lengths.max())), PAD)
        for row, source in enumerate(sources):
            padded[row, : len(source)] = torch.tensor(source)
        annotations = self.words(padded)
        memory = self.attention.remember(annotations, annotations, regard.Mask.lengths(lengths))
        inside = (torch.arange(padded.shape[1]) < lengths[:, None])[..., None]
        mean = (annotations * inside).sum(1) / lengths[:, None]
        return Decoding(mean[:, None].tanh(), memory), lengths

    def forward(self, tokens: Tensor, state: Decoding) -> StepOutput:
        seen = self.attention.recall_inspect(state.hidden, state.memory)
        read = torch.cat((self.words(tokens), seen.output), -1)
        hidden = self.cell(read.flatten(0, 1), state.hidden.flatten(0, 1)).unflatten(0, tokens.shape)
        logits = self.out(torch.cat((hidden, seen.output), -1))
        logits[..., END] += 2.0  # sentences of some words, not of one or of very many
        return StepOutput(logits.log_softmax(-1), seen.weights(), Decoding(hidden, state.memory))


def random_sources(count: int, vocabulary: int = 60, seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda low, high, size=(): torch.randint(low, high, size, generator=generator)  # noqa: E731
    return [[*draw(4, vocabulary, (int(draw(1, 15)),)).tolist(), END] for _ in range(count)]
