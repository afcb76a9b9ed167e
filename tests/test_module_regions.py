"""start(modules=True): regions named after the module path, eager here; a capture is stood in for by recording what is marked."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from annotq.agent import module_regions, optimizer_regions, regions  # noqa: E402
from annotq.agent.capture_marks import CaptureMarks  # noqa: E402
from annotq.agent.module_names import ModuleNames  # noqa: E402
from annotq.agent.module_regions import ModuleRegions  # noqa: E402
from annotq.agent.region_path import current_path  # noqa: E402


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(4, 4)
        self.mlp = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(x))


class Net(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def hooks() -> Iterator[ModuleRegions]:
    installed = ModuleRegions()
    installed.install()
    yield installed
    installed.remove()


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The region paths that a capture would get, in the order in which the regions are entered."""
    found: list[str] = []

    @contextmanager
    def mark_kernels(annotation: dict[str, Any]) -> Iterator[None]:
        found.append(annotation["region_path"])
        yield

    monkeypatch.setattr(regions, "mark_kernels", mark_kernels)
    monkeypatch.setattr(regions, "_capturing", lambda: True)
    monkeypatch.setattr(module_regions, "_capturing", lambda: True)
    monkeypatch.setattr(module_regions, "_is_seen", lambda: True)
    return found


ONE_BLOCK = ["Net", "Net > layers.0", "Net > layers.0 > layers.0.attn", "Net > layers.0 > layers.0.mlp"]


def test_a_capture_gets_the_module_path(hooks: ModuleRegions, marked: list[str]) -> None:
    Net(1)(torch.ones(4))
    assert marked == ONE_BLOCK


def test_eager_work_gets_it_while_a_profiler_runs(hooks: ModuleRegions) -> None:
    net, x = Net(1), torch.ones(4)
    net(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        net(x)
    assert [event.name for event in profile.events() if event.is_user_annotation] == [
        "Net",
        "layers.0",
        "layers.0.attn",
        "layers.0.mlp",
    ]


def test_nothing_is_entered_without_capture_and_profiler(hooks: ModuleRegions) -> None:
    Net(1)(torch.ones(4))
    assert current_path() == ""
    assert hooks._calls.stack == []


def test_a_region_of_the_user_is_inside(hooks: ModuleRegions, marked: list[str]) -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with regions.region("rope"):
                return x + 1

    with regions.region("train"):
        Own()(torch.ones(4))
    assert marked == ["train", "train > Own", "train > Own > rope"]


def test_a_part_called_on_its_own_keeps_its_place(hooks: ModuleRegions, marked: list[str]) -> None:
    net, x = Net(2), torch.ones(4)
    net(x)
    marked.clear()
    net.layers[1].mlp(x)
    assert marked == ["Net > layers.1 > layers.1.mlp"]
    assert current_path() == ""


def test_the_recomputation_of_a_checkpoint_has_the_names_of_the_forward(
    hooks: ModuleRegions, marked: list[str]
) -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    out = Checkpointed(1)(torch.ones(4))
    forward = [path for path in marked if path != "Checkpointed"]
    marked.clear()
    out.sum().backward()
    assert marked == forward != []


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt])
def test_an_exception_in_forward_leaves_every_region(
    hooks: ModuleRegions, marked: list[str], stop: type[BaseException]
) -> None:
    net, x = Net(1), torch.ones(4)
    handle = net.layers[0].mlp.register_forward_hook(lambda *_: (_ for _ in ()).throw(stop()))
    with pytest.raises(stop):
        net(x)
    handle.remove()
    marked.clear()
    net(x)
    assert marked == ONE_BLOCK
    assert current_path() == ""
    assert hooks._calls.stack == []


def test_a_module_that_calls_itself(hooks: ModuleRegions, marked: list[str]) -> None:
    class Tree(nn.Module):
        def forward(self, x: Tensor, depth: int) -> Tensor:
            return self(x, depth - 1) if depth else x

    Tree()(torch.ones(1), 2)
    assert marked == ["Tree"]  # the same name within itself says nothing new
    assert hooks._calls.stack == []


