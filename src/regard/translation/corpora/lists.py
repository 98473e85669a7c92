"""The corpus `lists`: number words in a row to their digits; without attention a model forgets with the length."""

from collections.abc import Iterator
from random import Random

from regard.errors import RegardError
from regard.translation.corpora.numbers import below_hundred
from regard.translation.dataset import Corpus, Pair, Span, check_sizes

LARGEST = 99
WORDS = tuple(map(below_hundred, range(LARGEST + 1)))
# Lists of a length are held out of the training data where there are so many times more of them than are held out.
SPARE = 10


def lists(
    *,
    seed: int = 0,
    train: int = 36_000,
    valid: int = 600,
    test: int = 1_200,
    longest: int = 12,
    largest: int = LARGEST,
) -> Corpus:
    """Make lists of 1 to `longest` numbers from 0 to `largest`, every length equally often.

    "forty-two seven" becomes "42 7"; words are the units of both sides, and the label is the length. No list is in two
    parts, except for lengths of which there are too few lists: each single number is in all three.
    """
    check_sizes(train, valid, test)
    _check_range("longest", longest, 1, None)
    _check_range("largest", largest, 1, LARGEST)
    random = Random(f"lists {seed}")
    lengths = range(1, longest + 1)
    tested, validated = _counts(test, lengths), _counts(valid, lengths)
    parts: tuple[list[Pair], ...] = ([], [], [])
    for length, trained in _counts(train, lengths).items():
        counts = (tested[length], validated[length], trained)
        few = length == 1 or (largest + 1) ** length < SPARE * sum(counts[:2])
        taken: set[tuple[int, ...]] = set()
        for part, count in zip(parts, counts, strict=True):
            fresh = (numbers for numbers in _draws(random, length, largest) if few or numbers not in taken)
            chosen = [next(fresh) for _ in range(count)]
            part.extend(map(_example, chosen))
            taken.update(chosen)
    for part in parts:
        random.shuffle(part)
    tests, valids, trains = map(tuple, parts)
    return Corpus("lists", train=trains, valid=valids, test=tests)


def _counts(total: int, lengths: range) -> dict[int, int]:
    """Return equal counts for all lengths; the shortest lengths take the remainder."""
    share, left = divmod(total, len(lengths))
    return {length: share + (length <= left) for length in lengths}


def _draws(random: Random, length: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Yield lists without end. Single numbers come in turn, so that no word is missing from a part."""
    while True:
        if length == 1:
            yield from ((number,) for number in random.sample(range(largest + 1), largest + 1))
        else:
            yield tuple(random.choices(range(largest + 1), k=length))


def _example(numbers: tuple[int, ...]) -> Pair:
    sources, targets = [WORDS[number] for number in numbers], [str(number) for number in numbers]
    spans, at_source, at_target = [], 0, 0
    for source, target in zip(sources, targets, strict=True):
        end_source, end_target = at_source + len(source), at_target + len(target)
        spans.append(Span((at_target, end_target), ((at_source, end_source),)))
        at_source, at_target = end_source + 1, end_target + 1
    return Pair(" ".join(sources), " ".join(targets), tuple(spans), label=str(len(numbers)))


def _check_range(argument: str, got: int, least: int, most: int | None) -> None:
    if got < least or (most is not None and got > most):
        raise RegardError(
            argument,
            got=str(got),
            needed=f"a whole number of at least {least}" + ("" if most is None else f" and at most {most}"),
            repair="Leave it out to get the usual one.",
        )
