"""How good a model is on validation pairs, and the length penalty that suits it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.translation.alignment import flatness
from regard.translation.batching import make_batch, plan
from regard.translation.dataset import Example, Pair
from regard.translation.evaluation.by_length import exact_share
from regard.translation.evaluation.metrics import short_bleu
from regard.translation.folder import Loaded
from regard.translation.search import penalty
from regard.translation.text import normalise
from regard.translation.training.divergence import check_loss
from regard.translation.training.loss import smoothed_cross_entropy
from regard.translation.translated import Translation
from regard.translation.translator import Translator

STRENGTHS = tuple(step / 10 for step in range(0, 21, 2))
LOOKED_AT = 100  # pairs among which one is chosen to be shown
BATCH = {"cpu": 64, "cuda": 512}
TOKENS = 4096  # of a batch whose targets are only scored


@dataclass(frozen=True)
class Validated:
    """BLEU and the share of exact translations, in percent, of greedy search; and one pair to look at.

    loss: the cross entropy of a token of the targets, in nats.
    """

    bleu: float
    exact: float
    loss: float
    flatness: float | None
    shown: Translation


def validate(loaded: Loaded, pairs: Sequence[Pair | Example], tokenize: str) -> Validated:
    """Translate the validation pairs greedily."""
    loss = cross_entropy(loaded, pairs)
    check_loss(loss, "validation")  # the weights of the last update, whose loss no training pair has shown
    found = _translate(loaded, pairs, beams=1, nbest=1)
    targets = [normalise(pair.target) for pair in pairs]
    texts = [one.text for one in found]
    flat = [flatness(one.weights) for one in found[:LOOKED_AT] if one.weights is not None and len(one.weights)]
    return Validated(
        bleu=short_bleu(texts, targets, tokenize),
        exact=100 * exact_share(texts, targets),
        loss=loss,
        flatness=sum(flat) / len(flat) if flat else None,
        shown=show(loaded, pairs),
    )


def show(loaded: Loaded, pairs: Sequence[Pair | Example]) -> Translation:
    """One validation pair as the model sees it: the same one and the same words each time, so that pictures compare."""
    longest = max(pairs[:LOOKED_AT], key=lambda pair: len(pair.source))
    return Translator([loaded]).force([longest.source], [longest.target])[0]


def best_length_penalty(loaded: Loaded, pairs: Sequence[Pair | Example], tokenize: str, beams: int = 5) -> float:
    """The strength whose ranking of the n best translations has the highest BLEU; the weakest of equals."""
    found = _translate(loaded, pairs, beams=beams, nbest=beams)
    targets = [normalise(pair.target) for pair in pairs]

    def ranked(strength: float) -> list[str]:
        return [_best(one, strength).text for one in found]

    return max(STRENGTHS, key=lambda strength: (short_bleu(ranked(strength), targets, tokenize), -strength))


@torch.inference_mode()
def cross_entropy(loaded: Loaded, pairs: Sequence[Pair | Example]) -> float:
    """-log p of a token of the targets, END included, in nats: the mean over all of them."""
    device = next(loaded.model.parameters()).device
    sources = loaded.source_vocabulary.encode_all([pair.source for pair in pairs])
    targets = loaded.target_vocabulary.encode_all([pair.target for pair in pairs])
    lengths = [(len(s) + 1, len(t) + 1) for s, t in zip(sources, targets, strict=True)]
    total, tokens = 0.0, 0
    for planned in plan(lengths, TOKENS, torch.Generator().manual_seed(0), 1):
        batch = make_batch(planned, sources, targets)
        logits = loaded.model(*(part.to(device) for part in batch[:3]))
        total += float(smoothed_cross_entropy(logits, batch.target.to(device), 0.0).cross_entropy)
        tokens += batch.tokens
    return total / tokens


def _best(one: Translation, strength: float) -> Translation:
    def rank(candidate: Translation) -> tuple[bool, float]:
        return candidate.finished, candidate.log_probability / penalty(candidate.length, strength)

    return max((one, *one.others), key=rank)


def _translate(loaded: Loaded, pairs: Sequence[Pair | Example], beams: int, nbest: int) -> list[Translation]:
    device = next(loaded.model.parameters()).device
    translator = Translator([loaded])
    sources = [pair.source for pair in pairs]
    return translator.translate(
        sources, beams=beams, nbest=nbest, length_penalty=1.0, batch_size=BATCH.get(device.type, BATCH["cpu"])
    )
