"""A program without a network: it does what the library does, and counts who asks for an address beyond this machine.

Python announces every use of a socket to audit hooks, from whichever library it comes. What torch's C++ does by
itself is not announced: it opens sockets for process groups only, and none is made here.
"""

import contextlib
import io
import ipaddress
import json
import pkgutil
import socket
import sys
from importlib import import_module

LOOPBACK = {"localhost", "", None, socket.gethostname()}
asked: list[str] = []


def watch(event: str, arguments: tuple) -> None:
    """Refuse and record every address but the loopback's."""
    if event in ("socket.connect", "socket.bind", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # a path of a local socket is no address
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host not in LOOPBACK and not _is_loopback(host):
        asked.append(f"{event} {host}")
        raise PermissionError(asked[-1])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
    """Do everything, then ask for the network once: the watch must be seen to work."""
    sys.addaudithook(watch)
    done = {}
    for part in (rooms, operator, fit, translate, commands, listen):
        with contextlib.redirect_stdout(io.StringIO()):
            done[part.__name__] = part()
    found = list(asked)
    refused = []
    for attempt in (
        lambda: socket.create_connection(("192.0.2.1", 80), timeout=1),
        lambda: socket.getaddrinfo("name.invalid", 80),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 9)),
    ):
        try:
            attempt()
        except PermissionError as refusal:
            refused.append(str(refusal))
    print(json.dumps({"done": done, "asked": found, "refused": refused}))


if __name__ == "__main__":
    main()
