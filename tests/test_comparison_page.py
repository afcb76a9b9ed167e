"""The page of `annotq report A --against B`: its numbers are those of `annotq diff` and of SQL; what it cannot know it says."""
# ruff: noqa: F401, F811 (fixtures come by name)

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from browser import Opener, OpenPage, browser, open_page
from jobs import DATA, load, rows
from playwright.sync_api import expect
from simulated_causes import Cause, slow_layers
from simulated_events import FIRST_STEP
from simulated_job import Plan, simulate
from simulated_layout import LAYOUTS, Layout
from simulated_program import Workload
from simulated_store import simulated_store
from typer.testing import CliRunner, Result

from annotq.cli.html.comparison_page import Comparison, comparison_page, read_comparison
from annotq.cli.html.comparison_sentences import badge, cautions
from annotq.cli.html.comparison_times import parts_statement, ranks_statement, steps_statement
from annotq.cli.html.figure import Figure
from annotq.cli.html.questions import Questions
from annotq.cli.main import app
from annotq.collector.query import Door, Limits
from annotq.collector.store import Store

# The job "four" runs every mlp 1.2 times as long on every rank from its 20th step on.
SLOWED = slow_layers(LAYOUTS[4], 0, 2)
EVIL = "<script>alert(1)</script>&\"'" + "\N{ROCKET}" + "x" * 270


def window(first: int, last: int, job: str = "four") -> str:
    return f"{job}:{FIRST_STEP + first}-{FIRST_STEP + last}"


SLOWER = window(0, 19), window(20, 39)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("real") / "store.duckdb"
    load(store, DATA / "control4", DATA / "slow4")
    return store


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """four, two (ranks), renamed (as two, with other names of regions), agents (no trace), and rejected (one, of no use)."""
    cause = Cause("slow_region", 0.2, tuple(range(4)), SLOWED, first=20)
    four = simulate(Plan(seed=3, layout=LAYOUTS[4], steps=40, causes=(cause,)))
    two = simulate(Plan(seed=3, layout=LAYOUTS[2]))
    path = simulated_store(tmp_path_factory.mktemp("simulated") / "store.duckdb", four=four, two=two, renamed=two)
    with Store(path) as store:
        run = store.connection.execute
        run("""UPDATE annotation SET region = concat(?, region)
               WHERE process_id IN (SELECT process_id FROM process WHERE job = 'renamed')""", [EVIL])  # fmt: skip
        for number, job in ((900, "agents"), (901, "rejected")):
            run("INSERT INTO process BY NAME SELECT ? AS process_id, ? AS job, 0 AS attempt, 0 AS rank", [number, job])
        run("""INSERT INTO trace BY NAME SELECT * REPLACE (901 AS trace_id, 901 AS process_id, 'rejected' AS job,
                   'rejected' AS status, 'it <b>broke</b>' AS note) FROM trace WHERE job = 'two' LIMIT 1""")  # fmt: skip
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """wide: 128 ranks, of which rank 77 takes twice as long in its mlp."""
    cause = Cause("slow_region", 1.0, (77,), ("layers.0.mlp",))
    small = Workload(layers=1, kernels=1)
    wide = simulate(Plan(layout=Layout(dp=16, tp=8), steps=10, workload=small, causes=(cause,)))
    return simulated_store(tmp_path_factory.mktemp("wide") / "store.duckdb", wide=wide)


def read(store: Path, before: str, after: str) -> tuple[Comparison, list[Figure]]:
    with Door(store, Limits(rows=1_000_000)) as door:
        return read_comparison(Questions(door), before, after)


def written(folder: Path, store: Path, before: str, after: str) -> str:
    """The address of the page."""
    with Door(store, Limits(rows=1_000_000)) as door:
        page = comparison_page(door, before, after)
    (folder / "page.html").write_text(page, encoding="utf-8")
    return (folder / "page.html").as_uri()


