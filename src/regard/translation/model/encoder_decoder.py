"""The whole model: words in, probabilities of the next word out."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import RegardError
from regard.translation.model.architecture import Architecture
from regard.translation.model.decoder import Decoder, DecoderState
from regard.translation.model.encoder import Encoder
from regard.translation.search import Stepped
from regard.translation.vocabulary import PAD


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

    def step(self, tokens: Tensor, state: DecoderState) -> Stepped:
        """What may follow the words just written: the step function of a search.

        tokens: int64 (batch, beams).
        """
        words = self._embed(self.target_words, tokens)
        state, context, weights = self.decoder.step_with_weights(self.decoder.word_share(words), state)
        logits = self._read_out(state.hidden, words, context)
        return Stepped(functional.log_softmax(logits.float(), -1), weights, state)

    def _embed(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        words = self.embedding_dropout(table(tokens))
        # A dropped word is dropped whole: Dropout1d drops rows of (batch, words, embedding).
        return self.word_dropout(words) if self.training and self.word_dropout.p else words

    def _read_out(self, states: Tensor, words: Tensor, contexts: Tensor) -> Tensor:
        joined = torch.cat((self.state_dropout(states), words, contexts), -1)
        return self.output(self.readout_dropout(torch.tanh(self.readout(joined))))
