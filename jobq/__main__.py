"""`jobq` and `python -m jobq`: the entry point. What needs no command line is answered before anything is imported."""

import gc
import io
import os
import sys

from jobq import __version__

_OUTPUT = "jobq_output"  # a -X option: the encoding of what people read


def speak_utf8() -> None:
    """Start this process anew in Python's UTF-8 mode where the locale has another encoding.

    Tasks, and what names files, are UTF-8 in the queue; argv, variables and paths would be other bytes here. What
    people read is written in the locale's encoding all the same.
    """
    if sys.getfilesystemencoding() != "utf-8" and sys.executable:
        import locale  # noqa: PLC0415 - hardly anybody needs it

        options = ("-X", "utf8", "-X", f"{_OUTPUT}={locale.getencoding()}")
        os.execv(sys.executable, [sys.executable, *options, *sys.orig_argv[1:]])  # noqa: S606 - ourselves
    encoding = sys._xoptions.get(_OUTPUT)  # noqa: SLF001 - that is how the documentation of -X has it
    for stream in (sys.stdout, sys.stderr) if encoding else ():
        if isinstance(stream, io.TextIOWrapper):  # not closed by the caller
            stream.reconfigure(encoding=str(encoding), errors="backslashreplace")


def main() -> None:
    """Run the command line and end the process with its exit code."""
    speak_utf8()
    if sys.argv[1:] == ["--version"]:  # scripts ask it often; click alone would triple what it takes
        try:
            sys.stdout.write(f"jobq {__version__}\n")
            sys.stdout.flush()
        except OSError as error:  # a full disk; what is buffered would be written once more at the end
            os.write(2, f"jobq: cannot write to standard output: {error.strerror}\n".encode())
            os._exit(1)
        return
    if sys.argv[1:] == ["healthcheck"] and (path := os.environ.get("JOBQ_HEALTH_FILE")):
        from jobq.telemetry.probe import answer  # noqa: PLC0415 - see above

        code, words = answer(path)  # containers ask it every few seconds: click would triple what it takes
        stream, text = (sys.stderr, f"jobq: {words}") if code else (sys.stdout, words)
        if stream is not None:  # closed by the caller
            stream.write(text.encode("ascii", "backslashreplace").decode() + "\n")
        sys.exit(code)
    import signal  # noqa: PLC0415 - see above

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `jobq.cli.main.run`: Ctrl-C in an import would print that
    if "JOBQ_WITHHELD_FD" in os.environ:  # a worker that its guardian starts again
        from jobq.run.withheld import restore  # noqa: PLC0415 - see above

        restore()
    gc.disable()  # until `jobq.cli.common.run_async`: imports leave no garbage; to look for it is a fifth of a start
    from jobq.cli.main import main as command_line  # noqa: PLC0415 - see above

    command_line()


if __name__ == "__main__":
    main()
