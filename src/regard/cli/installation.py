"""What is installed: versions, devices, and each extra with what it still lacks."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version

# `all` repeats the others; the rest are for those who change the library.
NOT_FOR_USERS = {"all", "dev", "docs"}


def machine() -> dict[str, str]:
    """Versions, devices and threads, by their names."""
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
    """Each extra, from the installed metadata, with what it has or still lacks."""
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
    """Its version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
