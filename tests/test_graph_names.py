"""What start() switches on and stop() off again, as far as it can be seen without a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from annotq.agent import node_ids  # noqa: E402
from annotq.agent.graph_names import GraphNames  # noqa: E402
from annotq.agent.node_ids import IdSource  # noqa: E402

graphs = pytest.importorskip("torch.cuda.graphs")
if not hasattr(graphs, "register_graph_capture_start_hook"):
    pytest.skip("needs torch 2.14", allow_module_level=True)


def hooks() -> dict[str, int]:
    from torch.nn.modules import module
    from torch.optim import optimizer

    return {
        "captures": len(graphs._global_capture_start_hooks) + len(graphs._global_capture_end_hooks),
        "replays": len(graphs._global_replay_start_hooks) + len(graphs._global_replay_end_hooks),
        "modules": len(module._global_forward_pre_hooks) + len(module._global_forward_hooks),
        "optimizers": len(optimizer._global_optimizer_pre_hooks) + len(optimizer._global_optimizer_post_hooks),
    }


@pytest.mark.parametrize(
    ("source", "modules", "expected"),
    [
        ("driver", False, {"captures": 2, "replays": 0, "modules": 0, "optimizers": 0}),
        ("driver", True, {"captures": 2, "replays": 0, "modules": 2, "optimizers": 2}),
        ("none", True, {"captures": 0, "replays": 0, "modules": 2, "optimizers": 2}),
        ("none", False, {"captures": 0, "replays": 0, "modules": 0, "optimizers": 0}),
    ],
)
def test_hooks_come_and_go(
    monkeypatch: pytest.MonkeyPatch, source: str, modules: bool, expected: dict[str, int]
) -> None:
    monkeypatch.setattr(node_ids, "install", lambda: IdSource(source))
    before = hooks()
    names = GraphNames()
    assert names.install(modules=modules) == IdSource(source)
    assert {name: count - before[name] for name, count in hooks().items()} == expected
    names.remove()
    names.remove()
    assert hooks() == before


def test_a_replay_runs_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_ids, "install", lambda: IdSource("driver"))
    names = GraphNames()
    names.install(modules=True)
    assert not graphs._global_replay_start_hooks
    assert not graphs._global_replay_end_hooks
    names.remove()
