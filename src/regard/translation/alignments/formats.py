"""Alignments as lines of text: Pharaoh's links for programs of the field, JSON for all others."""

import json

from regard.translation.alignments.alignment import Alignment

DIGITS = 4


def to_pharaoh(alignment: Alignment, threshold: float = 0.25) -> str:
    """Links as "0-0 2-1": source word, target word, from 0, in the order of the target, as fast_align writes them.

    threshold: the least weight of a link; a target word that looked nowhere as long has none.

    >>> import torch
    >>> to_pharaoh(Alignment(("a", "b"), ("c", "d"), torch.tensor([[0.1, 0.9], [0.6, 0.2]])))
    '1-0 0-1'
    """
    return " ".join(f"{source}-{target}" for source, target in alignment.links(threshold))


def to_json(alignment: Alignment) -> str:
    """One object on one line: source, target (words), weights (a list for each target word), unaligned.

    Weights are rounded to four digits.
    """
    line = {
        "source": alignment.source_words,
        "target": alignment.target_words,
        "weights": [[round(weight, DIGITS) for weight in row] for row in alignment.weights.tolist()],
        "unaligned": [round(mass, DIGITS) for mass in alignment.unaligned.tolist()],
    }
    return json.dumps(line, ensure_ascii=False)
