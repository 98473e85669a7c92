"""A program without a network: it does what the library does, and counts who asks for an address beyond this machine.

No process group is made here: torch's C++ opens its sockets unseen.
"""

import contextlib
import io
import json
import pkgutil
from importlib import import_module

from tests.promises import outsiders, seal


def rooms() -> int:
    """Import every module of the library; how many there are."""
    regard = import_module("regard")
    names = [found.name for found in pkgutil.walk_packages(regard.__path__, "regard.") if "__main__" not in found.name]
    for name in names:
        import_module(name)
    return len(names)


def operator() -> int:
    """Every backend that runs here, and a layer with its gradient."""
    import torch

    import regard

    token = torch.randn(5, 4, requires_grad=True)
    ran = [regard.attend(token, token, token, backend=name) for name in ("auto", "torch", "reference", "blocked")]
    ran += [regard.attend(token, token, token, score) for score in ("gaussian", "epanechnikov", "cosine")]
    sum(output.sum() for output in ran).backward()
    return len(ran)


def fit() -> int:
    """A width searched for, a curve, and its picture."""
    import numpy as np

    from regard import plots
    from regard.regression import NadarayaWatson

    x = np.linspace(0, 1, 40)[:, None]
    model = NadarayaWatson("gaussian", "loo").fit(x, np.sin(5 * x[:, 0]))
    plots.curves(x[:, 0], {"fit": model.predict(x)}).figure.savefig(io.BytesIO(), format="svg")
    return len(x)


def translate() -> int:
    """Sentences through a model that has learnt nothing."""
    from tests.translation.models import SENTENCES, random_model

    from regard.translation import Translator

    return len(Translator([random_model()]).translate(SENTENCES, longest=4))


def commands() -> int:
    """The help and the doctor."""
    from regard.cli.app import run

    return sum(run(words) == 0 for words in (["--help"], ["doctor"], ["doctor", "--json"], ["train", "--help"]))


def listen() -> str:
    """Where the studio can be reached."""
    from regard.studio.server import bind

    with bind(0) as listener:
        return listener.getsockname()[0]


def main() -> None:
    """Do everything, then ask for the network in every way: the seal must be seen to hold here."""
    seal.close()
    done = {}
    for part in (rooms, operator, fit, translate, commands, listen):
        with contextlib.redirect_stdout(io.StringIO()):
            done[part.__name__] = part()
    found = list(seal.asked)
    refused = {name: outsiders.recorded(attempt) for name, (_, attempt) in outsiders.OUTSIDE.items()}
    print(json.dumps({"done": done, "asked": found, "refused": refused}))


if __name__ == "__main__":
    main()
