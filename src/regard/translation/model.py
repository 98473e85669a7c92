"""The encoder-decoder of Bahdanau, Cho and Bengio (arXiv 1409.0473), with any score, or without attention.

The file follows the paper from the sentence to the next word:

    h_j = [forward_j; backward_j]                                   Encoder            (section 3.2, eq. 7)
    c_i = sum_j softmax_j(score(s_{i-1}, h_j)) h_j                  AttentionContext   (eq. 5 and 6; eq. 13)
    s_i = GRU([y_{i-1}; c_i], s_{i-1})                              Decoder            (appendix A.1.1; eq. 13)
    p(y_i) = softmax(W_o tanh(U s_i + V y_{i-1} + C c_i))           EncoderDecoder     (eq. 4)

In this table, eq. 4 to 7, section 3.2 and the appendix are the paper's. Elsewhere its equations are marked arXiv
1409.0473. Eq. 12, the additive score, and eq. 13, the default model, are those of this library's chapter. Two details
differ from the paper: s_0 uses the mean of the annotations, and the layer before the output is a tanh layer, not
maxout.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

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
from regard.translation.unrolled import ConditionalWeights, StepWeights, run_both_directions, unroll
from regard.translation.vocabulary import PAD

MAX_SIZE = 2**16  # of embedding, hidden, attention_dim and heads
MAX_LAYERS = 100
SCORES = ("none", "additive", "bilinear", "dot", "scaled_dot", "cosine", "squared_distance", *KERNEL_SCORES)


@dataclass(frozen=True)
class Architecture:
    """The sizes and choices that define a model; they are stored with its weights.

    Attributes:
        embedding: The size of word vectors.
        hidden: The size of the decoder's state, and of the encoder's state in each direction.
        layers: The number of bidirectional encoder layers.
        unit: The recurrent unit of encoder and decoder, "gru" or "lstm".
        cell: With "bahdanau" the query is the previous state (eq. 13). With "conditional" a first unit reads the
            previous word, its state is the query, and a second unit reads the context; this is not eq. 13.
        attention: The name of a score of the library, or "none" for the encoder-decoder without attention, whose
            context is the same fixed vector at every step.
        attention_dim: The hidden size of an additive score with one head, `hidden` by default. Other scores ignore it.
        heads: The number of attention heads.
        joint: Use one vocabulary and one embedding for both languages.
        tied: The output layer shares its weights with the target embedding.
        embedding_dropout: Dropout probability of the elements of word vectors, on both sides.
        word_dropout: Dropout probability of whole word vectors, on both sides.
        state_dropout: Dropout probability of the encoder's states, and of the decoder's states before the output.
        readout_dropout: Dropout probability of the layer before the output.

    Raises:
        RegardError: If a value is out of range, or if two values do not go together.
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


class AttentionContext(nn.Module):
    """c_i = sum_j alpha_ij h_j, alpha_i = softmax_j score(s_{i-1}, h_j) (eq. 13; arXiv 1409.0473, eq. 5 and 6).

    One head pools the annotations themselves; several heads are a multi-head layer with the same score. A score without
    weights of its own needs queries and keys of one size, so a linear layer first maps the annotations to that size.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        hidden, annotation = architecture.hidden, 2 * architecture.hidden
        name, self.heads = architecture.attention, architecture.heads
        self.to_key = nn.Identity()
        if self.heads > 1:
            self.attention = MultiHeadAttention(hidden, self.heads, name, key_dim=annotation, output_dim=annotation)
        elif name == "additive":  # score(s, h) = w' tanh(W_q s + W_k h) (eq. 12; arXiv 1409.0473, appendix A.1.2)
            self.attention = Attention(Additive(hidden, annotation, architecture.attention_dim or hidden))
        elif name == "bilinear":
            self.attention = Attention(Bilinear(hidden, annotation))
        else:
            self.attention = Attention(name)
            self.to_key = nn.Linear(annotation, hidden, bias=False)
        self.width = annotation

    def remember(self, annotations: Tensor, is_token: Tensor) -> Memory:
        """Project the keys of the sentences, once for all steps.

        Args:
            annotations: (batch, source, 2 hidden).
            is_token: bool (batch, source), False at padding.
        """
        return self.attention.remember(self.to_key(annotations), annotations, Mask.keys(is_token))

    def read(self, query: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Compute contexts and attention weights.

        Args:
            query: (batch, beams, hidden).
            memory: The result of `remember`.

        Returns:
            The contexts (batch, beams, 2 hidden) and the weights (batch, beams, source), averaged over the heads.
        """
        context, weights = self.attention.recall_with_weights(query, memory)
        return context, weights.mean(1) if self.heads > 1 else weights


