"""The quality of a model in training on validation pairs, and the length penalty that suits it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from regard.errors import RegardError
from regard.translation.alignment import normalized_entropy
from regard.translation.batching import make_batch, plan_batches
from regard.translation.dataset import Pair
from regard.translation.metrics import effective_bleu, exact_match
from regard.translation.model_folder import TrainedModel
from regard.translation.search import length_penalty
from regard.translation.text import normalise
from regard.translation.translator import Translation, Translator
from regard.translation.vocabulary import PAD


@dataclass(frozen=True)
class Validation:
    """The quality of greedy translations of the validation pairs.

    Attributes:
        bleu: BLEU, in percent.
        exact: The percentage of exact translations.
        loss: The cross entropy per target token, in nats.
        flatness: The normalized entropy of the attention weights; None without attention.
        sample: One pair as the model sees it; always the same pair, so that pictures can be compared.
    """

    bleu: float
    exact: float
    loss: float
    flatness: float | None
    sample: Translation


MAX_LOSS = 1e6  # nats per token; a model that knows nothing has the logarithm of its vocabulary's size, about 10


def check_loss(loss: float, pairs: str) -> None:
    """Stop a training whose loss is NaN or infinite.

    Args:
        loss: Cross entropy per token, in nats.
        pairs: "training" or "validation", the pairs on which the loss was measured.

    Raises:
        RegardError: If the loss is not a number or exceeds MAX_LOSS.
    """
    if not -MAX_LOSS <= loss <= MAX_LOSS:  # also for NaN
        raise RegardError(
            "learning_rate",
            got=f"a loss that is no number or exceeds {MAX_LOSS:g} nats per token on the {pairs} pairs: "
            "the training has diverged",
            needed="a learning rate at which loss and weights stay finite",
            repair="Lower it, for example to a tenth, and train into a new folder.",
        )


STRENGTHS = tuple(step / 10 for step in range(0, 21, 2))  # of the length penalty
SAMPLE_PAIRS = 100  # validation pairs that the sample is chosen from and whose flatness is measured
VALIDATION_BATCH = {"cpu": 64, "cuda": 512}  # sentences
SCORED_TOKENS = 4096  # of a batch whose targets are only scored


def validate(model: TrainedModel, pairs: Sequence[Pair], tokenize: str) -> Validation:
    """Translate validation pairs by greedy search and score their targets.

    Args:
        model: The model to validate.
        pairs: The validation pairs.
        tokenize: How sacrebleu segments text into words.

    Raises:
        RegardError: If the loss is not finite.
    """
    # Without the length ratio of the training data translations are cut off at twice the source: an untrained model
    # does not end them itself.
    model = replace(model, metadata={})
    loss = cross_entropy(model, pairs)
    check_loss(loss, "validation")
    found = _translate(model, pairs, beams=1, nbest=1)
    targets = [normalise(pair.target) for pair in pairs]
    texts = [one.text for one in found]
    weights = [one.weights for one in found[:SAMPLE_PAIRS] if one.weights is not None and len(one.weights)]
    flat = [normalized_entropy(table) for table in weights]
    return Validation(
        bleu=effective_bleu(texts, targets, tokenize),
        exact=100 * exact_match(texts, targets),
        loss=loss,
        flatness=sum(flat) / len(flat) if flat else None,
        sample=sample_translation(model, pairs),
    )


def sample_translation(model: TrainedModel, pairs: Sequence[Pair]) -> Translation:
    """Return the longest of the first validation pairs as the model sees it."""
    longest = max(pairs[:SAMPLE_PAIRS], key=lambda pair: len(pair.source))
    return Translator([model]).force([longest.source], [longest.target])[0]


def best_length_penalty(model: TrainedModel, pairs: Sequence[Pair], tokenize: str, beams: int = 5) -> float:
    """Return the strength whose ranking of the n best translations has the highest BLEU; the lowest of equals."""
    found = _translate(model, pairs, beams=beams, nbest=beams)
    targets = [normalise(pair.target) for pair in pairs]

    def ranked(strength: float) -> list[str]:
        return [_best(one, strength).text for one in found]

    return max(STRENGTHS, key=lambda strength: (effective_bleu(ranked(strength), targets, tokenize), -strength))


@torch.inference_mode()
def cross_entropy(model: TrainedModel, pairs: Sequence[Pair]) -> float:
    """Return the mean of -log p over the target tokens, END included, in nats."""
    device = next(model.model.parameters()).device
    sources = model.source_vocabulary.encode_all([pair.source for pair in pairs])
    targets = model.target_vocabulary.encode_all([pair.target for pair in pairs])
    lengths = [(len(s) + 1, len(t) + 1) for s, t in zip(sources, targets, strict=True)]
    total, tokens = 0.0, 0
    for plan in plan_batches(lengths, SCORED_TOKENS, torch.Generator().manual_seed(0)):
        batch = make_batch(plan, sources, targets)
        logits, targets_ = model.model(*(part.to(device) for part in batch[:3])), batch.target.to(device)
        total += float(
            functional.cross_entropy(logits.flatten(0, 1), targets_.flatten(), ignore_index=PAD, reduction="sum")
        )
        tokens += batch.tokens
    return total / tokens


def _best(one: Translation, strength: float) -> Translation:
    def rank(candidate: Translation) -> tuple[bool, float]:
        return candidate.finished, candidate.log_probability / length_penalty(candidate.length, strength)

    return max((one, *one.others), key=rank)


def _translate(model: TrainedModel, pairs: Sequence[Pair], beams: int, nbest: int) -> list[Translation]:
    device = next(model.model.parameters()).device
    batch_size = VALIDATION_BATCH.get(device.type, VALIDATION_BATCH["cpu"])
    sources = [pair.source for pair in pairs]
    return Translator([model]).translate(sources, beams=beams, nbest=nbest, length_penalty=1.0, batch_size=batch_size)
