"""`regard doctor`: what this installation has, what it lacks, and what would run."""

import json as json_text
import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

if TYPE_CHECKING:
    from torch import Tensor

    from regard.scores.names import ScoreLike

EXAMPLES = (
    ("regard doctor", "versions, devices, and what would run"),
    ("regard doctor --json", "for a program, or for a report of a mistake"),
)
NOT_FOR_USERS = {"all", "dev", "docs"}
"""Extras that are not shown: `all` repeats the others, the rest are for developers of the library."""
DIM, HIDDEN = 16, 32
SIZES = ((2, 16), (4, 2048))
"""(batch, tokens): a small problem, and one that is not."""


def doctor(*, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Show versions, devices, extras, and which backend would run each kind of score, with the reasons against others.

    Args:
        json: print it as JSON, for a program or for a report of a mistake.
    """
    from rich.console import Console
    from rich.table import Table

    found = {"machine": machine(), "extras": extras(), "backends": backend_report()}
    if json:
        print(json_text.dumps(found, indent=1, ensure_ascii=False))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, finding in {
        **found["machine"],
        **{f"regard[{name}]": state for name, state in found["extras"].items()},
    }.items():
        table.add_row(name, finding)
    console = Console(markup=False, highlight=False)
    console.print(table)
    for finding in found["backends"]:
        console.print(f"\n{finding['what']}, {finding['size']}, on {finding['device']}: {finding['backend']}")
        for name, reason in finding["not"].items():
            console.print(f"  not {name}: {reason}", soft_wrap=True)


def machine() -> dict[str, str]:
    """Return versions, devices and threads by name."""
    import torch

    cuda = [_described(index) for index in range(torch.cuda.device_count())]
    return {
        "regard": version("regard"),
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "triton": installed("triton") or "not installed; regard[gpu] brings it, for distances and additive scores",
        "CUDA": ", ".join(cuda) or "no device",
        "threads": f"{torch.get_num_threads()} within an operation, of {os.cpu_count()} cores",
    }


def _described(index: int) -> str:
    import torch

    found = torch.cuda.get_device_properties(index)
    return f"{found.name}, {found.total_memory / 2**30:.0f} GiB, capability {found.major}.{found.minor}"


def extras() -> dict[str, str]:
    """Return for each extra of the installed metadata its packages, or those that it lacks."""
    needed: dict[str, list[str]] = {}
    for requirement in requires("regard") or ():
        package = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"""extra == ['"]([\w-]+)['"]""", requirement)
        if package and extra and extra[1] not in NOT_FOR_USERS:
            needed.setdefault(extra[1], []).append(package[0])
    return {extra: _state(extra, packages) for extra, packages in sorted(needed.items())}


def _state(extra: str, packages: list[str]) -> str:
    missing = [package for package in packages if installed(package) is None]
    if missing:
        return f'lacks {", ".join(missing)}; pip install "regard[{extra}]"'
    return ", ".join(f"{package} {installed(package)}" for package in packages)


def installed(package: str) -> str | None:
    """Return the version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def backend_report() -> list[dict[str, Any]]:
    """Return for each device, kind of score and size the backend that runs, its error, and why not the others."""
    found = []
    for device in devices():
        for what, score in _scores(device).items():
            for batch, tokens in SIZES:
                size = f"{batch} x {tokens} x {tokens}"
                found.append(
                    {"what": what, "size": size, "device": device, **_choice(score, _tokens(batch, tokens, device))}
                )
    return found


def devices() -> Iterator[str]:
    """Yield the CPU and each GPU."""
    import torch

    yield "cpu"
    yield from (f"cuda:{index}" for index in range(torch.cuda.device_count()))


def _scores(device: str) -> dict[str, "ScoreLike"]:
    from regard.scores import Additive

    return {
        "dot product": "scaled_dot",
        "kernel of the distance": "laplacian",
        "additive": Additive(DIM, DIM, HIDDEN).to(device),
        "a function of yours": lambda query, key: query @ key.mT,
    }


def _tokens(batch: int, tokens: int, device: str) -> "Tensor":
    import torch

    return torch.zeros(batch, tokens, DIM, device=device)


def _choice(score: "ScoreLike", tokens: "Tensor") -> dict[str, Any]:
    from regard.attention import why

    explained = why(tokens, tokens, tokens, score)
    return {"backend": explained.backend, "error": explained.bound, "not": explained.refusals}
