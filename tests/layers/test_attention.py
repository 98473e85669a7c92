"""`Attention` is `attend` with a score of its own, dropout while training, and a memory."""

import pytest
import torch
from tests.bounds import assert_same
from tests.refuses import refuses
from torch import nn

import regard
from regard import Attention, Mask
from regard.layers import Alibi
from regard.scores import Additive, Gaussian, Rotary, ScaledDot
from regard.scores.names import NAMED_SCORES


def tensors(*batch, queries=3, keys=5, dim=4, value_dim=2, dtype=torch.float64):
    shapes = ((queries, dim), (keys, dim), (keys, value_dim))
    return [torch.randn(*batch, *shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("score", sorted(NAMED_SCORES))
def test_a_layer_is_attend(score):
    query, key, value = tensors(2)
    layer, mask = Attention(score), Mask.lengths(torch.tensor([5, 2]))
    wanted = regard.attend(query, key, value, score, mask)
    assert torch.equal(layer(query, key, value, mask), wanted)
    memory = layer.remember(key, value, mask)
    assert_same(layer.recall(query, memory), wanted)
    for record in (layer.inspect(query, key, value, mask), layer.recall_inspect(query, memory)):
        assert_same(record.output, wanted)
        assert_same(record.weights() @ value, wanted)


def test_any_callable_and_its_parameters():

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))

        def forward(self, query, key):
            return query @ self.matrix @ key.mT

    layer = Attention(Own())
    assert [name for name, _ in layer.named_parameters()] == ["score.function.matrix"]
    query, key, value = tensors(2)
    layer(query, key, value).sum().backward()
    assert layer.score.function.matrix.grad.abs().sum() > 0
    memory = layer.remember(key, value)
    assert_same(layer.recall(query, memory), layer(query, key, value))
    with refuses("score", "from the callable"):
        Attention(lambda q, k: q)(query, key, value)


def test_layers_do_not_share_a_score_by_name():
    assert Attention("gaussian").score is not Attention("gaussian").score


def test_positions_of_recalled_queries_follow_the_keys():
    query, key, value = tensors(2, 3, queries=5)
    whole = regard.attend(query, key, value, mask=Mask.causal(), bias=Alibi(3))
    layer = Attention(bias=Alibi(3))
    memory = layer.remember(key, value, Mask.causal())
    assert_same(layer.recall(query[..., 3:, :], memory), whole[..., 3:, :])
    turned = Attention(Rotary(ScaledDot(softcap=2.0)))
    memory = turned.remember(key[..., :2, :], value[..., :2, :]).append(key[..., 2:, :], value[..., 2:, :])
    assert_same(turned.recall(query[..., 4:, :], memory), turned(query, key, value)[..., 4:, :])


def test_bias_as_tensor_parameter_and_callable():
    query, key, value = tensors(2)
    numbers = torch.randn(3, 5, dtype=torch.float64)
    fixed, learnt = Attention(bias=numbers), Attention(bias=nn.Parameter(numbers))
    assert [name for name, _ in fixed.named_buffers()] == ["bias"]
    assert [name for name, _ in learnt.named_parameters()] == ["bias"]
    wanted = regard.attend(query, key, value, bias=numbers)
    assert_same(fixed(query, key, value), wanted)
    assert_same(learnt(query, key, value), wanted)
    learnt(query, key, value).square().sum().backward()
    assert learnt.bias.grad.abs().min() > 0


def test_dropout_in_training_only():
    query, key, value = tensors(2, keys=31)
    layer = Attention(dropout=0.5)
    memory = layer.remember(key, value)
    assert not torch.equal(layer(query, key, value), layer(query, key, value))
    assert not torch.equal(layer.recall(query, memory), layer.recall(query, memory))
    layer.eval()
    assert torch.equal(layer(query, key, value), regard.attend(query, key, value))
    with refuses("dropout", "1.5", "a probability"):
        Attention(dropout=1.5)


def test_a_sink_takes_its_share_of_a_recall_too():
    query, key, value = tensors(2, 3)
    score = ScaledDot(sink=3).double()
    score.sink.data = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    layer = Attention(score)
    assert_same(layer.recall(query, layer.remember(key, value)), layer(query, key, value))
    assert bool((layer.inspect(query, key, value).weights().sum(-1) < 1).all())


def test_autocast_reaches_what_is_remembered():
    query, key, value = tensors(2, dtype=torch.float32)
    layer = Attention(Additive(4, 4, 7))
    with torch.autocast("cpu", torch.bfloat16):
        memory = layer.remember(key, value)
        recalled, called = layer.recall(query, memory), layer(query, key, value)
    assert memory.key.dtype == memory.value.dtype == recalled.dtype == torch.bfloat16
    assert torch.equal(recalled, called)
    before = layer.remember(key, value)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.remember(key, value.bfloat16()).key.dtype == torch.bfloat16
        assert layer.recall(query, before).dtype == torch.bfloat16


def test_errors_name_the_argument():
    _, key, value = tensors(2)
    layer = Attention()
    with refuses("value", "4 rows for 5 keys"):
        layer.remember(key, value[:, :4])
    with refuses("key", "list"):
        layer.remember([1.0], value)
    with refuses("query", "list"):
        layer.recall([1.0], layer.remember(key, value))
    with refuses("score", "Build the score first"):
        Attention(Gaussian)
    with refuses("score", "regard.scores.Additive("):
        Attention("additive")


def test_state_dict_holds_the_score():
    layer, other = Attention(Additive(3, 5, 7)), Attention(Additive(3, 5, 7))
    other.load_state_dict(layer.state_dict())
    query, key = torch.randn(2, 3), torch.randn(4, 5)
    assert torch.equal(layer(query, key, key), other(query, key, key))


def test_the_layer_describes_itself():
    assert "dropout=0.25" in repr(Attention("gaussian", dropout=0.25))


def test_what_is_recalled_must_be_a_memory():
    with refuses("memory", "NoneType None", "a Memory", "Make one with remember"):
        Attention().recall(torch.randn(2, 3), None)


@pytest.mark.parametrize("score", ["gaussian", "laplacian", "squared_distance"])
def test_recall_under_autocast_does_not_round_tokens_whose_distance_is_taken(score):
    """Near 100 bfloat16 has steps of 0.5, which would be an error of the size of the distances themselves."""
    query, key, value = (x.float() for x in tensors(2))
    query, key = query + 100, key + 100
    layer = Attention(score)
    exact = regard.attend(query.double(), key.double(), value.double(), score)
    with torch.autocast("cpu", torch.bfloat16):
        memory = layer.remember(key, value)
        found, record = layer.recall(query, memory), layer.recall_inspect(query, memory)
    assert found.dtype == torch.bfloat16
    for output in (found, record.output):
        assert (output.double() - exact).abs().max() < 0.02
