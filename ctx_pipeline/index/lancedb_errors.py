"""LanceDB's own errors, told from defects of this program, and calls into LanceDB that may not take for ever."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar

from ctx_pipeline.errors import CtxError

Result = TypeVar("Result")
_RUST_PLACE = re.compile(r",? /\S+\.rs(:\d+)*")
_MESSAGE_CHARACTERS = 300


class LegError(CtxError):
    """LanceDB could not read: a file of an index is gone or damaged, or the version is no longer there."""


@contextmanager
def lancedb_errors() -> Iterator[None]:
    """Raises LegError for what LanceDB raises; only calls into LanceDB stand inside, so that nothing else is taken
    for its error. It has no class of its own: Rust's errors come as RuntimeError, ValueError and OSError, its panics
    from a module of the binding. A TypeError or KeyError, from inside LanceDB too, is a wrong call of ours."""
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        raise LegError(message_of(error)) from error
    except Exception as error:
        if type(error).__module__.startswith("pyo3"):
            raise LegError(message_of(error)) from error
        raise


def message_of(error: Exception) -> str:
    """The error on one line, without places in the source code of others."""
    return _RUST_PLACE.sub("", " ".join(str(error).split()))[:_MESSAGE_CHARACTERS]


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """What `call` returns or raises. Raises TimeoutError after so many seconds; the call goes on unheard then, in a
    thread that keeps no process alive, because neither Python nor a plan of LanceDB's can be interrupted."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="search-with-a-filter", daemon=True).start()
    return future.result(seconds)
