"""Small models without dropout, and batches with padding; sizes are different primes: no axis can be swapped."""

import torch

from regard.translation.model import Architecture, EncoderDecoder
from regard.translation.vocabulary import BEGIN, END, NUM_SPECIAL, PAD

SIZES = {"embedding": 5, "hidden": 7, "attention_dim": 11}
DROPPED = {"embedding_dropout": 0.0, "state_dropout": 0.0, "readout_dropout": 0.0}
SOURCE_SIZE, TARGET_SIZE = 13, 17


def make_model(dtype=torch.float64, seed=0, **choices):
    torch.manual_seed(seed)
    has_width = choices.get("attention", "additive") == "additive" and choices.get("heads", 1) == 1
    sizes = SIZES | ({} if has_width else {"attention_dim": None})
    joint = choices.get("joint", False)
    architecture = Architecture(**{**sizes, **DROPPED, **choices})
    return EncoderDecoder(architecture, TARGET_SIZE if joint else SOURCE_SIZE, TARGET_SIZE).to(dtype)


def make_batch(source_lengths=(4, 1, 6), target_lengths=(3, 5, 2), seed=1):
    """source, lengths, previous, target; END counted on both sides."""
    draw = torch.Generator().manual_seed(seed)
    source = torch.full((len(source_lengths), max(source_lengths)), PAD)
    previous = torch.full((len(target_lengths), max(target_lengths)), PAD)
    target = previous.clone()
    for row, (read, written) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        source[row, :read] = torch.randint(NUM_SPECIAL, SOURCE_SIZE, (read,), generator=draw)
        words = torch.randint(NUM_SPECIAL, TARGET_SIZE, (written,), generator=draw)
        source[row, read - 1] = words[-1] = END
        target[row, :written] = words
        previous[row, 0], previous[row, 1:written] = BEGIN, words[:-1]
    return source, torch.tensor(source_lengths), previous, target
