"""The exit statuses of the commands."""

FAILED = 1  # what went wrong inside, said in one line
REFUSED = 2  # what the user got wrong, said in one line
INTERRUPTED = 130  # what a shell expects of a command that Ctrl-C has ended
