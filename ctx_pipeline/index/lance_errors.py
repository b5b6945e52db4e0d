"""What LanceDB raises: it has no class of its own for damage, and wraps what the operating system says."""

from __future__ import annotations

import errno
import re

LANCE_ERRORS = (RuntimeError, ValueError, OSError)
"""Raised when a file of a table is missing, damaged or cannot be read now."""
PANICS = ("pyo3_runtime", "pyo3_async_runtimes")
"""Where the errors of LanceDB's own defects come from, which damaged data bring about; they have no class to name."""
LONGEST = 200
_PLACE_IN_SOURCE = re.compile(r",? /\S+\.rs:\d+:\d+.*", re.S)
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def lance_message(error: BaseException) -> str:
    """The error in one line, without the place in LanceDB's own source."""
    return " ".join(_PLACE_IN_SOURCE.sub("", str(error)).split())[:LONGEST] or type(error).__name__


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
