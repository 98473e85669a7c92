"""The contract of layers: Attention and MultiHeadAttention over every score, judged by eq. 14 in NumPy."""

import copy
import pickle

import numpy as np
import pytest
import torch
from tests import bounds, oracle
from tests.refuses import refuses
from torch import nn

import regard
from regard import Attention, Mask, MultiHeadAttention
from regard.layers import Alibi
from regard.scores import Additive, Bilinear, Gaussian, Rotary, ScaledDot

NAMES = [*oracle.PLAIN, *oracle.KERNELS]
"""Every score by name; tests/contracts/test_score.py compares this list with the public classes."""
LAYER_NAMES = [*NAMES, "additive", "bilinear"]
B, Q, K = 2, 5, 7
HEADS, DIM = 4, 12


def array(tensor):
    return tensor.detach().double().cpu().numpy()


def assert_exact(found, exact, what="result", terms=400):
    exact = torch.tensor(exact)
    bounds.assert_close(found, exact, bounds.roundings(exact, terms), what)


# --- Eq. 14 in NumPy, from the state dict of a layer -----------------------------------------------------------------


def sizes(kv_heads=HEADS):
    """Sizes that are all different, so that no axis can be mistaken for another."""
    return {
        "key_dim": 13,
        "value_dim": 11,
        "output_dim": 9,
        "head_dim": 6,
        "value_head_dim": 5,
        "kv_heads": kv_heads,
    }


def projections(layer):
    """Wq, Wk, Wv and their biases: rows of the packed weight in this order, or a weight for each."""
    state = {name: array(tensor) for name, tensor in layer.state_dict().items()}
    rows = np.cumsum(
        [layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim, layer.kv_heads * layer.value_head_dim]
    )
    if "input.weight" in state:
        weights = np.split(state["input.weight"], rows[:2])
    else:
        weights = [state[f"input.{name}_weight"] for name in ("query", "key", "value")]
    return weights, np.split(state.get("input.bias", np.zeros(rows[-1])), rows[:2])


def head_formulas(layer, name):
    """The score of each head as a function of one pair of projected tokens."""
    state = {key: array(tensor) for key, tensor in layer.state_dict().items() if key.startswith("score.")}
    if name == "bilinear":
        return [oracle.scaled_dot] * layer.heads
    if name == "additive":
        eye = np.eye(layer.head_dim)
        return [lambda q, k, w=w: oracle.additive(q, k, eye, eye, w) for w in state["score.weight"]]
    if name in oracle.KERNELS:
        learns = "score.log_bandwidth" in state
        widths = np.exp(state["score.log_bandwidth"]) if learns else state["score.fixed_bandwidth"]
        return [lambda q, k, h=h: oracle.log_kernel(name, q, k, h) for h in widths]
    return [oracle.named(name)] * layer.heads


def eq_14(layer, name, query, key, value, allowed=None, bias=None):
    """What each head gives, (batch, heads, queries, value_head_dim) and so on, and its term of the output."""
    weights, biases = projections(layer)
    projected = [array(x) @ w.T + b for x, w, b in zip((query, key, value), weights, biases, strict=True)]

    def split(tokens, heads):
        return np.moveaxis(tokens.reshape(*tokens.shape[:-1], heads, -1), -2, -3)

    group = layer.heads // layer.kv_heads
    heads = [split(x, n) for x, n in zip(projected, (layer.heads, layer.kv_heads, layer.kv_heads), strict=True)]
    heads[1:] = [np.repeat(x, group, axis=-3) for x in heads[1:]]
    pooled = oracle.pool_batch(head_formulas(layer, name), *heads, allowed, bias)
    columns = np.split(array(layer.state_dict()["output.weight"]), layer.heads, axis=-1)
    terms = [pooled.output[..., j, :, :] @ columns[j].T for j in range(layer.heads)]
    return pooled, terms


def output_bias(layer):
    return array(layer.state_dict()["output.bias"])


