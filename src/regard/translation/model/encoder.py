"""The encoder: annotations h_j of the source's words, each from both directions (arXiv 1409.0473, §3.2)."""

import torch
from torch import Tensor, nn

from regard.translation.model.architecture import Architecture
from regard.translation.model.exported import check_length
from regard.translation.model.unrolled.bidirectional import run_both


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
