"""`jobq` and `python -m jobq`: the entry point. What needs no command line is answered before anything is imported."""

import sys

from jobq import __version__


def main() -> None:
    """Run the command line and end the process with its exit code."""
    if sys.argv[1:] == ["--version"]:  # scripts ask it often; click alone would triple what it takes
        sys.stdout.write(f"jobq {__version__}\n")
        return
    from jobq.cli.main import main as command_line  # noqa: PLC0415 - see above

    command_line()


if __name__ == "__main__":
    main()
