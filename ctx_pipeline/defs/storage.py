"""Whether Dagster's own storage can be used, and a cheap look at its partition keys. Loads no Dagster."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from ctx_pipeline.errors import CtxError, DagsterStorageError
from ctx_pipeline.settings_file import settings_file

EVENTS = Path("history") / "runs" / "index.db"
"""Where Dagster's embedded storage keeps events and partition keys, below its home."""
_LOCKED = "locked"


def home_folder() -> Path:
    """`DAGSTER_HOME`, else the folder `dagster_home` beside the settings file; it may not be there."""
    return Path(os.environ.get("DAGSTER_HOME") or settings_file().parent / "dagster_home").absolute()


@contextmanager
def storage_errors(home: Path) -> Iterator[None]:
    """What a database raises becomes a DagsterStorageError that names the file, where one is to blame, and a remedy."""
    try:
        yield
    except CtxError:
        raise
    except Exception as error:
        cause = _database_error(error)
        if cause is None:
            raise
        raise _told(home, cause) from error


def keys_are_lost(home: Path, partitions: str, documents: int) -> bool:
    """Whether the embedded storage of an instance has other than `documents` partition keys: its history is gone.

    Costs less than a millisecond. False where the instance keeps its events elsewhere, or nobody can tell.
    """
    settings = home / "dagster.yaml"
    try:
        if settings.exists() and any(line.startswith(("storage:", "event_log")) for line in settings.open()):
            return False
        if not (home / EVENTS).exists():
            return documents > 0
        with closing(_open(home / EVENTS)) as connection:
            query = "SELECT count(*) FROM dynamic_partitions WHERE partitions_def_name = ?"
            [found] = connection.execute(query, [partitions]).fetchone()
            return bool(found != documents)
    except (OSError, sqlite3.Error):
        return False


def _told(home: Path, cause: BaseException) -> DagsterStorageError:
    reason = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    problem = f"the storage of Dagster at {home} cannot be used: {reason}"
    if _LOCKED in reason:
        return DagsterStorageError(problem, "end the process that holds it (`dagster dev`, a backup), or wait for it")
    broken = _broken_file(home)
    if broken is None:
        return DagsterStorageError(
            problem, "see to its database, permissions and disk; or name another folder by DAGSTER_HOME"
        )
    return DagsterStorageError(
        f"{problem} ({broken})",
        f"restore {broken} from a backup, or move it away and run `ctx-pipeline doctor --fix`: "
        "partition keys are made again from the ledger, the history of runs is not",
    )


def _broken_file(home: Path) -> Path | None:
    """The first database below `home` that SQLite cannot read."""
    for path in sorted(home.rglob("*.db")):
        try:
            with closing(_open(path)) as connection:
                if connection.execute("PRAGMA quick_check").fetchone() != ("ok",):
                    return path
        except sqlite3.Error:
            return path
    return None


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=1)


def _database_error(error: BaseException | None) -> BaseException | None:
    """The error of a database, or of the machine, that is at the bottom of another one."""
    from sqlalchemy.exc import SQLAlchemyError

    while error is not None:
        if isinstance(error, SQLAlchemyError):
            return getattr(error, "orig", None) or error
        if isinstance(error, sqlite3.Error | OSError):
            return error
        error = error.__cause__ or error.__context__
    return None
