"""These tests need a GPU and a driver; elsewhere they are skipped, and say why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

HERE = Path(__file__).parent


def _missing() -> str:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "no CUDA GPU on this machine"
    from annotq.agent.node_ids import id_source

    source = id_source()
    return f"no graph node ids: {source.why}" if source.name == "none" else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    reason = _missing() if mine else ""
    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
