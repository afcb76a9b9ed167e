"""How the processes are: kept in memory as the shippers report it, written to the store every few seconds."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import astuple, dataclass
from typing import Any

import duckdb
import pyarrow as pa

from annotq.collector.metrics import Metrics
from annotq.collector.process_state import Processes, ProcessState
from annotq.collector.rows import Target, run_on
from annotq.collector.unsettled import Unsettled
from annotq.v1.collector_pb2 import BeatRequest, ProcessBeat

FLUSH_SECONDS = 5.0
# A job attempt that was silent for longer has no metrics any more.
RECENT_NS = 86_400 * 1_000_000_000
# While the disk is full; two samples per host every ten seconds otherwise.
MOST_SAMPLES = 100_000
_LATEST_NS = 1 << 62  # differences of such times fit into 64 bits


@dataclass(frozen=True)
class _Heartbeat:
    """A row of the table heartbeat, in its order."""

    process_id: int
    seen_ns: int
    beat_ns: int
    alive: bool
    step: int | None
    step_ns: int | None
    spooled_bytes: int
    dropped_traces: int


@dataclass(frozen=True)
class _Sample:
    """A row of the table clock_sample, in its order."""

    job: str
    attempt: int
    host: str
    sent_ns: int
    received_ns: int
    answered_ns: int
    returned_ns: int


_HEARTBEAT = pa.schema(
    [(name, pa.bool_() if name == "alive" else pa.int64()) for name in _Heartbeat.__dataclass_fields__]
)
_SAMPLE = pa.schema(
    [(name, pa.string() if name in ("job", "host") else pa.int64()) for name in _Sample.__dataclass_fields__]
)


# A shipper that starts again counts the traces given up from what it reads anew: the count never falls.
_UPSERT = """INSERT INTO heartbeat SELECT * FROM incoming
    ON CONFLICT DO UPDATE SET seen_ns = excluded.seen_ns, beat_ns = excluded.beat_ns, alive = excluded.alive,
        step = excluded.step, step_ns = excluded.step_ns, spooled_bytes = excluded.spooled_bytes,
        dropped_traces = greatest(dropped_traces, excluded.dropped_traces)"""

# States as in the view agents, whose joins a few times a minute would be too much for 100,000 ranks.
_STATES = """SELECT job, attempt, coalesce(ended, CASE WHEN NOT alive THEN 'ending' ELSE 'running' END) AS state, count(*)
    FROM process LEFT JOIN heartbeat USING (process_id)
    WHERE process_key IS NOT NULL AND (job, attempt) IN (
        SELECT (job, attempt) FROM process JOIN heartbeat USING (process_id) WHERE beat_ns >= ?)
    GROUP BY ALL"""


class Beats:
    """The newest beat of every process and the clock samples that are not in the store yet."""

    def __init__(self, metrics: Metrics, unsettled: Unsettled) -> None:
        self._metrics = metrics
        self._unsettled = unsettled
        self._latest: dict[int, _Heartbeat] = {}
        self._changed: set[int] = set()
        self._samples: deque[_Sample] = deque(maxlen=MOST_SAMPLES)

    def take(self, request: BeatRequest, states: dict[int, ProcessState], now_ns: int) -> None:
        """Keep a beat. states: the registered processes; the others are left out."""
        targets = set()
        for beat in request.processes:
            state = states.get(beat.process_id)
            if state is None:
                continue
            targets.add(state.target)
            self._latest[beat.process_id] = row = self._row(beat, now_ns)
            self._changed.add(beat.process_id)
            if beat.alive:
                self._metrics.seen(state.target.job, state.target.attempt, state.rank, row.seen_ns)
            else:
                self._metrics.gone(state.target.job, state.target.attempt, state.rank)
        for sample in request.samples:
            times = (sample.sent_ns, sample.received_ns, sample.answered_ns, sample.returned_ns)
            forward = sample.sent_ns <= sample.returned_ns and sample.received_ns <= sample.answered_ns
            if forward and all(0 <= time_ns < _LATEST_NS for time_ns in times):
                self._samples += [_Sample(target.job, target.attempt, request.host, *times) for target in targets]

    def flush(self) -> Flush:
        """What is new, taken out."""
        rows = [self._latest[process_id] for process_id in sorted(self._changed)]
        samples = list(self._samples)
        self._changed.clear()
        self._samples.clear()
        return Flush(rows, samples, self._unsettled, self._metrics)

    def _row(self, beat: ProcessBeat, now_ns: int) -> _Heartbeat:
        before = self._latest.get(beat.process_id)
        seen_ns = before.seen_ns if before else now_ns
        if beat.HasField("seen_age_ns"):
            seen_ns = now_ns - min(max(beat.seen_age_ns, 0), now_ns)
        return _Heartbeat(
            beat.process_id,
            seen_ns,
            now_ns,
            beat.alive,
            beat.step if beat.HasField("step") else None,
            beat.step_ns if beat.HasField("step_ns") else None,
            beat.spooled_bytes,
            beat.dropped_traces,
        )


@dataclass(frozen=True)
class Flush:
    """Beats and samples on their way into the store; the clocks of their job attempts are fitted again, ranks counted."""

    rows: list[_Heartbeat]
    samples: list[_Sample]
    unsettled: Unsettled
    metrics: Metrics

    def write(self, connection: duckdb.DuckDBPyConnection, processes: Processes) -> None:
        """The writer's part of it."""
        if self.rows:
            beats = pa.Table.from_arrays(_columns(self.rows, _HEARTBEAT), schema=_HEARTBEAT)
            run_on(connection, _UPSERT, beats)
        if self.samples:
            samples = pa.Table.from_arrays(_columns(self.samples, _SAMPLE), schema=_SAMPLE)
            run_on(connection, "INSERT INTO clock_sample SELECT * FROM incoming", samples)
            self.unsettled.add(Target(sample.job, sample.attempt) for sample in self.samples)
        states = connection.execute(_STATES, [time.time_ns() - RECENT_NS]).fetchall()
        self.metrics.ranks({(job, attempt, state): ranks for job, attempt, state, ranks in states})


def _columns(rows: list[_Heartbeat] | list[_Sample], schema: pa.Schema) -> list[pa.Array[Any]]:
    columns = zip(*(astuple(row) for row in rows), strict=True)
    return [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
