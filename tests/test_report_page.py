"""The report page in a browser: what it shows equals SQL asked separately, and everything on it can be used."""
# ruff: noqa: F401, F811 (fixtures come by name)

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from browser import Opener, browser, open_page
from jobs import DATA, load
from playwright.sync_api import Page, expect
from simulated_causes import Cause, slow_layers
from simulated_job import Plan, simulate
from simulated_layout import Layout
from simulated_program import Workload
from simulated_store import simulated_store
from small_store import small_store

from annotq.cli.html.questions import Questions
from annotq.cli.html.report_page import page_of, read_page, report_page
from annotq.collector.query import Door, Limits
from annotq.collector.store import Store

LAYOUT = Layout(dp=8, tp=8)
SLOW_RANK = 21
# What a page of 64 ranks and one of 1,024 may weigh.
SMALL_PAGE, LARGE_PAGE = 1_000_000, 5_000_000


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("real") / "store.duckdb"
    load(store, DATA / "slow4", DATA / "control4")
    return store


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 ranks on 8 hosts; rank 21 takes 1.3 times as long in every MLP."""
    slow = Cause("slow_region", 0.3, (SLOW_RANK,), slow_layers(LAYOUT, 0, 12))
    plan = Plan(seed=1, layout=LAYOUT, steps=20, workload=Workload(layers=12, kernels=6), causes=(slow,))
    return simulated_store(tmp_path_factory.mktemp("simulated") / "store.duckdb", j64=simulate(plan))


def written(store: Path, job: str) -> Path:
    path = store.with_name(f"{job[:6].strip('<')}.html")
    if not path.exists():
        with Door(store, Limits(rows=1_000_000)) as door:
            path.write_text(report_page(door, job), encoding="utf-8")
    return path


def rows(store: Path, sql: str, *parameters: object) -> list[dict[str, Any]]:
    with Door(store, Limits(rows=1_000_000)) as door:
        found: list[dict[str, Any]] = door.ask(sql, parameters).table.to_pylist()
        return found


def shown(page: Page, table: str) -> list[list[str]]:
    """The cells of the body's rows that are shown; exact values where the page has them."""
    cells: list[list[str]] = page.locator(table).evaluate(
        """table => [...table.tBodies].flatMap(body => [...body.rows]).filter(row => !row.hidden)
               .map(row => [...row.cells].map(cell => cell.dataset.v ?? cell.textContent.trim()))"""
    )
    return cells


