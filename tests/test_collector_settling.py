"""Steps and clocks are brought up to date when traces end, and one job that cannot be does not hold up the others."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from small_store import small_store

from annotq.collector.rows import Target
from annotq.collector.store import Store
from annotq.collector.unsettled import SettlingError, Unsettled

# Two windows of a process with the same steps, whose numbers leave no room for others behind them.
OVERFLOWING = f"""INSERT INTO trace SELECT t.* REPLACE (i AS trace_id, i AS window_start_ns, 0 AS first_step,
    {(1 << 63) - 1} AS last_step) FROM trace t, range(100, 102) r(i) WHERE t.trace_id = 1"""


def test_a_job_that_cannot_be_settled_is_given_up_and_the_others_are_not(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store.duckdb", "broken", "fine")
    with Store(path) as store:
        store.connection.execute(OVERFLOWING)
        store.connection.execute("UPDATE clock SET method = 'none'")
        unsettled = Unsettled()
        unsettled.add([Target("broken"), Target("fine")])
        with pytest.raises(SettlingError, match="broken"), store.transaction() as connection:
            unsettled.settle(connection)
        unsettled.add([Target("broken")])
        with store.transaction() as connection:
            unsettled.settle(connection)
        unsettled.committed()
        assert not unsettled
        assert store.connection.execute("SELECT job, method FROM clock ORDER BY job").fetchall() == [
            ("broken", "none"),
            ("fine", "same_host"),
        ]


def test_what_was_rolled_back_is_settled_again(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store.duckdb")
    with Store(path) as store:
        unsettled = Unsettled()
        unsettled.add([Target("tiny")])
        store.connection.execute("BEGIN")
        unsettled.settle(store.connection)
        store.connection.execute("ROLLBACK")
        assert unsettled


def test_a_large_job_takes_a_small_share_of_the_time(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store.duckdb")
    with Store(path) as store:
        store.connection.execute(
            """INSERT INTO trace SELECT t.* REPLACE (i + 100 AS trace_id, i // 100 AS process_id, i AS window_start_ns,
                   0 AS first_step, 5 AS last_step) FROM trace t, range(300000) r(i) WHERE t.trace_id = 1"""
        )
        unsettled = Unsettled()
        settled = 0
        began = time.monotonic()
        while time.monotonic() - began < 1.5:
            unsettled.add([Target("tiny")])
            with store.transaction() as connection:
                unsettled.settle(connection)
            unsettled.committed()
            settled += not unsettled
            time.sleep(0.005)
        assert settled < 10
        assert unsettled
        with store.transaction() as connection:
            unsettled.settle(connection, everything=True)
        unsettled.committed()
        assert not unsettled
