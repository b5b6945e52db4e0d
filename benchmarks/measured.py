"""Measurements taken inside a process: `python -m benchmarks.measured WHAT ...` prints one JSON object.

Started by benchmarks/refresh.py in a workspace's environment; imports and start-up are outside the times.

  first-refresh            a first refresh as a Dagster run, and the bare embedding of the same texts
  refresh core|dagster     a refresh without, or as, a Dagster run
  unchanged COUNT          the command `refresh` with nothing to do, a walk with `stat`, `Pipeline.plan()` COUNT times
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lancedb  # noqa: F401 - start-up
import numpy as np
from numpy.typing import NDArray

import ctx_pipeline.refresh
from ctx_pipeline.cli import cli
from ctx_pipeline.embedding.e5 import E5Embedder
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.index.maintenance import table_bytes
from ctx_pipeline.index.tables import Store
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings import Settings
from ctx_pipeline.settings_file import load_settings
from ctx_pipeline.summary import Summary


@dataclass
class Spent:
    """Elapsed and processor seconds of this process, all threads together."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """Add what passes meanwhile."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall_s += time.perf_counter() - wall
        self.cpu_s += time.process_time() - cpu


class TimedEmbedder(E5Embedder):
    """e5 that embeds everything twice: once for who asks, once for the time that it takes with nothing around.

    Minutes apart, on a machine with other work, the two would not compare.
    """

    def __init__(self, cache_folder: Path | None) -> None:
        super().__init__(cache_folder)
        self.texts: list[str] = []
        self.embedding, self.counting, self.bare = Spent(), Spent(), Spent()

    def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        with self.embedding.adding():
            vectors = super().embed_passages(texts)
        with self.bare.adding():
            super().embed_passages(texts)
        self.texts += texts
        return vectors

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        with self.counting.adding():
            return super().count_tokens(texts)


def first_refresh() -> dict[str, Any]:
    """What is spent in the run, in e5 inside it, and in embedding the same texts with nothing around."""
    settings = load_settings()
    E5Embedder(settings.embedding.path).embed_passages(["builds the model's files"])
    embedder = TimedEmbedder(settings.embedding.path)
    embedder.count_tokens(["loads the model"])
    warm_up()
    ctx_pipeline.refresh.open_embedder = lambda settings: embedder  # type: ignore[attr-defined]
    embedder.counting = Spent()
    run, summary = _dagster_refresh()
    store = Store(settings.storage.uri)
    rows = store.all_rows(store.state()["active"], ["text", "context"]).to_pylist()
    stored = {f"{row['context']}\n\n{row['text']}" if row["context"] else row["text"] for row in rows}
    assert sorted(embedder.texts) == sorted(stored), "the texts of the table are not those that were embedded"
    assert len(stored) == summary.embedded
    return {
        "texts": len(stored),
        "run": {"wall_s": run.wall_s - embedder.bare.wall_s, "cpu_s": run.cpu_s - embedder.bare.cpu_s},
        **{name: asdict(getattr(embedder, name)) for name in ("bare", "embedding", "counting")},
    }


def refresh(how: str) -> dict[str, Any]:
    """Seconds of a refresh, what it did, and the versions and bytes of every table after it."""
    settings = load_settings()
    store = Store(settings.storage.uri)
    before = _versions(store)
    spent, summary = _dagster_refresh() if how == "dagster" else _core_refresh(settings)
    after = _versions(store)
    return {
        **asdict(spent),
        "documents": summary.added + summary.changed,
        "chunks": summary.chunks_indexed,
        "commits": {name: version - before.get(name, 0) for name, version in after.items()},
        "bytes": {name: table_bytes(store, name) for name in after},
        "optimized": [f"{upkeep.table}: {upkeep.reason}" for upkeep in summary.upkeep],
    }


def unchanged(count: int) -> dict[str, Any]:
    """Seconds of the command in this process, of a bare walk, and of `Pipeline.plan()` by a new pipeline each time."""
    settings = load_settings()
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main(["refresh", "--json"], standalone_mode=False)
    command_s = time.perf_counter() - started
    started = time.perf_counter()
    for folder, _, names in os.walk(settings.source[0].path):
        for name in names:
            os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118 - as bare as it can be
    walk_s = time.perf_counter() - started
    plan_s = []
    for _ in range(count):
        started = time.perf_counter()
        plan = Pipeline(settings).plan()
        plan_s.append(time.perf_counter() - started)
        assert not plan.owed, "something is owed: this is to measure that nothing changed"
    return {"command_s": command_s, "walk_s": walk_s, "plan_s": plan_s}


def _core_refresh(settings: Settings) -> tuple[Spent, Summary]:
    spent = Spent()
    with spent.adding():
        pipeline = Pipeline(settings)
        with storage_lock(settings.storage.uri, "a benchmark"):
            summary = pipeline.refresh("benchmark")
    return spent, summary


def _dagster_refresh() -> tuple[Spent, Summary]:
    """The run as the command line starts it, in an instance that is open already."""
    import logging

    import dagster as dg

    from ctx_pipeline.definitions import build_definitions
    from ctx_pipeline.defs.refresh import JOB, Report

    logging.disable(logging.CRITICAL)
    report, spent = Report(), Spent()
    job = build_definitions(report=report).resolve_job_def(JOB)
    with dg.DagsterInstance.get() as instance:
        instance.get_runs(limit=1)
        instance.get_dynamic_partitions("documents")
        with spent.adding():
            job.execute_in_process(
                instance=instance, run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
            )
    assert report.summary is not None
    return spent, report.summary


def warm_up() -> None:
    """Load what the first document of a process would load: a vocabulary and the language detector's model."""
    from ctx_pipeline.chunking.tokens import count_tokens
    from ctx_pipeline.documents.parse import parse

    count_tokens(["warm-up"])
    parse(b"# Calentamiento\n\nUn documento breve, para cargar el modelo de idiomas.\n", "a.md")


def _versions(store: Store) -> dict[str, int]:
    return {name: store.table(name).version for name in sorted(store.names())} if store.exists() else {}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["first-refresh"]:
            found = first_refresh()
        case ["refresh", ("core" | "dagster") as how]:
            found = refresh(how)
        case ["unchanged", count]:
            found = unchanged(int(count))
        case _:
            raise SystemExit(__doc__)
    print(json.dumps(found))
