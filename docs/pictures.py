"""Draws the README's pictures from the bundled traces: what a terminal shows, and the report in a browser.

python docs/pictures.py

The terminal is drawn by rich from the text that the command prints today; the report is a screenshot by the system's Chromium
($CHROMIUM, else what is on the path), with the facts that it shows beside it, so that a test can tell when it is out of date.
"""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from fences import Block
from shell import ROOT, Ran, failures, run_blocks

PICTURES = ROOT / "docs/pictures"
TERMINAL = PICTURES / "stragglers.svg"
COMMAND = "annotq stragglers --job slow4"
REPORT = PICTURES / "report.webp"
REPORT_TEXT = PICTURES / "report.txt"  # what REPORT shows
# The sections of the report that the picture shows. Not "What this rests on": it says where and when the page was made.
SECTIONS = ("findings", "steps", "step-time")

# rich's own frame loads a font from the net; any monospace font does, since each line is stretched to its width.
_FRAME = """<svg role="img" aria-label="What the command prints" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
    font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g>
</svg>
"""


def printed() -> str:
    """What a terminal of 100 columns shows after COMMAND on a store with slow4, and nothing else in it."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(COMMAND, Path(folder))[-1].output


def _run(command: str, folder: Path) -> list[Ran]:
    block = Block(1, "console", f"$ annotq ingest tests/data/slow4 --quiet\n$ {command}", "")
    results = run_blocks([block], folder)
    if problems := failures(results):
        sys.exit(problems[0])
    return results


def drawn(text: str) -> str:
    """A terminal with COMMAND and `text` in it, as SVG; as wide as its longest line."""
    from rich.console import Console
    from rich.text import Text

    width = max(map(len, [*text.splitlines(), f"$ {COMMAND}"])) + 1
    console = Console(record=True, width=width, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    console.print(Text("$ ", "bold green") + Text(COMMAND, "bold"))
    console.print(Text(text), soft_wrap=True)
    return console.export_svg(title="annotq", code_format=_FRAME, unique_id="annotq")


def shown(svg: str) -> str:
    """The text in a picture of a terminal, line by line, without the command."""
    lines: dict[int, str] = {}
    for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        if line := re.search(r"line-(\d+)", text.get("clip-path", "")):
            number = int(line[1])
            # rich leaves out blank cells between two texts of a line: the place says how many.
            column = round(float(text.get("x", 0)) / _CELL)
            lines[number] = lines.get(number, "").ljust(column) + (text.text or "").replace("\xa0", " ")
    return "\n".join(lines.get(number, "").rstrip() for number in range(1, max(lines) + 1)).rstrip()


_CELL = 12.2  # the width of a character in rich's picture


def report() -> str:
    """The report of slow4 as `annotq report` writes it now, HTML."""
    with tempfile.TemporaryDirectory() as folder:
        _run("annotq report slow4 -o report.html", Path(folder))
        return (Path(folder) / "work/report.html").read_text(encoding="utf-8")


class _Text(HTMLParser):
    """Collects the text of the sections, a line for each element that has any; neither the SQL nor what only a pointer shows."""

    _HIDDEN = ("details", "script", "style", "title", "desc")

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._inside = False
        self._hidden = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self._inside = dict(attributes).get("id") in SECTIONS
        self._hidden += tag in self._HIDDEN

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != "section"
        self._hidden -= tag in self._HIDDEN

    def handle_data(self, data: str) -> None:
        if self._inside and not self._hidden and data.strip():
            self.lines.append(" ".join(data.split()))


def text_of(page: str) -> str:
    """What SECTIONS of a report show, as text."""
    parser = _Text()
    parser.feed(page)
    return "\n".join(parser.lines) + "\n"


def photographed(page: str) -> bytes:
    """SECTIONS of a report in a browser, as WebP."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light", bypass_csp=True)
        tab.set_content(page)
        shown_only = ", ".join(f"#{section}" for section in SECTIONS)
        tab.add_style_tag(content=f"main > section:not({shown_only}), details {{ display: none }}")
        # Playwright itself writes PNG and JPEG only: twice as large, or smeared.
        ask = {"format": "webp", "quality": 90, "captureBeyondViewport": True}
        picture = tab.context.new_cdp_session(tab).send("Page.captureScreenshot", ask)["data"]
        browser.close()
        return base64.b64decode(picture)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    TERMINAL.write_text(drawn(printed()), encoding="utf-8")
    page = report()
    REPORT.write_bytes(photographed(page))
    REPORT_TEXT.write_text(text_of(page), encoding="utf-8")
    for path in (TERMINAL, REPORT, REPORT_TEXT):
        print(f"{path.relative_to(ROOT)} ({path.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
