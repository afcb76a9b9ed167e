"""Every output format, read back by what reads it."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_store import START_NS, small_store
from typer.testing import CliRunner, Result

from annotq.cli.main import app
from annotq.cli.time_columns import duration_text, utc_text

BIG = 9_007_199_254_740_993  # 2^53 + 1: a reader with doubles would lose the 1

SQL = f"""
SELECT {BIG} AS big, 16300000 AS busy_ns, {START_NS} AS start_ns, NULL::BIGINT AS nothing, 'nan'::DOUBLE AS share,
       e'a|b\\tc\\nd "é"' AS name, sum(r.range) AS total, [1, 2] AS list
FROM range(4) AS r
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("formats") / "store.duckdb")


def query(store: Path, *arguments: str, sql: str = SQL) -> Result:
    return CliRunner().invoke(app, ["query", sql, "--db", str(store), *arguments], catch_exceptions=False)


def expected(**changes: object) -> dict[str, object]:
    row = {"big": BIG, "busy_ns": 16_300_000, "start_ns": START_NS, "nothing": None, "share": None}
    return {**row, "name": 'a|b\tc\nd "é"', "total": 6, "list": [1, 2], **changes}


def test_json(store: Path) -> None:
    assert json.loads(query(store, "--format", "json").stdout) == [expected()]


def test_jsonl(store: Path) -> None:
    lines = query(store, "--format", "jsonl", sql=f"{SQL} UNION ALL {SQL}").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [expected()] * 2


def test_csv(store: Path) -> None:
    header, row = csv.reader(io.StringIO(query(store, "--format", "csv").stdout))
    assert header == list(expected())
    assert row == [str(BIG), "16300000", str(START_NS), "", "nan", 'a|b\tc\nd "é"', "6", "[1,2]"]


def test_a_pipe_gets_tab_separated_lines(store: Path) -> None:
    header, row = query(store).stdout.splitlines()
    assert header.split("\t") == list(expected())
    assert row.split("\t") == [str(BIG), "16300000", str(START_NS), "", "nan", 'a|b\\tc\\nd "é"', "6", "[1,2]"]


def test_markdown(store: Path) -> None:
    header, rule, row = query(store, "--format", "markdown").stdout.splitlines()
    assert header == "| big | busy | start_utc | nothing | share | name | total | list |"
    assert rule == "|---:|---:|---:|---:|---:|---|---:|---|"
    assert row == rf'| {BIG} | 16.3 ms | {utc_text(START_NS)} |  | nan | a\|b\x09c<br>d "é" | 6 | [1,2] |'


def test_table(store: Path) -> None:
    header, first, second = query(store, "--format", "table").stdout.splitlines()
    assert header.split() == ["big", "busy", "start_utc", "nothing", "share", "name", "total", "list"]
    assert first.split()[:6] == [str(BIG), "16.3", "ms", *str(utc_text(START_NS)).split(), "-"]
    assert second.strip() == 'd "é"'


def test_arrow(store: Path) -> None:
    table = pa.ipc.open_stream(query(store, "--format", "arrow").stdout_bytes).read_all()
    assert table.drop_columns(["share"]).to_pylist() == [{k: v for k, v in expected().items() if k != "share"}]
    assert table.schema.field("busy_ns").type == pa.int32()
    assert table.schema.field("total").type == pa.int64()


def test_parquet(store: Path, tmp_path: Path) -> None:
    done = query(store, "-o", str(tmp_path / "rows.parquet"))
    assert (done.stdout, done.stderr) == ("", f"wrote {tmp_path / 'rows.parquet'} (1 rows)\n")
    assert pq.read_table(tmp_path / "rows.parquet").column("big").to_pylist() == [BIG]
    piped = query(store, "--format", "parquet").stdout_bytes
    assert pq.read_table(io.BytesIO(piped)).column("start_ns").to_pylist() == [START_NS]


@pytest.mark.parametrize(("suffix", "start"), [(".json", "["), (".jsonl", "{"), (".csv", "big,"), (".md", "| big |")])
def test_the_suffix_of_the_file_says_the_format(store: Path, tmp_path: Path, suffix: str, start: str) -> None:
    query(store, "-o", str(tmp_path / f"rows{suffix}"))
    assert (tmp_path / f"rows{suffix}").read_text().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [f"rows{suffix}"]


def test_format_wins_over_the_suffix(store: Path, tmp_path: Path) -> None:
    query(store, "-o", str(tmp_path / "rows.csv"), "--format", "json")
    assert json.loads((tmp_path / "rows.csv").read_text()) == [expected()]


