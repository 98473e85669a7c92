"""The corpus `numbers`: German or French number words to English."""

from itertools import accumulate, pairwise
from random import Random

from regard.errors import RegardError
from regard.translation.corpora.number_words import PARTS, Language, Part, english_parts
from regard.translation.dataset import BuiltIn, Example, Span, check_sizes

ALWAYS = 100  # numbers below it are in the training data: some of their words are nowhere else
MOST_HELD_OUT = 10_000
DIGITS = {3: 1, 4: 3, 5: 4, 6: 4}  # how often a number has so many; there are only 900 of three to be held out


def numbers(
    *,
    seed: int = 0,
    train: int = 30_000,
    valid: int = 1_000,
    test: int = 2_000,
    language: Language = "de",
) -> BuiltIn:
    """Make numbers from 0 to 999,999, long ones more often.

    "einundzwanzigtausend" becomes "twenty-one thousand"; the units are characters of the source and words of the
    target, and the label is the number of digits. A number belongs to one part; those below 100 belong to train.
    """
    check_sizes(train, valid, test, held_out=MOST_HELD_OUT)
    if language not in PARTS:
        raise RegardError(
            "language",
            got=repr(language),
            needed=" or ".join(map(repr, PARTS)),
            repair="English is what they are translated to.",
        )
    random = Random(f"numbers {seed}")
    held_out: set[int] = set()
    tests = _held_out(random, test, held_out)
    valids = _held_out(random, valid, held_out)
    trains = [*range(ALWAYS)][:train]
    while len(trains) < train:
        number = _draw(random)
        if number not in held_out:
            trains.append(number)
    random.shuffle(trains)
    parts = (tuple(_example(number, language) for number in part) for part in (trains, valids, tests))
    return BuiltIn(*parts, source_unit="characters", target_unit="words")


def _held_out(random: Random, count: int, held_out: set[int]) -> list[int]:
    """So many numbers that were not held out before; they are added to `held_out`."""
    chosen = []
    while len(chosen) < count:
        number = _draw(random)
        if number not in held_out:
            held_out.add(number)
            chosen.append(number)
    return chosen


def _draw(random: Random) -> int:
    (digits,) = random.choices([*DIGITS], [*DIGITS.values()])
    return random.randrange(10 ** (digits - 1), 10**digits)


def _example(number: int, language: Language) -> Example:
    source, target = PARTS[language](number), english_parts(number)
    places = [(part, place) for part, place in zip(source, _places(source), strict=True) if part.says]
    spans = tuple(
        Span(place, tuple(stretch for other, stretch in places if other.says & part.says))
        for part, place in zip(target, _places(target), strict=True)
        if part.says
    )
    return Example(_text(source), _text(target), spans, label=str(len(str(number))))


def _places(parts: list[Part]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate((len(part.letters) for part in parts), initial=0)))


def _text(parts: list[Part]) -> str:
    return "".join(part.letters for part in parts)
