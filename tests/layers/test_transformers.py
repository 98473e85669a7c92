"""Tiny random models of Hugging Face transformers: `register_with_transformers` gives what eager attention gives."""

import os

from tests.refuses import refuses

os.environ["HF_HUB_OFFLINE"] = "1"

import copy
import sys
import types
from functools import cache

import pytest
import torch
from tests.bounds import assert_as_good, error

import regard
from regard import register_with_transformers
from regard.scores import Additive

VOCABULARY, TOKENS, NEW = 97, 7, 5
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
OWN_ATTENTION = ("xglm", "bloom", "mpt")
PADDINGS = ("none", "left", "right")


@cache
def models():
    """The classes and configurations of the models. transformers is imported here because it needs over a second."""
    import transformers as hf

    return {
        "llama": (
            hf.LlamaForCausalLM,
            hf.LlamaConfig(**SIZES, **SPECIAL, num_hidden_layers=2, num_key_value_heads=2),
        ),
        "bert": (hf.BertForMaskedLM, hf.BertConfig(**SIZES, num_hidden_layers=2)),
        "t5": (
            hf.T5ForConditionalGeneration,
            hf.T5Config(
                vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
            ),
        ),
        # These models have their own attention: the first two add the mask to their scores, mpt reads it as boolean.
        "xglm": (
            hf.XGLMForCausalLM,
            hf.XGLMConfig(vocab_size=VOCABULARY, d_model=32, num_layers=2, attention_heads=4, ffn_dim=48, **SPECIAL),
        ),
        "bloom": (
            hf.BloomForCausalLM,
            hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, **SPECIAL),
        ),
        "mpt": (
            hf.MptForCausalLM,
            hf.MptConfig(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=64, **SPECIAL),
        ),
    }


@pytest.fixture(autouse=True)
def _registered():
    register_with_transformers()


def build(name, attention, dtype=torch.float32):
    """A tiny model with large random weights, so that attention is far from uniform."""
    kind, config = models()[name]
    torch.manual_seed(1)
    model = kind._from_config(copy.deepcopy(config), attn_implementation=attention).eval()
    assert model.config._attn_implementation == attention
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2)
    return model.to(dtype)


@cache
def with_torch_attention(name):
    """The model with torch's own scaled_dot_product_attention, whose CPU kernel has a faster and coarser exponential.

    It is as exact as eager attention on some processors and several times coarser on others.
    """
    return build(name, "sdpa")


@cache
def trio(name):
    """The model with regard, with eager attention, and in float64, where eager attention would still use float32."""
    return build(name, "regard"), build(name, "eager"), build(name, "sdpa", torch.float64)