def random_biases(layer):
    """The same layer with biases that are not 0."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return layer


def free(name, **options):
    return random_biases(MultiHeadAttention(DIM, HEADS, name, **{**sizes(), **options}).double())


def drawn(*batch):
    return [torch.randn(*batch, n, d, dtype=torch.float64) for n, d in ((Q, DIM), (K, 13), (K, 11))]


LENGTHS = Mask.lengths(torch.tensor([4, 7]))
ALLOWED = np.array([[[[j < n for j in range(K)]]] for n in (4, 7)])


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("name", LAYER_NAMES)
def test_layer_is_the_sum_of_its_projected_heads(name, kv_heads):
    layer = free(name, kv_heads=kv_heads)
    tokens = drawn(B)
    pooled, terms = eq_14(layer, name, *tokens, ALLOWED)
    assert_exact(layer(*tokens, LENGTHS), sum(terms) + output_bias(layer))
    record = layer.inspect(*tokens, LENGTHS)
    assert_exact(record.output, sum(terms) + output_bias(layer))
    assert_exact(record.heads.output, pooled.output)
    assert_exact(record.weights(), pooled.weights)
    assert_exact(record.log_mass, pooled.log_mass, terms=4000)
    assert_exact(layer.join(record.heads.output), sum(terms) + output_bias(layer))


@pytest.mark.parametrize("name", LAYER_NAMES)
def test_layer_over_one_tensor_attends_to_itself(name):
    layer = random_biases(MultiHeadAttention(DIM, HEADS, name).double())
    x = torch.randn(B, Q, DIM, dtype=torch.float64)
    _, terms = eq_14(layer, name, x, x, x, oracle.causal(Q, Q))
    for output in (layer(x, mask=Mask.causal()), layer(x, x, x, Mask.causal()), layer(x, x, mask=Mask.causal())):
        assert_exact(output, sum(terms) + output_bias(layer))
    with torch.no_grad():
        assert_exact(layer.eval()(x, mask=Mask.causal()), sum(terms) + output_bias(layer))


@pytest.mark.parametrize("batch", [(), (1,), (3, 2)], ids=str)
@pytest.mark.parametrize("name", ["scaled_dot", "gaussian", "additive"])
def test_layer_takes_any_number_of_batch_axes(name, batch):
    layer, tokens = free(name, kv_heads=2), drawn(*batch)
    _, terms = eq_14(layer, name, *tokens)
    assert layer(*tokens).shape == (*batch, Q, 9)
    assert_exact(layer(*tokens), sum(terms) + output_bias(layer))


def test_keys_of_a_batch_of_1_are_shared():
    layer = free("scaled_dot")
    query, key, value = drawn(3)
    _, terms = eq_14(layer, "scaled_dot", query, key[:1], value[:1])
    assert_exact(layer(query, key[:1], value[:1]), sum(terms) + output_bias(layer))


@pytest.mark.parametrize("name", LAYER_NAMES)
def test_grouped_heads_are_heads_with_repeated_keys_and_values(name):
    grouped = free(name, kv_heads=2)
    whole = MultiHeadAttention(DIM, HEADS, name, **sizes()).double()
    state = grouped.state_dict()
    split = (24, 12, 10)  # rows of Wq, Wk and Wv: heads times head_dim
    query, key, value = state["input.bias"].split(split)
    repeated = {"query": state["input.query_weight"]}
    for part in ("key", "value"):
        rows = state[f"input.{part}_weight"].unflatten(0, (2, -1))
        repeated[part] = rows.repeat_interleave(HEADS // 2, 0).flatten(0, 1)
    biases = [x.unflatten(0, (2, -1)).repeat_interleave(HEADS // 2, 0).flatten() for x in (key, value)]
    changed = {f"input.{part}_weight": weight for part, weight in repeated.items()}
    whole.load_state_dict({**state, **changed, "input.bias": torch.cat([query, *biases])})
    tokens = drawn(B)
    bounds.assert_same(grouped(*tokens, LENGTHS), whole(*tokens, LENGTHS))
    bounds.assert_same(grouped.inspect(*tokens).weights(), whole.inspect(*tokens).weights())


def test_position_bias_is_added_to_the_scores():
    layer = free("scaled_dot", position_bias=Alibi(HEADS))
    tokens = drawn(B)
    slopes = [2.0 ** -(8 * (j + 1) / HEADS) for j in range(HEADS)]
    bias = np.array([[[-slope * abs(i - j) for j in range(K)] for i in range(Q)] for slope in slopes])
    _, terms = eq_14(layer, "scaled_dot", *tokens, ALLOWED, bias)
    assert_exact(layer(*tokens, LENGTHS), sum(terms) + output_bias(layer))


def test_bias_of_a_call_is_added_to_the_scores():
    layer, tokens = free("gaussian"), drawn(B)
    bias = torch.randn(B, HEADS, Q, K, dtype=torch.float64)
    _, terms = eq_14(layer, "gaussian", *tokens, ALLOWED, array(bias))
    assert_exact(layer(*tokens, LENGTHS, bias=bias), sum(terms) + output_bias(layer))


# --- Attention without projections -----------------------------------------------------------------------------------

PLAIN_LAYERS = {
    **{name: (lambda name=name: Attention(name), lambda layer, name=name: oracle.named(name)) for name in NAMES},
    "Bilinear": (
        lambda: Attention(Bilinear(6, 6)),
        lambda layer: lambda q, k: oracle.bilinear(q, k, array(layer.score.matrix)),
    ),
    "Additive": (
        lambda: Attention(Additive(6, 6, 5)),
        lambda layer: (
            lambda q, k: oracle.additive(
                q, k, *(array(layer.state_dict()[f"score.{part}weight"]) for part in ("query_", "key_", ""))
            )
        ),
    ),
    "callable": (
        lambda: Attention(lambda q, k: -torch.cdist(q, k, p=1)),
        lambda layer: lambda q, k: -np.abs(q - k).sum(),
    ),
}


def plain(name):
    layer = PLAIN_LAYERS[name][0]().double()
    return layer, PLAIN_LAYERS[name][1](layer)


def near_tokens(*batch, queries=Q, keys=K):
    """Tokens so near to each other that compact kernels reach some of them."""
    query, key = (0.3 * torch.randn(*batch, n, 6, dtype=torch.float64) for n in (queries, keys))
    return query, key, torch.randn(*batch, keys, 3, dtype=torch.float64)


@pytest.mark.parametrize("name", PLAIN_LAYERS)
def test_attention_is_the_formula_over_allowed_keys(name):
    layer, formula = plain(name)
    query, key, value = near_tokens(B)
    exact = oracle.pool_batch(formula, array(query), array(key), array(value), ALLOWED[:, 0])
    assert_exact(layer(query, key, value, LENGTHS), exact.output)
    record = layer.inspect(query, key, value, LENGTHS)
    assert_exact(record.output, exact.output)
    assert_exact(record.weights(), exact.weights)


@pytest.mark.parametrize("name", PLAIN_LAYERS)
def test_recalled_attention_is_the_formula_over_allowed_keys(name):
    layer, formula = plain(name)
    query, key, value = near_tokens(B)
    exact = oracle.pool_batch(formula, array(query), array(key), array(value), ALLOWED[:, 0])
    memory = layer.remember(key, value, LENGTHS)
    output, weights = layer.recall_with_weights(query, memory)
    record = layer.recall_inspect(query, memory)
    for found in (layer.recall(query, memory), output, record.output):
        assert_exact(found, exact.output)
    for found in (weights, record.weights()):
        assert_exact(found, exact.weights)


@pytest.mark.parametrize("bias", ["tensor", "parameter", "callable"])
def test_bias_of_an_attention_layer_is_added_to_the_scores(bias):
    numbers = torch.randn(Q, K, dtype=torch.float64)
    given = {
        "tensor": numbers,
        "parameter": nn.Parameter(numbers),
        "callable": lambda i, j: numbers[i[:, None], j],
    }[bias]
    query, key, value = near_tokens()
    exact = oracle.pool(oracle.scaled_dot, array(query), array(key), array(value), bias=array(numbers))
    assert_exact(Attention(bias=given)(query, key, value), exact.output)


# --- Step by step ----------------------------------------------------------------------------------------------------

DECODERS = {
    **{name: lambda name=name: MultiHeadAttention(DIM, HEADS, name) for name in LAYER_NAMES},
    "grouped": lambda: MultiHeadAttention(DIM, HEADS, kv_heads=2),
    "grouped additive": lambda: MultiHeadAttention(DIM, HEADS, "additive", kv_heads=1),
    "rotary": lambda: MultiHeadAttention(16, HEADS, Rotary("scaled_dot")),
    "alibi": lambda: MultiHeadAttention(DIM, HEADS, position_bias=Alibi(HEADS)),
    "sink": lambda: MultiHeadAttention(DIM, HEADS, ScaledDot(sink=HEADS)),
    "callable": lambda: MultiHeadAttention(DIM, HEADS, lambda q, k: (q @ k.mT).tanh()),
}


def decoder(name):
    layer = random_biases(DECODERS[name]().double())
    return layer, torch.randn(B, K, 16 if name == "rotary" else DIM, dtype=torch.float64)


@pytest.mark.parametrize("chunks", [[1] * 7, [3, 1, 3]], ids=str)
@pytest.mark.parametrize("name", DECODERS)
def test_decoding_step_by_step_is_one_causal_call(name, chunks):
    layer, tokens = decoder(name)
    whole = layer(tokens, mask=Mask.causal())
    first, *rest = tokens.split(chunks, dim=1)
    memory = layer.remember(first, mask=Mask.causal())
    steps = [layer.recall(first, memory)]
    for chunk in rest:
        memory = memory.append(chunk)
        steps.append(layer.recall(chunk, memory))
    assert len(memory) == memory.keys == K
    bounds.assert_same(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("name", PLAIN_LAYERS)
def test_attention_step_by_step_is_one_causal_call(name):
    layer, _ = plain(name)
    query, key, value = near_tokens(B, queries=K)
    whole = layer(query, key, value, Mask.causal() & Mask.window(3, None))
    memory = layer.remember(key[:, :0], value[:, :0], Mask.causal() & Mask.window(3, None))
    steps = []
    for step in range(K):
        memory = memory.append(key[:, step : step + 1], value[:, step : step + 1])
        steps.append(layer.recall(query[:, step : step + 1], memory))
    bounds.assert_same(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("name", DECODERS)
def test_every_way_to_recall_gives_the_output_and_weights_of_one_call(name):
    layer, tokens = decoder(name)
    memory = layer.remember(tokens, mask=LENGTHS)
    queries = tokens[:, -Q:]
    output, weights = layer.recall_with_weights(queries, memory)
    record = layer.recall_inspect(queries, memory)
    bounds.assert_same(output, layer.recall(queries, memory))
    bounds.assert_same(record.output, output)
    bounds.assert_same(record.weights(), weights)
    whole = layer.inspect(tokens, mask=LENGTHS)
    bounds.assert_same(output, whole.output[:, -Q:])
    bounds.assert_same(weights, whole.weights()[..., -Q:, :])
    bounds.assert_same(layer(tokens, mask=LENGTHS), whole.output)


@pytest.mark.parametrize("name", DECODERS)
def test_weights_are_not_negative_and_sum_to_1_without_a_sink(name):
    layer, tokens = decoder(name)
    weights = layer.inspect(tokens, mask=LENGTHS).weights()
    assert weights.shape == (B, HEADS, K, K)
    assert (weights >= 0).all()
    assert (weights[0, ..., 4:] == 0).all()
    total = weights.sum(-1)
    if name == "sink":
        assert (total < 1).all()
    elif name not in oracle.KERNELS:
        torch.testing.assert_close(total, torch.ones_like(total))
    else:  # a compact kernel may see no key
        assert (((total - 1).abs() < 1e-12) | (total == 0)).all()


@pytest.mark.parametrize("name", ["scaled_dot", "gaussian", "additive", "grouped", "sink"])
def test_selected_memory_is_that_of_the_selected_rows(name):
    layer, tokens = decoder(name)
    rows = torch.tensor([1, 1, 0])
    memory = layer.remember(tokens, mask=LENGTHS).select(rows)
    lengths = Mask.lengths(torch.tensor([7, 7, 4]))
    bounds.assert_same(layer.recall(tokens[rows], memory), layer(tokens[rows], mask=lengths))
    grown = memory.append(tokens[rows][:, :2])
    longer = torch.cat([tokens[rows], tokens[rows][:, :2]], 1)
    keys = torch.tensor([[True] * 9, [True] * 9, [True] * 4 + [False] * 3 + [True] * 2])
    bounds.assert_same(layer.recall(longer, grown), layer(longer, mask=Mask.keys(keys)))


def test_memory_of_another_layer_is_refused():
    layer, other = (MultiHeadAttention(DIM, HEADS) for _ in range(2))
    x = torch.randn(B, K, DIM)
    with refuses("memory", "another layer"):
        layer.recall(x, other.remember(x))
    with refuses("memory", "Memory"):
        Attention().recall(x, x)


# --- Switching heads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["scaled_dot", "gaussian", "additive"])
def test_head_that_is_switched_off_contributes_nothing(name):
    layer, tokens = free(name), drawn(B)
    _, terms = eq_14(layer, name, *tokens)
    bias = output_bias(layer)
    layer.switch_off(1)
    assert_exact(layer(*tokens), terms[0] + terms[2] + terms[3] + bias)
    assert_exact(layer.inspect(*tokens).output, terms[0] + terms[2] + terms[3] + bias)
    layer.switch_off([0, 3])
    assert_exact(layer.recall(tokens[0], layer.remember(*tokens[1:])), terms[2] + bias)
    layer.switch_on(3)
    assert_exact(layer(*tokens), terms[2] + terms[3] + bias)
    layer.switch_off(range(HEADS))
    assert_exact(layer(*tokens), np.broadcast_to(bias, (B, Q, 9)))
    layer.switch_on()
    assert_exact(layer(*tokens), sum(terms) + bias)


def test_switched_heads_are_not_part_of_the_state_dict():
    layer = free("scaled_dot")
    names = list(layer.state_dict())
    layer.switch_off(2)
    assert list(layer.state_dict()) == names


@pytest.mark.parametrize("heads", [4, -5, 1.5, "1", [0, 4]], ids=str)
def test_head_that_does_not_exist_cannot_be_switched(heads):
    with refuses("heads"):
        free("scaled_dot").switch_off(heads)


# --- Weights of nn.MultiheadAttention --------------------------------------------------------------------------------

TORCH = {"plain": {}, "without bias": {"bias": False}, "other sizes": {"kdim": 5, "vdim": 7}}


@pytest.mark.parametrize("options", TORCH)
def test_layer_from_torch_computes_what_torch_computes(options):
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True, dtype=torch.float64, **TORCH[options]).eval()
    random_biases(theirs)
    ours = MultiHeadAttention.from_torch(theirs)
    query = torch.randn(B, Q, DIM, dtype=torch.float64)
    key = torch.randn(B, K, TORCH[options].get("kdim", DIM), dtype=torch.float64)
    value = torch.randn(B, K, TORCH[options].get("vdim", DIM), dtype=torch.float64)
    padding = torch.tensor([[False] * 4 + [True] * 3, [False] * 7])
    forbidden = torch.tensor(~oracle.causal(Q, K, 2))
    expected, weights = theirs(
        query, key, value, key_padding_mask=padding, attn_mask=forbidden, average_attn_weights=False
    )
    mask = Mask.from_multihead(forbidden, padding)
    record = ours.inspect(query, key, value, mask)
    bounds.assert_same(ours(query, key, value, mask), expected)
    bounds.assert_same(record.output, expected)
    bounds.assert_same(record.weights(), weights)


@pytest.mark.parametrize("options", TORCH)
def test_weights_go_to_torch_and_come_back(options):
    theirs = random_biases(nn.MultiheadAttention(DIM, HEADS, batch_first=True, dropout=0.25, **TORCH[options]))
    returned = MultiHeadAttention.from_torch(theirs).to_torch()
    assert returned.state_dict().keys() == theirs.state_dict().keys()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(returned.state_dict()[name], tensor), name
    assert (returned.dropout, returned.num_heads, returned.batch_first) == (0.25, HEADS, True)


@pytest.mark.parametrize(
    "options",
    [
        {"score": "gaussian"},
        {"score": "additive"},
        {"score": ScaledDot(0.3)},
        {"kv_heads": 2},
        {"head_dim": 5},
        {"output_dim": 7},
        {"position_bias": Alibi(HEADS)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_layer_that_torch_does_not_have_is_not_converted(options):
    with refuses("to_torch", "nn.MultiheadAttention"):
        MultiHeadAttention(DIM, HEADS, **options).to_torch()


# --- Copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied_by", ["state_dict", "pickle", "deepcopy"])
@pytest.mark.parametrize("name", [name for name in DECODERS if name != "callable"])
def test_copy_of_a_layer_computes_the_same(name, copied_by):
    layer, tokens = decoder(name)
    if copied_by == "state_dict":
        copied = DECODERS[name]().double()
        copied.load_state_dict(layer.state_dict())
    else:
        copied = pickle.loads(pickle.dumps(layer)) if copied_by == "pickle" else copy.deepcopy(layer)
    assert torch.equal(copied(tokens, mask=LENGTHS), layer(tokens, mask=LENGTHS))
    assert repr(copied) == repr(layer)


def test_state_dict_has_the_names_of_saved_models():
    assert list(MultiHeadAttention(DIM, HEADS).state_dict()) == [
        "input.weight",
        "input.bias",
        "output.weight",
        "output.bias",
    ]
    assert set(free("additive").state_dict()) == {
        "score.weight",
        "input.query_weight",
        "input.key_weight",
        "input.value_weight",
        "input.bias",
        "output.weight",
        "output.bias",
    }
    assert set(MultiHeadAttention(DIM, HEADS, "gaussian", bias=False).state_dict()) == {
        "score.log_bandwidth",
        "input.weight",
        "output.weight",
    }
    assert set(Attention(Additive(3, 5, 7)).state_dict()) == {
        "score.query_weight",
        "score.key_weight",
        "score.weight",
    }


def test_layers_do_not_share_a_score_by_name():
    first, second = (MultiHeadAttention(DIM, HEADS, "gaussian") for _ in range(2))
    assert first.score is not second.score


# --- Padding, dtypes, gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [-7.0, 1e18, 3e38], ids=str)
@pytest.mark.parametrize("name", [name for name in DECODERS if name != "callable"])
def test_finite_content_of_padding_changes_nothing(name, garbage):
    layer, tokens = decoder(name)
    layer, tokens = layer.float(), tokens.float()
    padded = tokens.clone()
    padded[0, 4:] = garbage
    expected = layer(tokens[:, :Q], tokens, mask=LENGTHS)
    queries = tokens[:, :Q]
    for found in (
        layer(queries, padded, mask=LENGTHS),
        layer.inspect(queries, padded, mask=LENGTHS).output,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    recalled = layer.recall(queries, layer.remember(tokens, mask=LENGTHS))
    torch.testing.assert_close(
        layer.recall(queries, layer.remember(padded, mask=LENGTHS)), recalled, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", LAYER_NAMES)
def test_query_without_keys_gets_the_bias_of_the_output_and_no_gradient(name):
    layer = random_biases(MultiHeadAttention(DIM, HEADS, name))
    x = torch.randn(B, K, DIM, requires_grad=True)
    output = layer(x, mask=Mask.lengths(torch.tensor([0, 7])))
    torch.testing.assert_close(output[0], layer.output.bias.expand(K, DIM))
    output.sum().backward()
    assert (x.grad[0] == 0).all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LAYER_NAMES)
def test_half_precision_is_as_exact_as_the_plain_equations(name, dtype):
    layer = MultiHeadAttention(DIM, HEADS, name).to(dtype)
    tokens = torch.randn(B, K, DIM).to(dtype)
    exact = copy.deepcopy(layer).double()(tokens.double(), mask=LENGTHS)
    equations = copy.deepcopy(layer)
    equations.backend = "reference"
    output = layer(tokens, mask=LENGTHS)
    assert output.dtype == dtype
    bounds.assert_as_good(output, equations(tokens, mask=LENGTHS), exact)


@pytest.mark.parametrize("name", LAYER_NAMES)
def test_autocast_computes_projections_in_half_precision(name):
    layer, tokens = MultiHeadAttention(DIM, HEADS, name), torch.randn(B, K, DIM)
    expected = layer(tokens, mask=LENGTHS)
    with torch.autocast(tokens.device.type, torch.bfloat16):
        output = layer(tokens, mask=LENGTHS)
        recalled = layer.recall(tokens, layer.remember(tokens, mask=LENGTHS))
    assert output.dtype == recalled.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)
    torch.testing.assert_close(recalled.float(), expected, rtol=0.05, atol=0.05)
    output.float().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())


@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("name", LAYER_NAMES)
def test_gradients_are_those_of_finite_differences(name, kv_heads):
    layer = random_biases(MultiHeadAttention(4, 2, name, kv_heads=kv_heads).double())
    parameters = dict(layer.named_parameters())
    query, key = (torch.randn(1, n, 4, dtype=torch.float64).requires_grad_() for n in (2, 3))

    def output(query, key, *values):
        named = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(layer, named, (query, key), {"mask": Mask.lengths(torch.tensor([2]))})

    leaves = [parameter.detach().clone().requires_grad_() for parameter in parameters.values()]
    assert torch.autograd.gradcheck(output, (query, key, *leaves))


@pytest.mark.parametrize("make", [lambda: Attention(dropout=0.5), lambda: MultiHeadAttention(6, 2, dropout=0.5)])
def test_weights_are_dropped_in_training_only(make):
    layer, x = make(), torch.randn(B, K, 6)
    first, second = layer(x, x, x), layer(x, x, x)
    assert not torch.equal(first, second)
    layer.eval()
    assert torch.equal(layer(x, x, x), layer(x, x, x))


# --- repr and refusals -----------------------------------------------------------------------------------------------


def test_repr_shows_the_score_and_the_sizes():
    assert "Gaussian(bandwidth=0.5" in repr(Attention(Gaussian(0.5), dropout=0.1))
    assert "dropout=0.1" in repr(Attention(Gaussian(0.5), dropout=0.1))
    shown = repr(MultiHeadAttention(DIM, HEADS, "additive", kv_heads=2))
    assert all(part in shown for part in ("Additive(", f"heads={HEADS}", "kv_heads=2"))


@pytest.mark.parametrize(
    ("arguments", "options", "argument"),
    [
        ((12, 5), {}, "heads"),
        ((0, 1), {}, "dim"),
        ((12, 0), {}, "heads"),
        ((12, 4), {"kv_heads": 3}, "kv_heads"),
        ((12, 4), {"dropout": 1.5}, "dropout"),
        ((12, 4), {"backend": "abacus"}, "backend"),
        ((12, 4), {"key_dim": 2.5}, "key_dim"),
        ((12, 4), {"score": ScaledDot(sink=3)}, "score"),
    ],
)
def test_layer_with_wrong_sizes_is_refused(arguments, options, argument):
    with refuses(argument):
        MultiHeadAttention(*arguments, **options)


def test_tokens_of_another_size_are_refused():
    layer = MultiHeadAttention(DIM, HEADS, key_dim=5)
    x, key = torch.randn(B, Q, DIM), torch.randn(B, K, 5)
    with refuses("query", "5"):
        layer(key, key)
    with refuses("key", "12"):
        layer(x, x)
    with refuses("value"):
        layer(x, key, key[:, 1:])
    with refuses("key", "float32", "float64"):
        layer(x.double(), key)


def test_call_of_a_layer_is_the_same_for_every_backend():
    layer, tokens = free("gaussian"), drawn(B)
    expected = layer(*tokens, LENGTHS)
    for backend in ("reference", "blocked"):
        layer.backend = backend
        bounds.assert_same(layer(*tokens, LENGTHS), expected)
        with regard.testing.dispatch_log() as ran:
            layer(*tokens, LENGTHS)
        assert ran == [backend]
