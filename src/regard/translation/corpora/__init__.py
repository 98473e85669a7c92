"""Corpora that need no download, each with its true alignment known by construction."""

from collections.abc import Callable
from inspect import signature

from regard.errors import RegardError
from regard.translation.corpora.dates import dates
from regard.translation.corpora.lists import lists
from regard.translation.corpora.numbers import numbers
from regard.translation.dataset import BuiltIn, Example, Span

__all__ = ["BuiltIn", "Example", "Span", "built_in", "dates", "lists", "names", "numbers"]

_MAKERS: dict[str, Callable[..., BuiltIn]] = {"dates": dates, "numbers": numbers, "lists": lists}


def names() -> tuple[str, ...]:
    """The names of the built-in corpora."""
    return tuple(_MAKERS)


def built_in(name: str, *, seed: int = 0, **options: object) -> BuiltIn:
    """Make a built-in corpus; the same name, seed and options make the same corpus.

    options: those of the corpus's own function: `train`, `valid` and `test` for every one, `locales` of dates,
    `language` of numbers, `longest` and `largest` of lists.

    >>> built_in("lists", train=24, valid=12, test=12, longest=2, seed=1).test[0].label in ("1", "2")
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
