"""`regard doctor`: what this installation has, and what it lacks."""

import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version

from rich.console import Console
from rich.table import Table

# `all` repeats the others, `dev` is for those who change the library.
NOT_FOR_USERS = {"all", "dev"}


def doctor() -> None:
    """Show versions, devices, threads, and which extras are installed."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, finding in (*_machine(), *_extras()):
        table.add_row(name, finding)
    Console(markup=False, highlight=False).print(table)


def _machine() -> list[tuple[str, str]]:
    import torch

    cuda = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [
        ("regard", version("regard")),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("torch", torch.__version__),
        ("CUDA", ", ".join(cuda) or "no device"),
        ("threads", f"{torch.get_num_threads()} within an operation"),
    ]


def _extras() -> list[tuple[str, str]]:
    """Each extra, from the installed metadata, with what it still lacks."""
    needed: dict[str, list[str]] = {}
    for requirement in requires("regard") or ():
        package = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"""extra == ['"]([\w-]+)['"]""", requirement)
        if package and extra and extra[1] not in NOT_FOR_USERS:
            needed.setdefault(extra[1], []).append(package[0])
    return [(f"regard[{extra}]", _state(extra, packages)) for extra, packages in sorted(needed.items())]


def _state(extra: str, packages: list[str]) -> str:
    missing = [package for package in packages if _installed(package) is None]
    if missing:
        return f'lacks {", ".join(missing)}; pip install "regard[{extra}]"'
    return ", ".join(f"{package} {_installed(package)}" for package in packages)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
