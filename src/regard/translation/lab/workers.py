"""Trials run side by side, each in a process with one thread: small matrices gain nothing from a second one."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager

import torch

from regard.errors import RegardError
from regard.translation.lab.trial import Task, Trial


def workers_for(device: str, asked: int | None) -> int:
    """How many trials run at a time: as asked for; else one for each core, or one alone on a GPU."""
    if asked is None:
        return _cores() if torch.device(device).type == "cpu" else 1
    if asked < 1:
        raise RegardError("workers", got=str(asked), needed="1 or more", repair="Leave it out for one for each core.")
    return asked


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(tasks: Sequence[Task], workers: int, tell: Callable[[Task, Trial], None]) -> list[Trial]:
    """The trials of all tasks, in their order; `tell` hears of each as it ends.

    What has been run is kept: interrupted, the same call goes on.
    """
    workers = min(workers, len(tasks))
    if workers <= 1:
        return [_told(task, task.run(), tell) for task in tasks]
    # Processes start anew: a fork of one that has run torch's threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_begin) as pool:
        waiting = {pool.submit(task.run): place for place, task in enumerate(tasks)}
        found: dict[int, Trial] = {}
        try:
            for ended in as_completed(waiting):
                place = waiting[ended]
                found[place] = _told(tasks[place], ended.result(), tell)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[place] for place in range(len(tasks))]


def _told(task: Task, trial: Trial, tell: Callable[[Task, Trial], None]) -> Trial:
    tell(task, trial)
    return trial


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within it torch uses so many threads; then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _begin() -> None:
    """A worker has one thread, and dies of Ctrl-C without a word: the command says what there is to say."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
