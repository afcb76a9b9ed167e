"""What the collector tells Prometheus about itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from annotq.agent.errors import AnnotqError

# A series per rank that is recording; beyond this many the one that was silent longest goes.
MOST_RANKS = 20_000
_COMMIT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_QUERY_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 5, 20, 60, 300)


STATES = ("running", "ending", "stopped", "gone")  # of the view agents


class _Ranks(Collector):
    """How many ranks of a job attempt are in each state; all states of an attempt, so that an alert sees the zeros."""

    def __init__(self) -> None:
        self.counts: Mapping[tuple[str, int, str], int] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        text = "Ranks by state, of job attempts that reported in the last day; gone: died without a word."
        family = GaugeMetricFamily("annotq_ranks", text, labels=["job", "attempt", "state"])
        counts = self.counts
        for job, attempt in sorted({(job, attempt) for job, attempt, _ in counts}):
            for state in STATES:
                family.add_metric([job, str(attempt), state], counts.get((job, attempt, state), 0))
        yield family


class Metrics:
    """The collector's own registry: nothing of the process's other libraries gets into it."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self._batches = Counter("annotq_batches", "Batches committed to the store.", registry=own)
        self._rows = Counter("annotq_rows", "Rows committed to the store.", registry=own)
        self._bytes = Counter("annotq_bytes", "Bytes of committed batches, as they came over the wire.", registry=own)
        self._rejected = Counter(
            "annotq_rejected_batches", "Batches and processes refused for good.", ["reason"], registry=own
        )
        self.queue_batches = Gauge("annotq_queue_batches", "Batches that wait for their commit.", registry=own)
        self.queue_bytes = Gauge("annotq_queue_bytes", "Bytes of the batches that wait for their commit.", registry=own)
        self._commit = Histogram(
            "annotq_commit_seconds",
            "Duration of a commit, with the rows of its group.",
            buckets=_COMMIT_SECONDS,
            registry=own,
        )
        self._last_seen = Gauge(
            "annotq_last_seen_timestamp_seconds",
            "When a rank last gave a sign of itself; gone once it ended.",
            ["job", "attempt", "rank"],
            registry=own,
        )
        self._states = _Ranks()
        own.register(self._states)
        self._queries = Counter("annotq_queries", "Questions answered, by gRPC status.", ["outcome"], registry=own)
        self._query = Histogram(
            "annotq_query_seconds",
            "Duration of a question, with sending the answer.",
            buckets=_QUERY_SECONDS,
            registry=own,
        )
        self._ranks: dict[tuple[str, int, int], None] = {}  # the one heard from last comes last

    def serve(self, host: str, port: int) -> int:
        """Answer scrapes at /metrics in a thread; returns the port. Raises AnnotqError when it cannot listen."""
        try:
            server, _ = start_http_server(port, host, self.registry)
        except OSError as error:
            what = f"Metrics cannot listen on {host}:{port}: {error.strerror}."
            raise AnnotqError(what, "Choose another --metrics.") from None
        return int(server.server_port)

    def committed(self, batches: int, rows: int, size_bytes: int, seconds: float) -> None:
        self._batches.inc(batches)
        self._rows.inc(rows)
        self._bytes.inc(size_bytes)
        self._commit.observe(seconds)

    def rejected(self, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def answered(self, outcome: str, seconds: float) -> None:
        self._queries.labels(outcome).inc()
        self._query.observe(seconds)

    def ranks(self, counts: Mapping[tuple[str, int, str], int]) -> None:
        """How many ranks there are by job, attempt and state; replaces what was told before."""
        self._states.counts = dict(counts)

    def seen(self, job: str, attempt: int, rank: int, seen_ns: int) -> None:
        """A sign of life of a rank, by the collector's clock."""
        self._ranks.pop((job, attempt, rank), None)
        self._ranks[job, attempt, rank] = None
        if len(self._ranks) > MOST_RANKS:
            self.gone(*next(iter(self._ranks)))
        self._last_seen.labels(job, attempt, rank).set(seen_ns / 1e9)

    def gone(self, job: str, attempt: int, rank: int) -> None:
        """A rank that ended has no series any more."""
        if (job, attempt, rank) in self._ranks:
            del self._ranks[job, attempt, rank]
            self._last_seen.remove(job, str(attempt), str(rank))
