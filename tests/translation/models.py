"""Small models for the tests of what stands around them: random, or sure of one thing."""

import random

import torch

from regard.translation.model import Architecture, EncoderDecoder
from regard.translation.model_folder import TrainedModel
from regard.translation.vocabulary import learn_vocabulary

SENTENCES = ("ab cd", "dc ba ab", "a", "bad cab", "dab a cab bad")


def random_model(seed=4, *, texts=SENTENCES, source_unit="characters", scale=6.0, metadata=None, **choices):
    """A model that has learnt nothing; large weights make it say something else of every sentence."""
    torch.manual_seed(seed)
    source, target = learn_vocabulary(source_unit, texts), learn_vocabulary("characters", texts)
    if choices.get("joint"):
        source = target
    sizes = {"embedding": 8, "hidden": 12, **choices}
    model = EncoderDecoder(Architecture(**sizes), len(source), len(target))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return TrainedModel(model.eval(), source, target, {} if metadata is None else metadata)


def save_model(folder, loaded):
    loaded.save(folder)
    return folder


def random_sentences(count, seed=0, letters="abcd", longest=12):
    """Words of one to four letters; the last sentences are as short as the first are long."""
    draw = random.Random(seed)
    return [
        " ".join("".join(draw.choices(letters, k=draw.randint(1, 4))) for _ in range(draw.randint(1, longest // 3)))
        for _ in range(count)
    ]
