"""How many hypotheses a beam search follows, and how many it gives back."""

from regard.translation.counts import count_of


def width_of(beams: int, nbest: int) -> tuple[int, int]:
    """Both as ints, if such a beam can give so many back."""
    beams = count_of("beams", beams, least=1, needed="1 or more", repair="1 is greedy search, 5 is usual.")
    nbest = count_of(
        "nbest",
        nbest,
        least=1,
        most=beams,
        needed=f"1 to {beams}, as many hypotheses as there are beams",
        repair="Raise beams to at least nbest.",
    )
    return beams, nbest
