"""What a bit-identical continuation depends on: threads, torch's build, the processor."""

import platform
from pathlib import Path

import torch


def facts(device: torch.device) -> dict[str, str]:
    """The facts, as they are stored in a checkpoint."""
    told = {"torch": str(torch.__version__), "processor": _processor(), "threads": str(torch.get_num_threads())}
    if device.type == "cuda":
        told["gpu"] = torch.cuda.get_device_name(device)
    return told


def differences(then: dict[str, str], now: dict[str, str]) -> str:
    """What has changed since, in words; empty where nothing has."""
    changed = [
        f"{key} was {then.get(key, 'not used')}, is {now.get(key, 'not used')}"
        for key in sorted(then.keys() | now.keys())
        if then.get(key) != now.get(key)
    ]
    return "; ".join(changed)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
