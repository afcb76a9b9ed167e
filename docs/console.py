"""Writes into the console blocks of the pages what their commands print today.

python docs/console.py                          # every page
python docs/console.py docs/tutorial.md         # some
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from fences import CONTINUED, PROMPT, blocks
from shell import ROOT, Ran, failures, run_page

GENERATED = {ROOT / "README.md"}  # docs/generate.py writes its demo


def pages() -> list[Path]:
    """Every page with commands in it, README first; the generated reference holds none."""
    own = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/how-to/*.md")]
    others = [
        ROOT / name for name in ("deploy/README.md", "bench/README.md", "tests/data/README.md", "bench/results.md")
    ]
    return [ROOT / "README.md", *sorted(own), *(page for page in others if page.exists())]


def rewritten(page: Path, results: list[Ran]) -> str:
    """The page with the output of each console command as it is now."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in reversed([block for block in blocks(page) if block.language == "console" and not block.not_run]):
        new: list[str] = []
        for ran in (ran for ran in results if ran.block == block):
            first, *rest = ran.command.splitlines()
            new += [PROMPT + first, *(CONTINUED + line for line in rest), *ran.output.splitlines()]
        lines[block.line - 1 : block.line - 1 + len(block.text.splitlines())] = new
    return "\n".join(lines) + "\n"


def main() -> None:
    for page in [Path(name).resolve() for name in sys.argv[1:]] or sorted(set(pages()) - GENERATED):
        if not any(block.language == "console" and not block.not_run for block in blocks(page)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            results = run_page(page, Path(folder))
        if problems := failures(results):
            sys.exit(f"{page.relative_to(ROOT)}, {problems[0]}")
        page.write_text(rewritten(page, results), encoding="utf-8")
        print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