class FixedContext(nn.Module):
    """The context of an encoder-decoder without attention: the last state of each direction, the same at every step."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.width = 2 * architecture.hidden

    def remember(self, annotations: Tensor, is_token: Tensor) -> Tensor:
        """Take the forward state of the last word and the backward state of the first, (batch, 1, 2 hidden)."""
        hidden = annotations.shape[-1] // 2
        last = (is_token.sum(-1) - 1).clamp(min=0)
        forward_state = annotations[torch.arange(len(last), device=last.device), last, :hidden]
        return torch.cat((forward_state, annotations[:, 0, hidden:]), -1)[:, None]

    def read(self, query: Tensor, memory: Tensor) -> tuple[Tensor, None]:
        """Return the same vector for every query, and no weights."""
        return memory.expand(-1, query.shape[1], -1), None


class Encoder(nn.Module):
    """The annotations h_j = [forward_j; backward_j] of the source words (arXiv 1409.0473, section 3.2).

    The layers are bidirectional. The backward direction is a forward layer over each sentence in reverse order, so
    padding follows the words in both directions and no state of a word depends on it. The result equals nn.GRU over
    packed sequences, but no lengths are needed on the host, so a CUDA graph can hold the encoder.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        layer = {"gru": nn.GRU, "lstm": nn.LSTM}[architecture.unit]
        sizes = [architecture.embedding] + [2 * architecture.hidden] * (architecture.layers - 1)
        self.forward_layers = nn.ModuleList(layer(size, architecture.hidden, batch_first=True) for size in sizes)
        self.backward_layers = nn.ModuleList(layer(size, architecture.hidden, batch_first=True) for size in sizes)
        self.dropout = nn.Dropout(architecture.state_dropout)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Compute the annotations, (batch, source, 2 hidden); those of padding are undefined.

        Args:
            words: Word vectors (batch, source, embedding), padding at the end.
            lengths: int64 (batch), the number of words of each sentence.
        """
        check_length("source", words.shape[1], "source")
        order = reverse_order(lengths, words.shape[1])
        states = words
        for onward, backward in zip(self.forward_layers, self.backward_layers, strict=True):
            # On a CPU this saves 10 to 24% of an update at the presets' sizes, 1 to 3% at hidden size 512.
            # If no gradients are computed, torch's own layers are faster.
            together = isinstance(onward, nn.GRU) and words.device.type == "cpu" and torch.is_grad_enabled()
            run = _run_together if together else _run_apart
            forward_states, backward_states = run(onward, backward, states, _reorder(states, order))
            states = self.dropout(torch.cat((forward_states, _reorder(backward_states, order)), -1))
        return states


def _run_apart(onward: nn.Module, backward: nn.Module, words: Tensor, reverse: Tensor) -> tuple[Tensor, Tensor]:
    """Run each direction by torch's own layer; on a GPU that is one call of cuDNN."""
    return onward(words)[0], backward(reverse)[0]


def _run_together(onward: nn.Module, backward: nn.Module, words: Tensor, reverse: Tensor) -> tuple[Tensor, Tensor]:
    """Run both directions of a gated layer in the same steps, on a CPU."""
    batch, source, _ = words.shape
    both = torch.stack((words.transpose(0, 1), reverse.transpose(0, 1))).flatten(1, 2)
    names = ("weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0")
    weight, bias, recurrent, recurrent_bias = (
        torch.stack((getattr(onward, name), getattr(backward, name))) for name in names
    )
    gates = torch.baddbmm(bias[:, None], both, weight.mT).unflatten(1, (source, batch))
    forward_states, backward_states = run_both_directions(gates, recurrent, recurrent_bias).unbind()
    return forward_states.transpose(0, 1), backward_states.transpose(0, 1)


