"""Regions inferred for work inside child graphs are believed only when a replay shows the kernels that were counted through."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_store import small_store

from annotq.collector.nested_graphs import check_nested
from annotq.collector.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(small_store(tmp_path / "store.duckdb")) as opened:
        yield opened


def shown_names(store: Store) -> dict[int, str]:
    return dict(
        store.connection.execute("SELECT DISTINCT node_index, name FROM gpu_event WHERE process_id = 1").fetchall()
    )


def infer(store: Store, nodes: dict[int, str], inferred: set[int], kind: str = "kernel") -> None:
    """Report graph 7's nodes and the region "cond" for those that lie in a body."""
    for index, name in nodes.items():
        store.connection.execute("INSERT INTO graph_node VALUES (1, 7, ?, ?, ?)", [index, kind, name])
    for index in inferred:
        store.connection.execute(
            """INSERT OR REPLACE INTO annotation BY NAME SELECT 1 AS process_id, 7 AS graph_id, ? AS node_index, 'cond' AS region,
               'cond' AS region_path, 'forward' AS phase, ? AS attributes""",
            [index, json.dumps({"name": "cond", "inferred": True}, sort_keys=True)],
        )


def regions(store: Store) -> list[tuple[int, str]]:
    return store.connection.execute(
        "SELECT node_index, region FROM annotation WHERE process_id = 1 ORDER BY node_index"
    ).fetchall()


def test_what_a_replay_confirms_stays(store: Store) -> None:
    infer(store, shown_names(store), {3})
    assert check_nested(store.connection, 1) == ()
    assert (3, "cond") in regions(store)


def test_another_kernel_name_takes_all_inferred_regions_of_the_graph_back(store: Store) -> None:
    names = shown_names(store)
    infer(store, {**names, 3: "another"}, {2, 3})
    (sentence,) = check_nested(store.connection, 1)
    assert "Graph 7: 2 nodes inside child graphs stay unnamed" in sentence
    assert names[3] in sentence
    assert [node for node, region in regions(store) if region == "cond"] == []
    assert (1, "layers.0.mlp") in regions(store)
    assert sentence in store.connection.execute("SELECT note FROM trace WHERE process_id = 1").fetchall()[0][0]
    assert check_nested(store.connection, 1) == ()


def test_another_kind_is_a_contradiction_too(store: Store) -> None:
    infer(store, {node: name for node, name in shown_names(store).items() if node != 3}, set())
    infer(store, {3: "relu"}, {3}, kind="memset")
    assert len(check_nested(store.connection, 1)) == 1


def test_work_at_a_node_that_was_not_counted_is_a_contradiction(store: Store) -> None:
    names = shown_names(store)
    last = max(names)
    infer(store, {node: name for node, name in names.items() if node != last}, {min(names)})
    assert len(check_nested(store.connection, 1)) == 1


def test_a_kernel_whose_name_the_driver_did_not_tell_is_checked_by_kind(store: Store) -> None:
    names = shown_names(store)
    infer(store, names, {3})
    store.connection.execute("UPDATE graph_node SET name = NULL WHERE node_index = 3")
    assert check_nested(store.connection, 1) == ()


def test_other_processes_keep_theirs(store: Store) -> None:
    infer(store, {**shown_names(store), 3: "another"}, {3})
    assert check_nested(store.connection, 2) == ()
    assert (3, "cond") in regions(store)
