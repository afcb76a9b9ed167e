"""Child graphs recorded on an H200: what was counted through is believed where the replay shows the same kernels."""

from __future__ import annotations

from pathlib import Path

from jobs import DATA, rows

from annotq.agent.intake import take_in
from annotq.agent.process_info import ProcessInfo
from annotq.agent.sources import find_sources
from annotq.collector.load import Loader
from annotq.collector.rows import Target
from annotq.collector.store import Store

KERNELS = "SELECT node_index, region FROM kernels ORDER BY node_index"


def recorded(store: Path, folder: Path) -> Path:
    """Take in the spool folder of one process."""
    with Store(store) as opened:
        loader = Loader(opened, Target("unused"))
        loader.register(ProcessInfo.from_json((folder / "process.json").read_text()))
        outcomes = list(take_in(find_sources([folder]), lambda _: loader))
        assert all(outcome.loaded is not None for outcome in outcomes)
    return store


def test_bodies_counted_right_have_the_region_of_their_node(tmp_path: Path) -> None:
    recorded(tmp_path / "store.duckdb", DATA / "child_graphs" / "confirmed")
    assert rows(tmp_path / "store.duckdb", KERNELS) == [
        (0, None),
        (4, None),
        (5, "part 0"),
        (6, "part 0"),
        (7, "part 1"),
        (8, "part 1"),
        (9, "part 1"),
        (10, "part 2"),
    ]
    assert rows(tmp_path / "store.duckdb", "SELECT matched, orphan, note FROM coverage") == [(6, 0, None)]


def test_bodies_counted_breadth_first_are_contradicted(tmp_path: Path) -> None:
    recorded(tmp_path / "store.duckdb", DATA / "child_graphs" / "contradicted")
    assert {region for _, region in rows(tmp_path / "store.duckdb", KERNELS)} == {None}
    ((note,),) = rows(tmp_path / "store.duckdb", "SELECT note FROM coverage")
    assert "6 nodes inside child graphs stay unnamed" in note
    assert "sin_kernel" in note
