"""Nodes that no region covers get one where their place says enough, and only there."""

from __future__ import annotations

from typing import Any

import pytest

from annotq.agent.unnamed_nodes import with_unnamed

GRAPH = 7
SUM = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>"
MLP = {"name": "mlp", "region_path": "net > mlp", "autograd_phase": "backward"}
ATTN = {"name": "attn", "region_path": "net > attn", "autograd_phase": "backward"}
FORWARD = {"name": "loss", "region_path": "net > loss"}


def chain(*fields: dict[str, Any] | None, kinds: dict[int, str] | None = None, name: str = SUM) -> tuple[Any, Any]:
    """A graph whose nodes run one after the other, and what torch annotated them with (None: nothing)."""
    kinds = kinds or {}
    nodes = [
        {
            "index": i,
            "tools_id": GRAPH << 32 | i,
            "node_type": kinds.get(i, "kernel"),
            "kernel_name": name,
            "dependencies": [i - 1] if i else [],
            "dependents": [i + 1] if i + 1 < len(fields) else [],
        }
        for i in range(len(fields))
    ]
    return {"nodes": nodes}, {GRAPH << 32 | i: [entry] for i, entry in enumerate(fields) if entry is not None}


def added(*fields: dict[str, Any] | None, around: dict[str, Any] | None = None, **options: Any) -> dict[int, Any]:
    data, annotations = chain(*fields, **options)
    found = with_unnamed(data, annotations, around)
    return {node & 0xFF: found[node][0] for node in found if node not in annotations}


def test_a_sum_of_gradients_has_the_region_of_the_node_before_it() -> None:
    assert added(MLP, None, ATTN) == {1: {**MLP, "between_nodes": True}}


def test_several_in_a_row_and_past_events() -> None:
    assert set(added(MLP, None, None, None, ATTN, kinds={2: "wait_event"})) == {1, 3}


@pytest.mark.parametrize(
    "fields", [(MLP, None, FORWARD), (FORWARD, None, MLP), (None, MLP), (FORWARD, None, FORWARD), (FORWARD, None)]
)
def test_elsewhere_nothing_is_guessed(fields: tuple[dict[str, Any] | None, ...]) -> None:
    assert added(*fields) == {}


def test_the_gradient_that_backward_starts_from_is_of_the_first_node() -> None:
    assert added(FORWARD, None, MLP, name="FillFunctor<float>") == {1: {**MLP, "between_nodes": True}}


def test_a_sum_at_the_end_of_a_backward_graph_is_of_the_last_node() -> None:
    assert added(MLP, None) == {1: {**MLP, "between_nodes": True}}


def test_other_work_between_backward_nodes_may_be_of_a_node_outside_of_regions() -> None:
    assert added(MLP, None, ATTN, name="layer_norm_grad_input_kernel") == {}


def test_a_sum_behind_such_work_is_not_of_the_region_before_that() -> None:
    data, annotations = chain(MLP, None, None, ATTN)
    data["nodes"][1]["kernel_name"] = "layer_norm_grad_input_kernel"
    assert with_unnamed(data, annotations) is annotations


def test_a_long_way_to_the_next_name_is_too_long() -> None:
    assert added(MLP, *[None] * 200, ATTN).keys() < set(range(1, 201))


def test_a_capture_within_a_region_is_of_it_as_a_whole() -> None:
    around = {"name": "Net", "region_path": "Net"}
    assert added(None, FORWARD, None, around=around) == {0: around, 2: around}


def test_what_a_node_has_beside_a_name_stays() -> None:
    data, annotations = chain(MLP, {"Collective name": "allreduce"}, ATTN)
    assert with_unnamed(data, annotations)[GRAPH << 32 | 1][0]["Collective name"] == "allreduce"


def test_with_names_everywhere_torchs_dictionary_is_used_as_it_is() -> None:
    data, annotations = chain(MLP, ATTN)
    assert with_unnamed(data, annotations) is annotations
