"""LanceDB's own errors, told from defects of this program, and calls into LanceDB that may not take for ever.

It has no class of its own for damage, and wraps what the operating system says.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar

from ctx_pipeline.errors import CtxError

Result = TypeVar("Result")

LANCE_ERRORS = (RuntimeError, ValueError, OSError)
"""Raised when a file of a table is missing, damaged or cannot be read now."""
PANICS = ("pyo3_runtime", "pyo3_async_runtimes")
"""Where the errors of LanceDB's own defects come from, which damaged data bring about; they have no class to name."""
MESSAGE_CHARACTERS = 300
_PLACE_IN_SOURCE = re.compile(r",? /\S+\.rs(:\d+)*")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


class LegError(CtxError):
    """LanceDB could not read: a file of an index is gone or damaged, or the version is no longer there."""


@contextmanager
def lancedb_errors() -> Iterator[None]:
    """Raises LegError for what LanceDB raises; only calls into LanceDB stand inside, so that nothing else is taken
    for its error. A TypeError or KeyError, from inside LanceDB too, is a wrong call of ours."""
    try:
        yield
    except Exception as error:
        if is_lance_error(error):
            raise LegError(lance_message(error)) from error
        raise


def lance_message(error: BaseException) -> str:
    """The error on one line, without places in LanceDB's own source."""
    return _PLACE_IN_SOURCE.sub("", " ".join(str(error).split()))[:MESSAGE_CHARACTERS] or type(error).__name__


def is_lance_error(error: Exception) -> bool:
    """Whether LanceDB may have raised an error because of what it read, or could not read."""
    return isinstance(error, LANCE_ERRORS) or type(error).__module__ in PANICS


def is_of_the_moment(error: BaseException) -> bool:
    """Whether the machine refused (permission, input or output, descriptors, memory): no proof of damage.

    A file that is not there is the one answer of the machine that speaks of the table.
    """
    if isinstance(error, MemoryError):
        return True
    numbers = {int(number) for number in _OS_ERROR.findall(str(error))}
    if isinstance(error, OSError) and error.errno is not None:
        numbers.add(error.errno)
    return bool(numbers - {errno.ENOENT})


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
