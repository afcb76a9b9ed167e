"""Traces read in worker processes give the same store as traces read here, and a dead worker costs one file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from jobs import DATA, rows, write_job
from traces import kernel, write_trace

from annotq.agent.intake import Outcome, take_in
from annotq.agent.read_ahead import ReadAhead, Reader, ReadHere, workers_for
from annotq.agent.sources import find_sources
from annotq.collector.load import Loader
from annotq.collector.rows import Target
from annotq.collector.store import Store

TABLES = ("process", "graph", "graph_node", "annotation", "source_file", "trace", "gpu_event", "host_span", "clock")


def take(store: Path, folder: Path, reader: Reader) -> list[Outcome]:
    with Store(store) as opened:
        return list(take_in(find_sources([folder]), lambda job: Loader(opened, Target(job)), reader=reader))


def test_both_ways_of_reading_give_the_same_store_row_for_row(tmp_path: Path) -> None:
    take(tmp_path / "here.duckdb", DATA / "slow4", ReadHere())
    with ReadAhead(2) as reader:
        outcomes = take(tmp_path / "ahead.duckdb", DATA / "slow4", reader)
    assert [outcome.problems for outcome in outcomes] == [()] * 8
    for table in TABLES:
        query = f"SELECT * FROM {table} ORDER BY ALL"
        assert rows(tmp_path / "ahead.duckdb", query) == rows(tmp_path / "here.duckdb", query)


def test_known_files_are_not_read_again(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", {rank: [[10]] for rank in range(3)}, ["mlp"])
    take(tmp_path / "store.duckdb", job, ReadHere())
    with ReadAhead(2) as reader:
        outcomes = take(tmp_path / "store.duckdb", job, reader)
    assert all(outcome.loaded is not None and outcome.loaded.known for outcome in outcomes)


def test_a_file_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    for rank in (0, 2, 3):
        write_trace(tmp_path / f"rank{rank}.json", [kernel("k", 1000)], rank=rank)
    (tmp_path / "rank1.json").write_text("no trace")
    with ReadAhead(2) as reader:
        outcomes = take(tmp_path / "store.duckdb", tmp_path, reader)
    assert [outcome.loaded is not None for outcome in outcomes] == [True, False, True, True]
    assert "rank1.json is not a trace" in outcomes[1].problems[0]
    assert rows(tmp_path / "store.duckdb", "SELECT rank FROM kernels ORDER BY rank") == [(0,), (2,), (3,)]


def test_a_worker_that_is_killed_is_named_and_replaced(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_trace(tmp_path / f"rank{rank}.json", [kernel("k", 1000)], rank=rank)
    with ReadAhead(1) as reader:
        os.kill(reader.process_ids()[0], signal.SIGKILL)
        outcomes = take(tmp_path / "store.duckdb", tmp_path, reader)
    assert "the process that read it ended with status -9" in outcomes[0].problems[0]
    assert "memory" in outcomes[0].hint
    assert outcomes[1].loaded is not None


def test_leaving_ends_the_workers(tmp_path: Path) -> None:
    with ReadAhead(2) as reader:
        processes = reader.process_ids()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_little_data_is_read_here(tmp_path: Path) -> None:
    small = write_trace(tmp_path / "rank0.json", [kernel("k", 1000)], rank=0)
    assert workers_for([small]) == 0
    large = tmp_path / "rank1.json"
    with large.open("wb") as file:
        file.truncate(64 << 20)
    assert workers_for([large]) == 1
