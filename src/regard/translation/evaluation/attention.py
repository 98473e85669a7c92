"""How much of the attention rests where the truth is, over a whole corpus."""

from collections.abc import Sequence

from regard.translation.alignments import SpanMass, mass_on_spans
from regard.translation.corpora import Example
from regard.translation.translated import Translation


def attention_on_spans(given: Sequence[Translation], examples: Sequence[Example]) -> float | None:
    """The share of attention mass on the right characters, over all target tokens that the truth explains.

    given: the references as the model reads them, one for each example; None where it has no attention.
    """
    found = SpanMass(0.0, 0)
    for one, example in zip(given, examples, strict=True):
        if one.weights is not None:
            target = one.target.vocabulary.spans(one.target.text)
            source = one.source.vocabulary.spans(one.source.text)
            found += mass_on_spans(one.weights, target, source, example.spans)
    return found.share if found.tokens else None
