"""On a real GPU: what torch annotates and what annotq adds, read back from the profiler's traces by node id."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from observed import graph_work  # noqa: E402
from workload import captured, prepare, profiled, warm_up  # noqa: E402

import annotq.agent  # noqa: E402
from annotq.agent import node_ids  # noqa: E402
from annotq.agent.graph_names import GraphNames  # noqa: E402

Work = list[tuple[int, str, str]]


class Recorded:
    """A recording of this process; what its snapshots say of the nodes."""

    def __init__(self, spool: Path) -> None:
        self.spool = spool

    def annotated(self) -> dict[int, dict[str, Any]]:
        """Annotations by packed node id, of all graphs so far."""
        found: dict[int, dict[str, Any]] = {}
        for path in sorted(self.spool.glob("*/*.snapshot.json")):
            content = json.loads(path.read_text())
            columns, high_half = content["annotations"], content["exec_graph_id"] << 32
            for node, code in zip(columns["node"], columns["code"], strict=True):
                found[high_half | node] = columns["distinct"][code]
        return found


def recording(tmp_path: Path, name: str, modules: bool) -> Iterator[Recorded]:
    from torch.cuda import _graph_annotations as annotations

    annotations.clear_kernel_annotations()
    annotq.agent.start(job=name, rank=0, world_size=1, local_rank=0, spool=tmp_path / "spool", modules=modules)
    yield Recorded(tmp_path / "spool")
    annotq.agent.stop()
    gc.collect()


@pytest.fixture(params=[False, True], ids=["by hand", "modules"])
def names(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recorded]:
    yield from recording(tmp_path, request.node.name, request.param)


@pytest.fixture
def by_modules(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recorded]:
    yield from recording(tmp_path, request.node.name, True)


def traced(path: Path, *graphs: Any, replays: int = 3) -> Work:
    with profiled(str(path)):
        for _ in range(replays):
            for graph in graphs:
                graph.replay()
    return graph_work(path)


def training_step(**options: Any) -> tuple[Any, Any]:
    from torch.cuda.graph_annotations import mark_kernels

    net, x, target = prepare(scope=mark_kernels, **options)

    def step() -> None:
        net(x, target).backward()

    warm_up(step)
    return net, step


def test_kernels_of_forward_and_backward_are_found_by_id(names: Recorded, tmp_path: Path) -> None:
    _, step = training_step()
    graph = captured(step, enable_annotations=True)
    found, work = names.annotated(), traced(tmp_path / "trace.json", graph)
    by_region = Counter(
        (found[node].get("name"), found[node].get("autograd_phase")) for node, _, _ in work if node in found
    )
    for number in range(4):
        for part in ("attn", "mlp"):
            regions = [(name, phase) for name, phase in by_region if str(name).startswith(f"layers.{number}.{part}")]
            assert {phase for _, phase in regions} == {None, "backward"}, by_region
    assert set(found) <= {node for node, _, _ in work}  # every annotated node ran
    print("named:", sum(by_region.values()), "of", len(work))


def test_modules_name_nearly_everything_without_a_flag(by_modules: Recorded, tmp_path: Path) -> None:
    net, x, target = prepare(layers=6)
    optimizer = torch.optim.AdamW(net.parameters(), capturable=True, foreach=True)

    def step() -> None:
        net(x, target).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    warm_up(step)
    graph = captured(step)
    found, work = by_modules.annotated(), traced(tmp_path / "trace.json", graph)
    unnamed = Counter(name for node, _, name in work if "name" not in found.get(node, {}))
    share = 1 - sum(unnamed.values()) / len(work)
    print(f"modules: {share:.4%} of {len(work)} named; without: {unnamed.most_common(8)}")
    print(Counter((v.get("name"), v.get("autograd_phase")) for v in found.values()).most_common(60))
    assert share >= 0.99
    assert any(
        fields["name"] == "layers.5.mlp.down" and fields.get("autograd_phase") == "backward"
        for fields in found.values()
    )
    paths = {fields.get("region_path") for fields in found.values()}
    assert "Net > layers.0 > layers.0.attn > layers.0.attn.qkv" in paths


def test_every_instantiation_has_its_own_ids(names: Recorded, tmp_path: Path) -> None:
    _, step = training_step(layers=2)
    graph = captured(step, keep_graph=True, enable_annotations=True)
    seen: list[set[int]] = []
    for number in range(3):
        graph.instantiate()
        found, work = names.annotated(), traced(tmp_path / f"{number}.json", graph)
        ids = {node >> 32 for node, _, _ in work}
        assert len(ids) == 1
        assert sum(node in found for node, _, _ in work) > 0.5 * len(work)
        seen.append(ids)
    assert len(set.union(*seen)) == 3


def test_graphs_that_share_a_pool_keep_apart(by_modules: Recorded, tmp_path: Path) -> None:
    _, step = training_step(layers=2)
    first = captured(step)
    second = captured(step, pool=first.pool())
    found, work = by_modules.annotated(), traced(tmp_path / "trace.json", first, second)
    assert len({node >> 32 for node, _, _ in work}) == 2
    assert sum("name" in found.get(node, {}) for node, _, _ in work) >= 0.99 * len(work)


def test_capture_begin_without_the_context_manager(by_modules: Recorded, tmp_path: Path) -> None:
    _, step = training_step(layers=2)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        step()
        graph.capture_end()
    found, work = by_modules.annotated(), traced(tmp_path / "trace.json", graph)
    assert sum("name" in found.get(node, {}) for node, _, _ in work) >= 0.99 * len(work)


def test_graphed_callables_keep_their_names(by_modules: Recorded, tmp_path: Path) -> None:
    net, x, target = prepare(layers=2)
    layer = torch.cuda.make_graphed_callables(net.layers[0], (x.clone().requires_grad_(),))
    with profiled(str(tmp_path / "trace.json")):
        for _ in range(2):
            net.loss(net.layers[1](layer(x.requires_grad_())), target).backward()
    found, work = by_modules.annotated(), graph_work(tmp_path / "trace.json")
    phases = Counter(found.get(node, {}).get("autograd_phase", "forward") for node, _, _ in work)
    print("graphed callables:", len(work), phases, Counter(found.get(node, {}).get("name") for node, _, _ in work))
    assert sum("name" in found.get(node, {}) for node, _, _ in work) >= 0.99 * len(work)
    assert phases["backward"] > 0


def test_module_names_do_not_change_when_torch_warns() -> None:
    """Naming AccumulateGrad nodes must not make them live longer or on another stream: torch warns of that, once a process."""
    script = Path(__file__).with_name("stream_warning.py")
    warned = [
        "stream does not match"
        in subprocess.run([sys.executable, script, modules], capture_output=True, text=True).stderr
        for modules in ("0", "1")
    ]
    print("stream warning without and with modules:", warned)
    assert warned[0] == warned[1]


def test_recomputation_is_backward_under_its_own_name(by_modules: Recorded, tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    net, x, target = prepare(layers=2)
    x.requires_grad_()

    def step() -> None:
        y = x
        for layer in net.layers:
            y = checkpoint(layer, y, use_reentrant=False)
        net.loss(y, target).backward()

    warm_up(step)
    graph = captured(step)
    found, work = by_modules.annotated(), traced(tmp_path / "trace.json", graph)
    share = sum("name" in found.get(node, {}) for node, _, _ in work) / len(work)
    gelu = [found[node] for node, _, name in work if "GeluCUDAKernelImpl" in name and node in found]
    print(f"checkpoint: {share:.4%} of {len(work)} named")
    assert share >= 0.99
    assert {fields.get("autograd_phase") for fields in gelu} == {None, "backward"}


def test_work_in_child_graphs_is_numbered_as_the_rule_says(by_modules: Recorded, tmp_path: Path) -> None:
    from torch.cuda.graph_annotations import mark_kernels

    a, b = torch.randn(2, 512, 512, device="cuda")
    parts = [lambda: [a.mul_(2), a.add_(1)], lambda: [b.sin_(), b.cos_(), b.exp_()], lambda: [a.zero_()]]
    inner = [captured(part, keep_graph=True) for part in parts]

    def step() -> None:
        a.add_(3)
        for number, graph in enumerate(inner):
            with mark_kernels(f"part {number}"):
                add_child(graph)
        b.add_(3)

    outer = captured(step, keep_graph=True)
    outer.instantiate()
    work = traced(tmp_path / "trace.json", outer, replays=1)
    shown = {node & 0xFFFFFFFF: (kind, name) for node, kind, name in work}
    content = json.loads(max((tmp_path / "spool").glob("*/*.snapshot.json")).read_text())
    nodes = content["nodes"]
    kinds = {index: nodes["kinds"][code] for index, code in zip(nodes["index"], nodes["kind"], strict=True)}
    kernel_names = {
        index: nodes["names"][code]
        for index, code in zip(nodes["index"], nodes["name"], strict=True)
        if code is not None
    }
    print("nodes:", kinds, "shown:", sorted(shown))
    assert list(kinds.values()).count("child_graph") == 3
    work_kinds = ("kernel", "memcpy", "memset")
    assert {index: kind for index, kind in kinds.items() if kind in work_kinds} == {
        index: kind for index, (kind, _) in shown.items()
    }
    assert kernel_names == {index: name for index, (kind, name) in shown.items() if kind == "kernel"}
    found = by_modules.annotated()
    inferred = [found[node] for node, _, _ in work if found.get(node, {}).get("inferred")]
    assert Counter(fields["name"] for fields in inferred) == {"part 0": 2, "part 1": 3, "part 2": 1}


def test_bodies_in_a_body_come_right_after_it(by_modules: Recorded, tmp_path: Path) -> None:
    a = torch.randn(64, device="cuda")
    leaf = captured(lambda: [a.sin_(), a.cos_()], keep_graph=True)

    def middle_step() -> None:
        a.exp_()
        add_child(leaf)
        a.tanh_()

    middle = captured(middle_step, keep_graph=True)
    second_leaf = captured(lambda: [a.neg_()], keep_graph=True)

    def outer_step() -> None:
        a.abs_()
        add_child(middle)
        add_child(second_leaf)

    two_deep = captured(outer_step, keep_graph=True)
    other = captured(lambda: [a.neg_(), a.abs_()], keep_graph=True)

    def step() -> None:
        add_child(two_deep)
        a.sqrt_()
        add_child(other)

    outer = captured(step, keep_graph=True)
    outer.instantiate()
    work = traced(tmp_path / "trace.json", outer, replays=1)
    content = json.loads(max((tmp_path / "spool").glob("*/*.snapshot.json")).read_text())
    nodes = content["nodes"]
    expected = {
        index: nodes["names"][code]
        for index, code in zip(nodes["index"], nodes["name"], strict=True)
        if code is not None
    }
    shown = {node & 0xFFFFFFFF: name for node, _, name in work}
    print("bodies in bodies:", [(index, short(expected[index]), short(shown.get(index, "-"))) for index in expected])
    assert shown == expected


def short(name: str) -> str:
    found = re.search("(sin|cos|exp|tanh|neg|abs|sqrt)_kernel|(Abs)Functor", name)
    return found[0] if found else name[:40]


def add_child(graph: Any) -> None:
    """Add a graph as a child to the capture that is under way on the current stream."""
    from cuda.bindings import runtime
    from torch.cuda._utils import _check_cuda_bindings as checked

    stream = runtime.cudaStream_t(init_value=torch.cuda.current_stream().cuda_stream)
    _, _, capturing, dependencies, _, count = checked(runtime.cudaStreamGetCaptureInfo(stream))
    child = runtime.cudaGraph_t(init_value=graph.raw_cuda_graph())
    node = checked(runtime.cudaGraphAddChildGraphNode(capturing, list(dependencies[:count]), count, child))
    flags = runtime.cudaStreamUpdateCaptureDependenciesFlags.cudaStreamSetCaptureDependencies
    checked(runtime.cudaStreamUpdateCaptureDependencies(stream, [node], None, 1, flags))


def test_conditional_bodies_are_counted_or_said_to_be_unknown(by_modules: Recorded, tmp_path: Path) -> None:
    from annotq.agent.child_graphs import nested_nodes

    x = torch.randn(64, device="cuda")
    seen: list[Any] = []
    handle = torch.cuda.graphs.register_graph_instantiate_hook(
        lambda graph: seen.append(nested_nodes(graph, graph.get_graph_data()))
    )
    try:
        from torch._higher_order_ops.cudagraph_conditional_nodes import (
            CUDAGraphCaptureControlFlowOpDispatchMode as Mode,
        )
    except ImportError:
        pytest.skip("this torch has no conditional nodes")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph), Mode():
            torch.cond(x.sum() > 0, lambda: x * 2, lambda: x + 1)
    except Exception as error:
        pytest.skip(f"torch.cond could not be captured: {error}")
    finally:
        handle.remove()
    work = traced(tmp_path / "trace.json", graph, replays=1)
    print("conditional:", seen, work)
    assert seen


def test_reduce_overhead_of_torch_compile(by_modules: Recorded, tmp_path: Path) -> None:
    net, x, target = prepare(layers=2)
    compiled = torch.compile(net, mode="reduce-overhead")
    try:
        for _ in range(4):
            compiled(x, target).backward()
        torch.cuda.synchronize()
    except Exception as error:
        pytest.skip(f"torch.compile does not work here: {str(error).splitlines()[0]}")
    with profiled(str(tmp_path / "trace.json")):
        compiled(x, target).backward()
    found, work = by_modules.annotated(), graph_work(tmp_path / "trace.json")
    by_region = Counter(
        (found.get(node, {}).get("name"), found.get(node, {}).get("autograd_phase")) for node, _, _ in work
    )
    print("reduce-overhead:", len(work), by_region)
    assert work, "nothing ran as a graph"
    assert set(by_region) == {("Net", None), ("Net", "backward")}


def test_a_captured_exception_leaves_the_next_capture_whole(by_modules: Recorded, tmp_path: Path) -> None:
    net, step = training_step(layers=2)

    def broken() -> None:
        net.layers[0](torch.randn(4, 128, 256, device="cuda", dtype=torch.bfloat16))
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        captured(broken)
    graph = captured(step)
    found, work = by_modules.annotated(), traced(tmp_path / "trace.json", graph)
    assert sum("name" in found.get(node, {}) for node, _, _ in work) >= 0.99 * len(work)


def test_eager_backward_has_the_regions_of_forward(by_modules: Recorded, tmp_path: Path) -> None:
    from annotq.agent.kineto import read_trace

    net, x, target = prepare(layers=2)

    def step() -> None:
        net(x, target).backward()

    warm_up(step)
    with profiled(str(tmp_path / "rank0.json")):
        step()
        step()
    with read_trace(tmp_path / "rank0.json", rank=0) as trace:
        found = [row for batch in trace.gpu_events() for row in batch.to_pylist() if row["kind"] == "kernel"]
    phases = Counter(row["phase"] for row in found)
    print("eager:", phases, Counter(row["name"][:50] for row in found if row["region"] is None).most_common(5))
    assert phases["backward"] > phases["forward"] > 0
    assert phases[None] <= 0.05 * len(found)
    names = {row["region"] for row in found if row["phase"] == "backward"}
    assert {"layers.1.mlp.down", "layers.0.attn.qkv"} <= names


def test_removing_gives_torch_back() -> None:
    from torch.cuda import _graph_annotations as annotations

    own = annotations._cuda_runtime
    installed = GraphNames()
    source = installed.install(modules=True)
    installed.remove()
    assert annotations._cuda_runtime is own
    assert not node_ids.is_installed()
    if source.name == "cupti":
        assert not torch.cuda.graph_annotations.is_available()
        graph = captured(lambda: torch.ones(4, device="cuda"), enable_annotations=True)
        with pytest.raises(RuntimeError, match="cudaGraphNodeGetToolsId"):
            graph.get_graph_data()
    print("ids:", source)
