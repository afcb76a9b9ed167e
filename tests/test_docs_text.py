"""What nobody runs is right all the same: command lines parse, options exist, code compiles, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from annotq.cli.main import app
from annotq.collector.metrics import Metrics

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

from console import pages  # noqa: E402
from fences import Block, blocks, outside_fences  # noqa: E402

COMMANDS: Any = typer.main.get_command(app)
PAGES = {str(page.relative_to(ROOT)): page for page in pages()}


def calls(script: str) -> Iterator[list[str]]:
    """The words after each `annotq` of a shell script; variables become 1."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(re.sub(r"\$\{?\w+\}?", "1", line), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        for start, word in enumerate(words):
            if word == "annotq" or word.endswith("/annotq"):
                rest = words[start + 1 :]
                ends = [at for at, other in enumerate(rest) if set(other) <= set("();<>|&")]
                yield rest[: ends[0]] if ends else rest


def check_call(words: list[str]) -> None:
    """Raises when the command line is none that annotq takes. Nothing is run."""
    COMMANDS.commands[words[0]].make_context(words[0], words[1:])


NOBODY_RUNS = [(name, b) for name, page in PAGES.items() for b in blocks(page) if b.not_run]
CALLS = [(name, call) for name, block in NOBODY_RUNS if block.language != "python" for call in calls(block.code())]


@pytest.mark.parametrize(
    ("name", "call"), CALLS, ids=lambda value: value if isinstance(value, str) else shlex.join(value)
)
def test_command_lines_that_are_not_run_parse(name: str, call: list[str]) -> None:
    check_call(call)


def test_command_lines_are_found_and_a_wrong_one_is_told() -> None:
    assert list(calls('X=1 srun annotq ship --spool "$Y" --once || echo annotq is gone')) == [
        ["ship", "--spool", "1", "--once"],
        ["is", "gone"],
    ]
    with pytest.raises(Exception, match="No such option"):
        check_call(["ship", "--no-such-option"])


@pytest.mark.parametrize("name", PAGES)
def test_commands_named_in_the_text_exist_with_their_options(name: str) -> None:
    for span in re.findall(r"`annotq ([^`]+)`", "\n".join(outside_fences(PAGES[name])).replace("\\|", "|")):
        command, *words = span.split(" -- ")[0].split("|")[0].split()
        if command.startswith("-"):
            continue
        assert command in COMMANDS.commands, span
        options = {option for parameter in COMMANDS.commands[command].params for option in parameter.opts} | {"--help"}
        assert {word for word in words if word.startswith("-") and word != "-"} <= options, span


def of_language(language: str) -> list[tuple[str, Block]]:
    return [(name, block) for name, page in PAGES.items() for block in blocks(page) if block.language == language]


def test_python_that_is_not_run_compiles() -> None:
    for name, block in of_language("python"):
        compile(block.text, f"{name}:{block.line}", "exec")


def test_yaml_is_yaml_and_asks_only_for_metrics_that_are_exported() -> None:
    exported = {"annotq_rejected_batches_total"}
    for family in Metrics().registry.collect():
        exported |= {family.name, f"{family.name}_total"}
    for name, block in of_language("yaml"):
        assert isinstance(yaml.safe_load(block.text), dict), name
        assert set(re.findall(r"\bannotq_\w+", block.text)) <= exported, name


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text()
    linked = {(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([^)#]+)", index)}
    own = {page for name, page in PAGES.items() if name.startswith("docs/") and name != "docs/README.md"}
    assert own | {*ROOT.glob("docs/reference/*.md")} <= linked


@pytest.mark.parametrize("name", PAGES)
def test_links_and_named_files_exist(name: str) -> None:
    page = PAGES[name]
    text = page.read_text()
    links = [link.split("#") for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    missing = []
    for path, *anchor in links:
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor[0] not in anchors(target)):
            missing.append("#".join([path, *anchor]))
    files = re.findall(r"`((?:agent|collector|cli|tests|docs|bench|deploy|evaluation)/[\w./-]+\.\w+)`", text)
    assert [*missing, *(file for file in files if not (ROOT / file).exists())] == []


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = [line.lstrip("# ") for line in outside_fences(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
