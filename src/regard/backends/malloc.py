"""Configure glibc's malloc to keep freed memory of CPU calls for the next call.

glibc returns freed memory to the system unless the process has freed a larger block before. The next call then waits
for new pages: a training step of additive attention takes 1.3 times as long, one of dot products 1.1 times
(`python -m benchmarks.before_after`, 32 x 20 x 256 and 2 x 8 x 256 x 64).
"""

import numpy as np

# Slightly less than 32 MiB, the largest block whose release raises the thresholds of malloc.
BLOCK_BYTES = 2**25 - 2**16


def keep_freed_memory() -> None:
    """Allocate and free a large block, which is never written, so it takes no memory itself."""
    np.empty(BLOCK_BYTES, dtype=np.uint8)
