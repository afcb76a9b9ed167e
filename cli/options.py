"""The options that every reading command shares, written once."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from annotq.agent.errors import EXIT_USAGE, AnnotqError


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    MARKDOWN = "markdown"
    ARROW = "arrow"
    PARQUET = "parquet"


class TimeUnit(StrEnum):
    AUTO = "auto"
    NS = "ns"
    US = "us"
    MS = "ms"
    S = "s"


SUFFIXES = {
    ".txt": Format.TABLE,
    ".json": Format.JSON,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".csv": Format.CSV,
    ".md": Format.MARKDOWN,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".parquet": Format.PARQUET,
}

Db = Annotated[
    Path | None,
    typer.Option("--db", envvar="ANNOTQ_DB", metavar="FILE", help="Store. Default: annotq.duckdb in your data folder."),
]
# Without envvar: which of file and collector wins is decided in chosen_place, by where the value came from.
ReadDb = Annotated[
    Path | None,
    typer.Option("--db", metavar="FILE", help="Store. Default: ANNOTQ_DB, else annotq.duckdb in your data folder."),
]
Endpoint = Annotated[
    str | None,
    typer.Option("--endpoint", metavar="HOST:PORT", help="Ask this collector, not a file. Default: ANNOTQ_ENDPOINT."),
]
Job = Annotated[str | None, typer.Option("--job", metavar="NAME", help="Job. Default: the only one in the store.")]
FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="Default: a table on a terminal, tab-separated text otherwise, or by FILE's suffix."),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there instead of stdout (-).")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Rows at most.")]
TimeUnitOption = Annotated[TimeUnit, typer.Option("--time-unit", help="Unit of the duration columns.")]
ShowSql = Annotated[bool, typer.Option("--show-sql", help="Print the SQL that gives these rows, and exit.")]

RegionGlob = Annotated[
    str | None, typer.Option("--region", metavar="GLOB", help="Only regions that fit, such as 'layers.*.mlp'.")
]

# What --output calls the standard output.
STDOUT = Path("-")

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True)
class ReadingOptions:
    """What the shared options said; `place()` says what `db` and `endpoint` mean. `format` None: decided by the destination."""

    db: ReadDb = None
    endpoint: Endpoint = None
    job: Job = None
    format: FormatOption = None
    output: Output = None
    limit: Limit = None
    time_unit: TimeUnitOption = TimeUnit.AUTO
    show_sql: ShowSql = False

    def place(self) -> Path | str:
        """What to ask: a store file (Path) or the collector at HOST:PORT (str). Raises AnnotqError as chosen_place."""
        return chosen_place(self.db, self.endpoint)

    def chosen_format(self) -> Format | None:
        """--format, else by the suffix of --output, else None.

        Raises AnnotqError (usage) for a suffix that stands for no format.
        """
        if self.format is not None or self.output is None or self.output == STDOUT:
            return self.format
        found = SUFFIXES.get(self.output.suffix.lower())
        if found is None:
            raise AnnotqError(
                f"The suffix of {self.output} stands for no format.",
                f"Use one of {', '.join(SUFFIXES)}, or say --format.",
                EXIT_USAGE,
            )
        return found


def default_store() -> Path:
    """annotq.duckdb in the user's data folder."""
    from platformdirs import user_data_path

    return user_data_path("annotq") / "annotq.duckdb"


def chosen_place(db: Path | None, endpoint: str | None, environ: Mapping[str, str] = os.environ) -> Path | str:
    """A store file (Path) or a collector's HOST:PORT (str): --endpoint, --db, ANNOTQ_DB, ANNOTQ_ENDPOINT, the default store.

    db and endpoint are the options as given. Raises AnnotqError (usage) for both of them.
    """
    if db is not None and endpoint is not None:
        raise AnnotqError(
            "--db and --endpoint exclude each other.",
            "A collector is asked for its own store: leave --db out.",
            EXIT_USAGE,
        )
    if endpoint is not None:
        return endpoint
    if db is not None:
        return db
    if file := environ.get("ANNOTQ_DB", "").strip():
        return Path(file)
    return environ.get("ANNOTQ_ENDPOINT", "").strip() or default_store()


def reading_command(without: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: adds the fields of ReadingOptions, less those in `without`, as options after the command's own.

    The command receives them as one ReadingOptions in its first parameter, `options`.
    """
    hints = get_type_hints(ReadingOptions, include_extras=True)
    shared = [
        inspect.Parameter(field.name, _KEYWORD, default=field.default, annotation=hints[field.name])
        for field in fields(ReadingOptions)
        if field.name not in without
    ]
    names = {parameter.name for parameter in shared}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            options = ReadingOptions(**{name: given.pop(name) for name in names})
            command(options, **given)

        own_hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(kind=_KEYWORD, annotation=own_hints[parameter.name])
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name != "options"
        ]
        # typer reads the signature and the annotations; both must be those of the widened command.
        run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
        del run.__wrapped__
        return run

    return decorate