def ratio_text(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


@pytest.mark.parametrize("job", ["slow4", "control4"])
def test_a_page_asks_nothing_of_the_network_and_complains_of_nothing(real: Path, job: str, open_page: Opener) -> None:
    address = written(real, job).as_uri()
    opened = open_page(address)
    assert opened.requests == [address]
    assert opened.complaints == []


def test_findings_are_those_of_the_command(real: Path, open_page: Opener) -> None:
    page = open_page(written(real, "slow4").as_uri()).page
    said = page.locator(".findings li").all_text_contents()
    assert 1 <= len(said) <= 5
    assert said[0].startswith(
        "Rank 2 (host vm) is slow in layers.*.mlp, forward and backward: 3.76 times the ranks' median"
    )
    assert page.locator("#findings .badge").text_content() == "straggler"
    page = open_page(written(real, "control4").as_uri()).page
    assert page.locator("#findings .badge").text_content() == "no straggler"


def test_steps_are_the_compute_time_of_the_kernels(real: Path, open_page: Opener) -> None:
    # From the events themselves: the sum of everything but communication, over the median of the four ranks.
    found = rows(
        real,
        """WITH step AS (
               SELECT k.rank, k.step, sum(k.duration_ns) AS ns
               FROM kernels AS k WHERE k.job = 'slow4' AND k.step IS NOT NULL AND NOT k.name ILIKE '%nccl%'
               GROUP BY k.rank, k.step
           )
           SELECT rank, step, ns, ns / median(ns) OVER (PARTITION BY step) AS ratio FROM step ORDER BY rank, step""",
    )
    page = open_page(written(real, "slow4").as_uri()).page
    ratios = shown(page, "[data-map=map] [data-pane=compute-ratio] table")
    times = shown(page, "[data-map=map] [data-pane=compute-time] table")
    assert len(ratios) == 4 and all(len(row) == 13 for row in ratios)
    for row in found:
        cell = (row["rank"], 1 + row["step"])
        assert ratios[cell[0]][cell[1]] == ratio_text(row["ratio"])
        assert float(times[cell[0]][cell[1]]) == pytest.approx(float(row["ns"]) / 1e6, rel=6e-3)


def test_regions_by_rank_are_the_ratios_of_the_verdict(real: Path, open_page: Opener) -> None:
    page = open_page(written(real, "slow4").as_uri()).page
    cells = {row[0]: row[1:] for row in shown(page, "[data-map=regions-map] [data-pane=ratio] table")}
    # The README's numbers, and what tests/data/README.md says is true of the others.
    assert [cells[f"layers.{layer}.mlp forward"][2] for layer in range(4)] == ["3.69", "3.79", "3.80", "3.77"]
    assert cells["layers.0.mlp backward"][2] == "76.7"
    assert all(0.9 < float(cells[f"layers.{layer}.attn forward"][2]) < 1.1 for layer in range(4))


def test_the_parts_of_a_step_add_up_and_are_those_of_the_view(real: Path, open_page: Opener) -> None:
    page = open_page(written(real, "slow4").as_uri()).page
    means = rows(
        real,
        """SELECT rank, avg(period_ns) / 1e6 AS period, avg(compute_ns) / 1e6 AS compute, avg(wait_ns) / 1e6 AS wait
           FROM step_parts WHERE job = 'slow4' GROUP BY rank ORDER BY rank""",
    )
    units = {"ns": 1e-6, "us": 1e-3, "ms": 1.0}
    for cells, row in zip(shown(page, "#step-time table"), means, strict=True):
        rank, _bar, *texts = cells
        times = [float(number) * units[unit] for number, unit in (text.split() for text in texts)]
        assert int(rank) == row["rank"]
        assert times[0] == pytest.approx(row["period"], rel=6e-3)
        assert times[1] == pytest.approx(row["compute"], rel=6e-3)
        assert times[3] == pytest.approx(row["wait"], rel=6e-3, abs=1e-6)
        assert sum(times[1:]) == pytest.approx(times[0], rel=2e-2)


def test_bars_are_as_long_as_their_numbers(real: Path, open_page: Opener) -> None:
    page = open_page(written(real, "slow4").as_uri()).page
    drawn: list[dict[str, float]] = page.evaluate(
        """[...document.querySelectorAll('#step-time tbody tr')].map(row => Object.fromEntries(
              [...row.querySelectorAll('rect')].map(rect => [rect.getAttribute('class'), rect.getBBox().width])))"""
    )
    means = rows(
        real,
        """SELECT avg(period_ns) AS period, avg(compute_ns) AS compute, avg(wait_ns) AS wait
           FROM step_parts WHERE job = 'slow4' GROUP BY rank ORDER BY rank""",
    )
    whole = max(sum(bar.values()) for bar in drawn)
    longest = max(row["period"] for row in means)
    for bar, row in zip(drawn, means, strict=True):
        assert bar["compute"] / whole == pytest.approx(row["compute"] / longest, abs=2e-3)
        assert bar.get("wait", 0) / whole == pytest.approx(row["wait"] / longest, abs=2e-3)


def test_last_arrivals_are_those_of_the_view_collectives(real: Path, open_page: Opener) -> None:
    page = open_page(written(real, "slow4").as_uri()).page
    last = rows(
        real,
        """SELECT rank, count(*) FILTER (WHERE last_rank = rank) AS last, count(last_rank) AS judged
           FROM collectives WHERE job = 'slow4' GROUP BY rank ORDER BY rank""",
    )
    cells = [row for row in shown(page, "#collectives table") if len(row) > 1]
    assert [(row[0], row[1]) for row in cells] == [
        (f"{row['rank']}", f"{row['last']} of {row['judged']}") for row in last
    ]


def test_the_overview_of_collectives_counts_those_of_all_groups(simulated: Path, open_page: Opener) -> None:
    page = open_page(written(simulated, "j64").as_uri()).page
    counts: dict[str, int] = {}
    for row in shown(page, "#collectives table >> nth=0"):
        counts[row[0]] = counts.get(row[0], 0) + int(row[3].replace(",", ""))
    found = rows(
        simulated,
        """SELECT concat(name, ' in ', regexp_replace(region, '[0-9]+', '*')) AS title, count(DISTINCT collective_id) AS judged
           FROM collectives WHERE job = 'j64' AND last_rank IS NOT NULL GROUP BY title""",
    )
    assert counts == {row["title"]: row["judged"] for row in found}
    query = page.locator("#collectives pre code").nth(1).text_content() or ""
    answer = rows(simulated, query)
    assert [int(row["judged"]) for row in answer] == [
        int(row[3].replace(",", "")) for row in shown(page, "#collectives table >> nth=0")
    ]
    # The slow rank of its tensor-parallel group comes last to what follows its MLPs.
    mlp = next(
        row
        for row in shown(page, "#collectives table >> nth=0")
        if row[:2] == ["all_reduce in layers.*.mlp", "forward"]
    )
    assert mlp[4].startswith(f"rank {SLOW_RANK} in ")
    # In 8 groups several ranks are last equally often: nothing is said of those that are not named but their number.
    grads = next(row for row in shown(page, "#collectives table >> nth=0") if row[0] == "all_reduce in grads")
    assert re.search(r" in \d+ of 20, and \d+ other ranks$", grads[4])


def test_the_region_table_is_the_view_regions_added_up(simulated: Path, open_page: Opener) -> None:
    page = open_page(written(simulated, "j64").as_uri()).page
    found = rows(
        simulated,
        """SELECT region, phase, count(*) AS ranks, sum(total_ns) AS total_ns, median(median_ns) AS median_ns,
               max(p99_ns) AS p99_ns
           FROM regions WHERE job = 'j64' GROUP BY region, phase ORDER BY total_ns DESC, region, phase""",
    )
    cells = shown(page, "#regions-table")
    assert len(cells) == len(found) > 40
    for row, expected in zip(cells, found, strict=True):
        assert row[:3] == [expected["region"], expected["phase"], str(expected["ranks"])]
        numbers = [float(row[place]) for place in (5, 6, 9)]
        assert numbers == pytest.approx([float(expected[name]) for name in ("median_ns", "p99_ns", "total_ns")])


def test_nobody_looks_slow_in_the_region_table_by_waiting(simulated: Path, open_page: Opener) -> None:
    page = open_page(written(simulated, "j64").as_uri()).page
    mlp = [row for row in shown(page, "#regions-table") if ".mlp" in row[0]]
    assert {row[8] for row in mlp} == {str(SLOW_RANK)}
    assert all(1.2 < float(row[7]) < 1.4 for row in mlp)
    (grads,) = (row for row in shown(page, "#regions-table") if row[0] == "grads")
    assert grads[7:9] == ["", ""]


@pytest.mark.parametrize("job", ["slow4", "control4"])
def test_the_sql_on_the_page_runs_as_it_stands(real: Path, job: str, open_page: Opener) -> None:
    page = open_page(written(real, job).as_uri()).page
    queries = page.locator("pre code").all_text_contents()
    assert len(queries) >= 15
    for query in queries:
        rows(real, query)


def test_the_sql_of_the_figures_gives_their_numbers(real: Path, open_page: Opener) -> None:
    page = open_page(written(real, "slow4").as_uri()).page

    def answer(figure: str) -> list[dict[str, Any]]:
        return rows(real, page.locator(f"#{figure} pre code").text_content() or "")

    cells = {row[0]: row[1:] for row in shown(page, "[data-map=regions-map] [data-pane=ratio] table")}
    for row in answer("rank-regions"):
        assert cells[f"{row['region']} {row['phase']}"][row["rank"]] == ratio_text(row["ratio"])
    spread = {tuple(row[:2]): row[5] for row in shown(page, "#spread table")}
    for row in answer("spread"):
        assert spread[row["region"], row["phase"]] == f"{ratio_text(row['skew'])}\N{MULTIPLICATION SIGN}"
    waits = [row for row in shown(page, "#collectives table") if len(row) > 1]
    for row, shown_row in zip(answer("collectives"), waits, strict=True):
        assert shown_row[:2] == [str(row["rank"]), f"{row['last']} of {row['judged']}"]
        assert shown_row[4] == _milliseconds(row["transfer_ns"])


def _milliseconds(ns: float) -> str:
    return f"{ns / 1e6:.1f} ms"


def test_sort_by_the_keyboard_and_copy_what_is_shown(simulated: Path, open_page: Opener) -> None:
    page = open_page(written(simulated, "j64").as_uri()).page
    page.locator("#regions-filter").fill("mlp backward")
    assert page.locator("[data-shown=regions-table]").text_content() == "12 of 49 rows"
    head = page.locator("#regions-table th[data-key=median_ns] button")
    head.focus()
    page.keyboard.press("Enter")
    medians = [float(row[5]) for row in shown(page, "#regions-table")]
    assert len(medians) == 12 and medians == sorted(medians, reverse=True)
    page.keyboard.press("Space")
    assert [float(row[5]) for row in shown(page, "#regions-table")] == sorted(medians)
    assert page.locator("#regions-table th[aria-sort=ascending]").count() == 1
    page.locator("button[data-copy=regions-table]").press("Enter")
    expect(page.locator("#status")).to_have_text("12 rows copied as CSV")
    copied = list(csv.DictReader(io.StringIO(page.evaluate("navigator.clipboard.readText()"))))
    assert [(row["region"], row["median_ns"]) for row in copied] == [
        (row[0], row[5]) for row in shown(page, "#regions-table")
    ]


def test_the_address_remembers_everything(simulated: Path, open_page: Opener) -> None:
    page = open_page(written(simulated, "j64").as_uri()).page
    page.locator("#regions-filter").fill("layers.1. mlp")
    page.locator("#regions-table th[data-key=region] button").click()
    page.locator("label[for=map-step-time]").click()
    page.locator("#theme").click()
    page.reload()
    assert page.locator("#regions-filter").input_value() == "layers.1. mlp"
    assert {tuple(row[:2]) for row in shown(page, "#regions-table")} == {
        ("layers.1.mlp", "forward"),
        ("layers.1.mlp", "backward"),
    }
    assert page.locator("#regions-table th[aria-sort=ascending]").get_attribute("data-key") == "region"
    assert page.locator("[data-map=map] [data-pane=step-time]").is_visible()
    assert not page.locator("[data-map=map] [data-pane=compute-ratio]").is_visible()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


@pytest.mark.parametrize(
    "bad",
    ["#sort-regions-table=nothing:asc", "#sort-regions-table=region:sideways", "#map=<b>&theme=%ff", "#=&&==", "#none"],
)
def test_an_address_that_means_nothing_is_ignored(real: Path, bad: str, open_page: Opener) -> None:
    address = written(real, "slow4").as_uri()
    plain, odd = open_page(address), open_page(address + bad)
    assert odd.complaints == []
    assert shown(odd.page, "#regions-table") == shown(plain.page, "#regions-table")
    assert odd.page.locator("[data-map=map] [data-pane=compute-ratio]").is_visible()


def test_arrow_keys_walk_over_the_cells_and_read_them_out(real: Path, open_page: Opener) -> None:
    page = open_page(written(real, "slow4").as_uri()).page
    first = page.locator("[data-map=map] [data-pane=compute-ratio] tbody td").first
    first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    readout = page.locator("[data-map=map] .readout").text_content() or ""
    assert readout.startswith("rank 2 · vm, step 1: computing ratio 13.0, computing ")
    assert " ms, step ratio " in readout
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    assert "rank 2 · vm, step 11:" in (page.locator("[data-map=map] .readout").text_content() or "")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") != "TD"


def test_without_script_everything_is_there(real: Path, open_page: Opener) -> None:
    page = open_page(written(real, "slow4").as_uri(), script=False).page
    for pane in ("compute-ratio", "compute-time", "step-ratio", "step-time"):
        assert page.locator(f"[data-map=map] [data-pane={pane}]").is_visible()
    assert page.locator("#regions-table tbody tr").count() == 21
    assert not page.locator("#regions-filter").is_visible()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("job", ["slow4", "j64"])
def test_nothing_keeps_anybody_out(job: str, colours: Any, request: pytest.FixtureRequest, open_page: Opener) -> None:
    store = request.getfixturevalue("real" if job == "slow4" else "simulated")
    opened = open_page(written(store, job).as_uri(), colours=colours)
    opened.page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    assert opened.axe_violations() == []


def test_dark_and_light_come_from_the_system_or_the_button(real: Path, open_page: Opener) -> None:
    def background(page: Page) -> int:
        channels = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
        return sum(channels[:3])

    page = open_page(written(real, "slow4").as_uri(), colours="dark").page
    assert background(page) < 200
    page.locator("#theme").click()
    assert background(page) > 600
    assert background(open_page(written(real, "slow4").as_uri() + "#theme=dark").page) < 200


def test_paper_is_light_and_shows_every_detail(real: Path, open_page: Opener) -> None:
    page = open_page(
        written(real, "slow4").as_uri(), width=703, colours="dark"
    ).page  # as wide as A4 within its margins
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    hidden = page.locator("pre").evaluate_all("all => all.filter(pre => !pre.offsetHeight).length")
    cut = page.locator("pre, .scroll").evaluate_all(
        "all => all.filter(each => each.scrollWidth > each.clientWidth + 1).length"
    )
    assert (hidden, cut) == (0, 0)
    assert page.locator("#theme").is_hidden()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("#findings details.sql[open]").count() == 0
    assert page.locator("#findings details.sql").count() == 1


@pytest.mark.parametrize("width", [400, 800, 1920])
def test_no_width_makes_the_page_scroll_sideways(simulated: Path, width: int, open_page: Opener) -> None:
    page = open_page(written(simulated, "j64").as_uri(), width=width).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_of_64_ranks_is_small_and_names_the_slow_one(simulated: Path, open_page: Opener) -> None:
    path = written(simulated, "j64")
    assert path.stat().st_size < SMALL_PAGE
    page = open_page(path.as_uri()).page
    assert f"Rank {SLOW_RANK} (host node-002)" in (page.locator(".findings li").first.text_content() or "")
    slow = shown(page, "[data-map=map] [data-pane=compute-ratio] table")[SLOW_RANK]
    assert all(float(text) > 1.1 for text in slow[1:])


EVIL = "<script>document.title='gone'</script> & \"quo'te\" \N{GRINNING FACE} " + "x" * 300


def test_names_are_text_wherever_they_stand(tmp_path: Path, open_page: Opener) -> None:
    store = small_store(tmp_path / "store.duckdb", EVIL)
    with Store(store) as opened:
        opened.connection.execute("UPDATE annotation SET region = ?", [EVIL])
        opened.connection.execute(
            "UPDATE process SET host = ?, gpu = ?, versions = ?", [EVIL, EVIL, json.dumps({"torch": EVIL})]
        )
        opened.connection.execute("UPDATE trace SET note = ?, status = 'partial'", [EVIL])
    found = open_page(written(store, EVIL).as_uri())
    assert found.complaints == []
    assert found.page.title() == f"{EVIL}: annotq report"
    assert found.page.locator("h1").text_content() == EVIL
    assert shown(found.page, "#regions-table")[0][0] == EVIL
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 1300
    assert found.axe_violations() == []


def test_a_copied_name_is_no_formula(tmp_path: Path, open_page: Opener) -> None:
    store = small_store(tmp_path / "store.duckdb")
    with Store(store) as opened:
        opened.connection.execute("UPDATE annotation SET region = concat('=1+1,\"', region)")
    page = open_page(written(store, "tiny").as_uri()).page
    page.locator("button[data-copy=regions-table]").click()
    copied = list(csv.DictReader(io.StringIO(page.evaluate("navigator.clipboard.readText()"))))
    assert copied and [row["region"] for row in copied] == [f"'{row[0]}" for row in shown(page, "#regions-table")]
    assert all(row["region"].startswith("'=1+1,\"") for row in copied)


def test_paper_may_be_turned(real: Path, open_page: Opener) -> None:
    page = open_page(written(real, "slow4").as_uri()).page
    sizes = []
    for landscape in (False, True):
        text = page.pdf(format="A4", landscape=landscape).decode("latin-1")
        width, height = map(float, re.search(r"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", text).groups())  # type: ignore[union-attr]
        sizes.append((round(width), round(height)))
    assert sizes == [(596, 843), (843, 596)]


def test_a_page_of_a_running_job_reloads_until_told_not_to(real: Path, open_page: Opener) -> None:
    with Door(real) as door:
        text = report_page(door, "slow4", refresh_seconds=1)
    with served(text) as address:
        page = open_page(address).page
        with page.expect_event("load", timeout=20_000):
            pass
        page.locator("#refresh").click()
        expect(page.locator("#refresh")).to_have_attribute("aria-pressed", "false")
        loads: list[str] = []
        page.on("load", lambda again: loads.append(again.url))
        page.wait_for_timeout(2_500)
        assert loads == []


def test_a_saved_page_of_a_collector_does_not_wait_for_news(real: Path, open_page: Opener) -> None:
    with Door(real) as door:
        text = page_of(*read_page(Questions(door), "slow4"), refresh_seconds=1, home="/")
    path = real.with_name("saved.html")
    path.write_text(text, encoding="utf-8")
    page = open_page(path.as_uri()).page
    loads: list[str] = []
    page.on("load", lambda again: loads.append(again.url))
    page.wait_for_timeout(2_500)
    assert loads == []
    assert page.locator("#refresh").count() == 0 and page.get_by_role("link", name="All jobs").count() == 0
    with served(text) as address:
        assert open_page(address).page.get_by_role("link", name="All jobs").is_visible()


@contextmanager
def served(text: str) -> Iterator[str]:
    """The address of a page that comes over HTTP, as from a collector."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            if self.path == "/":
                self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
