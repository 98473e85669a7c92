"""Works of the tour run side by side, each in a process with one thread, and tell one listener how far they are."""

import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Lock
from typing import Any

import torch

from regard.tour.station import Tell

OFTEN = 0.1  # seconds between two looks at what the works tell
MOST_WORDS = 2**16  # at one look; a pipe holds fewer

Told = tuple[str, float, str]
"""Which work, how much of it is done, and where it stands."""


@dataclass(frozen=True)
class Work:
    """Something that takes a while.

    seconds: about how long it takes on one core, for the bar. run: is given a `Tell`; what it returns is pickled.
    """

    name: str
    seconds: float
    run: Callable[[Tell], object]


def run_all(works: Sequence[Work], workers: int, listen: Callable[[Told], None]) -> dict[str, Any]:
    """What each work returned, by its name. The longest begin first, so that no core waits at the end."""
    ordered = sorted(works, key=lambda work: -work.seconds)
    if workers <= 1:
        return {work.name: _alone(work, listen) for work in ordered}
    # Processes start anew: a fork of one that has run torch's threads may hang.
    context = multiprocessing.get_context("spawn")
    told, tell = context.Pipe(duplex=False)
    with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(tell, context.Lock())) as pool:
        waiting = {pool.submit(_in_process, work): work for work in ordered}
        try:
            return {work.name: found for work, found in _collect(waiting, told, listen)}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            told.close()  # whoever still works ends at its next word: nobody listens
            raise


def _alone(work: Work, listen: Callable[[Told], None]) -> object:
    result = work.run(lambda share, words: listen((work.name, share, words)))
    listen((work.name, 1.0, "done"))
    return result


def _collect(
    waiting: dict[Future[bytes], Work], told: Connection, listen: Callable[[Told], None]
) -> Iterator[tuple[Work, Any]]:
    left = set(waiting)
    while left:
        done, left = wait(left, timeout=OFTEN, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()  # a failure is told at once, however much the others have to say
        for _ in range(MOST_WORDS):
            if not told.poll():
                break
            listen(told.recv())
        for future in done:
            work = waiting[future]
            yield work, pickle.loads(future.result())
            listen((work.name, 1.0, "done"))


@dataclass(frozen=True)
class _Channel:
    """Where the workers tell how far they are: a word is in the pipe before the work goes on, so none comes late."""

    pipe: Connection
    turn: Lock

    def tell(self, told: Told) -> None:
        with self.turn:
            self.pipe.send(told)


_channels: list[_Channel] = []  # of a worker: one, once it has begun


def _begin(pipe: Connection, turn: Lock) -> None:
    """A worker has one thread, and dies of Ctrl-C without a word: the command says what there is to say."""
    _channels.append(_Channel(pipe, turn))
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _in_process(work: Work) -> bytes:
    # Pickled here, tensors travel as bytes: a worker may end before another process has opened what it shares.
    return pickle.dumps(work.run(lambda share, words: _channels[-1].tell((work.name, share, words))))
