"""The one exception for what a user can fix, and the exit codes of every command."""

from __future__ import annotations

EXIT_OK = 0  # done, also when the answer is empty
EXIT_FAILED = 1  # failed, or some input was bad (the rest was loaded)
EXIT_USAGE = 2  # the command line is wrong
EXIT_FINDING = 3  # a finding beyond the limit that was asked for
EXIT_UNREACHABLE = 4  # the collector cannot be reached
EXIT_INTERRUPTED = 130  # stopped by Ctrl-C


class AnnotqError(Exception):
    """Something a user can fix: what happened (with the value), what to do next, and the exit code.

    message: one sentence that names the file, column or option and the offending value.
    hint: the next thing to try, as a sentence or a command; empty when there is none.
    exit_code: what the process returns (see the constants of this module).
    """

    def __init__(self, message: str, hint: str = "", exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()
