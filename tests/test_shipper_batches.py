"""The same file always gives the same batches with the same numbers; none is larger than a message may be."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from annotq.agent.batches import ANNOTATION, GRAPH_NODE, coded
from annotq.agent.collector_end import CollectorEnd
from annotq.agent.errors import AnnotqError
from annotq.agent.event_batches import payloads, recut
from annotq.agent.snapshots import Snapshot, SnapshotInfo
from annotq.agent.wire import file_of
from annotq.v1 import collector_pb2 as pb


def nodes(count: int, names: list[str] | None = None) -> pa.RecordBatch:
    """Nodes 0 to count of graph 7, the names of which repeat."""
    index = pa.array(range(count), pa.int64())
    chosen = names or [f"kernel_{i % 13}" for i in range(count)]
    return pa.RecordBatch.from_arrays(
        [pa.array([7] * count, pa.int64()), index, coded(["kernel"] * count), coded(chosen)], schema=GRAPH_NODE
    )


def opened(payload: bytes) -> pa.Table:
    return pa.ipc.open_stream(payload).read_all()


@pytest.mark.parametrize("seed", range(20))
def test_batches_do_not_depend_on_the_readers_pieces(seed: int) -> None:
    random = Random(seed)
    whole = nodes(1000)
    cuts = sorted(random.choices(range(1001), k=random.randrange(12)))
    pieces = [whole.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, 1000], strict=True)]
    tables = list(recut(pieces, GRAPH_NODE, rows=300))
    assert [table.num_rows for table in tables] == [300, 300, 300, 100]
    assert [payloads(table) for table in tables] == [payloads(table) for table in recut([whole], GRAPH_NODE, rows=300)]
    rows = [row for table in tables for row in opened(payloads(table)[0]).to_pylist()]
    assert rows == whole.to_pylist()


def test_no_rows_give_no_batch() -> None:
    assert list(recut([nodes(0), nodes(0)], GRAPH_NODE)) == []


def test_names_that_a_batch_does_not_use_stay_behind() -> None:
    names = [f"{i:05d}" * 20 for i in range(10_000)]
    table = next(recut([nodes(10_000, names)], GRAPH_NODE, rows=100))
    (payload,) = payloads(table)
    assert opened(payload).column("name").chunk(0).dictionary.to_pylist() == names[:100]
    assert opened(payload).column("name").to_pylist() == names[:100]


def test_missing_values_survive_the_shorter_dictionary() -> None:
    names = [None if i % 3 == 0 else f"{i:05d}" * 20 for i in range(9_000)]
    (payload,) = payloads(pa.Table.from_batches([nodes(9_000, names).slice(0, 9)]))  # type: ignore[arg-type]
    assert opened(payload).column("name").to_pylist() == names[:9]


def test_a_batch_too_large_for_a_message_is_halved() -> None:
    names = [Random(i).randbytes(100).hex() for i in range(1000)]
    table = pa.Table.from_batches([nodes(1000, names)])
    whole = len(payloads(table)[0])
    parts = payloads(table, largest=whole // 3)
    assert 3 < len(parts) <= 8
    assert all(len(part) <= whole // 3 for part in parts)
    assert [name for part in parts for name in opened(part).column("name").to_pylist()] == names
    with pytest.raises(AnnotqError, match="more than a message may hold"):
        payloads(table, most=1, largest=whole // 3)


def snapshot_of(graph_id: int) -> Snapshot:
    info = SnapshotInfo(graph_id, 0, "f" * 16, 1)
    return Snapshot("s.json", info, nodes(3), pa.RecordBatch.from_pylist([], ANNOTATION), ("a problem",))


@pytest.mark.parametrize("known", range(8))
def test_what_is_committed_is_counted_but_not_made(known: int) -> None:
    def sent(committed: int) -> list[pb.Batch]:
        batches: list[pb.Batch] = []
        end = CollectorEnd(1, committed, batches.append)
        for number, graph_id in ((1, 2), (3, 5), (4, 6)):
            end.begin_file(number)
            end.load_snapshot(snapshot_of(graph_id))
        assert file_of(end.sent_sequence)[0] == 4
        return batches

    everything = sent(0)
    assert len(everything) == 6
    committed = everything[known - 1].sequence if 0 < known <= 6 else (0 if known == 0 else 1 << 40)
    assert sent(committed) == everything[known:]
