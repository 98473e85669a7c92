"""The message with the facts of a rank has a fixed size and stays readable, whatever the texts are."""

import json

import pytest

from regard.sharding.layout import MAX_FACT_BYTES, MESSAGE_BYTES, encode_facts

# The names of the facts of `Layout.gather` and `attend_shards` that are texts.
TEXTS = ("order", "query", "key", "value", "gradients", "score", "mask", "travel", "bias", "backend")


@pytest.mark.parametrize("character", ["a", "ö", "日", "🙂", '"', "\\", "\n", "\x00", "\ud800"], ids=ascii)
def test_message_of_long_texts_is_valid_json_of_fixed_size(character):
    facts = {"queries": 2**62, "keys": 2**62} | dict.fromkeys(TEXTS, 10_000 * character)
    message = encode_facts(facts)
    assert len(message) == MESSAGE_BYTES
    received = json.loads(message)
    assert received["queries"] == received["keys"] == 2**62
    for name in TEXTS:
        assert facts[name].startswith(received[name])
        assert MAX_FACT_BYTES - 12 <= len(json.dumps(received[name])) <= MAX_FACT_BYTES


def test_message_keeps_texts_that_fit():
    facts = {"keys": 3, "mask": "Mask.causal()", "score": "Größe with 0 trainable tensors"}
    assert json.loads(encode_facts(facts)) == facts
