"""The page in a browser: a person logs in, reads, follows a running job; nothing is loaded from anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Opener, browser, open_page  # noqa: F401
from collectors import batch, process
from web_collector import WebCollector, ship_trace

from annotq.v1 import collector_pb2 as pb

TOKEN = "correct horse battery staple"


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebCollector]:
    """A job that has ended, with an odd name, and one that is there but has no window yet."""
    folder = tmp_path_factory.mktemp("browser")
    with WebCollector(folder / "store.duckdb") as started:
        for rank in range(2):
            process_id = ship_trace(started, folder / "done", rank, job="a/b <i>", world_size=2)
            end = {"time_ns": time.time_ns(), "how": "stopped"}
            started.ship([batch(process_id, 9 << 32, pb.KIND_PROCESS_END, end)])
        started.register(process(0, job="young"))
        yield started


def test_a_person_comes_from_the_list_to_a_report_and_back(collector: WebCollector, open_page: Opener) -> None:  # noqa: F811
    opened = open_page(f"http://{collector.http}/")
    page = opened.page
    assert page.locator("#jobs tbody tr").count() == 2
    page.get_by_role("link", name="a/b <i>").click()
    page.get_by_role("heading", level=1, name="a/b <i>", exact=True).wait_for(timeout=60_000)
    page.get_by_role("link", name="All jobs").click()
    page.locator("#jobs").wait_for()
    assert page.locator("#jobs .badge").count() == 1  # the verdict is known now
    assert all(address.startswith(f"http://{collector.http}/") for address in opened.requests)
    assert opened.complaints == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_everybody_can_read_the_list(collector: WebCollector, open_page: Opener, colours: str) -> None:  # noqa: F811
    assert open_page(f"http://{collector.http}/", colours=colours).axe_violations() == []


def test_two_jobs_are_compared_by_a_form(collector: WebCollector, open_page: Opener) -> None:  # noqa: F811
    opened = open_page(f"http://{collector.http}/")
    opened.page.get_by_label("Before").select_option("0/a/b <i>")
    opened.page.get_by_label("After").select_option("0/a/b <i>")
    opened.page.get_by_role("button", name="Compare").click()
    opened.page.wait_for_url("**/jobs/a%2Fb%20%3Ci%3E/against/**")
    opened.page.get_by_role("heading", level=1).filter(has_text="a/b <i>").wait_for(timeout=60_000)
    assert opened.complaints == []


def test_a_login_leads_back_to_what_was_asked_for(tmp_path: Path, open_page: Opener) -> None:  # noqa: F811
    with WebCollector(tmp_path / "store.duckdb", environment={"ANNOTQ_TOKEN": TOKEN}) as collector:
        address = f"http://{collector.http}/jobs/none?attempt=1"
        opened = open_page(address)
        page = opened.page
        assert opened.axe_violations() == []
        page.get_by_label("Token").fill("something else that is wrong")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("alert").wait_for()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("There is no attempt 1 of job none here.").wait_for()
        assert page.url == address
        page.get_by_role("link", name="All jobs").click()
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").wait_for()
        (cookie,) = page.context.cookies() or [None]
        assert cookie is None


def test_a_link_from_elsewhere_finds_who_has_logged_in(tmp_path: Path, open_page: Opener) -> None:  # noqa: F811
    with WebCollector(tmp_path / "store.duckdb", environment={"ANNOTQ_TOKEN": TOKEN}) as collector:
        elsewhere = f"http://localhost:{collector.http.rpartition(':')[2]}/"  # another site for a browser
        opened = open_page(elsewhere)
        page = opened.page
        target = f"http://{collector.http}/#theme=dark"
        page.evaluate("address => { location.href = address }", target)
        page.get_by_label("Token").fill(TOKEN)  # not logged in here yet
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", level=1, name="Jobs").wait_for()
        page.goto(elsewhere)
        page.evaluate("address => { location.href = address }", target)
        page.get_by_role("heading", level=1, name="Jobs").wait_for()
        assert page.url == target


def test_the_page_of_a_running_job_loads_itself_again_and_keeps_its_state(tmp_path: Path, open_page: Opener) -> None:  # noqa: F811
    with WebCollector(tmp_path / "store.duckdb") as collector:
        process_id = ship_trace(collector, tmp_path / "one")
        collector.stub.Beat(
            pb.BeatRequest(host="node-a", processes=[pb.ProcessBeat(process_id=process_id, alive=True)])
        )
        assert collector.page("/jobs/live").status == 200
        opened = open_page(f"http://{collector.http}/jobs/live#theme=dark")
        page = opened.page
        assert page.get_by_role("button", name="Refresh every 15 s").is_visible()
        first = page.content()
        ship_trace(collector, tmp_path / "two", number=2)
        with page.expect_navigation(timeout=60_000):
            pass
        page.get_by_role("heading", level=1, name="live", exact=True).wait_for(timeout=60_000)
        assert page.url.endswith("/jobs/live#theme=dark") and page.locator("html").get_attribute("data-theme") == "dark"
        assert page.content() != first
        assert opened.complaints == []