def reverse_order(lengths: Tensor, source: int) -> Tensor:
    """The positions of each sentence's words from last to first, (batch, source); padding keeps its position."""
    positions = torch.arange(source, device=lengths.device)
    mirrored = lengths[:, None] - 1 - positions
    return torch.where(mirrored >= 0, mirrored, positions)


def _reorder(tokens: Tensor, order: Tensor) -> Tensor:
    """Gather tokens (batch, source, dim) by positions (batch, source) of the same row."""
    batch, source, _ = tokens.shape
    rows = order + torch.arange(0, batch * source, source, device=order.device)[:, None]
    return tokens.reshape(batch * source, -1).index_select(0, rows.flatten()).view(tokens.shape)


@dataclass(frozen=True, eq=False)
class DecoderState:
    """The state of a decoder in a batch of sentences.

    Attributes:
        recurrent: The state of the recurrent cell: (s_i,) of a GRU, (s_i, cell state) of an LSTM, each
            (batch, beams, hidden).
        memory: What the context is read from: a Memory, or a fixed vector (batch, 1, 2 hidden) without attention. All
            beams of a sentence share it.
    """

    recurrent: tuple[Tensor, ...]
    memory: Any

    @property
    def hidden(self) -> Tensor:
        """s_i, (batch, beams, hidden)."""
        return self.recurrent[0]

    def reorder(self, beams: Tensor) -> "DecoderState":
        """Return the state whose beam b continues the old beam beams[:, b]; int64 (batch, beams)."""
        index = beams[..., None].expand(-1, -1, self.hidden.shape[-1])
        return replace(self, recurrent=tuple(part.gather(1, index) for part in self.recurrent))

    def select(self, sentences: Tensor) -> "DecoderState":
        """Return the state of some sentences of the batch; int64 (sentences)."""
        recurrent = tuple(part.index_select(0, sentences) for part in self.recurrent)
        if isinstance(self.memory, Tensor):
            return DecoderState(recurrent, self.memory.index_select(0, sentences))
        return DecoderState(recurrent, self.memory.select(sentences))


