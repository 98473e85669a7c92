"""The decoder: at each step the last state asks for a context, and both make the next state (eq. 13)."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.memory import Memory
from regard.scores import Additive
from regard.translation.model.architecture import Architecture
from regard.translation.model.context import Attending, make_context
from regard.translation.model.exported import check_length
from regard.translation.model.units import UNITS, Gates, GRUUnit, State
from regard.translation.model.unrolled import Conditional, Weights, unroll


@dataclass(frozen=True, eq=False)
class DecoderState:
    """Where a decoder stands in a batch of sentences.

    unit: what the recurrent unit keeps, each (batch, beams, hidden), its output first.
    memory: what the context is read from, a Memory or, without attention, a Vector; the beams of a sentence share it as
        so many queries.
    """

    unit: State
    memory: Any

    @property
    def hidden(self) -> Tensor:
        """s_i, (batch, beams, hidden)."""
        return self.unit[0]

    def reorder(self, beams: Tensor) -> "DecoderState":
        """The state whose beam b continues the old beam beams[:, b]; int64 (batch, beams)."""
        index = beams[..., None].expand(-1, -1, self.hidden.shape[-1])
        return replace(self, unit=tuple(part.gather(1, index) for part in self.unit))

    def keep(self, rows: Tensor) -> "DecoderState":
        """The state of some of the sentences; int64 (kept)."""
        return DecoderState(tuple(part.index_select(0, rows) for part in self.unit), self.memory.select(rows))


class Decoder(nn.Module):
    """Recurrent states over the target's words, each with its context; names as in arXiv 1409.0473, §3.1.

    "bahdanau":    c_i = attend(s_{i-1}, h),  s_i = f([y_{i-1}; c_i], s_{i-1})                     (eq. 13)
    "conditional": s'_i = f(y_{i-1}, s_{i-1}),  c_i = attend(s'_i, h),  s_i = g(c_i, s'_i)
    """

    def __init__(self, architecture: Architecture) -> None:
        """Make the units and where the context comes from."""
        super().__init__()
        embedding, hidden = architecture.embedding, architecture.hidden
        make_unit = UNITS[architecture.unit]
        self.context = make_context(architecture)
        self.first = nn.Linear(2 * hidden, hidden)
        self.unit = make_unit(hidden)
        self.conditional = architecture.cell == "conditional"
        if self.conditional:
            self.second_unit = make_unit(hidden)
            self.word_gates = Gates((embedding,), hidden, make_unit.parts)
            self.context_gates = Gates((self.context.width,), hidden, make_unit.parts)
        else:
            self.gates = Gates((embedding, self.context.width), hidden, make_unit.parts)
        # What `unrolled` computes all steps of at once; everything else is a loop.
        additive = isinstance(self.context, Attending) and self.context.is_additive
        self.runs_at_once = additive and isinstance(self.unit, GRUUnit)

    def start(self, annotations: Tensor, lengths: Tensor) -> DecoderState:
        """s_0 = tanh(W_s mean_j h_j), and the memory of the sentence: its keys are projected here, once.

        annotations: (batch, source, 2 hidden); lengths: int64 (batch).
        """
        real = torch.arange(annotations.shape[1], device=lengths.device) < lengths[:, None]
        share = real.to(annotations.dtype) / lengths[:, None].to(annotations.dtype)
        mean = torch.bmm(share[:, None], annotations)
        hidden = torch.tanh(self.first(mean))
        return DecoderState(self.unit.start(hidden), self.context.remember(annotations, real))

    def word_share(self, words: Tensor) -> Tensor:
        """What the previous words, (batch, steps, embedding), add to the gates of their steps: one product."""
        return self.word_gates.of(0, words) if self.conditional else self.gates.of(0, words)

    def step(self, word_share: Tensor, state: DecoderState) -> tuple[DecoderState, Tensor]:
        """One word on: the next state, and the context (batch, beams, width).

        word_share: (batch, beams, gates), of the word just written.
        """
        query = self._query(word_share, state)
        context = self.context.read(query[0], state.memory)
        return replace(state, unit=self._advance(word_share, query, context)), context

    def step_with_weights(self, word_share: Tensor, state: DecoderState) -> tuple[DecoderState, Tensor, Tensor | None]:
        """The same step with its attention weights, (batch, beams, source), or None without attention."""
        query = self._query(word_share, state)
        context, weights = self.context.weights(query[0], state.memory)
        return replace(state, unit=self._advance(word_share, query, context)), context, weights

    def unroll(self, words: Tensor, state: DecoderState) -> tuple[Tensor, Tensor]:
        """All steps of known targets: the states s_i and the contexts c_i, (batch, target, …) both.

        words: (batch, target, embedding), the previous words; state: of one beam.
        """
        check_length("previous", words.shape[1], "target")
        shares = self.word_share(words)
        if self.runs_at_once:
            return self._unroll_at_once(shares, state)
        states, contexts = [], []
        for share in shares.split(1, 1):
            state, context = self.step(share, state)
            states.append(state.hidden)
            contexts.append(context)
        return torch.cat(states, 1), torch.cat(contexts, 1)

    def _unroll_at_once(self, shares: Tensor, state: DecoderState) -> tuple[Tensor, Tensor]:
        assert isinstance(self.context, Attending)
        memory, score = state.memory, self.context.attention.score
        assert isinstance(memory, Memory)
        assert isinstance(score, Additive)
        assert memory.mask is not None
        assert score.query_weight is not None
        cell = None
        if self.conditional:
            first, second, share = self.unit.recurrent, self.second_unit.recurrent, self.context_gates
            weights = Weights(score.query_weight, score.weight, share.weight, second.weight, second.bias)
            cell = Conditional(share.bias, first.weight, first.bias)
        else:
            own = self.unit.recurrent
            weights = Weights(score.query_weight, score.weight, self.gates.part(1), own.weight, own.bias)
        real = memory.mask.real_keys((shares.shape[0],), memory.keys)
        assert real is not None
        return unroll(shares, state.hidden[:, 0], memory.key, memory.value, real, weights, cell)

    def _query(self, word_share: Tensor, state: DecoderState) -> State:
        """The state that asks: the last one, or the conditional cell's state in between."""
        return self.unit(word_share, state.unit) if self.conditional else state.unit

    def _advance(self, word_share: Tensor, query: State, context: Tensor) -> State:
        if self.conditional:
            return self.second_unit(self.context_gates.of(0, context), query)
        return self.unit(word_share + self.gates.of(1, context), query)
