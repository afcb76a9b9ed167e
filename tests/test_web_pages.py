"""The pages about jobs: what they say is what SQL says, they follow the data, and each is made once."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from collectors import batch, process
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner
from web_collector import BROWSER, STEPS, Reply, WebCollector, eventually, ship_trace

from annotq.cli.main import app
from annotq.cli.web.job_list import jobs_statement
from annotq.cli.web.job_urls import Asked, job_url
from annotq.v1 import collector_pb2 as pb

DATA = Path(__file__).parent / "data"
ODD_NAMES = [
    "a/b",
    "..",
    "%2e%2e",
    "<script>alert(1)</script>",
    "a&b\"'",
    "名 前",
    "x/against/y",
    "a@0",
    "a\\b",
    "?x#y",
    "n" * 300,
]


def beat(collector: WebCollector, process_id: int, alive: bool = True, step: int = 7) -> None:
    told = pb.ProcessBeat(process_id=process_id, alive=alive, step=step)
    collector.stub.Beat(pb.BeatRequest(host="node-a", processes=[told]), timeout=10)


def end(collector: WebCollector, process_id: int, sequence: int, how: str) -> None:
    told = {"time_ns": time.time_ns(), "how": how}
    (ack,) = collector.ship([batch(process_id, sequence << 32, pb.KIND_PROCESS_END, told)])
    assert ack.error == ""


def listed(page: str) -> list[list[str]]:
    """The cells of the list of jobs, as texts."""
    body = page.partition('id="jobs"')[2].partition("</table>")[0].partition("<tbody>")[2]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [
        [
            html.unescape(re.sub(r"<[^>]+>", "", cell)).replace("\u00a0", " ").strip()
            for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        ]
        for row in rows
    ]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebCollector]:
    """Two jobs from files; the metrics in their own place too."""
    store = tmp_path_factory.mktemp("both") / "store.duckdb"
    for job in ("control4", "slow4"):
        done = CliRunner().invoke(app, ["ingest", str(DATA / job), "--db", str(store)])
        assert done.exit_code == 0, done.output
    with WebCollector(store, "--metrics", "127.0.0.1:0") as started:
        yield started


def test_the_list_has_what_the_view_jobs_has(both: WebCollector) -> None:
    rows = listed(both.get("/", BROWSER).text)
    facts = both.ask("SELECT job, attempt, ranks_seen, ranks_expected FROM jobs")
    assert sorted(row[0] for row in rows) == sorted(job for job, *_ in facts) == ["control4", "slow4"]
    for job, attempt, seen, expected in facts:
        ((first, last),) = both.ask(f"SELECT min(step), max(step) FROM steps WHERE job = '{job}'")
        (row,) = (row for row in rows if row[0] == job)
        assert row[1:3] == [str(attempt), "from files"]
        assert row[4:6] == [f"{seen} of {expected}", f"{first} to {last}"]


def test_the_json_list_says_the_same(both: WebCollector) -> None:
    found = both.get("/api/jobs").json
    assert found["truncated"] is False
    told = {(job["job"], job["attempt"]): (job["ranks_seen"], job["ranks_expected"]) for job in found["jobs"]}
    facts = both.ask("SELECT job, attempt, ranks_seen, ranks_expected FROM jobs")
    assert told == {(job, attempt): (seen, expected) for job, attempt, seen, expected in facts}
    assert [job["url"] for job in found["jobs"]] == [f"/jobs/{job['job']}?attempt=0" for job in found["jobs"]]


def test_the_sql_below_the_list_gives_the_list(both: WebCollector) -> None:
    page = both.get("/", BROWSER).text
    sql = html.unescape(page.partition("<pre>")[2].partition("</pre>")[0])
    assert [row[0] for row in both.ask(sql)] == [row[0] for row in listed(page)]
    assert sql == jobs_statement().filled()


def test_a_report_is_that_of_annotq_report_and_gives_the_verdict_of_the_list(both: WebCollector) -> None:
    judged = CliRunner().invoke(
        app, ["stragglers", "--job", "slow4", "--endpoint", both.address, "--format", "json"], catch_exceptions=False
    )
    report = json.loads(judged.stdout)
    page = both.page("/jobs/slow4")
    assert page.status == 200 and "<h1>slow4</h1>" in page.text
    assert "data-refresh" not in page.text  # nothing runs
    assert report["verdict"] == "straggler"
    assert [row[3] for row in listed(both.get("/", BROWSER).text) if row[0] == "slow4"] == ["STRAGGLER"]
    (told,) = (job for job in both.get("/api/jobs").json["jobs"] if job["job"] == "slow4")
    assert (told["verdict"], told["verdict_of_newest_data"]) == ("straggler", True)


def test_the_list_gets_its_verdicts_by_itself(tmp_path: Path) -> None:
    """One report after the other, while somebody looks."""
    with WebCollector(tmp_path / "store.duckdb") as collector:
        for number, name in enumerate(("one", "two", "two", "three", "three")):
            ship_trace(collector, tmp_path / str(number), rank=number % 2, job=name)
        assert collector.events("page made") == []
        words = {"one": "one rank alone", "two": "no straggler", "three": "no straggler"}
        eventually(lambda: {row[0]: row[3] for row in listed(collector.get("/", BROWSER).text)} == words, 60)
        assert sorted(event["job"] for event in collector.events("page made")) == ["three", "two"]


def test_two_jobs_side_by_side(both: WebCollector) -> None:
    page = both.page("/jobs/control4/against/slow4")
    assert page.status == 200 and "control4" in page.text and "slow4" in page.text
    chosen = both.get("/compare?job=0/control4&against=0/slow4")
    assert (chosen.status, chosen.headers["Location"]) == (
        303,
        "/jobs/control4/against/slow4?attempt=0&against_attempt=0",
    )
    for side in ("x", "", "9" * 5000 + "/slow4", "-1/slow4"):
        assert both.get(f"/compare?job={side}&against=0/slow4").status == 404


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/jobs/nobody", "There is no job nobody here."),
        ("/jobs/nobody/against/slow4", "There is no job nobody here."),
        ("/jobs/slow4/against/nobody", "There is no job nobody here."),
        ("/jobs/slow4?attempt=3", "There is no attempt 3 of job slow4 here."),
        ("/jobs/%3Cscript%3E", "There is no job &lt;script&gt; here."),
        ("/jobs/..%2F..%2Fetc%2Fpasswd", "There is no job ../../etc/passwd here."),
        ("/jobs/../../etc/passwd", "No page has this address."),
        ("/jobs/%00", "There is no job \x00 here."),
        ("/jobs/%FF", "No page has this address."),
        ("/jobs/", "No page has this address."),
        ("/jobs/slow4?attempt=x", "No page has this address."),
        ("/nowhere", "No page has this address."),
    ],
)
def test_what_is_not_there_is_a_sentence(both: WebCollector, path: str, said: str) -> None:
    page = both.get(path, BROWSER)
    assert page.status == 404 and said in page.text and "<h1>Not found</h1>" in page.text
    plain = both.get(path)
    assert plain.status == 404 and plain.text.count("\n") == 1 and html.unescape(said) in plain.text


def test_the_metrics_are_those_of_their_own_port(both: WebCollector) -> None:
    def values(text: str) -> set[tuple[str, str, float]]:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {(sample.name, str(sample.labels), sample.value) for sample in samples}

    (event,) = both.events("metrics")
    with urllib.request.urlopen(f"http://{event['address']}/metrics", timeout=10) as reply:
        own, kind = values(reply.read().decode()), reply.headers["Content-Type"]
    here = both.get("/metrics")
    assert values(here.text) == own and here.headers["Content-Type"] == kind
    assert "openmetrics" in both.get("/metrics", {"Accept": "application/openmetrics-text"}).headers["Content-Type"]


def test_whatever_a_job_is_called_its_report_is_found(tmp_path: Path) -> None:
    with WebCollector(tmp_path / "store.duckdb") as collector:
        for number, name in enumerate(ODD_NAMES):
            ship_trace(collector, tmp_path / str(number), job=name)
        page = collector.get("/", BROWSER).text
        assert "<script>alert(1)</script>" not in page
        links = dict(re.findall(r'<th scope="row" class="name"><a href="([^"]*)">(.*?)</a>', page, re.DOTALL))
        assert {html.unescape(name) for name in links.values()} == set(ODD_NAMES)
        for link, name in links.items():
            report = collector.page(html.unescape(link))
            assert report.status == 200 and f"<h1>{name}</h1>" in report.text
        compared = collector.page(job_url(Asked("a@0", 0, "x/against/y", 0)))
        assert compared.status == 200 and "x/against/y" in compared.text


def test_the_page_follows_a_running_job(tmp_path: Path) -> None:
    with WebCollector(tmp_path / "store.duckdb") as collector:
        process_id = collector.register(process(0, world_size=2)).process_id
        beat(collector, process_id)
        eventually(lambda: collector.ask("SELECT seen_ns IS NOT NULL FROM agents") == [(True,)])
        assert listed(collector.get("/", BROWSER).text)[0][:7] == [
            "live",
            "0",
            "1 running",
            "no data yet",
            "0 of 2",
            "\u2013",
            "7",
        ]

        empty = collector.page("/jobs/live")  # no window yet
        assert empty.status == 200 and 'data-refresh="15"' in empty.text
        ship_trace(collector, tmp_path / "one", world_size=2)
        eventually(lambda: collector.page("/jobs/live").text != empty.text)
        first = collector.page("/jobs/live")
        assert first.status == 200 and 'data-refresh="15"' in first.text
        assert listed(collector.get("/", BROWSER).text)[0][4] == "1 of 2"

        ship_trace(collector, tmp_path / "two", number=2, world_size=2)
        eventually(lambda: collector.page("/jobs/live").text != first.text)
        end(collector, process_id, 3, "stopped")
        eventually(lambda: "data-refresh" not in collector.page("/jobs/live").text)
        page = collector.get("/", BROWSER).text
        assert listed(page)[0][2] == "1 stopped" and "data-refresh" not in page


def test_a_page_is_made_once_for_all_who_ask(tmp_path: Path) -> None:
    with WebCollector(tmp_path / "store.duckdb") as collector:
        process_id = ship_trace(collector, tmp_path)
        end(collector, process_id, 2, "stopped")
        with ThreadPoolExecutor(12) as people:
            pages = list(people.map(lambda _: collector.page("/jobs/live"), range(12)))
        assert {page.status for page in pages} == {200} and len({page.text for page in pages}) == 1
        assert len(collector.events("page made")) == 1
        packed = collector.get("/jobs/live", {"Accept-Encoding": "gzip"})
        assert packed.status == 200, packed.text
        assert packed.headers["Content-Encoding"] == "gzip" and len(packed.content) < len(pages[0].content)
        assert len(collector.events("page made")) == 1
        ship_trace(collector, tmp_path / "other", job="other")  # no news of this one
        assert collector.page("/jobs/live").text == pages[0].text
        ship_trace(collector, tmp_path / "more", rank=1)
        eventually(lambda: collector.page("/jobs/live").text != pages[0].text)
        assert len(collector.events("page made")) == 2


def test_reports_are_read_while_traces_come_in(tmp_path: Path) -> None:
    with WebCollector(tmp_path / "store.duckdb") as collector:
        ship_trace(collector, tmp_path / "0")
        done = threading.Event()

        def read() -> list[int]:
            found = []
            while not done.is_set():
                found.append(collector.page("/jobs/live").status)
            return found

        with ThreadPoolExecutor(2) as people:
            reading = [people.submit(read) for _ in range(2)]
            try:
                for number in range(2, 12):
                    ship_trace(collector, tmp_path / str(number), number=number)
            finally:
                done.set()
            assert {status for reader in reading for status in reader.result(60)} == {200}
        assert collector.ask("SELECT count(*) FROM kernels") == [(11 * STEPS,)]


def render_processes(collector: WebCollector) -> list[int]:
    """The processes that make pages for it just now."""
    found = []
    for task in Path(f"/proc/{collector.process.pid}/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def caught(collector: WebCollector, person: ThreadPoolExecutor) -> tuple[int, Future[Reply]]:
    """Somebody asks for a report: the process that makes it, as soon as it is there, and the answer that is awaited."""
    asking = person.submit(collector.page, "/jobs/live")
    eventually(lambda: render_processes(collector) or asking.done())
    (pid,) = render_processes(collector)
    return pid, asking


def test_a_report_that_takes_too_much_takes_nothing_else_with_it(tmp_path: Path) -> None:
    """The system ends its process when memory is short; it also has less of a right to the processor."""
    with WebCollector(tmp_path / "store.duckdb") as collector, ThreadPoolExecutor(1) as person:
        process_id = ship_trace(collector, tmp_path)
        end(collector, process_id, 2, "stopped")
        pid, asking = caught(collector, person)
        eventually(lambda: Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n")
        of_collector = os.getpriority(os.PRIO_PROCESS, collector.process.pid)
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, of_collector + 10)
        os.kill(pid, signal.SIGKILL)
        failed = asking.result(30)
        assert failed.status == 500 and "its process ended with -9" in failed.text
        assert collector.get("/healthz").status == 200 and collector.ask("SELECT count(*) FROM kernels") == [(STEPS,)]
        assert collector.page("/jobs/live").status == 500  # kept for a moment, not tried again and again
        ship_trace(collector, tmp_path / "two", rank=1)
        eventually(lambda: collector.page("/jobs/live").status == 200)


def test_no_process_outlives_its_collector(tmp_path: Path) -> None:
    with WebCollector(tmp_path / "store.duckdb") as collector, ThreadPoolExecutor(1) as person:
        ship_trace(collector, tmp_path)
        pid, asking = caught(collector, person)
        time.sleep(0.2)
        collector.kill()
        eventually(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())
        assert asking.exception(30) is not None


def test_health_is_that_of_grpc(tmp_path: Path) -> None:
    with WebCollector(tmp_path / "store.duckdb") as collector:
        assert (collector.get("/healthz").status, collector.get("/healthz").text) == (200, "serving\n")
        aside = collector.db.rename(tmp_path / "aside.duckdb")
        eventually(lambda: collector.get("/healthz").status == 503)
        assert collector.get("/healthz").text == f"not serving: {collector.status().problem}\n"
        assert f"{collector.db} was removed" in collector.get("/healthz").text
        assert collector.get("/", BROWSER).status == 200  # what is there can be seen
        aside.rename(collector.db)
        eventually(lambda: collector.get("/healthz").status == 200)


def test_the_reason_is_for_who_has_the_token(tmp_path: Path) -> None:
    token = "correct horse battery staple"
    with WebCollector(tmp_path / "store.duckdb", environment={"ANNOTQ_TOKEN": token}) as collector:
        shutil.move(collector.db, tmp_path / "aside.duckdb")
        eventually(lambda: collector.get("/healthz").status == 503)
        assert str(tmp_path) not in collector.get("/healthz").text
        assert str(tmp_path) in collector.get("/healthz", {"Authorization": f"Bearer {token}"}).text


def test_a_collector_that_ends_is_not_healthy_any_more(tmp_path: Path) -> None:
    """It stays for as long as questions that run may take to be cut off."""
    slow = "SELECT count(*) FROM range(100000000000) AS a"
    with WebCollector(tmp_path / "store.duckdb") as collector, ThreadPoolExecutor(1) as person:
        asking = person.submit(collector.ask, slow)
        eventually(lambda: not asking.done())
        time.sleep(0.5)
        collector.process.terminate()
        eventually(lambda: collector.get("/healthz").text == "not serving: stopping\n", 1.5)
        assert collector.process.wait(20) == 0
        assert asking.exception(10) is not None


def test_sigterm_ends_the_page_too(tmp_path: Path) -> None:
    """With a report under way and a connection that is open."""
    with WebCollector(tmp_path / "store.duckdb") as collector, ThreadPoolExecutor(1) as person:
        ship_trace(collector, tmp_path)
        asking = person.submit(collector.get, "/jobs/live", BROWSER)
        time.sleep(0.3)
        assert collector.stop() == 0
        assert asking.exception(30) is not None or asking.result().status in (200, 503)
        with pytest.raises(ConnectionError):
            collector.get("/healthz")
        assert len(collector.db.with_name("store.duckdb.port").read_text().split()) == 2
