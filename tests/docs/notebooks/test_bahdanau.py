"""The notebook of translation shows what it says: attention holds what one fixed vector forgets."""

import re

import pytest


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_attention_reads_lists_that_one_vector_forgets(run):
    ran = run("bahdanau")
    assert ran.drawn == 4
    assert ran.complaints == ""
    exact = {name: float(share) for name, share in re.findall(r"(\w+) +([\d.]+)% exact", ran.printed)}
    assert exact["additive"] > 80 > 60 > exact["none"]
    (on_the_word,) = re.findall(r"(\d+)% of the attention is on the right word", ran.printed)
    assert int(on_the_word) > 50
