"""What start() switches on so that captured work gets names, in one place: node ids, annotated captures, collectives, modules."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from annotq.agent import node_ids
from annotq.agent.node_ids import IdSource

if TYPE_CHECKING:
    from annotq.agent.captures import Captures
    from annotq.agent.module_regions import ModuleRegions


class _Removable(Protocol):
    """What has a remove()."""

    def remove(self) -> None:
        """Undo install()."""


class GraphNames:
    """Installed by start(), removed by stop(). Touches nothing where torch is missing or unknown."""

    def __init__(self) -> None:
        self._parts: list[_Removable] = []
        self._captures: Captures | None = None
        self._modules: ModuleRegions | None = None

    def install(self, *, modules: bool = False) -> IdSource:
        """Switch everything on; says where node ids come from. modules: also regions named after modules and optimizers.

        To be called once, before the first capture. Imports torch.
        """
        source = node_ids.install()
        if source.name != "none":
            from annotq.agent.captures import Captures
            from annotq.agent.collective_regions import CollectiveRegions

            collectives = CollectiveRegions()
            self._captures = Captures(collectives.watch, self._around)
            self._captures.install()
            self._parts = [self._captures, collectives]
        if modules and find_spec("torch") is not None:
            from annotq.agent.module_regions import ModuleRegions
            from annotq.agent.optimizer_regions import OptimizerRegions

            self._modules, optimizers = ModuleRegions(), OptimizerRegions()
            self._modules.install()
            optimizers.install()
            self._parts += [self._modules, optimizers]
        return source

    def region_of(self, graph: Any) -> dict[str, Any] | None:
        """What the region annotates with in which the capture of a torch.cuda.CUDAGraph began; None: in none."""
        return self._captures.region_of(graph) if self._captures is not None else None

    def _around(self) -> dict[str, Any] | None:
        from annotq.agent.graph_snapshots import PATH_SEPARATOR
        from annotq.agent.region_path import current_path

        if path := str(current_path()):
            return {"name": path.rpartition(PATH_SEPARATOR)[2], "region_path": path}
        return self._modules.around() if self._modules is not None else None

    def remove(self) -> None:
        """Give torch back as it was. To be called while nothing is captured and no collective is being issued."""
        while self._parts:
            self._parts.pop().remove()
        node_ids.remove()
