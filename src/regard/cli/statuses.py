"""The exit statuses of the commands."""

REFUSED = 2  # what the user got wrong, said in one line
INTERRUPTED = 130  # what a shell expects of a command that Ctrl-C has ended
