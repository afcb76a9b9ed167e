"""Where an answer goes and in which form: the terminal, a pipe, or a file."""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING

from annotq.agent.errors import EXIT_USAGE, AnnotqError
from annotq.cli.errors import note
from annotq.cli.options import STDOUT, Format, ReadingOptions, TimeUnit
from annotq.cli.whole_file import whole_file

if TYPE_CHECKING:
    import pyarrow as pa

BINARY = (Format.ARROW, Format.PARQUET)


class Printer:
    """Prints rows as the options ask. `format` None is tab-separated text, what a pipe gets when nothing was asked for.

    for_terminal: the rows are shown to a person, who reads a few hundred and not a million.
    Raises AnnotqError (usage) for a binary format on a terminal, or a file that cannot be written.
    """

    def __init__(self, options: ReadingOptions) -> None:
        self.path = None if options.output == STDOUT else options.output
        self.unit = options.time_unit
        terminal = self.path is None and sys.stdout.isatty()
        self.format = options.chosen_format() or (Format.TABLE if terminal else None)
        self.for_terminal = terminal and self.format == Format.TABLE
        if terminal and self.format in BINARY:
            raise AnnotqError(f"{self.format} is binary and would garble the terminal.", "Add -o FILE.", EXIT_USAGE)
        if self.path is not None and not self.path.parent.is_dir():
            raise AnnotqError(f"There is no folder {self.path.parent}.", f"Make it before -o {self.path}.", EXIT_USAGE)

    def print(self, table: pa.Table, before: str = "") -> None:
        """Write the rows, in text formats after `before`. Raises AnnotqError when the format cannot hold them."""
        from annotq.cli.time_columns import narrowed

        table = narrowed(table)
        if self.format in BINARY:
            self._print_binary(table)
        else:
            write = self._text_writer(table)
            with self._text_stream() as stream:
                if before:
                    stream.write(self._wrapped(before) + "\n")
                write(stream)
        if self.path is not None:
            note(f"wrote {self.path} ({table.num_rows:,} rows)")

    def print_text(self, text: str) -> None:
        """Write a text instead of rows."""
        with self._text_stream() as stream:
            stream.write(text.rstrip("\n") + "\n")

    def _wrapped(self, text: str) -> str:
        width = shutil.get_terminal_size().columns
        return "\n".join(map(partial(textwrap.fill, width=width), text.split("\n"))) if self.for_terminal else text

    def _text_writer(self, table: pa.Table) -> Callable[[IO[str]], None]:
        from annotq.cli import tables, text_formats
        from annotq.cli.time_columns import readable, scaled

        if self.format == Format.TABLE:
            return lambda stream: tables.write_table(readable(table, self.unit), stream, self.for_terminal)
        if self.format == Format.MARKDOWN:
            return lambda stream: tables.write_markdown(readable(table, self.unit), stream)
        rows = scaled(table, TimeUnit.NS if self.unit == TimeUnit.AUTO else self.unit)
        write = {
            None: text_formats.write_plain,
            Format.JSON: text_formats.write_json,
            Format.JSONL: text_formats.write_jsonl,
            Format.CSV: text_formats.write_csv,
        }[self.format]
        return lambda stream: write(rows, stream)

    def _print_binary(self, table: pa.Table) -> None:
        import pyarrow as pa

        from annotq.cli.binary_formats import write_arrow, write_parquet
        from annotq.cli.time_columns import scaled

        rows = scaled(table, TimeUnit.NS if self.unit == TimeUnit.AUTO else self.unit)
        write = write_arrow if self.format == Format.ARROW else write_parquet
        # Parquet is written backwards from its end, and a pipe cannot be wound back: always whole, then out.
        buffer = io.BytesIO()
        try:
            write(rows, buffer)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise AnnotqError(f"{self.format} cannot hold these rows: {error}", "Cast the column to VARCHAR.") from None
        if self.path is None:
            sys.stdout.buffer.write(buffer.getbuffer())
            sys.stdout.buffer.flush()
        else:
            with whole_file(self.path) as beside:
                beside.write_bytes(buffer.getbuffer())

    @contextmanager
    def _text_stream(self) -> Iterator[IO[str]]:
        if self.path is None:
            yield sys.stdout
            return
        with whole_file(self.path) as beside, beside.open("w", encoding="utf-8", newline="") as stream:
            yield stream