def test_threads_do_not_see_each_others_modules(hooks: ModuleRegions, marked: list[str]) -> None:
    net, inside, done = Net(1), threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            inside.set()
            assert done.wait(30)
            return x

    thread = threading.Thread(target=Waits(), args=(torch.ones(4),))
    thread.start()
    assert inside.wait(30)
    net(torch.ones(4))
    done.set()
    thread.join()
    assert sorted(marked) == sorted(["Waits", *ONE_BLOCK])


def test_compiled_code_is_left_alone(hooks: ModuleRegions, marked: list[str]) -> None:
    net, x = Net(1), torch.ones(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        hooks.remove()
        hooks.install()  # its filter must stand above that of the user
        compiled = torch.compile(net, backend="eager", fullgraph=True)
        compiled(x)
        marked.clear()
        compiled(x)
    assert marked == ["Net"]  # the compiled whole; what is inside is one graph


def test_jit_tracing_sees_no_hook(hooks: ModuleRegions, marked: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(Net(1), (torch.ones(4),), check_trace=False)
    assert marked == []


def test_wrappers_do_not_show(hooks: ModuleRegions, marked: list[str]) -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    DistributedDataParallel(Net(1))(torch.ones(4))
    assert marked == ONE_BLOCK


def test_a_layer_put_in_later_has_its_place_and_one_made_in_forward_its_class(
    hooks: ModuleRegions, marked: list[str]
) -> None:
    class Makes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.ReLU()(x)

    net, x = Net(1), torch.ones(4)
    net(x)
    net.layers.append(Makes())
    marked.clear()
    net(x)
    assert marked[-2:] == ["Net > layers.1", "Net > layers.1 > layers.1.ReLU"]


def test_names_do_not_keep_a_model_alive() -> None:
    names, net = ModuleNames(), Net(1)
    assert names.of(net.layers[0], [net]).name == "layers.0"
    assert len(names._known) == 5
    del net
    gc.collect()
    assert len(names._known) == 0


def test_a_module_that_cannot_be_looked_up_only_loses_its_name(hooks: ModuleRegions, marked: list[str]) -> None:
    class Unhashable(nn.Module):
        __hash__ = None  # type: ignore[assignment]

        def forward(self, x: Tensor) -> Tensor:
            return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert Unhashable().forward(torch.ones(1)) == 1
        assert Unhashable()(torch.ones(1)) == 1
    assert current_path() == ""


def test_without_hooks_torch_is_as_it_was(hooks: ModuleRegions, marked: list[str]) -> None:
    hooks.install()
    hooks.remove()
    Net(1)(torch.ones(4))
    assert marked == []
    assert not any("global hooks" in str(entry[1]) for entry in warnings.filters)


def test_adding_up_gradients_is_named_after_the_owner(
    hooks: ModuleRegions, marked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[dict[str, Any]] = []
    monkeypatch.setattr(CaptureMarks, "begin", lambda self: "scope")
    monkeypatch.setattr(CaptureMarks, "end", lambda self, scope, fields: ended.append(fields))
    net, x = Net(1), torch.ones(4)
    for _ in range(2):  # the second time the hooks of the first must not count twice
        ended.clear()
        net(x).sum().backward()
        assert sorted(fields["name"] for fields in ended) == ["layers.0.attn"] * 2 + ["layers.0.mlp"] * 2
        assert {fields["autograd_phase"] for fields in ended} == {"backward"}
    hooks.remove()
    ended.clear()
    net(x).sum().backward()
    assert ended == []


def test_an_optimizer_has_the_name_that_the_profiler_gives_it(
    monkeypatch: pytest.MonkeyPatch, marked: list[str]
) -> None:
    monkeypatch.setattr(optimizer_regions, "_capturing", lambda: True)
    installed = optimizer_regions.OptimizerRegions()
    installed.install()
    net = nn.Linear(2, 2)
    net(torch.ones(2)).sum().backward()
    torch.optim.SGD(net.parameters()).step()
    installed.remove()
    torch.optim.SGD(net.parameters()).step()
    assert marked == ["Optimizer.step#SGD.step"]
    assert current_path() == ""
