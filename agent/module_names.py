"""The names of a model's modules: the path from the outermost one, as in named_modules(), without what wraps them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

# Attributes that hold the module that is meant: torch.compile, FSDP 1, activation checkpointing.
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_WRAPPED_AS_MODULE = ("DistributedDataParallel", "DataParallel")


@dataclass(frozen=True)
class ModuleName:
    """name: "layers.3.attn", of the outermost module its class. above: the names of the modules around it that can be
    called, outermost first."""

    name: str
    above: tuple[str, ...] = ()


class ModuleNames:
    """Remembers the names of the modules it has seen, as long as these live."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, ModuleName] = weakref.WeakKeyDictionary()

    def of(self, module: Any, around: list[Any]) -> ModuleName:
        """The name of a module that is called while those `around` it run, outermost first.

        Called on its own, a part of a model that was seen before keeps its name in it.
        """
        known = self._known.get(module)
        if known is not None:
            return known
        # A new outermost module, or one that was put into the model after it was looked at.
        self._learn(around[0] if around else module)
        known = self._known.get(module)
        if known is None:  # made within forward(), or held where named_modules() does not look
            outer = self._known.get(around[-1], ModuleName("")) if around else ModuleName("")
            name = f"{outer.name}.{type(module).__name__}" if outer.name else type(module).__name__
            known = self._known[module] = ModuleName(name, (*outer.above, outer.name) if outer.name else ())
        return known

    def _learn(self, root: Any) -> None:
        """Walk down from `root`; a part that is already known as part of another model becomes part of this one."""
        known = self._known.get(root)
        own = known or ModuleName(type(_meant(root)).__name__)
        seen: set[int] = set()
        stack: list[tuple[Any, str, ModuleName]] = [(root, own.name if known and known.above else "", own)]
        while stack:
            module, path, name = stack.pop()
            if id(module) in seen:  # shared: the first name, as in named_modules()
                continue
            seen.add(id(module))
            self._known[module] = name
            above = name.above if _is_container(module) else (*name.above, name.name)
            children = [(key, child) for key, child in module._modules.items() if child is not None]
            for key, child in reversed(children):
                if _is_wrapped(module, key):
                    stack.append((child, path, name))
                else:
                    deeper = f"{path}.{key}" if path else key
                    stack.append((child, deeper, ModuleName(deeper, above)))


def _meant(module: Any) -> Any:
    """What a wrapper wraps."""
    for _ in range(8):
        inner = [child for key, child in module._modules.items() if child is not None and _is_wrapped(module, key)]
        if not inner:
            break
        module = inner[0]
    return module


def _is_wrapped(module: Any, key: str) -> bool:
    return key in _WRAPPED or (key == "module" and type(module).__name__ in _WRAPPED_AS_MODULE)


def _is_container(module: Any) -> bool:
    """ModuleList and ModuleDict: they hold modules and are never called."""
    return getattr(type(module).forward, "__name__", "") == "_forward_unimplemented"
