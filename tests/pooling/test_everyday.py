"""The everyday call: the same numbers as the way of every other call, and nothing that needs a check or a choice."""

import pytest
import torch
from tests.refuses import refuses
from torch import nn

import regard
from regard import Mask
from regard.pooling import everyday

SCORES = ["scaled_dot", "dot", regard.scores.ScaledDot(), regard.scores.ScaledDot(0.3), regard.scores.Dot()]
MASKS = {
    "none": None,
    "causal": Mask.causal(),
    "top_left": Mask.causal("top_left"),
    "lengths": Mask.lengths(torch.tensor([3, 7])),
    "nothing": Mask.lengths(torch.tensor([0, 9])),
    "one length": Mask.lengths(torch.tensor([4])),
    "lengths of heads": Mask.lengths(torch.tensor([[3, 7, 2], [1, 1, 1]])),
    "keys": Mask.keys(torch.arange(14).view(2, 7) % 3 > 0),
}


def tokens(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("score", SCORES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_numbers_and_gradients_are_those_of_every_other_call(score, mask, dtype):
    inputs = tokens(2, 3, 7, 5, dtype=dtype)
    found = everyday.pool(*inputs, score, MASKS[mask])
    expected = regard.attend(*inputs, score, MASKS[mask], backend="torch")
    assert torch.equal(found, expected)
    along = torch.randn(found.shape).to(dtype)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs, along), torch.autograd.grad(expected, inputs, along), strict=True
    ):
        assert torch.equal(ours, theirs)


OTHER = {
    "cosine": {"score": "cosine"},
    "softcap": {"score": regard.scores.ScaledDot(softcap=3.0)},
    "sink": {"score": regard.scores.ScaledDot(sink=3)},
    "rotary": {"score": regard.scores.Rotary("dot")},
    "callable": {"score": lambda query, key: query @ key.mT},
    "lengths of queries": {"mask": Mask.lengths_per_query(torch.tensor([[1, 2, 3, 4, 5, 6, 7]]))},
    "real and causal": {"mask": Mask.keys(torch.ones(2, 7, dtype=torch.bool)) & Mask.causal()},
    "window": {"mask": Mask.window(None, 1)},
    "short window": {"mask": Mask.window(3, 0)},
    "anticausal": {"mask": ~Mask.causal()},
    "joined": {"mask": Mask.causal() & Mask.causal()},
    "bare": {"mask": torch.ones(7, 7, dtype=torch.bool)},
}


@pytest.mark.parametrize("settings", OTHER.values(), ids=OTHER)
def test_other_scores_and_masks_are_not_everyday(settings):
    assert everyday.pool(*tokens(2, 3, 7, 5), settings.get("score", "scaled_dot"), settings.get("mask")) is None


def test_other_tokens_are_not_everyday():
    query, key, value = tokens(2, 3, 7, 5)

    class Other(torch.Tensor):
        pass

    for inputs in (
        (query, key[..., :6, :], value[..., :6, :]),
        (query, key, value[..., :4]),
        (query[:1], key, value),
        (query[0], key[0], value[0]),
        (query[..., :0, :], key[..., :0, :], value[..., :0, :]),
        (query, key, value.double()),
        (query.int(), key.int(), value.int()),
        (query, key, nn.Parameter(value.detach())),
        (query, key.as_subclass(Other), value),
        (query.to("meta"), key, value),
        (query, key, value.tolist()),
    ):
        assert everyday.pool(*inputs, "scaled_dot", None) is None
    with torch.autocast("cpu"):
        assert everyday.pool(query, key, value, "scaled_dot", None) is None
    assert everyday.pool(query, key, value, "scaled_dot", None) is not None


@pytest.mark.parametrize(
    "settings",
    [{}, {"bias": torch.zeros(7, 7)}, {"dropout": 0.5}, {"tolerance": 1e-3}, {"backend": "blocked"}],
    ids=lambda settings: "".join(settings),
)
def test_who_asks_for_more_gets_it(settings, monkeypatch):
    calls = []
    pooled = everyday.pool
    monkeypatch.setattr(everyday, "pool", lambda *call: calls.append(call) or pooled(*call))
    regard.attend(*tokens(2, 3, 7, 5), **settings)
    assert len(calls) == (not settings)


@pytest.mark.parametrize("dropout", [False, None, "", "0", -0.1, float("nan")])
def test_a_wrong_setting_is_still_refused(dropout):
    with refuses("dropout"):
        regard.attend(*tokens(2, 3, 7, 5), dropout=dropout)


def test_many_numbers_are_looked_at_before_padding_is_blanked():
    assert everyday.pool(*tokens(2, 3, 700, 5), "scaled_dot", Mask.lengths(torch.tensor([3, 7]))) is None


def test_lengths_that_do_not_fit_are_refused():
    with refuses("Mask.lengths"):
        regard.attend(*tokens(2, 3, 7, 5), mask=Mask.lengths(torch.tensor([3, 7, 1])))


def test_one_compiled_program_serves_as_many_keys_as_queries_and_others():
    from torch._dynamo.testing import CompileCounter  # over a second; for this test only

    programs = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(regard.attend, fullgraph=True, backend=programs, dynamic=True)
    query, key, value = (x.detach() for x in tokens(2, 3, 7, 5))
    for keys in (4, 7):
        some = key[..., :keys, :].clone(), value[..., :keys, :].clone()
        assert torch.allclose(compiled(query, *some), regard.attend(query, *some))
    assert programs.frame_count == 1
