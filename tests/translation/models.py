"""Small models for the tests of what stands around them: random, or sure of one thing."""

import random

import torch

from regard.translation.model import Architecture, EncoderDecoder
from regard.translation.model_folder import Loaded, save
from regard.translation.vocabulary import learn

SENTENCES = ("ab cd", "dc ba ab", "a", "bad cab", "dab a cab bad")


def random_model(seed=4, *, texts=SENTENCES, source_unit="characters", scale=6.0, facts=None, **choices):
    """A model that has learnt nothing; large weights make it say something else of every sentence."""
    torch.manual_seed(seed)
    source, target = learn(source_unit, texts), learn("characters", texts)
    if choices.get("joint"):
        source = target
    sizes = {"embedding": 8, "hidden": 12, **choices}
    model = EncoderDecoder(Architecture(**sizes), len(source), len(target))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return Loaded(model.eval(), source, target, {} if facts is None else facts)


def save_model(folder, loaded):
    save(folder, loaded.model, loaded.source_vocabulary, loaded.target_vocabulary, loaded.facts)
    return folder


def random_sentences(count, seed=0, letters="abcd", longest=12):
    """Words of one to four letters; the last sentences are as short as the first are long."""
    draw = random.Random(seed)
    return [
        " ".join("".join(draw.choices(letters, k=draw.randint(1, 4))) for _ in range(draw.randint(1, longest // 3)))
        for _ in range(count)
    ]
