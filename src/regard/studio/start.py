"""From the command's flags to a running studio: what is missing or wrong is refused before the page opens."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from regard.errors import RegardError

NEEDS = {
    "studio": ("starlette", "uvicorn"),
    "regression": ("sklearn",),
    "translation": ("safetensors", "sentencepiece", "sacrebleu", "babel", "num2words"),
}


@dataclass(frozen=True)
class Wishes:
    """The flags by their names.

    model: a model folder, instead of those that the studio trains. port: 0 for any that is free. browser: whether to
    open one. cache: where trained models are kept, instead of the user's cache.
    """

    model: Path | None = None
    port: int = 0
    browser: bool = True
    cache: Path | None = None


def run(wishes: Wishes) -> None:
    """Serve the studio until it is stopped."""
    check_extras()
    import torch

    from regard.studio.models.cache import Cache, cache_folder
    from regard.studio.models.learning import LearningShelf
    from regard.studio.models.shelf import Shelf
    from regard.studio.models.wanted import plan
    from regard.studio.server import bind, serve

    if wishes.model is not None:
        shelf = Shelf.of_folder(wishes.model)
    else:
        shelf = LearningShelf(Cache(cache_folder(wishes.cache)), plan())
    # What a page asks for is small: on a busy machine threads that wait for each other take longer than one alone.
    torch.set_num_threads(1)
    serve(shelf, bind(wishes.port), browser=wishes.browser)


def check_extras() -> None:
    """Refuse to start without the libraries that the rooms stand on; all extras that are missing are named at once."""
    lacking = {extra: [name for name in names if not _is_there(name)] for extra, names in NEEDS.items()}
    lacking = {extra: names for extra, names in lacking.items() if names}
    if lacking:
        raise RegardError(
            "studio",
            got=f"no module named {', '.join(name for names in lacking.values() for name in names)}",
            needed="the libraries that the studio stands on",
            repair=f'Install them with pip install "regard[{",".join(lacking)}]".',
        )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # sys.modules says that it is to be taken as missing
        return False
