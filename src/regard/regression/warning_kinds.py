"""The warnings of kernel regression, as classes that a user can filter."""


class EmptyWindowWarning(UserWarning):
    """Some queries have no key in their window, so there is nothing to pool."""


class BandwidthWarning(UserWarning):
    """A bandwidth was returned that the data did not settle: it lies at the edge of what was tried."""
