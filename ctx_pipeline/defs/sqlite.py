"""Half the price of an event on Dagster's embedded storage."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import dagster as dg


@contextmanager
def held_open(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Keep a connection to the SQLite files that events of this run go to; nothing where there are none.

    Dagster opens and closes a connection for every event, and SQLite writes its log back, with a sync to disk, when
    the last connection of a file closes. With one more that stays open it does so only now and then: 28 instead of 50
    ms an event on a busy disk. Every event is committed all the same.
    """
    folder = Path(instance.root_directory) / "history" / "runs"
    with ExitStack() as stack:
        for name in ("index.db", f"{run_id}.db"):
            if (folder / name).exists():
                connection = stack.enter_context(closing(sqlite3.connect(folder / name)))
                connection.execute("SELECT count(*) FROM sqlite_master").fetchall()  # opens the file in earnest
        yield