def annotq(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def diff(store: Path, before: str, after: str) -> list[dict[str, Any]]:
    done = annotq("diff", before, after, "--db", str(store), "--format", "json")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def shown_rows(page: OpenPage) -> list[dict[str, str]]:
    """The table of all regions, as it is copied."""
    page.page.get_by_role("button", name="Copy as CSV").click()
    copied: str = page.page.evaluate("navigator.clipboard.readText()")
    return list(csv.DictReader(io.StringIO(copied)))


@pytest.mark.parametrize("sides", [("control4", "slow4"), ("slow4", "control4"), ("control4:0-5", "slow4:3-9")])
def test_the_table_holds_the_numbers_of_diff(
    tmp_path: Path, real: Path, open_page: Opener, sides: tuple[str, str]
) -> None:
    shown = shown_rows(open_page(written(tmp_path, real, *sides)))
    told = diff(real, *sides)
    key = ("part", "region", "phase")
    by_key = {tuple(row[name] or "" for name in key): row for row in told}
    assert len(shown) == len(told) > 20
    for row in shown:
        expected = by_key[tuple(row[name] for name in key)]
        assert row["change"] == expected["change"]
        for name in row.keys() - {*key, "change"}:
            number = None if row[name] == "" else float(row[name])
            assert number == expected[name], (row, name)


@pytest.mark.parametrize(
    ("store", "sides"),
    [("real", ("control4", "slow4")), ("real", ("control4:0-3", "slow4:3-3")), ("simulated", SLOWER),
     ("simulated", ("two", "renamed")), ("simulated", ("four", "agents"))],
)  # fmt: skip
def test_the_sql_under_the_table_gives_its_numbers(
    request: pytest.FixtureRequest, store: str, sides: tuple[str, str]
) -> None:
    # Another computation than diff's own: intervals as order statistics in SQL.
    place: Path = request.getfixturevalue(store)
    found, figures = read(place, *sides)
    (statement,) = next(figure for figure in figures if figure.anchor == "all").statements
    with Door(place) as door:
        by_sql = door.ask(statement.filled()).table.to_pylist()
    assert len(by_sql) == len(found.rows) > 0
    changes = {row.key: row for row in found.rows}
    for row in by_sql:
        change = changes[row.pop("part"), row.pop("region"), row.pop("phase")]
        for name, value in row.items():
            assert value == pytest.approx(getattr(change, name)), (change.key, name)


def test_of_many_steps_the_sql_gives_all_but_the_intervals(tmp_path: Path) -> None:
    job = simulate(Plan(layout=LAYOUTS[2], steps=1_200, workload=Workload(layers=1, kernels=1)))
    store = simulated_store(tmp_path / "store.duckdb", many=job)
    found, figures = read(store, "many:10-1209", "many:10-59")
    (statement,) = next(figure for figure in figures if figure.anchor == "all").statements
    assert "-- Without intervals" in statement.sql
    with Door(store) as door:
        for row in door.ask(statement.filled()).table.to_pylist():
            change = next(one for one in found.rows if one.key == (row["part"], row["region"], row["phase"]))
            assert row["low_ns"] is None and change.low_ns is not None
            assert (row["difference_ns"], row["steps_a"]) == (pytest.approx(change.difference_ns), change.steps_a)


def test_every_statement_that_is_shown_runs(real: Path) -> None:
    shown = annotq("report", "control4", "--against", "slow4:0-5", "--show-sql", "--db", str(real)).stdout
    head, *statements = shown.split("\n\n-- ")
    assert head == f"-- {len(statements)} statements; annotq query runs one at a time."
    with Door(real, Limits(rows=1_000_000)) as door:
        for statement in statements:
            door.ask(statement.partition("\n")[2].rstrip().rstrip(";"))


def test_a_region_that_got_a_fifth_slower_is_said_with_its_size(simulated: Path) -> None:
    found, _ = read(simulated, *SLOWER)
    slower = {row.key[1]: row for row in found.rows if row.key[0] == "compute" and row.key[2] == "backward"}
    for region in SLOWED:
        row = slower[region]
        assert row.change == "slower" and row.a_ns and row.low_ns and row.high_ns
        assert row.low_ns <= 0.2 * row.a_ns <= row.high_ns
    assert {row.change for region, row in slower.items() if region not in SLOWED} == {"same"}
    assert re.match(
        r"A step took 1?\d\.\d+ ms, takes 1?\d\.\d+ ms: slower by \d+\.\d% \(95 % interval \+", found.sentences[0]
    )
    assert "4 slower, " in found.sentences[1] and "none is new or vanished" in found.sentences[1]
    assert found.sentences[2].startswith(f"Most time is lost in {found.rows[1].key[1]} backward (+")
    assert len(found.sentences) <= 5


def test_the_time_of_a_region_is_what_its_kernels_lasted(simulated: Path) -> None:
    found, _ = read(simulated, *SLOWER)
    (row,) = (row for row in found.rows if row.key == ("compute", "layers.1.mlp", "forward"))
    ((a_ns, b_ns),) = rows(
        simulated,
        """SELECT median(ns) FILTER (WHERE step < 30), median(ns) FILTER (WHERE step >= 30)
           FROM (SELECT step, median(ns) AS ns FROM (
               SELECT rank, step, sum(duration_ns) AS ns FROM kernels
               WHERE job = 'four' AND region = 'layers.1.mlp' AND phase = 'forward' AND name NOT LIKE 'nccl%'
               GROUP BY rank, step) GROUP BY step)""",
    )
    assert (row.a_ns, row.b_ns) == (a_ns, b_ns)


@pytest.mark.parametrize(
    ("sides", "word", "sentence"),
    [
        ((window(0, 9), window(10, 19)), "no difference beyond noise", "same: no difference beyond noise"),
        (("four", "four"), "compared with itself", "Both sides are four@0: compared with itself a job has no difference"),
        (("two", "renamed"), "step the same, no region in common", "The sides share no region: "),
        (("four", window(0, 2)), "unsure: too few steps", "too few steps to tell a change from chance"),
        (("two", "agents"), "not comparable", "agents@0 has no GPU work in a step"),
        (("rejected", "agents"), "not comparable", "rejected@0 and agents@0 have no GPU work in a step"),
        (("two", window(90, 99)), "not comparable", "four@0 has the steps 10 to 49"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_said(simulated: Path, sides: tuple[str, str], word: str, sentence: str) -> None:
    found, figures = read(simulated, *sides)
    assert badge(found.rows, found.before.side == found.after.side) == (word, "")
    assert sentence in " ".join(found.sentences)
    assert all(figure.html() for figure in figures)


def test_different_ranks_and_versions_are_said_and_marked(tmp_path: Path) -> None:
    jobs = {name: simulate(Plan(seed=3, layout=LAYOUTS[ranks])) for name, ranks in (("old", 4), ("new", 2))}
    path = simulated_store(tmp_path / "store.duckdb", **jobs)
    with Store(path) as store:
        set_versions = (
            """UPDATE process SET versions = concat('{"nccl": "', ?, '", "torch": "2.14.1"}') WHERE job = ?"""
        )
        for job, nccl in (("old", "2.29.1"), ("new", "2.30.7")):
            store.connection.execute(set_versions, [nccl, job])
    found, figures = read(path, "old", "new")
    told = cautions(found.before, found.after)
    assert told[0].startswith("Different numbers of ranks: 4 before, 2 after.")
    assert "Different nccl: 2.29.1 before, 2.30.7 after." in told
    html = str(figures[0].html())
    marked = re.findall(r'<tr class="differs"><th scope="row">([^<]*)', html)
    assert {"ranks", "nccl"} <= set(marked) and "torch" not in marked


def test_only_what_changed_has_the_colour_of_a_change(real: Path) -> None:
    # Rank 2 alone runs the MLPs four times over in slow4: where the ranks' median did not change, its dot is grey.
    _, figures = read(real, "slow4", "control4")
    rows = next(figure.html() for figure in figures if figure.anchor == "regions").split("<tr>")
    some = [row for row in rows if "faster on some ranks" in row]
    assert some and all('<circle class="neither"' in row and '<text class="faster"' in row for row in some)
    transfer = next(row for row in rows if "transfer (all_reduce)" in row)
    assert '<circle class="faster"' in transfer


def test_a_turned_order_is_noticed(real: Path) -> None:
    # slow4 was recorded 13 s after control4.
    told = []
    for sides in (("control4", "slow4"), ("slow4", "control4")):
        found, _ = read(real, *sides)
        told.append([text for text in cautions(found.before, found.after) if "is earlier than" in text])
    assert told[0] == [] and told[1][0].endswith("annotq report control4@0 --against slow4@0")


def test_parts_add_up_to_the_step_and_rank_2_computes_more(real: Path) -> None:
    found, _ = read(real, "control4", "slow4")
    for side in (found.before, found.after):
        for row in side.parts.rows:
            parts = row.compute_ns + row.exposed_transfer_ns + row.wait_ns + row.launch_gap_ns + row.other_ns
            assert parts == pytest.approx(row.period_ns, rel=1e-9)
    # What is true of slow4 (tests/data/README.md): rank 2 runs its MLPs four times over, and the others wait.
    before, after = found.before.parts, found.after.parts
    more = [b.compute_ns - a.compute_ns for a, b in zip(before.rows, after.rows, strict=True)]
    assert more.index(max(more)) == 2
    assert after.rows[2].wait_ns == 0 < min(row.wait_ns for row in after.rows if row.rank != 2)


def test_steps_and_ranks_are_those_that_diff_compares(simulated: Path) -> None:
    found, _ = read(simulated, "four", "two")
    for side in (found.before, found.after):
        times = side.series["step", None, None]
        assert [row.median_ns for row in side.steps] == times.median_ns.tolist()
        assert [row.slowest_ns for row in side.steps] == times.slowest_ns.tolist()
    assert [row.rank for row in found.before.ranks] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("store", "sides"), [("real", ("control4:0-5", "slow4")), ("simulated", SLOWER), ("wide", ("wide:10-14", "wide"))]
)
def test_the_sql_under_steps_ranks_and_parts_gives_their_numbers(
    request: pytest.FixtureRequest, store: str, sides: tuple[str, str]
) -> None:
    place: Path = request.getfixturevalue(store)
    found, _ = read(place, *sides)
    with Door(place, Limits(rows=100_000)) as door:
        for side in (found.before, found.after):
            told = {
                steps_statement(side.side): side.steps,
                ranks_statement(side.side): side.ranks,
                parts_statement(side.side, side.parts.asked): side.parts.rows,
            }
            for statement, expected in told.items():
                by_sql = door.ask(statement.sql, statement.parameters).table.to_pylist()
                assert len(by_sql) == len(expected) > 0
                assert by_sql == [pytest.approx(asdict(row)) for row in expected]


def test_of_many_ranks_some_are_cut_into_parts_and_the_slow_one_is_among_them(wide: Path) -> None:
    found, figures = read(wide, "wide:10-14", "wide:10-19")
    parts = found.before.parts
    assert parts.asked is not None and len(parts.sample) == 24 < len(parts.asked) and 77 in parts.asked
    with Door(wide, Limits(rows=100_000)) as door:
        whole = door.ask(
            "SELECT rank, avg(compute_ns) AS ns FROM step_parts WHERE step BETWEEN 11 AND 14 GROUP BY rank"
        )
    compute = dict(zip(*(column.to_pylist() for column in whole.table.columns), strict=True))
    assert {row.rank: row.compute_ns for row in parts.rows} == pytest.approx(
        {rank: compute[rank] for rank in parts.asked}
    )
    assert "the mean of 24 of 128 ranks before" in str(figures[3].html())


def test_names_are_text_wherever_they_stand(tmp_path: Path, simulated: Path, open_page: Opener) -> None:
    opened = open_page(written(tmp_path, simulated, "two", "renamed"))
    assert opened.complaints == []
    assert opened.page.locator("#differences").get_by_text(EVIL).count() > 0
    assert opened.page.evaluate("document.querySelectorAll('script').length") == 1
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 1300


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_page_is_accessible_and_needs_no_network(
    tmp_path: Path, real: Path, open_page: Opener, colours: str
) -> None:
    address = written(tmp_path, real, "control4", "slow4")
    opened = open_page(address, colours=colours)
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert opened.axe_violations() == []
    opened.page.get_by_text("logarithmic").click()
    assert opened.axe_violations() == []
    assert opened.requests == [address] and opened.complaints == []


@pytest.mark.parametrize("sides", [("two", "agents"), ("rejected", "agents"), ("four", "four")])
def test_a_page_without_data_is_accessible_too(
    tmp_path: Path,
    simulated: Path,
    open_page: Opener,
    sides: tuple[str, str],
) -> None:
    opened = open_page(written(tmp_path, simulated, *sides))
    assert opened.axe_violations() == [] and opened.complaints == []


def test_scale_sort_and_filter_are_kept_in_the_address(tmp_path: Path, real: Path, open_page: Opener) -> None:
    opened = open_page(written(tmp_path, real, "control4", "slow4"))
    page = opened.page
    page.get_by_text("logarithmic").click()
    page.get_by_role("searchbox").fill("mlp forward")
    sort = page.locator("#differences").get_by_role("button", name="ratio")
    sort.focus()
    page.keyboard.press("Enter")
    again = open_page(page.url).page
    assert again.locator('[data-pane="log"]').is_visible() and not again.locator('[data-pane="linear"]').is_visible()
    expect(again.locator("#differences tbody tr:visible")).to_have_count(4)
    ratios = again.locator("#differences tbody tr:visible td:nth-child(12)").evaluate_all(
        "all => all.map(one => +one.dataset.v)"
    )
    assert ratios == sorted(ratios, reverse=True)


def test_without_script_and_on_paper_all_numbers_are_there(tmp_path: Path, real: Path, open_page: Opener) -> None:
    page = open_page(written(tmp_path, real, "control4", "slow4"), script=False).page
    assert page.locator("#differences tbody tr:visible").count() == 21
    assert page.locator("#regions .changes:visible tbody tr").count() == 21  # 20 regions and transfers, and the axis
    page.emulate_media(media="print")
    assert page.locator("#changed").is_visible() and not page.locator(".top").is_visible()


def test_the_command_writes_the_page_and_says_what_changed(tmp_path: Path, real: Path) -> None:
    out = tmp_path / "page.html"
    done = annotq("report", "control4", "--against", "slow4", "--db", str(real), "-o", str(out))
    assert done.exit_code == 0 and done.stdout == ""
    assert "before control4@0, after slow4@0: A step took 27.2 ms, takes 36.2 ms: slower by 33.2%" in done.stderr
    assert "<title>control4@0 → slow4@0" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["control4", "--against", "slow5"], 1, "no job slow5"),
        (["control4", "--against", "slow4", "--attempt", "0"], 2, "Write JOB@ATTEMPT for each side"),
        (["--against", "slow4"], 1, "holds 2 jobs"),
    ],
)
def test_the_command_refuses_what_it_cannot_compare(real: Path, arguments: list[str], code: int, says: str) -> None:
    done = CliRunner().invoke(app, ["report", *arguments, "--db", str(real)])
    assert says in f"{done.stderr}{done.exception}"
    assert done.exit_code == code or getattr(done.exception, "exit_code", None) == code