class Decoder(nn.Module):
    """The states s_i of the target, each computed from a context c_i (arXiv 1409.0473, section 3.1).

        "bahdanau":     c_i = attend(s_{i-1}, h),   s_i = GRU([y_{i-1}; c_i], s_{i-1})              (eq. 13)
        "conditional":  s'_i = GRU(y_{i-1}, s_{i-1}),   c_i = attend(s'_i, h),   s_i = GRU'(c_i, s'_i)

    nn.GRUCell (the paper's appendix A.1.1) or nn.LSTMCell holds the weights.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        embedding, hidden = architecture.embedding, architecture.hidden
        make_cell = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}[architecture.unit]
        has_attention = architecture.attention != "none"
        self.context = AttentionContext(architecture) if has_attention else FixedContext(architecture)
        self.init_state = nn.Linear(2 * hidden, hidden)
        self.conditional = architecture.cell == "conditional"
        self.cell = make_cell(embedding if self.conditional else embedding + self.context.width, hidden)
        self.second_cell = make_cell(self.context.width, hidden) if self.conditional else None
        is_additive = architecture.attention == "additive" and architecture.heads == 1
        self.can_unroll = is_additive and architecture.unit == "gru"

    def start(self, annotations: Tensor, lengths: Tensor) -> DecoderState:
        """s_0 = tanh(W_s mean_j h_j), with one beam; the keys of the sentences are projected here, once.

        Args:
            annotations: (batch, source, 2 hidden).
            lengths: int64 (batch), the number of words of each sentence.
        """
        is_token = torch.arange(annotations.shape[1], device=lengths.device) < lengths[:, None]
        share = is_token.to(annotations.dtype) / lengths[:, None].to(annotations.dtype)
        hidden = torch.tanh(self.init_state(torch.bmm(share[:, None], annotations)))
        recurrent = (hidden,) if isinstance(self.cell, nn.GRUCell) else (hidden, torch.zeros_like(hidden))
        return DecoderState(recurrent, self.context.remember(annotations, is_token))

    def step(self, words: Tensor, state: DecoderState) -> tuple[DecoderState, Tensor, Tensor | None]:
        """Compute one step.

        Args:
            words: Vectors of the previous words y_{i-1}, (batch, beams, embedding).
            state: The state after the previous words.

        Returns:
            The next state, the contexts c_i (batch, beams, 2 hidden), and the attention weights
            (batch, beams, source), None without attention.
        """
        if self.second_cell is not None:
            between = _run_cell(self.cell, words, state.recurrent)
            context, weights = self.context.read(between[0], state.memory)
            recurrent = _run_cell(self.second_cell, context, between)
        else:
            context, weights = self.context.read(state.hidden, state.memory)
            recurrent = _run_cell(self.cell, torch.cat((words, context), -1), state.recurrent)
        return replace(state, recurrent=recurrent), context, weights

    def unroll(self, words: Tensor, state: DecoderState) -> tuple[Tensor, Tensor]:
        """Compute all steps of known targets.

        Args:
            words: Vectors of the previous words, (batch, target, embedding).
            state: The result of `start`.

        Returns:
            The states s_i (batch, target, hidden) and the contexts c_i (batch, target, 2 hidden).
        """
        check_length("previous", words.shape[1], "target")
        if self.can_unroll:
            return self._unroll_fused(words, state)
        states, contexts = [], []
        for word in words.split(1, 1):
            state, context, _ = self.step(word, state)
            states.append(state.hidden)
            contexts.append(context)
        return torch.cat(states, 1), torch.cat(contexts, 1)

    def _unroll_fused(self, words: Tensor, state: DecoderState) -> tuple[Tensor, Tensor]:
        """Compute all steps in one function; the words' share of the gates is one matrix product."""
        context, memory, cell = cast(AttentionContext, self.context), cast(Memory, state.memory), self.cell
        score = cast(Additive, context.attention.score)
        query_weight = cast(Tensor, score.query_weight)
        is_token = cast(Tensor, cast(Mask, memory.mask).real_keys((words.shape[0],), memory.keys))
        if self.second_cell is None:
            word_weight, context_weight = cell.weight_ih.split((words.shape[-1], context.width), 1)
            weights = StepWeights(query_weight, score.weight, context_weight, cell.weight_hh, cell.bias_hh)
            conditional = None
        else:
            second, word_weight = self.second_cell, cell.weight_ih
            weights = StepWeights(query_weight, score.weight, second.weight_ih, second.weight_hh, second.bias_hh)
            conditional = ConditionalWeights(second.bias_ih, cell.weight_hh, cell.bias_hh)
        gates = functional.linear(words, word_weight, cell.bias_ih)
        return unroll(gates, state.hidden[:, 0], memory.key, memory.value, is_token, weights, conditional)


