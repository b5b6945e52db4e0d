"""The one error taxonomy: what a failure means for the document, the run and the exit code."""

from __future__ import annotations

import traceback
from pathlib import Path


def counted(count: int, noun: str) -> str:
    """`1 document`, `2 documents`: for messages."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class CtxError(Exception):
    """Base of every error with a message meant for a person: what is wrong, where, and what to do."""


class SettingsError(CtxError):
    """The settings file, an environment variable or a command line argument is wrong."""


class QueryError(CtxError):
    """A query or filter cannot be read."""


class LockHeldError(CtxError):
    """Another process writes to the same storage."""


class StorageError(CtxError):
    """The index cannot be used as it is: another schema, a missing table, no storage."""


class PermanentError(CtxError):
    """One document cannot be indexed as it is; trying again needs other content or other settings."""


class TransientError(CtxError):
    """One document could not be indexed now; the same attempt may succeed later."""


class FatalError(CtxError):
    """Nothing more can be done in this run (authentication, missing model); what is done stays."""


def place_of_defect(error: Exception) -> str:
    """`module.py:line` of this package at which an error that has no message for a person arose, the innermost one.

    Empty for a CtxError, and for an error that was never raised here.
    """
    package = Path(__file__).parent
    if isinstance(error, CtxError):
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if package in Path(frame.filename).parents]
    return f"{Path(frames[-1].filename).relative_to(package).as_posix()}:{frames[-1].lineno}" if frames else ""
