"""Corpora that need no download, each with its true alignment known by construction."""

from collections.abc import Callable
from inspect import signature

from regard.errors import RegardError
from regard.translation.corpora.dates import dates
from regard.translation.corpora.lists import lists
from regard.translation.corpora.numbers import numbers
from regard.translation.dataset import Corpus, Pair, Span

__all__ = ["Corpus", "Pair", "Span", "built_in_corpus", "dates", "lists", "numbers"]

_MAKERS: dict[str, Callable[..., Corpus]] = {"dates": dates, "numbers": numbers, "lists": lists}


def built_in_corpus(name: str, *, seed: int = 0, **options: object) -> Corpus:
    """Make a built-in corpus; the same name, seed and options make the same corpus.

    Args:
        name: "dates", "numbers" or "lists".
        seed: of the random draws.
        **options: arguments of the corpus's own function: `train`, `valid` and `test` for each, `locales` of dates,
            `language` of numbers, `longest` and `largest` of lists.

    Returns:
        The corpus.

    Raises:
        RegardError: if there is no such corpus or option.

    >>> built_in_corpus("lists", train=24, valid=12, test=12, longest=2, seed=1).test[0].label in ("1", "2")
    True
    """
    if name not in _MAKERS:
        raise RegardError(
            "corpus",
            got=repr(name),
            needed=" or ".join(map(repr, _MAKERS)),
            repair="Other corpora are read from files.",
        )
    maker = _MAKERS[name]
    known = [option for option in signature(maker).parameters if option != "seed"]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise RegardError(
            "options",
            got=f"{', '.join(unknown)} for the corpus {name!r}",
            needed=f"some of {', '.join(known)}",
            repair="Leave out what the corpus does not have.",
        )
    return maker(seed=seed, **options)
