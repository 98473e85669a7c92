"""How good a model is: BLEU and chrF with intervals, perplexity, exact matches, by length and by kind."""

from regard.translation.evaluation.by_length import LengthGroup, by_length
from regard.translation.evaluation.evaluation import Comparison, Evaluation
from regard.translation.evaluation.metrics import TOKENIZERS, Metric, measure
from regard.translation.evaluation.procedure import evaluate

__all__ = [
    "TOKENIZERS",
    "Comparison",
    "Evaluation",
    "LengthGroup",
    "Metric",
    "by_length",
    "evaluate",
    "measure",
]
