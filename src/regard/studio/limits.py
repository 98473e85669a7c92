"""How much one request may ask for: beyond these numbers it is refused before anything is computed."""

MOST_BYTES = 2**20  # of the body of a request
SECONDS = 30.0  # that a request may take, its body and its answer counted
REQUEST_SECONDS = 10  # until the header and body of a request are complete; also how long a connection may be idle
AT_ONCE = 4  # requests that compute at a time; others wait, and their time runs
MAX_PENDING = 64  # requests that compute or wait to compute; more are refused
MAX_CONNECTIONS = 64  # that stay open; above it those without a complete request are closed, oldest first

MOST_POINTS = 5_000  # of a regression: a band of some kernels costs their square
PLACES = 201  # at which a curve is drawn

MOST_CHARACTERS = 600  # of a sentence to translate
MOST_CANDIDATES = 10

MOST_WORDS = 24  # on each side of the score laboratory
MOST_LETTERS = 30  # of each of these words
