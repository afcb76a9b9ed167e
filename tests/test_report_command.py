"""`annotq report`: where the page goes, what is said, and what is refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_collector import LiveCollector
from small_store import small_store
from typer.testing import CliRunner, Result

from annotq.cli.commands.report import file_name
from annotq.cli.main import app
from annotq.collector.query import Door


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("report") / "store.duckdb")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments], env={"ANNOTQ_DB": str(store)}, catch_exceptions=False)


def test_the_page_is_named_after_the_job_unless_it_is_named(store: Path, elsewhere: Path) -> None:
    said = report(store)
    assert said.exit_code == 0 and said.stdout == ""
    page = (elsewhere / "tiny.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and page.endswith("</html>\n")
    first, coverage = said.stderr.splitlines()
    assert first.startswith("wrote tiny.html (") and first.endswith(
        f"open it in a browser: {(elsewhere / 'tiny.html').as_uri()}"
    )
    assert coverage.startswith("coverage of tiny: 2 of 2 ranks, 8 of 12 graph kernels matched")
    report(store, "tiny", "-o", "other.html")
    assert (elsewhere / "other.html").stat().st_size > 10_000


def test_a_dash_is_stdout(store: Path, elsewhere: Path) -> None:
    said = report(store, "-o", "-")
    assert said.stdout.startswith("<!DOCTYPE html>") and said.stdout.endswith("</html>\n")
    assert list(elsewhere.iterdir()) == []


def test_places_where_no_file_can_be_are_refused_first(store: Path, elsewhere: Path) -> None:
    (elsewhere / "folder").mkdir()
    for place, message in (("folder", "folder is a folder."), ("none/page.html", "There is no folder none.")):
        said = report(store, "-o", place)
        assert (said.exit_code, said.stderr.splitlines()[0]) == (2, f"error: {message}")
    (elsewhere / "tiny.html").mkdir()
    assert report(store).exit_code == 2


def test_a_page_replaces_the_one_before(store: Path, elsewhere: Path) -> None:
    (elsewhere / "page.html").write_text("old", encoding="utf-8")
    report(store, "-o", "page.html")
    assert (elsewhere / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [path.name for path in elsewhere.iterdir()] == ["page.html"]


def test_the_job_and_its_attempt_must_be_there(store: Path, tmp_path: Path) -> None:
    assert report(store, "tiny", "--job", "other").exit_code == 2
    assert "There is no job other" in report(store, "other").stderr
    assert "Job tiny has no attempt 7." in report(store, "--attempt", "7").stderr
    two = small_store(tmp_path / "two.duckdb", "first", "second")
    assert "holds 2 jobs" in report(two).stderr
    assert report(two, "second").exit_code == 0


def test_show_sql_prints_statements_that_run(store: Path) -> None:
    text = report(store, "--show-sql").stdout
    head, _, rest = text.partition("\n\n")
    assert head.endswith("annotq query runs one at a time.")
    statements = rest.strip().removesuffix(";").split(";\n\n")
    assert len(statements) > 10
    with Door(store) as door:
        for statement in statements:
            door.ask(statement)
    for figure in ("Findings", "Ranks, step by step", "Where a step's time goes", "All regions"):
        assert f"-- {figure}\n" in text


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("slow4", "slow4.html"),
        ("a/../b c", "a_.._b_c.html"),
        ("...", "report.html"),
        ("-x", "x.html"),
        ("é" * 300, "é" * 100 + ".html"),
    ],
)
def test_every_job_has_a_file_name(job: str, name: str, tmp_path: Path) -> None:
    assert file_name(job) == name
    (tmp_path / file_name(job)).write_text("", encoding="utf-8")


def test_a_collector_gives_the_same_page_as_its_file(tmp_path: Path, elsewhere: Path) -> None:
    store = small_store(tmp_path / "store.duckdb")
    report(store, "-o", "file.html")
    with LiveCollector(store) as collector:
        said = CliRunner().invoke(app, ["report", "--endpoint", collector.endpoint, "-o", "live.html"])
        assert said.exit_code == 0, said.stderr
    file, live = ((elsewhere / name).read_text(encoding="utf-8").splitlines() for name in ("file.html", "live.html"))
    # When and where it was made.
    differing = [line for line, other in zip(file, live, strict=True) if line != other]
    assert len(differing) == 1 and "by annotq" in differing[0]