def inputs(name, padding="none"):
    tokens = torch.randint(3, VOCABULARY, (2, TOKENS))
    given = {"input_ids": tokens}
    if padding != "none":
        real = torch.ones(2, TOKENS, dtype=torch.long)
        real[1, :3] = 0
        given["attention_mask"] = real if padding == "left" else real.flip(1)
    if name == "t5":
        given["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, 4))
    return given


def of_real_tokens(numbers, name, given):
    """Padding tokens of a decoder have no meaning, and eager attention gives their queries other weights."""
    return numbers if "attention_mask" not in given or name == "t5" else numbers[given["attention_mask"].bool()]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_logits_and_gradients_equal_eager_attention(name, padding):
    given, results = inputs(name, padding), []
    for model in (*trio(name), with_torch_attention(name)):
        model.zero_grad()
        logits = of_real_tokens(model(**given).logits, name, given)
        logits.double().square().mean().backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters()]
        results.append((logits.detach(), torch.cat(gradients)))
    for what, (found, eager, exact, torchs) in zip(("logits", "gradients"), zip(*results, strict=True), strict=True):
        assert_as_good(found, max(eager, torchs, key=lambda result: error(result, exact)), exact, what)


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("cache_kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_generation_with_a_cache_equals_eager_attention(name, cache_kind, padding):
    assert_generates_as_eager(name, padding, cache_implementation=cache_kind)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_beam_search_equals_eager_attention(name):
    assert_generates_as_eager(name, "left", num_beams=3)


def assert_generates_as_eager(name, padding, **options):
    found, eager, exact = (generated(model, name, padding, **options) for model in trio(name))
    assert torch.equal(found.sequences, eager.sequences)
    assert torch.equal(found.sequences, exact.sequences)
    assert_as_good(*(torch.stack(each.logits) for each in (found, eager, exact)))


def generated(model, name, padding, **options):
    torch.manual_seed(2)
    given = inputs(name, padding)
    given.pop("decoder_input_ids", None)
    given.setdefault("attention_mask", torch.ones_like(given["input_ids"]))
    options |= {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "disable_compile": True}
    return model.generate(**given, **options, return_dict_in_generate=True, output_logits=True)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", OWN_ATTENTION)
def test_a_model_with_an_attention_of_its_own_is_as_it_was(name, padding):
    given, (ours, eager) = inputs(name, padding), (build(name, kind) for kind in ("regard", "eager"))
    assert torch.equal(ours(**given).logits, eager(**given).logits)
    for kind in ("dynamic", "static"):
        found, wanted = (generated(model, name, padding, cache_implementation=kind) for model in (ours, eager))
        assert torch.equal(found.sequences, wanted.sequences)
        assert torch.equal(torch.stack(found.logits), torch.stack(wanted.logits))


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_attention_weights_equal_eager_attention(name):
    given = inputs(name)
    found, eager = (model(**given, output_attentions=True) for model in trio(name)[:2])
    kinds = ("encoder_attentions", "decoder_attentions", "cross_attentions") if name == "t5" else ("attentions",)
    for kind in kinds:
        assert len(found[kind]) == 2
        torch.testing.assert_close(found[kind], eager[kind])


def test_weights_of_padding_queries_are_zero():
    given = inputs("llama", "left")
    for weights in trio("llama")[0](**given, output_attentions=True).attentions:
        assert not weights[1, :, :3].any()
        torch.testing.assert_close(weights[1, :, 3:].sum(-1), torch.ones(4, 4))


@pytest.mark.parametrize("score", ["gaussian", "cosine", "epanechnikov", "additive"])
def test_a_model_trains_on_another_score(score):
    chosen = Additive.of_projected(8, 4) if score == "additive" else score
    register_with_transformers("regard-other", score=chosen)
    model, given = build("llama", "regard-other"), inputs("llama", "left")
    plain = trio("llama")[0](**given).logits
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    labels = given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)
    before = model(**given, labels=labels)
    assert not torch.allclose(before.logits, plain)
    before.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    optimizer.step()
    assert model(**given, labels=labels).loss < before.loss


@pytest.mark.parametrize("score", ["gaussian", "epanechnikov"])
def test_a_score_hides_padding_and_later_tokens(score):
    register_with_transformers("regard-other", score=score)
    model, given = build("llama", "regard-other"), inputs("llama", "left")
    alone = given["input_ids"][1:, 3:]
    positions = torch.arange(TOKENS).expand(2, -1) - torch.tensor([[0], [3]])
    logits = model(**given, position_ids=positions.clamp(min=0)).logits
    torch.testing.assert_close(logits[1:, 3:], model(alone).logits)
    torch.testing.assert_close(logits[1:, 3:6], model(alone[:, :3]).logits)


@pytest.mark.parametrize("score", ["gaussian", "epanechnikov"])
def test_a_score_generates_alike_with_and_without_a_cache(score):
    register_with_transformers("regard-other", score=score)
    model, given = build("llama", "regard-other"), inputs("llama")
    options = {"do_sample": False, "max_new_tokens": NEW, "disable_compile": True, "output_logits": True}
    ways = ({"use_cache": False}, {"cache_implementation": "dynamic"}, {"cache_implementation": "static"})
    one, *others = (model.generate(**given, **options, **way, return_dict_in_generate=True) for way in ways)
    for other in others:
        assert torch.equal(one.sequences, other.sequences)
        torch.testing.assert_close(torch.stack(one.logits), torch.stack(other.logits), rtol=1e-4, atol=1e-4)


