"""The header of a view file is its documentation; the database and the design hold it to the truth."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from annotq.collector.store import Store
from annotq.collector.views import View, load_views, parse_view

# What other tools rely on. Changing a name here breaks somebody's dashboard.
PROMISED = {
    "kernels": "job attempt rank trace_id step replay_id start_ns duration_ns name kind device stream correlation_id "
    "graph_id node_index region region_path phase attributes",
    "region_instances": "job attempt rank step replay_id region phase start_ns end_ns busy_ns union_ns kernels",
    "regions": "job rank region phase instances kernels median_ns p95_ns p99_ns total_ns ratio",
    "collectives": "job collective_id rank region name group_name arrive_ns end_ns duration_ns wait_ns transfer_ns last_rank "
    "own_ns own_excess_ns disagreement_ns not_judged",
    "coverage": "job rank trace_id gpu_events graph_events matched unannotated orphan annotated_nodes encoding status "
    "clock_error_ns note",
}
PUBLIC = [view for view in load_views() if view.public]


def test_the_public_views_are_those_of_the_design() -> None:
    names = {
        "kernels",
        "regions",
        "region_instances",
        "replays",
        "steps",
        "step_parts",
        "collectives",
        "ranks",
        "jobs",
        "graphs",
        "coverage",
        "agents",
        "host_regions",
    }
    assert {view.name for view in PUBLIC} == names


@pytest.mark.parametrize("view", PUBLIC, ids=lambda view: view.name)
def test_the_documented_columns_are_those_of_the_database(view: View, tmp_path: Path) -> None:
    with Store(tmp_path / "store.duckdb") as store:
        described = store.connection.execute(f"DESCRIBE {view.name}").fetchall()
        comments = dict(
            store.connection.execute(
                "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = ?", [view.name]
            ).fetchall()
        )
    assert [(column.name, column.type) for column in view.columns] == [(row[0], row[1]) for row in described]
    assert all(column.meaning in comments[column.name] for column in view.columns)


@pytest.mark.parametrize("name", PROMISED)
def test_promised_columns_stay(name: str) -> None:
    view = next(view for view in PUBLIC if view.name == name)
    assert [column.name for column in view.columns] == PROMISED[name].split()


@pytest.mark.parametrize("view", PUBLIC, ids=lambda view: view.name)
def test_every_column_says_its_unit_and_when_it_is_null(view: View) -> None:
    assert view.purpose and view.reading
    for column in view.columns:
        assert column.null and column.meaning and column.unit, column.name
        if column.name.endswith("_ns"):
            assert column.unit.startswith("ns"), column.name


@pytest.mark.parametrize("view", load_views(), ids=lambda view: view.name)
def test_the_sql_is_in_the_dialect_that_duckdb_and_spark_share(view: View) -> None:
    upper = view.select.upper()
    forbidden = ("QUANTILE_CONT", "ASOF", "QUALIFY", "COLUMNS(", "GROUP BY ALL", " // ", "::", "LIST(", "USING (")
    assert [word for word in forbidden if word in upper] == []
    assert re.findall(r"\[(?!\])", upper) == []  # list literals and subscripts
    assert all("NULLS" in line for line in upper.splitlines() if "ORDER BY" in line and "WITHIN GROUP" not in line)


def test_a_header_without_a_purpose_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"kernels\.sql must begin"):
        parse_view("kernels", "SELECT 1")
