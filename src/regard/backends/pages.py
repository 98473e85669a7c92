"""Pages of memory on a CPU, held between calls: a new page costs more than the numbers written to it."""

from functools import cache

import numpy as np

# glibc keeps at the top of its heap, for the whole process, twice as much as the largest piece that was ever given back
# to the system, up to 32 MiB. What is more it gives away when a call ends, and the next call waits for new pages.
HELD = 2**25 - 2**16


@cache
def hold_pages() -> None:
    """Ask for a piece and give it back, once: later calls find their pages again, instead of waiting for new ones.

    It is never touched, and so costs no memory itself; and it is none of torch's, which somebody might be tracing.
    """
    np.empty(HELD, dtype=np.uint8)
