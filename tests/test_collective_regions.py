"""Collectives inside captures get Kineto's fields: real process groups of gloo, on which torch runs the same hooks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from annotq.agent.batches import COLLECTIVE_FIELDS  # noqa: E402
from annotq.agent.capture_marks import CaptureMarks  # noqa: E402
from annotq.agent.collective_fields import call_fields, coalesced_fields  # noqa: E402
from annotq.agent.collective_regions import CollectiveRegions  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        not hasattr(getattr(dist, "ProcessGroup", None), "register_pre_hook"), reason="needs torch 2.14"
    ),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
SHARED = {
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0]",
    "Group size": 1,
}


class Recorded:
    """Marks of a capture that is always under way; empty: it gets no node."""

    def __init__(self) -> None:
        self.fields: list[dict[str, Any]] = []
        self.capturing = True
        self.empty = False

    def begin(self) -> Any:
        return "scope" if self.capturing else None

    def end(self, scope: Any, fields: dict[str, Any], fallback: str = "") -> bool:
        assert (scope, fallback) == ("scope", fields["Collective name"])
        if not self.empty:
            self.fields.append(fields)
        return not self.empty


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def marks(group: dist.ProcessGroup) -> Iterator[Recorded]:
    recorded = Recorded()
    regions = CollectiveRegions(recorded)
    regions.watch()
    regions.watch()
    yield recorded
    regions.remove()


def test_an_all_reduce_says_what_kineto_says_of_an_eager_one(marks: Recorded) -> None:
    dist.all_reduce(torch.ones(8, dtype=torch.bfloat16))
    expected = {"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 8, "Out msg nelems": 8, **SHARED}
    assert marks.fields == [expected]
    assert set(expected) <= set(COLLECTIVE_FIELDS)


def calls(group: dist.ProcessGroup) -> dict[str, Any]:
    import torch.distributed._functional_collectives as functional

    x, out = torch.ones(4), torch.empty(4)
    return {
        "_allgather_base": [
            lambda: dist.all_gather_into_tensor(out, x),
            lambda: functional.all_gather_tensor(x, 0, group),
        ],
        "allreduce": [lambda: functional.all_reduce(x, "sum", group), lambda: dist.all_reduce(x, async_op=True)],
        "allreduce_coalesced": [functools.partial(coalesced, group, x, out)],
        "all_to_all": [lambda: dist.all_to_all_single(out, x)],
        "broadcast": [lambda: dist.broadcast(x, 0)],
        "reduce": [lambda: dist.reduce(x, 0)],
        "barrier": [dist.barrier],
    }


def coalesced(group: dist.ProcessGroup, *tensors: Any) -> None:
    with dist._coalescing_manager(group):
        for tensor in tensors:
            dist.all_reduce(tensor)


@pytest.mark.parametrize(
    "name", ["_allgather_base", "allreduce", "allreduce_coalesced", "all_to_all", "broadcast", "reduce", "barrier"]
)
def test_every_way_to_issue_one_is_seen(group: dist.ProcessGroup, marks: Recorded, name: str) -> None:
    for call in calls(group)[name]:
        marks.fields.clear()
        call()
        assert [fields["Collective name"] for fields in marks.fields] == [name]
        assert marks.fields[0]["Process Group Ranks"] == "[0]"


def test_ddp_reduces_in_cpp_and_is_seen(marks: Recorded) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    marks.fields.clear()
    model(torch.ones(4)).sum().backward()
    assert [(fields["Collective name"], fields["In msg nelems"]) for fields in marks.fields] == [("allreduce", 20)]


def test_split_sizes_are_known_from_python_alone(group: dist.ProcessGroup, marks: Recorded) -> None:
    import torch.distributed._functional_collectives as functional

    x, out = torch.ones(4), torch.empty(4)
    dist.all_to_all_single(out, x)
    dist.all_to_all_single(out, x, [4], [4])
    functional.all_to_all_single(x, [4], [4], group)
    assert [fields["In split size"] for fields in marks.fields] == ["[]", "[]", "?"]
    uneven = call_fields("ALLTOALL", [torch.ones(1), torch.ones(3)], [torch.ones(2), torch.ones(2)], -1)
    assert (uneven["In split size"], uneven["Out split size"]) == ("[1, 3]", "[]")


def test_several_tensors_that_become_one_kernel_are_added_up(group: dist.ProcessGroup, marks: Recorded) -> None:
    marks.empty = True
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(5))
    marks.empty = False
    with pytest.raises(RuntimeError, match="endCoalescing"):  # gloo has none; NCCL's is in tests/gpu
        group._end_coalescing(torch.device("cpu"))
    send = {"Collective name": "send", "dtype": "Float", "In msg nelems": 3, "Out msg nelems": 3, "Dst Rank": 1}
    receive = {"Collective name": "recv", "dtype": "Float", "In msg nelems": 4, "Out msg nelems": 4, "Src Rank": 1}
    assert coalesced_fields([send, receive]) == {
        "Collective name": "send_recv",
        "dtype": "Float",
        "In msg nelems": 7,
        "Out msg nelems": 7,
    }
    assert coalesced_fields([send]) == send


def test_outside_of_a_capture_nothing_is_marked(marks: Recorded) -> None:
    marks.capturing = False
    dist.all_reduce(torch.ones(4))
    assert marks.fields == []
    assert CaptureMarks().begin() is None


def test_a_collective_that_raises_does_not_shift_the_next(marks: Recorded, group: dist.ProcessGroup) -> None:
    options = dist.BroadcastOptions()
    options.rootRank = 5
    with pytest.raises(RuntimeError, match="root rank"):
        group.broadcast([torch.ones(4)], options)
    dist.broadcast(torch.ones(6), 0)
    assert [fields["In msg nelems"] for fields in marks.fields] == [6]


def test_groups_made_later_are_seen_at_the_next_capture(group: dist.ProcessGroup) -> None:
    recorded = Recorded()
    regions = CollectiveRegions(recorded)
    regions.watch()
    later = dist.new_group([0], group_desc="tp")
    regions.watch()
    dist.all_reduce(torch.ones(2), group=later)
    assert [fields["Process Group Description"] for fields in recorded.fields] == ["tp"]
    regions.remove()


def test_removed_hooks_and_methods_are_gone(group: dist.ProcessGroup) -> None:
    before = {
        name: getattr(dist.ProcessGroup, name) for name in ("_end_coalescing", "alltoall_base", "all_to_all_single")
    }
    recorded = Recorded()
    regions = CollectiveRegions(recorded)
    regions.watch()
    assert dist.ProcessGroup._end_coalescing is not before["_end_coalescing"]
    regions.remove()
    regions.remove()
    dist.all_reduce(torch.ones(2))
    assert recorded.fields == []
    assert {name: getattr(dist.ProcessGroup, name) for name in before} == before
