"""Reads several traces at once, in worker processes, ahead of whoever loads them.

Reading is bound by one core per file; loading takes a fraction of that. Workers start before anything heavy is imported
here, so that even a single large trace is half read when the store is open.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from annotq.agent.errors import AnnotqError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from annotq.agent.kineto import TraceInfo

# Starting a worker takes a quarter of a second: not worth it for less JSON than this.
WORTH_A_WORKER_BYTES = 50 << 20
_GZIP_RATIO = 20  # of Kineto's JSON, about
_END_SECONDS = 5


class ReadTrace(Protocol):
    """A trace that has been read, here or elsewhere: its facts and its batches (schemas in batches.py).

    The four methods are called once each and in this order.
    """

    @property
    def info(self) -> TraceInfo: ...
    def gpu_events(self) -> Iterator[pa.RecordBatch]: ...
    def host_spans(self) -> Iterator[pa.RecordBatch]: ...
    def annotations(self) -> pa.RecordBatch: ...
    def observed_nodes(self) -> pa.RecordBatch: ...


class Reader(Protocol):
    """Reads traces. `ahead` says how many may be begun before the first is taken."""

    ahead: int

    def begin(self, path: Path, rank: int | None) -> None: ...
    def drop(self, path: Path) -> None: ...
    def take(self, path: Path, rank: int | None, progress: Any) -> AbstractContextManager[ReadTrace]: ...


class ReadHere:
    """Reads in this process, one trace at a time."""

    ahead = 0

    def begin(self, path: Path, rank: int | None) -> None:
        """Nothing to prepare."""

    def drop(self, path: Path) -> None:
        """Nothing was begun."""

    def take(self, path: Path, rank: int | None, progress: Any) -> AbstractContextManager[ReadTrace]:
        from annotq.agent.kineto import read_trace

        return read_trace(path, rank=rank, progress=progress)


class ReadAhead:
    """Reads in worker processes. A context manager: leaving it ends them."""

    def __init__(self, workers: int) -> None:
        self.ahead = workers
        self._idle: list[_Worker] = [_Worker() for _ in range(workers)]
        self._busy: dict[Path, _Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for worker in [*self._idle, *self._busy.values()]:
            worker.end()

    def process_ids(self) -> list[int]:
        """Of all workers, idle ones first."""
        return [worker.pid for worker in [*self._idle, *self._busy.values()]]

    def begin(self, path: Path, rank: int | None) -> None:
        """Have a free worker read the trace; does nothing when it is being read already."""
        if path not in self._busy:
            worker = self._idle.pop() if self._idle else _Worker()
            self._busy[path] = worker
            worker.request(path, rank)

    def drop(self, path: Path) -> None:
        """The trace is not wanted after all."""
        worker = self._busy.pop(path, None)
        if worker is not None:
            worker.end()

    @contextmanager
    def take(self, path: Path, rank: int | None, progress: Any) -> Iterator[ReadTrace]:
        """The trace, as soon as it is read. Raises AnnotqError as read_trace does, and when the worker died."""
        self.begin(path, rank)
        worker = self._busy.pop(path)
        try:
            trace = worker.answer(path, progress)
            yield trace
            trace.drain()
        except BaseException:
            worker.end()  # its streams may be half read
            raise
        self._idle.append(worker)


class _Worker:
    """One reading process (read_worker.py)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from annotq.agent.read_worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, path: Path, rank: int | None) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a dead worker is noticed when its answer is missing
            self._process.stdin.write(json.dumps({"path": str(path), "rank": rank}).encode() + b"\n")
            self._process.stdin.flush()

    def answer(self, path: Path, progress: Any) -> _RemoteTrace:
        from annotq.agent.kineto import TraceInfo

        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            answer = json.loads(line)
            if "progress" in answer and progress is not None:
                progress(answer["progress"])
            if "error" in answer:
                raise AnnotqError(*answer["error"])
            if "info" in answer:
                problems = tuple(answer["info"].pop("problems"))
                return _RemoteTrace(TraceInfo(**answer["info"], problems=problems), stdout)
        status = self._process.wait(_END_SECONDS)
        raise AnnotqError(
            f"{path}: the process that read it ended with status {status}.",
            "-9 means that the system stopped it, most often for memory." if status == -9 else "",
        )

    def end(self) -> None:
        self._process.kill()
        self._process.wait(_END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


class _RemoteTrace:
    """The answer of a worker: facts first, then four Arrow streams, each read once and in order."""

    def __init__(self, info: TraceInfo, stdout: Any) -> None:
        self.info = info
        self._stdout = stdout
        self._streams = 0

    def gpu_events(self) -> Iterator[pa.RecordBatch]:
        return self._stream(0)

    def host_spans(self) -> Iterator[pa.RecordBatch]:
        return self._stream(1)

    def annotations(self) -> pa.RecordBatch:
        return self._whole(2)

    def observed_nodes(self) -> pa.RecordBatch:
        return self._whole(3)

    def drain(self) -> None:
        """Read what nobody asked for, so that the worker can take the next request."""
        while self._streams < 4:
            for _ in self._stream(self._streams):
                pass

    def _stream(self, number: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        assert number == self._streams, "the streams are read in order"
        with pa.ipc.open_stream(self._stdout) as reader:
            yield from reader
        self._streams += 1

    def _whole(self, number: int) -> pa.RecordBatch:
        import pyarrow as pa

        assert number == self._streams, "the streams are read in order"
        with pa.ipc.open_stream(self._stdout) as reader:
            table = reader.read_all().combine_chunks()
        self._streams += 1
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def workers_for(paths: Sequence[Path]) -> int:
    """How many workers reading these traces deserves: 0 for little data, else one per core, at most one per trace."""
    json_bytes = sum(path.stat().st_size * (_GZIP_RATIO if path.suffix == ".gz" else 1) for path in paths)
    if json_bytes < WORTH_A_WORKER_BYTES or not sys.executable:
        return 0
    return min(len(paths), len(os.sched_getaffinity(0)))
