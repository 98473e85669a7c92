"""The encoder-decoder of Bahdanau, Cho and Bengio (arXiv 1409.0473), with any score, or without attention."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import has_static_value
from torch.nn import functional

from regard.errors import RegardError
from regard.layers import Attention, MultiHeadAttention
from regard.layers.memory import Memory
from regard.masks import Mask
from regard.scores import Additive, Bilinear
from regard.scores.names import KERNEL_SCORES
from regard.torch_compat import is_exporting
from regard.translation.search import StepOutput
from regard.translation.unrolled import Conditional, Weights, run_both, unroll
from regard.translation.vocabulary import PAD

MAX_SIZE = 2**16  # of embedding, hidden, attention_dim and heads
MAX_LAYERS = 100
SCORES = ("none", "additive", "bilinear", "dot", "scaled_dot", "cosine", "squared_distance", *KERNEL_SCORES)


@dataclass(frozen=True)
class Architecture:
    """What a model is made of.

    Attributes:
        embedding: the width of word vectors.
        hidden: the width of the decoder's state, and of the encoder's in each direction.
        layers: how many bidirectional layers the encoder has.
        unit: "gru" or "lstm", in encoder and decoder.
        cell: "bahdanau" asks with the previous state (eq. 13); "conditional" first steps on the previous word and
            asks with the state in between, then steps on the context: it is NOT eq. 13.
        attention: the name of a score of the library, or "none" for the plain encoder-decoder, whose context is the
            same fixed vector at every step.
        attention_dim: the hidden width of an additive score of one head, `hidden` by default; without meaning for
            others.
        heads: how many heads attend.
        joint: one vocabulary, and one table of word vectors, for both languages.
        tied: the output layer shares the vectors of the target's words.
        embedding_dropout: of the elements of word vectors, on both sides.
        word_dropout: of whole words, on both sides: the vector is 0.
        state_dropout: of the encoder's states, and of the decoder's where the output is read from them.
        readout_dropout: of the layer before the output.
    """

    embedding: int = 256
    hidden: int = 512
    layers: int = 1
    unit: Literal["gru", "lstm"] = "gru"
    cell: Literal["bahdanau", "conditional"] = "bahdanau"
    attention: str = "additive"
    attention_dim: int | None = None
    heads: int = 1
    joint: bool = False
    tied: bool = False
    embedding_dropout: float = 0.2
    word_dropout: float = 0.0
    state_dropout: float = 0.2
    readout_dropout: float = 0.2

    def __post_init__(self) -> None:
        """Refuse values that do not describe a model."""
        for name in ("embedding", "hidden", "attention_dim", "heads", "layers"):
            if name != "attention_dim" or self.attention_dim is not None:
                most = MAX_LAYERS if name == "layers" else MAX_SIZE
                _check_count(name, getattr(self, name), most)
        _check_choice("unit", self.unit, ("gru", "lstm"))
        _check_choice("cell", self.cell, ("bahdanau", "conditional"))
        _check_choice("attention", self.attention, SCORES)
        for field in fields(self):
            if field.name.endswith("_dropout"):
                needed = "a probability from 0 up to, not including, 1"
                _check(field.name, getattr(self, field.name), _is_share, needed, "Pass 0.0 for none.")
        for name in ("joint", "tied"):
            _check(name, getattr(self, name), lambda value: isinstance(value, bool), "true or false", "Leave it out.")
        if self.attention_dim is not None and self.heads > 1:
            _check("attention_dim", self.attention_dim, lambda _: False, "none beside several heads", "Leave it out.")
        if self.attention == "none" and self.heads > 1:
            _check("heads", self.heads, lambda _: False, '1 where attention is "none"', "Leave it out.")
        if self.hidden % self.heads:
            below = max(number for number in range(1, self.heads + 1) if not self.hidden % number)
            needed = f"a divisor of hidden={self.hidden}"
            _check("heads", self.heads, lambda _: False, needed, f"Pass for example {below}.")


def _check(name: str, value: object, fits, needed: str, repair: str) -> None:
    if not fits(value):
        raise RegardError(name, got=repr(value), needed=needed, repair=repair)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    needed = "one of " + ", ".join(choices)
    _check(name, value, lambda chosen: isinstance(chosen, str) and chosen in choices, needed, f"Write {choices[0]}.")


def _check_count(name: str, value: object, most: int) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
    _check(name, value, lambda _: fits, f"a whole number from 1 to {most:,}", "Leave it out for the default.")


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


class Attending(nn.Module):
    """c_i = sum_j alpha_ij h_j, alpha_i = softmax_j score(s_{i-1}, h_j) (eq. 13; arXiv 1409.0473, eq. 5 and 6).

    One head pools the annotations themselves; several are a multi-head layer over the same score. A score without
    matrices of its own compares query and key as they are, so the keys are first brought to the query's width.
    """

    def __init__(self, architecture: Architecture) -> None:
        """Make the attention of that name; `width` is the context's."""
        super().__init__()
        hidden, annotation = architecture.hidden, 2 * architecture.hidden
        name, self.heads = architecture.attention, architecture.heads
        self.to_key = nn.Identity()
        if self.heads > 1:
            self.attention = MultiHeadAttention(hidden, self.heads, name, key_dim=annotation, output_dim=annotation)
        elif name == "additive":
            self.attention = Attention(Additive(hidden, annotation, architecture.attention_dim or hidden))
        elif name == "bilinear":
            self.attention = Attention(Bilinear(hidden, annotation))
        else:
            self.attention = Attention(name)
            self.to_key = nn.Linear(annotation, hidden, bias=False)
        self.width = annotation
        self.is_additive = name == "additive" and self.heads == 1

    def remember(self, annotations: Tensor, real: Tensor) -> Memory:
        """Project the keys, once for the sentence.

        annotations: (batch, source, 2 hidden); real: bool (batch, source), False at padding.
        """
        return self.attention.remember(self.to_key(annotations), annotations, Mask.keys(real))

    def read(self, query: Tensor, memory: Memory) -> Tensor:
        """(batch, queries, hidden) -> the contexts, (batch, queries, width)."""
        return self.attention.recall(query, memory)

    def weights(self, query: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """The contexts, and the alignment (batch, queries, source): the mean over heads."""
        context, weights = self.attention.recall_with_weights(query, memory)
        return context, weights.mean(1) if self.heads > 1 else weights


class Fixed(nn.Module):
    """The encoder-decoder without attention: the last state of each direction is all that the decoder ever gets."""

    def __init__(self, architecture: Architecture) -> None:
        """There is nothing to learn."""
        super().__init__()
        self.width = 2 * architecture.hidden

    def remember(self, annotations: Tensor, real: Tensor) -> "Vector":
        """The state after the last word of the forward direction, after the first of the backward one."""
        hidden = annotations.shape[-1] // 2
        last = (real.sum(-1) - 1).clamp(min=0)
        onward = annotations[torch.arange(len(last), device=last.device), last, :hidden]
        return Vector(torch.cat((onward, annotations[:, 0, hidden:]), -1)[:, None])

    def read(self, query: Tensor, memory: "Vector") -> Tensor:
        """The same vector for every query."""
        return memory.value.expand(-1, query.shape[1], -1)

    def weights(self, query: Tensor, memory: "Vector") -> tuple[Tensor, None]:
        """The same vector, and no alignment."""
        return self.read(query, memory), None


class Vector:
    """One vector for each sentence, (batch, 1, width)."""

    def __init__(self, value: Tensor) -> None:
        """Keep it."""
        self.value = value

    def select(self, rows: Tensor) -> "Vector":
        """The vectors of some of the sentences."""
        return Vector(self.value.index_select(0, rows))


def make_context(architecture: Architecture) -> Attending | Fixed:
    """What the architecture names."""
    return Fixed(architecture) if architecture.attention == "none" else Attending(architecture)


State = tuple[Tensor, ...]


class GRUUnit(nn.Module):
    """The gated unit of arXiv 1409.0473, appendix A.1.1, in the form of nn.GRUCell."""

    parts = 3

    def __init__(self, hidden: int) -> None:
        """Draw the recurrent weights as nn.GRUCell does."""
        super().__init__()
        self.recurrent = nn.Linear(hidden, self.parts * hidden)
        _draw(self, hidden)

    def start(self, hidden: Tensor) -> State:
        """The state of a unit whose output is `hidden`."""
        return (hidden,)

    def forward(self, gates: Tensor, state: State) -> State:
        """One step.

        gates: (…, 3 hidden), the input's share of reset gate, update gate and candidate, with its bias.
        """
        (hidden,) = state
        reset_in, update_in, new_in = gates.chunk(3, -1)
        reset_h, update_h, new_h = self.recurrent(hidden).chunk(3, -1)
        reset = torch.sigmoid(reset_in + reset_h)
        update = torch.sigmoid(update_in + update_h)
        new = torch.tanh(torch.addcmul(new_in, reset, new_h))
        return (torch.lerp(new, hidden, update),)


class LSTMUnit(nn.Module):
    """The long short-term memory unit, in the form of nn.LSTMCell."""

    parts = 4

    def __init__(self, hidden: int) -> None:
        """Draw the recurrent weights as nn.LSTMCell does."""
        super().__init__()
        self.recurrent = nn.Linear(hidden, self.parts * hidden)
        _draw(self, hidden)

    def start(self, hidden: Tensor) -> State:
        """The state of a unit whose output is `hidden` and whose cell is empty."""
        return (hidden, torch.zeros_like(hidden))

    def forward(self, gates: Tensor, state: State) -> State:
        """One step; gates: (…, 4 hidden), the input's share of input gate, forget gate, candidate, output gate."""
        hidden, cell = state
        into, forget, new, out = (gates + self.recurrent(hidden)).chunk(4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
        return (torch.sigmoid(out) * torch.tanh(cell), cell)


UNITS = {"gru": GRUUnit, "lstm": LSTMUnit}


class Gates(nn.Module):
    """An input's share of a unit's gates: one matrix, split into the part of the word and that of the context."""

    def __init__(self, widths: tuple[int, ...], hidden: int, parts: int) -> None:
        """Draw the weights as nn.GRUCell does, for an input that is the concatenation of the widths."""
        super().__init__()
        self.widths = widths
        self.weight = nn.Parameter(torch.empty(parts * hidden, sum(widths)))
        self.bias = nn.Parameter(torch.empty(parts * hidden))
        _draw(self, hidden)

    def of(self, part: int, tokens: Tensor) -> Tensor:
        """The share of one part of the input, (…, parts hidden); the first brings the bias."""
        return functional.linear(tokens, self.part(part), self.bias if part == 0 else None)

    def part(self, part: int) -> Tensor:
        """The columns of the matrix that belong to one part of the input."""
        return self.weight.split(self.widths, 1)[part]


def _draw(module: nn.Module, hidden: int) -> None:
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)


class Encoder(nn.Module):
    """Bidirectional recurrent layers whose states know nothing of padding.

    The backward direction is a forward layer over the words of each sentence in reverse, so that padding comes after
    the real words in both directions, and no state of a real word has seen it. That is what packed sequences give,
    and it needs no lengths on the host: on a GPU it can be part of a graph.
    """

    def __init__(self, architecture: Architecture) -> None:
        """Make the layers; the first reads word vectors, the others both directions of the layer below."""
        super().__init__()
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[architecture.unit]
        widths = [architecture.embedding] + [2 * architecture.hidden] * (architecture.layers - 1)
        self.onward = nn.ModuleList(kind(width, architecture.hidden, batch_first=True) for width in widths)
        self.backward_ = nn.ModuleList(kind(width, architecture.hidden, batch_first=True) for width in widths)
        self.dropout = nn.Dropout(architecture.state_dropout)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """The annotations, (batch, source, 2 hidden); those of padding mean nothing.

        Args:
            words: (batch, source, embedding), padding at the end.
            lengths: int64 (batch), how many words are real.
        """
        check_length("source", words.shape[1], "source")
        order = reversal(lengths, words.shape[1])
        states = words
        for onward, backward in zip(self.onward, self.backward_, strict=True):
            # Worth it for the backward pass alone: without one, torch's own layer is the faster.
            at_once = isinstance(onward, nn.GRU) and words.device.type == "cpu" and torch.is_grad_enabled()
            there, back = (_at_once if at_once else _in_turn)(onward, backward, states, _take(states, order))
            states = self.dropout(torch.cat((there, _take(back, order)), -1))
        return states


def _in_turn(onward: nn.Module, backward: nn.Module, words: Tensor, reverse: Tensor) -> tuple[Tensor, Tensor]:
    """The states of both directions, each by torch's own layer: on a GPU that is one call of cuDNN."""
    return onward(words)[0], backward(reverse)[0]


def _at_once(onward: nn.Module, backward: nn.Module, words: Tensor, reverse: Tensor) -> tuple[Tensor, Tensor]:
    """The same of gated units on a CPU, both directions together."""
    batch, source, _ = words.shape
    both = torch.stack((words.transpose(0, 1), reverse.transpose(0, 1))).flatten(1, 2)
    names = ("weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0")
    weight, bias, recurrent, recurrent_bias = (
        torch.stack((getattr(onward, name), getattr(backward, name))) for name in names
    )
    gates = torch.baddbmm(bias[:, None], both, weight.mT).unflatten(1, (source, batch))
    there, back = run_both(gates, recurrent, recurrent_bias).unbind()
    return there.transpose(0, 1), back.transpose(0, 1)


def reversal(lengths: Tensor, source: int) -> Tensor:
    """Which word stands at each place of the sentence read backwards, (batch, source); padding stays where it is."""
    places = torch.arange(source, device=lengths.device)
    mirrored = lengths[:, None] - 1 - places
    return torch.where(mirrored >= 0, mirrored, places)


def _take(tokens: Tensor, order: Tensor) -> Tensor:
    """tokens: (batch, source, dim), order: (batch, source), places of the same row."""
    batch, source, _ = tokens.shape
    rows = order + torch.arange(0, batch * source, source, device=order.device)[:, None]
    return tokens.reshape(batch * source, -1).index_select(0, rows.flatten()).view(tokens.shape)


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

    def select(self, sentences: Tensor) -> "DecoderState":
        """The state of some of the sentences; int64 (kept)."""
        return DecoderState(tuple(part.index_select(0, sentences) for part in self.unit), self.memory.select(sentences))


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


class EncoderDecoder(nn.Module):
    """p(y_i | y_1 … y_{i-1}, x) = softmax(W_o t_i), t_i = tanh(U s_i + V y_{i-1} + C c_i) (arXiv 1409.0473, eq. 4).

    architecture: sizes and choices.
    source_size, target_size: the number of words in the vocabularies, the four symbols included.
    """

    def __init__(self, architecture: Architecture, source_size: int, target_size: int) -> None:
        """Draw all weights."""
        super().__init__()
        if architecture.joint and source_size != target_size:
            raise RegardError(
                "joint",
                got=f"vocabularies of {source_size} and {target_size} words",
                needed="one vocabulary for both languages",
                repair="Learn one vocabulary from both sides, or set joint to false.",
            )
        self.architecture = architecture
        embedding, hidden = architecture.embedding, architecture.hidden
        self.source_words = nn.Embedding(source_size, embedding, padding_idx=PAD)
        self.target_words = self.source_words if architecture.joint else nn.Embedding(target_size, embedding, PAD)
        for table in (self.source_words, self.target_words):
            nn.init.normal_(table.weight, std=embedding**-0.5)
            nn.init.zeros_(table.weight.data[PAD])
        self.encoder = Encoder(architecture)
        self.decoder = Decoder(architecture)
        self.readout = nn.Linear(hidden + embedding + self.decoder.context.width, embedding)
        self.output = nn.Linear(embedding, target_size)
        if architecture.tied:
            self.output.weight = self.target_words.weight
        self.embedding_dropout = nn.Dropout(architecture.embedding_dropout)
        self.word_dropout = nn.Dropout1d(architecture.word_dropout)
        self.state_dropout = nn.Dropout(architecture.state_dropout)
        self.readout_dropout = nn.Dropout(architecture.readout_dropout)

    def start(self, source: Tensor, lengths: Tensor) -> DecoderState:
        """Read the sources: where the decoder stands before its first word, with one beam.

        source: int64 (batch, source), END after the words, then PAD; lengths: int64 (batch), END counted.
        """
        words = self._embed(self.source_words, source)
        return self.decoder.start(self.encoder(words, lengths), lengths)

    def forward(self, source: Tensor, lengths: Tensor, previous: Tensor) -> Tensor:
        """The logits of every next word of known targets, (batch, target, vocabulary).

        previous: int64 (batch, target), BEGIN and then the target's words.
        """
        words = self._embed(self.target_words, previous)
        states, contexts = self.decoder.unroll(words, self.start(source, lengths))
        return self._read_out(states, words, contexts)

    def step(self, tokens: Tensor, state: DecoderState) -> StepOutput:
        """What may follow the words just written: the step function of a search.

        tokens: int64 (batch, beams).
        """
        words = self._embed(self.target_words, tokens)
        state, context, weights = self.decoder.step_with_weights(self.decoder.word_share(words), state)
        logits = self._read_out(state.hidden, words, context)
        return StepOutput(functional.log_softmax(logits.float(), -1), weights, state)

    def _embed(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        words = self.embedding_dropout(table(tokens))
        # A dropped word is dropped whole: Dropout1d drops rows of (batch, words, embedding).
        return self.word_dropout(words) if self.training and self.word_dropout.p else words

    def _read_out(self, states: Tensor, words: Tensor, contexts: Tensor) -> Tensor:
        joined = torch.cat((self.state_dropout(states), words, contexts), -1)
        return self.output(self.readout_dropout(torch.tanh(self.readout(joined))))


def check_length(argument: str, length: int, side: str) -> None:
    """Refuse an open length while `torch.export` or `torch.onnx` traces the model.

    The recurrent layers loop over the positions, and an exported program holds as many steps as the example has. It
    would compute wrong numbers for any other length. `torch.compile` compiles again for another length instead.

    Args:
        argument: the argument of the model that has the positions.
        length: how many positions it has, an integer or a symbolic size.
        side: "source" or "target".
    """
    if is_exporting() and not has_static_value(length):
        raise RegardError(
            argument,
            got=f"a number of {side} positions that dynamic_shapes leaves open",
            needed="a fixed number of positions, because an exported model serves one length only",
            repair="Give dynamic_shapes for the batch only, or none, and pad shorter sentences to the exported length; "
            "or export one step of the decoder.",
        )