def test_autocast_is_as_exact_as_eager_attention():
    given = inputs("llama", "left")
    with torch.autocast("cpu", torch.bfloat16):
        found, eager = (of_real_tokens(model(**given).logits, "llama", given) for model in trio("llama")[:2])
    exact = of_real_tokens(trio("llama")[2](**given).logits, "llama", given)
    assert found.dtype == torch.bfloat16
    assert_as_good(found, eager, exact)


def test_the_same_name_registers_again_with_another_score():
    given, model = inputs("llama"), build("llama", "regard")
    dot = model(**given).logits
    register_with_transformers("regard", score="gaussian")
    assert not torch.allclose(model(**given).logits, dot)
    register_with_transformers("regard")
    assert torch.equal(model(**given).logits, dot)


def test_a_model_changes_to_regard_after_it_was_made():
    given, model = inputs("llama", "left"), build("llama", "eager")
    model.set_attn_implementation("regard")
    assert torch.equal(model(**given).logits, trio("llama")[0](**given).logits)


@pytest.mark.parametrize(
    ("name", "argument", "word"),
    [
        ("", "name", "a name of letters"),
        (3, "name", "a name of letters"),
        ("hub/kernel", "name", "'hub/kernel'"),
        ("paged|regard", "name", "'paged|regard'"),
        ("eager", "name", "'eager'"),
        ("sdpa", "name", "'sdpa'"),
        ("flash_attention_2", "name", "'flash_attention_2'"),
        ("flex_attention", "name", "'flex_attention'"),
        ("regard-flash", "name", "'regard-flash'"),
    ],
)
def test_a_name_that_transformers_uses_itself_is_refused(name, argument, word):
    import transformers

    kept = transformers.AttentionInterface().valid_keys()
    with refuses(argument, word):
        register_with_transformers(name)
    assert transformers.AttentionInterface().valid_keys() == kept


@pytest.mark.parametrize("score", ["additive", "sofmax", 3, regard.scores.Gaussian])
def test_an_unknown_score_is_refused_when_it_is_registered(score):
    with refuses("score"):
        register_with_transformers("regard", score=score)


def test_without_transformers_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refuses("register_with_transformers", "AttentionMaskInterface", "pip install"):
        register_with_transformers()


def test_an_old_version_of_transformers_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(__version__="4.47.0"))
    with refuses("register_with_transformers", "4.47.0"):
        register_with_transformers()


def test_registered_by_hand_without_a_mask_function_a_model_is_refused():
    import transformers

    transformers.AttentionInterface.register("by-hand-without-masks", regard.attention_interface)
    for name in ("llama", "bert", "t5"):
        for padding in PADDINGS:
            with refuses("attention_mask", '"by-hand-without-masks" without a mask function'):
                build(name, "by-hand-without-masks")(**inputs(name, padding))


def test_registered_by_hand_with_sdpa_mask_only_the_prompt_of_a_static_cache_is_refused():
    import transformers
    from transformers.masking_utils import sdpa_mask

    transformers.AttentionInterface.register("by-hand", regard.attention_interface)
    transformers.AttentionMaskInterface.register("by-hand", sdpa_mask)
    model = build("llama", "by-hand")
    for padding, kind in (("none", "dynamic"), ("left", "dynamic"), ("left", "static")):
        found = generated(model, "llama", padding, cache_implementation=kind)
        wanted = generated(trio("llama")[1], "llama", padding, cache_implementation=kind)
        assert torch.equal(found.sequences, wanted.sequences)
    with refuses("attention_mask", "for 7", "11"):
        generated(model, "llama", "none", cache_implementation="static")
