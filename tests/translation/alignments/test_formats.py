"""Alignments as lines: Pharaoh's order, JSON that reads back."""

import json

import torch

from regard.translation.alignments import Alignment, to_json, to_pharaoh

ALIGNMENT = Alignment(("das", "Haus"), ("房子", "的", "x"), torch.tensor([[0.25, 0.625], [0.75, 0.0], [0.125, 0.125]]))


def test_pharaoh_has_the_source_first():
    assert to_pharaoh(ALIGNMENT) == "1-0 0-1"
    assert to_pharaoh(ALIGNMENT, threshold=0.7) == "0-1"
    assert to_pharaoh(ALIGNMENT, threshold=0.9) == ""


def test_json_is_one_line_in_the_words_own_script():
    line = to_json(ALIGNMENT)
    assert "\n" not in line
    assert "房子" in line
    assert json.loads(line) == {
        "source": ["das", "Haus"],
        "target": ["房子", "的", "x"],
        "weights": [[0.25, 0.625], [0.75, 0.0], [0.125, 0.125]],
        "unaligned": [0.125, 0.25, 0.75],
    }
