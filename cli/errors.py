"""What becomes of an exception: a sentence on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from annotq.agent.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, AnnotqError


class Commands(TyperGroup):
    """The command group; every command runs inside its invoke().

    AnnotqError becomes `error: MESSAGE`, its hint indented below, and its exit code. Ctrl-C exits with 130. A reader
    that closed the pipe (`annotq query ... | head`) has seen what it wanted: exit 0, nothing said.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except AnnotqError as error:
            print_error(error)
            raise typer.Exit(error.exit_code) from None
        except RuntimeError as error:
            # DuckDB's words for Ctrl-C while it was busy.
            if "Query interrupted" not in str(error):
                raise
            typer.echo("interrupted", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            _drop_stdout()
            raise typer.Exit(EXIT_OK) from None
        except OSError as error:
            # A full disk, a folder that may not be written: nothing that a traceback explains better.
            where = f"{error.filename}: " if error.filename else ""
            print_error(AnnotqError(f"{where}{error.strerror or error}.", "Check the space and the permissions there."))
            raise typer.Exit(EXIT_FAILED) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        return result


def print_error(error: AnnotqError) -> None:
    """Message and hint on stderr, the hint's lines indented by two."""
    typer.echo(f"error: {error.message}", err=True)
    for line in error.hint.splitlines():
        typer.echo(f"  {line}", err=True)


def note(text: str) -> None:
    """A remark for the reader. Always stderr: stdout carries the result only."""
    typer.echo(text, err=True)


def _drop_stdout() -> None:
    # The interpreter flushes stdout once more on its way out and would complain about the closed pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
