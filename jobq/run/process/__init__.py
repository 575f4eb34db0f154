"""One task's processes: environment, output, usage; and what is asked of Linux."""

import signal

# Starts a module of ours in a Python that has argv, variables and paths as UTF-8, whatever the locale says.
OUR_PYTHON = ("-X", "utf8", "-P", "-m")
OBEYED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1)  # what a worker has handlers for, once it is up
