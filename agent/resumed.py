"""Functions that only begin when they are called: coroutines, generators, asynchronous generators.

What has to be inside a region is their running: from each time they are resumed to the next yield, not the call
that makes them, and not what others do while they are suspended at a yield. Only the standard library.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

Region = Callable[[], AbstractContextManager[Any]]


def running_within(function: Callable[..., Any], region: Region) -> Callable[..., Any] | None:
    """`function`, of the same kind, with whatever it runs inside a region of its own; None for a function that runs when it is
    called."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with region():
                return await function(*args, **kwargs)

        return coroutine
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Any:
            return (yield from _generated(function(*args, **kwargs), region))

        return generator
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            inner = function(*args, **kwargs)
            value: Any = None
            error: BaseException | None = None
            while True:
                with region():
                    try:
                        item = await (inner.asend(value) if error is None else inner.athrow(error))
                    except StopAsyncIteration:
                        return
                try:
                    value, error = (yield item), None
                except GeneratorExit:
                    with region():
                        await inner.aclose()
                    raise
                except BaseException as thrown:
                    value, error = None, thrown

        return asynchronous
    return None


def _generated(inner: Generator[Any, Any, Any], region: Region) -> Generator[Any, Any, Any]:
    """As `yield from`, but outside of the region while suspended."""
    value: Any = None
    error: BaseException | None = None
    while True:
        with region():
            try:
                item = inner.send(value) if error is None else inner.throw(error)
            except StopIteration as end:
                return end.value
        try:
            value, error = (yield item), None
        except GeneratorExit:
            with region():
                inner.close()
            raise
        except BaseException as thrown:
            value, error = None, thrown