def _run_cell(cell: nn.RNNCellBase, inputs: Tensor, recurrent: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One step of nn.GRUCell or nn.LSTMCell for every beam; inputs: (batch, beams, dim)."""
    rows = inputs.shape[:2]
    flat = tuple(part.flatten(0, 1) for part in recurrent)
    following = (
        (cell(inputs.flatten(0, 1), flat[0]),) if isinstance(cell, nn.GRUCell) else cell(inputs.flatten(0, 1), flat)
    )
    return tuple(part.view(*rows, -1) for part in following)


class EncoderDecoder(nn.Module):
    """p(y_i | y_1 ... y_{i-1}, x) = softmax(W_o t_i), t_i = tanh(U s_i + V y_{i-1} + C c_i) (arXiv 1409.0473, eq. 4).

    Args:
        architecture: The model's sizes and choices.
        source_size: The size of the source vocabulary, special tokens included.
        target_size: The size of the target vocabulary, special tokens included.

    Raises:
        RegardError: If the architecture is joint and the sizes differ.
    """

    def __init__(self, architecture: Architecture, source_size: int, target_size: int) -> None:
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
        self.source_embedding = nn.Embedding(source_size, embedding, padding_idx=PAD)
        self.target_embedding = (
            self.source_embedding if architecture.joint else nn.Embedding(target_size, embedding, PAD)
        )
        for table in (self.source_embedding, self.target_embedding):
            nn.init.normal_(table.weight, std=embedding**-0.5)
            nn.init.zeros_(table.weight.data[PAD])
        self.encoder = Encoder(architecture)
        self.decoder = Decoder(architecture)
        self.readout = nn.Linear(hidden + embedding + self.decoder.context.width, embedding)
        self.output = nn.Linear(embedding, target_size)
        if architecture.tied:
            self.output.weight = self.target_embedding.weight
        self.embedding_dropout = nn.Dropout(architecture.embedding_dropout)
        self.word_dropout = nn.Dropout1d(architecture.word_dropout)
        self.state_dropout = nn.Dropout(architecture.state_dropout)
        self.readout_dropout = nn.Dropout(architecture.readout_dropout)

    def start(self, source: Tensor, lengths: Tensor) -> DecoderState:
        """Encode the sources and return the decoder's first state, with one beam.

        Args:
            source: int64 (batch, source), END after the words, then PAD.
            lengths: int64 (batch), the lengths of the sources, END included.
        """
        words = self._embed(self.source_embedding, source)
        return self.decoder.start(self.encoder(words, lengths), lengths)

    def forward(self, source: Tensor, lengths: Tensor, previous: Tensor) -> Tensor:
        """Compute the logits of the next words of known targets, (batch, target, vocabulary).

        Args:
            source: int64 (batch, source), END after the words, then PAD.
            lengths: int64 (batch), the lengths of the sources, END included.
            previous: int64 (batch, target), BEGIN and then the words of the targets.
        """
        words = self._embed(self.target_embedding, previous)
        states, contexts = self.decoder.unroll(words, self.start(source, lengths))
        return self._read_out(states, words, contexts)

    def step(self, tokens: Tensor, state: DecoderState) -> StepOutput:
        """Compute the log-probabilities of the next word: the step function of a search.

        Args:
            tokens: The previous words, int64 (batch, beams).
            state: The state after the words before them.
        """
        words = self._embed(self.target_embedding, tokens)
        state, context, weights = self.decoder.step(words, state)
        logits = self._read_out(state.hidden, words, context)
        return StepOutput(functional.log_softmax(logits.float(), -1), weights, state)

    def _embed(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        words = self.embedding_dropout(table(tokens))
        # Dropout1d zeroes whole rows of (batch, words, embedding).
        return self.word_dropout(words) if self.training and self.word_dropout.p else words

    def _read_out(self, states: Tensor, words: Tensor, contexts: Tensor) -> Tensor:
        joined = torch.cat((self.state_dropout(states), words, contexts), -1)
        return self.output(self.readout_dropout(torch.tanh(self.readout(joined))))


def check_length(argument: str, length: int, side: str) -> None:
    """Refuse a length that `torch.export` or `torch.onnx` leaves open.

    The recurrent layers loop over the positions, and an exported program has as many steps as the example. For another
    length it would compute wrong numbers. `torch.compile` compiles again instead.

    Args:
        argument: The argument of the model that has the positions.
        length: The number of positions, an integer or a symbolic size.
        side: "source" or "target".

    Raises:
        RegardError: If the model is being exported and the length is not a constant.
    """
    if is_exporting() and not has_static_value(length):
        raise RegardError(
            argument,
            got=f"a number of {side} positions that dynamic_shapes leaves open",
            needed="a fixed number of positions, because an exported model serves one length only",
            repair="Give dynamic_shapes for the batch only, or none, and pad shorter sentences to the exported length; "
            "or export one step of the decoder.",
        )
