"""What a collective is, in the words that Kineto uses for an eager one, from what torch tells a process group's hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# c10d::HookOpName to Kineto's "Collective name": of the form with lists of tensors, and of the one with a single tensor.
_NAMES = {
    "SEND": ("send", "send"),
    "RECV": ("recv", "recv"),
    "BROADCAST": ("broadcast", "broadcast"),
    "ALLREDUCE": ("allreduce_coalesced", "allreduce"),
    "REDUCE": ("reduce", "reduce"),
    "ALLGATHER": ("all_gather", "_allgather_base"),
    "REDUCE_SCATTER": ("reduce_scatter", "_reduce_scatter_base"),
    "ALLTOALL": ("all_to_all", "all_to_all"),
    "BARRIER": ("barrier", "barrier"),
    "SCATTER": ("scatter", "scatter"),
    "GATHER": ("gather", "gather"),
}
# As c10 writes torch's types, where that is not the Python name with a capital letter.
_TYPES = {
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "bfloat16": "BFloat16",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}
_POINT_TO_POINT = ("SEND", "RECV")


def group_fields(group: Any) -> dict[str, Any]:
    """The fields that all collectives of a torch.distributed.ProcessGroup share."""
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(group)
    return {
        "Process Group Name": str(group.group_name),
        "Process Group Description": str(group.group_desc),
        "Process Group Ranks": str(list(ranks)),
        "Group size": int(group.size()),
    }


def call_fields(operation: str, inputs: Sequence[Any], outputs: Sequence[Any], root: int) -> dict[str, Any]:
    """The fields of one call: operation is the name of a c10d HookOpName, inputs and outputs are the tensors.

    Elements are counted over all tensors. Of an all_to_all of single tensors the hook does not learn the split sizes: "?"
    stands for them, so that it is not taken for an even one.
    """
    single = len(inputs) <= 1 and len(outputs) <= 1
    fields: dict[str, Any] = {"Collective name": _NAMES.get(operation, (operation.lower(),) * 2)[single]}
    inputs, outputs = inputs or outputs, outputs or inputs
    if inputs:
        fields["dtype"] = _type_name(inputs[0].dtype)
        fields["In msg nelems"] = sum(tensor.numel() for tensor in inputs)
        fields["Out msg nelems"] = sum(tensor.numel() for tensor in outputs)
    if operation == "ALLTOALL":
        known = not single and bool(inputs)
        fields["In split size"] = split_text([tensor.numel() for tensor in inputs]) if known else "?"
        fields["Out split size"] = split_text([tensor.numel() for tensor in outputs]) if known else "?"
    if operation in _POINT_TO_POINT and root >= 0:
        fields["Dst Rank" if operation == "SEND" else "Src Rank"] = root
    elif root >= 0:
        fields["Root Rank"] = root
    return fields


def coalesced_fields(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of several calls that become one kernel: their common ones, their elements added up."""
    if not calls:
        return {}
    names = {call["Collective name"] for call in calls}
    common = {key: value for key, value in calls[0].items() if all(call.get(key) == value for call in calls[1:])}
    for key in ("In msg nelems", "Out msg nelems"):
        if any(key in call for call in calls):
            common[key] = sum(call.get(key, 0) for call in calls)
    if names <= {"send", "recv"} and len(calls) > 1:
        common["Collective name"] = "send_recv"
    else:
        common.setdefault("Collective name", "coalesced")
    return common


def split_text(sizes: Sequence[int]) -> str:
    """Split sizes as Kineto writes them: "[]" for even ones."""
    return "[]" if len(set(sizes)) <= 1 else str(list(sizes))


def _type_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return _TYPES.get(name, name[:1].upper() + name[1:])
