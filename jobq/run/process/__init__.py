"""One task's processes: environment, output, usage; and what is asked of Linux."""

import signal

OBEYED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1)  # what a worker has handlers for, once it is up
