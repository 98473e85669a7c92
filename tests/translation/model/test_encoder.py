"""`Encoder`: a bidirectional layer over packed sequences, without packing them."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.translation.model.architecture import Architecture
from regard.translation.model.encoder import Encoder, reversal

LENGTHS = torch.tensor([3, 7, 1, 5])


def packed_twin(encoder, unit, layers):
    """torch's own bidirectional layer with the same weights."""
    twin = {"gru": nn.GRU, "lstm": nn.LSTM}[unit](5, 7, layers, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for layer in range(layers):
            for side, ending in ((encoder.onward, ""), (encoder.backward_, "_reverse")):
                for name, parameter in side[layer].named_parameters():
                    getattr(twin, f"{name.removesuffix('_l0')}_l{layer}{ending}").copy_(parameter)
    return twin


def real_states(states, lengths):
    return torch.cat([row[:length] for row, length in zip(states, lengths.tolist(), strict=True)])


@pytest.mark.parametrize("unit", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_states_and_gradients_are_those_of_packed_sequences(unit, layers):
    encoder = Encoder(Architecture(embedding=5, hidden=7, layers=layers, unit=unit, state_dropout=0.0)).double()
    twin = packed_twin(encoder, unit, layers)
    words = torch.randn(4, 7, 5, dtype=torch.float64, requires_grad=True)
    again = words.detach().clone().requires_grad_()
    found = real_states(encoder(words, LENGTHS), LENGTHS)
    packed = pack_padded_sequence(again, LENGTHS, batch_first=True, enforce_sorted=False)
    wanted = real_states(pad_packed_sequence(twin(packed)[0], batch_first=True)[0], LENGTHS)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weighted = torch.randn_like(found)
    (found * weighted).sum().backward()
    (wanted * weighted).sum().backward()
    torch.testing.assert_close(words.grad, again.grad, rtol=0, atol=1e-12)
    for layer in range(layers):
        for side, ending in ((encoder.onward, ""), (encoder.backward_, "_reverse")):
            for name, parameter in side[layer].named_parameters():
                same = getattr(twin, f"{name.removesuffix('_l0')}_l{layer}{ending}")
                torch.testing.assert_close(parameter.grad, same.grad, rtol=0, atol=1e-12)


def test_states_of_real_words_do_not_know_what_stands_in_the_padding():
    encoder = Encoder(Architecture(embedding=5, hidden=7, state_dropout=0.0))
    words = torch.randn(4, 7, 5)
    other = words.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        other[row, length:] = 100.0
    assert torch.equal(real_states(encoder(words, LENGTHS), LENGTHS), real_states(encoder(other, LENGTHS), LENGTHS))


def test_a_sentence_is_read_backwards_up_to_its_own_end():
    assert reversal(torch.tensor([3, 1, 4]), 4).tolist() == [[2, 1, 0, 3], [0, 1, 2, 3], [3, 2, 1, 0]]
