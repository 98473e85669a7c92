"""Tensors that are made once and found again: for every stream, outside of all modes, and by recorded graphs."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Made = TypeVar("Made")
# What recorded graphs read, by its identity: they may outlive the masks that it was kept with.
HELD: dict[int, Any] = {}
MOST_KEPT = 128


def find(kept: dict[Any, Any], name: object, device: torch.device, make: Callable[[], Made]) -> Made:
    """What is kept under a name, or else made, and kept.

    It is made on the stream that reads it, once for each of them, and belongs to no mode that happens to be on; who
    keeps something has asked `is_watched` before, which tells of the others. A graph that is being recorded reads what
    any stream has made before, which is then held for good; what it must make itself is a part of it, and not kept.
    """
    stream = stream_of(device)
    if stream is None:
        found = next((found for (other, _), found in list(kept.items()) if other == name), None)
        return make() if found is None else hold(found)
    place = name, stream
    found = kept.get(place)
    if found is None:
        found = _made_outside(make)
        if len(kept) >= MOST_KEPT:  # the steps of a decoder have a number of keys each
            kept.clear()
        kept[place] = found
    return found


def _made_outside(make: Callable[[], Made]) -> Made:
    """Outside of inference mode, and of modes that replace functions."""
    with torch._C.DisableTorchFunction():
        if not torch.is_inference_mode_enabled():  # asked, because leaving a mode takes longer than most that is made
            return make()
        with torch.inference_mode(False):
            return make()


def hold(read: Made) -> Made:
    """Keep for good what a recorded graph reads."""
    HELD[id(read)] = read
    return read


def stream_of(device: torch.device) -> int | None:
    """On which stream a call runs; None while it is recorded. A CPU has one."""
    if device.type != "cuda":
        return 0
    return None if torch._C._cuda_isCurrentStreamCapturing() else torch._C._cuda_getCurrentRawStream(device.index)