@pytest.mark.parametrize(
    ("name", "said"), [("rows.xlsx", "stands for no format"), ("no/rows.csv", "There is no folder")]
)
def test_a_file_that_cannot_be_written_is_said_first(store: Path, tmp_path: Path, name: str, said: str) -> None:
    done = query(store, "-o", str(tmp_path / name), sql="SELECT wrong")
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_failing_query_leaves_the_old_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("old")
    assert query(store, "-o", str(tmp_path / "rows.csv"), sql="SELECT wrong").exit_code == 1
    assert (tmp_path / "rows.csv").read_text() == "old"


@pytest.mark.parametrize(("unit", "value"), [("ns", 16_300_000), ("us", 16_300.0), ("ms", 16.3), ("s", 0.0163)])
def test_a_time_unit_scales_durations_and_renames_them(store: Path, unit: str, value: float) -> None:
    (row,) = json.loads(query(store, "--format", "json", "--time-unit", unit).stdout)
    assert row[f"busy_{unit}"] == value
    assert row["start_ns"] == START_NS
    header, _, cells = query(store, "--format", "markdown", "--time-unit", unit).stdout.splitlines()
    assert f"| busy_{unit} | start_utc |" in header
    assert float(cells.split(" | ")[1]) == value


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (820, "820 ns"),
        (999.9, "1.00 us"),
        (1_000, "1.00 us"),
        (16_300_000, "16.3 ms"),
        (999_960, "1.00 ms"),
        (-2_500, "-2.50 us"),
        (99_960, "100 us"),
        (1_200_000_000, "1.20 s"),
        (7_200_000_000_000, "7200 s"),
        (None, None),
    ],
)
def test_durations_are_readable(ns: float | None, text: str | None) -> None:
    assert duration_text(ns) == text


@pytest.mark.parametrize(
    ("fmt", "out"), [("json", "[]\n"), ("jsonl", ""), ("csv", "a,b_ns\n"), ("table", "a  b\n"), ("markdown", None)]
)
def test_no_rows_are_a_header_and_a_sentence(store: Path, fmt: str, out: str | None) -> None:
    done = query(store, "--format", fmt, sql="SELECT 1 AS a, 2 AS b_ns WHERE false")
    assert done.exit_code == 0
    assert done.stdout == (out if out is not None else "| a | b |\n|---:|---:|\n")
    assert "gave no rows" in done.stderr


def on_a_terminal(store: Path, sql: str, *arguments: str) -> tuple[str, int]:
    """What a terminal of 80 columns shows, and the exit code."""
    ours, theirs = pty.openpty()
    program = "from annotq.cli.main import main; main()"
    call = [sys.executable, "-c", program, "query", sql, "--db", str(store), *arguments]
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(call, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode().replace("\r\n", "\n")
    os.close(ours)
    return shown, done.returncode


def test_a_terminal_gets_a_table_that_fits(store: Path) -> None:
    kernel = "void at::native::vectorized_elementwise_kernel<4, " + "x" * 200
    shown, code = on_a_terminal(store, f"SELECT 7 AS rank, '{kernel}' AS name, 1500 AS busy_ns, NULL AS region")
    lines = shown.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["rank", "name", "busy", "region"]
    assert "1.50 us" in lines[1]
    assert "".join(shown.split()).count("x") == 200


def test_a_name_cannot_steer_the_terminal(store: Path) -> None:
    shown, _ = on_a_terminal(store, "SELECT chr(27) || '[2J' AS name")
    assert shown == "name\n\\x1b[2J\n"


@pytest.mark.parametrize("fmt", ["arrow", "parquet"])
def test_a_terminal_is_not_garbled(store: Path, fmt: str) -> None:
    shown, code = on_a_terminal(store, "SELECT 1", "--format", fmt)
    assert (shown, code) == (f"error: {fmt} is binary and would garble the terminal.\n  Add -o FILE.\n", 2)


def test_a_pipe_is_written_to_and_not_replaced(store: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        query(store, "--format", "csv", "-o", str(pipe), sql="SELECT 7 AS seven")
        assert reader.communicate(timeout=20)[0].split() == [b"seven", b"7"]
    assert pipe.is_fifo()


def test_a_link_stays_a_link(store: Path, tmp_path: Path) -> None:
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to(real)
    query(store, "-o", str(link), sql="SELECT 7 AS seven")
    assert link.is_symlink()
    assert real.read_text().split() == ["seven", "7"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "real.csv"]


def test_a_dash_is_the_standard_output(store: Path) -> None:
    assert query(store, "--format", "csv", "-o", "-", sql="SELECT 7 AS seven").stdout.split() == ["seven", "7"]
    assert not Path("-").exists()
