"""Writes docs/reference from the code (commands, views, exit codes, environment variables) and the README's demo.

python docs/generate.py            # write
python docs/generate.py --check    # exit 1 when a page is stale, and name it
"""

from __future__ import annotations

import inspect
import io
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer

from annotq.cli.main import app
from annotq.collector.views import View, load_views

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs/reference"
PACKAGES = ("agent", "collector", "cli")
DEMO_BEGIN = "<!-- demo: written by make docs -->"
DEMO_END = "<!-- /demo -->"
NOTICE = "<!-- Written by docs/generate.py from the code; `make docs` writes it again. -->"


def commands_page() -> str:
    """Every command with its help, arguments and options, in the order of `annotq --help`."""
    commands = {info.name or callback_of(info).__name__: callback_of(info) for info in app.registered_commands}
    text = ["# Commands", NOTICE, app.info.help, table(("command", ""), map(summary, commands.items()))]
    for name, callback in commands.items():
        text += [f"## annotq {name}", inspect.getdoc(callback) or ""]
        rows = [row(*parameter) for parameter in parameters(callback)]
        if rows:
            text.append(table(("", "value", "meaning", "default"), rows))
    return page(text)


def callback_of(info: Any) -> Callable[..., None]:
    assert info.callback is not None
    return info.callback


def summary(command: tuple[str, Callable[..., None]]) -> str:
    name, callback = command
    first = (inspect.getdoc(callback) or "").split("\n\n")[0].replace("\n", " ")
    return f"| [`{name}`](#annotq-{name}) | {escaped(first)} |"


def parameters(callback: Callable[..., None]) -> Iterator[tuple[str, Any, Any, Any]]:
    """(name, type, typer's info, default) of each argument and option that is shown."""
    hints = get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, info = get_args(hints[name])
        if not info.hidden:
            yield name, kind, info, parameter.default


def row(name: str, kind: Any, info: Any, default: Any) -> str:
    """One line of a command's table."""
    argument = isinstance(info, typer.models.ArgumentInfo)
    shown = [info.metavar or name.upper()] if argument else option_names(name, info)
    value = "" if argument else info.metavar or value_of(kind)
    meaning = f"{info.help or ''}{f' Variable: `{info.envvar}`.' if info.envvar else ''}"
    if default is None or default is False or default is inspect.Parameter.empty:
        default = ""
    cells = (
        coded(", ".join(shown)),
        coded(value),
        meaning,
        str(default.value if isinstance(default, Enum) else default),
    )
    return f"| {' | '.join(map(escaped, cells))} |"


def option_names(name: str, info: Any) -> list[str]:
    """As written on the command line. Inside Annotated, typer keeps the first given name as `default`."""
    given = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
    return given or [f"--{name.replace('_', '-')}"]


def value_of(kind: Any) -> str:
    """What may be written for an option without a metavar: the choices, else the type's name; empty for a flag."""
    single = next((part for part in [kind, *get_args(kind)] if isinstance(part, type) and not get_args(part)), str)
    if issubclass(single, Enum):
        return "|".join(str(choice.value) for choice in single)
    return {bool: "", int: "N", float: "X", Path: "FILE"}.get(single, "TEXT")


def views_page() -> str:
    """The public views, each with its columns."""
    public = [view for view in load_views() if view.public]
    names = [f"| [`{view.name}`](#{view.name}) | {escaped(view.purpose)} |" for view in public]
    text = [
        "# Views",
        NOTICE,
        "What `annotq query` reads. `annotq views NAME` shows the same.",
        table(("view", ""), names),
    ]
    for view in public:
        text += [f"## {view.name}", view.purpose, f"How to read it: {view.reading}", columns(view)]
    return page(text)


def columns(view: View) -> str:
    """The columns of a view as a table."""
    rows = [(coded(c.name), c.type, c.unit, c.null, c.meaning) for c in view.columns]
    lines = [f"| {' | '.join(map(escaped, cells))} |" for cells in rows]
    return table(("column", "type", "unit", "NULL", "meaning"), lines)


def exit_codes_page() -> str:
    """The constants EXIT_* of agent/errors.py with the comments behind them."""
    source = (ROOT / "agent/errors.py").read_text()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    rows = []
    for number, line in enumerate(source.splitlines(), 1):
        if match := re.match(r"EXIT_(\w+) = (\d+)", line):
            meaning = comments.get(number, match[1].lower().replace("_", " "))
            rows.append(f"| {match[2]} | {escaped(meaning)} |")
    return page(["# Exit codes", NOTICE, "Of every command.", table(("code", "meaning"), rows)])


def environment_page() -> str:
    """Every ANNOTQ_* variable that the code reads.

    The meaning is the help of the option that the variable stands for, else a comment `ANNOTQ_X: meaning` in the code.
    """
    code = "\n".join(file.read_text() for name in PACKAGES for file in sorted((ROOT / name).rglob("*.py")))
    meanings = dict(re.findall(r"\b(ANNOTQ_[A-Z0-9_]+): (.+)", code)) | dict(option_variables())
    used = sorted(set(re.findall(r"\bANNOTQ_[A-Z0-9_]+\b", code)))
    if missing := [name for name in used if name not in meanings]:
        sys.exit(f"No word in the code on what {', '.join(missing)} is for. Add a comment '# {missing[0]}: meaning'.")
    rows = [f"| `{name}` | {escaped(meanings[name])} |" for name in used]
    return page(["# Environment variables", NOTICE, table(("variable", "meaning"), rows)])


def option_variables() -> Iterator[tuple[str, str]]:
    """(variable, meaning) of every option that a variable can set."""
    for command in app.registered_commands:
        for name, _, info, _ in parameters(callback_of(command)):
            if info.envvar:
                yield info.envvar, f"The same as `{option_names(name, info)[0]}`. {info.help}"


def coded(text: str) -> str:
    return f"`{text}`" if text else ""


def escaped(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return text.replace("|", r"\|").replace("\n", " ").strip()


def table(header: tuple[str, ...], rows: Iterable[str]) -> str:
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *rows])


def page(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def readme() -> str:
    """The README with the demo's output between its markers as the command prints it now."""
    with tempfile.TemporaryDirectory() as home:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("ANNOTQ_", "XDG_"))}
        run = subprocess.run(
            [sys.executable, "-m", "annotq.cli", "demo"],
            env={**environment, "HOME": home},
            capture_output=True,
            text=True,
            check=True,
        )
    before, _, rest = (ROOT / "README.md").read_text().partition(DEMO_BEGIN)
    _, _, after = rest.partition(DEMO_END)
    return f"{before}{DEMO_BEGIN}\n```console\n$ annotq demo\n{run.stdout.rstrip()}\n```\n{DEMO_END}{after}"


PAGES = {
    "commands.md": commands_page,
    "views.md": views_page,
    "exit-codes.md": exit_codes_page,
    "environment.md": environment_page,
}


def main() -> None:
    pages = {REFERENCE / name: write() for name, write in PAGES.items()}
    pages[ROOT / "README.md"] = readme()
    if sys.argv[1:] == ["--check"]:
        found = {path: path.read_text() for path in [*REFERENCE.glob("*.md"), ROOT / "README.md"]}
        stale = sorted(str(path.relative_to(ROOT)) for path in pages | found if pages.get(path) != found.get(path))
        if stale:
            sys.exit(f"Stale: {', '.join(stale)}. Write them again: make docs")
    else:
        REFERENCE.mkdir(exist_ok=True)
        for path, text in pages.items():
            path.write_text(text)


if __name__ == "__main__":
    main()
