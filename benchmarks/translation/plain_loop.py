"""The encoder-decoder as a textbook writes it: a loop over steps, everything computed in it, in eager mode."""

import torch
from torch import Tensor, nn


class PlainEncoderDecoder(nn.Module):
    """A bidirectional GRU over packed sequences; at each step additive attention, a GRU cell and the output layer."""

    def __init__(self, vocabulary: int, embedding: int = 256, hidden: int = 512, dropout: float = 0.2) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.encoder = nn.GRU(embedding, hidden, batch_first=True, bidirectional=True)
        self.first = nn.Linear(2 * hidden, hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(2 * hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.cell = nn.GRUCell(embedding + 2 * hidden, hidden)
        self.readout = nn.Linear(embedding + 3 * hidden, embedding)
        self.output = nn.Linear(embedding, vocabulary)
        self.output.weight = self.words.weight
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor, lengths: Tensor, previous: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(self.words(source)), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.encoder(packed)[0], batch_first=True, total_length=source.shape[1]
        )
        states = self.dropout(states)
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        mean = (states * real[..., None]).sum(1) / lengths[:, None]
        hidden, keys = torch.tanh(self.first(mean)), self.key(states)
        logits = []
        for step in range(previous.shape[1]):
            word = self.dropout(self.words(previous[:, step]))
            scores = self.score(torch.tanh(self.query(hidden)[:, None] + keys)).squeeze(-1)
            weights = scores.masked_fill(~real, float("-inf")).softmax(-1)
            context = torch.bmm(weights[:, None], states).squeeze(1)
            hidden = self.cell(torch.cat((word, context), -1), hidden)
            mixed = torch.tanh(self.readout(torch.cat((self.dropout(hidden), word, context), -1)))
            logits.append(self.output(self.dropout(mixed)))
        return torch.stack(logits, 1)
