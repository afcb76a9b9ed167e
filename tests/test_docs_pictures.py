"""The README's pictures show what the program gives today."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import pictures  # noqa: E402

AGAIN = "out of date; draw it again: make pictures"


def test_the_terminal_shows_what_the_command_prints_now() -> None:
    assert pictures.shown(pictures.TERMINAL.read_text()) == pictures.printed(), AGAIN


def test_the_text_of_a_terminal_can_be_read_back() -> None:
    text = "a  b <&>\n\n    indented, then blank: \u2500\u00b5\nlast"
    svg = pictures.drawn(text)
    assert pictures.shown(svg) == text
    assert pictures.shown(svg.replace("last", "lost")) != text


def test_the_terminal_loads_nothing_from_elsewhere() -> None:
    svg = pictures.TERMINAL.read_text()
    ElementTree.fromstring(svg)
    assert svg.count("http") == 1  # the name of SVG itself
    assert "url(" not in svg.replace("url(#", "")


def test_the_report_in_the_picture_says_what_the_report_says_now() -> None:
    assert pictures.text_of(pictures.report()) == pictures.REPORT_TEXT.read_text(), AGAIN


def test_the_text_of_a_report_leaves_out_where_it_was_made_and_the_sql() -> None:
    page = (
        '<main><section id="findings"><h2>Findings</h2><p>Rank 2 &amp; <b>3</b></p>'
        "<details>SELECT</details><script>x</script></section>"
        '<section id="provenance"><p>from /home/me</p></section>'
        '<section id="steps"><svg><title>t</title><text>1.5</text></svg></section></main>'
    )
    assert pictures.text_of(page) == "Findings\nRank 2 &\n3\n1.5\n"


def test_pictures_are_small() -> None:
    assert {path.name: path.stat().st_size > 200_000 for path in pictures.PICTURES.iterdir()} == {
        "report.txt": False,
        "report.webp": False,
        "stragglers.svg": False,
    }
    assert pictures.REPORT.read_bytes()[8:12] == b"WEBP"
