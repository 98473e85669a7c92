"""What holds for the examples of every corpus."""

from regard.translation.text import normalise


def check(example):
    """Both sides are normalised, and spans are stretches of them, in the order of the target, without overlap."""
    assert normalise(example.source) == example.source
    assert normalise(example.target) == example.target
    end = 0
    for span in example.spans:
        assert end <= span.target[0] < span.target[1] <= len(example.target)
        end = span.target[1]
        assert span.source
        for start, stop in span.source:
            assert 0 <= start < stop <= len(example.source)


def said(example):
    """The spans in print: what of the target, by what of the source."""
    return [
        (example.target[slice(*span.target)], [example.source[slice(*stretch)] for stretch in span.source])
        for span in example.spans
    ]
