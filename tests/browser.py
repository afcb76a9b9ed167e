"""A headless Chromium for tests that drive pages, and axe-core for what people with other eyes and hands need.

Import the fixtures into a test module: `from browser import browser, open_page  # noqa: F401`. They skip where no Chromium
(CHROMIUM, else /usr/bin/chromium) or no axe-core (AXE_CORE, else an installed npm package) is there, and fail instead with
ANNOTQ_REQUIRE_BROWSER=1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parent.parent
AXE_PLACES = ("node_modules", ".venv/npm/node_modules")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class OpenPage:
    """A page, with what it said on the console and what it asked of the network since it was opened."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def axe_violations(self) -> list[str]:
        """WCAG 2 A and AA, as far as axe-core finds it: "rule: element"."""
        if self.page.evaluate("typeof axe") == "undefined":
            self.page.evaluate(axe_source())
        found: list[dict[str, Any]] = self.page.evaluate(
            "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']}).then(r => r.violations)"
        )
        return [
            f"{each['id']}: {node['html'][:200]} {node['failureSummary']}"
            for each in found
            for node in each["nodes"][:5]
        ]


# Once per module: what Playwright starts keeps an event loop in this thread, and a second one cannot begin beside it.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
    if not program.exists():
        unavailable(f"no Chromium at {program}")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=QUIET)
        yield chromium
        chromium.close()


Opener = Callable[..., OpenPage]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Opener]:
    """A function that opens an address in a fresh window and waits until it is loaded."""
    with ExitStack() as windows:

        def opener(
            address: str, width: int = 1300, colours: Literal["light", "dark"] = "light", script: bool = True
        ) -> OpenPage:
            context = browser.new_context(
                viewport={"width": width, "height": 1000},
                color_scheme=colours,
                java_script_enabled=script,
                permissions=["clipboard-read", "clipboard-write"],
            )
            windows.callback(context.close)
            context.set_default_timeout(20_000)
            opened = OpenPage(context.new_page())
            opened.page.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
            opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
            opened.page.on("request", lambda request: opened.requests.append(request.url))
            opened.page.goto(address)
            return opened

        yield opener


def axe_source() -> str:
    """The text of axe-core."""
    given = os.environ.get("AXE_CORE")
    places = [Path(given)] if given else [ROOT / place / "axe-core/axe.min.js" for place in AXE_PLACES]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        unavailable(f"no axe-core at {', '.join(map(str, places))}: npm install --prefix .venv/npm axe-core")
    assert found is not None
    return found.read_text(encoding="utf-8")


def unavailable(why: str) -> None:
    """Skips the test, or fails it where a browser is a must."""
    if os.environ.get("ANNOTQ_REQUIRE_BROWSER") == "1":
        pytest.fail(why)
    pytest.skip(why)
