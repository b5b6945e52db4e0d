"""Kills refreshes at random moments and checks that nothing is lost, doubled or half shown.

    python -m benchmarks.kills [--kills 20] [--seed 1]

Run it from the repository's folder, with the project installed (tests/ included); about ten minutes on 2 cores.
Everything is written to temporary folders and removed.

Each round edits, adds, deletes and renames some of 40 small documents, starts a refresh as a Dagster run and ends it by
SIGKILL after a random time, counted from the start of the run or of the refresh in it. After half of the kills the
documents are put back as they were before the round. All the while another process reads the live search table: each
document must have one content hash and the ordinals 0..n-1, and those documents that are only ever edited must be
there. After every fifth kill, and at the end, a refresh is left alone, and chunks, contexts and search rows must equal
those of an index built from scratch; ledger and partition keys must agree, `doctor` must find nothing, and no Dagster
run may be left started.

Prints how many kills came after which commit point. Exits with 1 on any difference.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

import ctx_pipeline.index.batches
from benchmarks.measured import warm_up
from benchmarks.workspace import ROOT, generated_document
from ctx_pipeline.defs.launch import run_refresh
from ctx_pipeline.defs.refresh import Report
from ctx_pipeline.doctor import diagnose
from ctx_pipeline.errors import CtxError
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.schemas import CHUNKS, CONTEXTS
from ctx_pipeline.index.tables import Store
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings_file import load_settings
from ctx_pipeline.summary import RefreshOptions
from tests.project import Project

DOCUMENTS, LASTING = 40, 10
"""Documents to begin with, and how many of them are only ever edited."""
CHARACTERS = 1_500
BATCH_DOCUMENTS = 4
"""Small batches, so that a refresh has many commit points."""
CHECK_EVERY = 5
LAUNCHED, BEGUN = "run started", "refresh begun"


class Corpus:
    """Documents of a project that change by chance."""

    def __init__(self, project: Project, chance: random.Random) -> None:
        self._project, self._chance = project, chance
        self._editions = 0
        self._before: dict[str, bytes] = {}
        for number in range(DOCUMENTS):
            self._write(f"lasting-{number}.md" if number < LASTING else f"d{number}.md")

    def change(self) -> None:
        """Edit seven documents, add two, delete two, rename two."""
        self._before = {path.name: path.read_bytes() for path in self._paths()}
        for path in self._chance.sample(self._paths(), 7):
            self._write(path.name)
        for _ in range(2):
            self._write(f"new-{self._editions}.md")
        passing = [path for path in self._paths() if not path.name.startswith("lasting-")]
        chosen = self._chance.sample(passing, 4)
        for path in chosen[:2]:
            path.unlink()
        for path in chosen[2:]:
            self._editions += 1
            path.rename(path.with_name(f"renamed-{self._editions}.md"))

    def undo(self) -> None:
        """Put the documents back as they were before the last change."""
        for path in self._paths():
            if path.name not in self._before:
                path.unlink()
        for name, data in self._before.items():
            self._project.write(name, data)

    def _paths(self) -> list[Path]:
        return sorted(self._project.docs.iterdir())

    def _write(self, name: str) -> None:
        self._editions += 1
        self._project.write(name, generated_document(self._editions, edition=0, characters=CHARACTERS))


@dataclass
class Tally:
    """What happened so far."""

    killed_after: Counter[str] = field(default_factory=Counter)
    ended_before: int = 0
    differences: list[str] = field(default_factory=list)


def kill_refresh(project: Project, since: str, delay_s: float) -> str | None:
    """Start a refresh and kill it `delay_s` after it says `since`; its last commit point, None if it ended before."""
    process = _spawn("--refresh", project)
    reached = [""]
    timer = threading.Timer(delay_s, process.kill)
    assert process.stdout is not None
    for line in process.stdout:
        reached.append(line.strip())
        if reached[-1] == since:
            timer.start()
    code = process.wait()
    timer.cancel()
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"the refresh ended with {code} after {reached[-1]!r}, and not by the kill")
    return reached[-1] if code else None


def timed_refresh(project: Project) -> dict[str, float]:
    """An undisturbed refresh; seconds from its saying LAUNCHED and BEGUN to its end."""
    process = _spawn("--refresh", project)
    said: dict[str, float] = {}
    assert process.stdout is not None
    for line in process.stdout:
        said[line.strip()] = time.monotonic()
    if process.wait():
        raise SystemExit(f"an undisturbed refresh ended with {process.returncode}")
    return {point: time.monotonic() - said[point] for point in (LAUNCHED, BEGUN)}


@contextlib.contextmanager
def watched(project: Project, tally: Tally) -> Iterator[None]:
    """A process reads the search table all the while; what it found wrong is added to the differences."""
    process = _spawn("--watch", project, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        output, _ = process.communicate()  # closing its standard input ends it
        reads, *problems = output.splitlines() or ["0"]
        print(f"reader: {reads} reads of the live table, {len(problems)} problems")
        tally.differences += problems if int(reads) and not process.returncode else ["the reader failed"]


def differences(project: Project, folder: Path) -> list[str]:
    """Where the project differs from an index of the same documents that is built from scratch."""
    fresh = Project(folder)
    for path in project.docs.iterdir():
        fresh.write(path.name, path.read_bytes())
    fresh.refresh()
    found = []
    if project.search_rows() != fresh.search_rows():
        found.append("search rows")
    for table in (CHUNKS, CONTEXTS):
        if _rows(project, table) != _rows(fresh, table):
            found.append(f"rows of {table}")
    ledger = Ledger.read(project.pipeline().store).rows
    if not set(ledger) == project.keys() == project.documents():
        found.append("ledger, partition keys and searchable documents do not agree")
    found += [f"{row.doc_id} is still owed work" for row in ledger.values() if row.writing or row.failure]
    found += [f"doctor: {finding.message}" for finding in diagnose(project.pipeline(), project.keys)]
    unfinished = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.NOT_STARTED]
    with project.instance() as instance:
        runs = instance.get_runs(filters=dg.RunsFilter(statuses=unfinished))
    found += [f"run {entry.run_id} is left {entry.status.value}" for entry in runs]
    return found


def refresh() -> None:
    """`--refresh`: a refresh as a Dagster run that says on standard output how far it has come."""
    original = Pipeline.refresh

    def told(self: Pipeline, *arguments: Any, **options: Any) -> Any:
        print(BEGUN, flush=True)
        return original(self, *arguments, **{**options, "on_commit": lambda point: print(point, flush=True)})

    Pipeline.refresh = told  # type: ignore[method-assign]
    ctx_pipeline.index.batches.BATCH_DOCUMENTS = BATCH_DOCUMENTS
    warm_up()  # so that more of the kills meet commits, and fewer the loading of models
    print(LAUNCHED, flush=True)
    report = Report()
    if not run_refresh(report, RefreshOptions()):
        sys.exit(f"the refresh failed: {report.error or report.unforeseen}")


def watch() -> None:
    """`--watch`: read the live search table until standard input is closed; prints the reads, then problems."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    store = Store(load_settings().storage.uri)
    lasting = {f"docs/lasting-{number}.md" for number in range(LASTING)}
    problems: dict[str, None] = {}
    reads = 0
    while not ended.is_set():
        try:
            rows = store.all_rows(store.state()["active"], ["doc_id", "ordinal", "content_hash"]).to_pylist()
        except (CtxError, RuntimeError, ValueError) as error:
            problems[f"reader: {type(error).__name__}: {error}"] = None
            continue
        reads += 1
        by_document: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            by_document[row["doc_id"]].append(row)
        for doc_id, found in by_document.items():
            if sorted(row["ordinal"] for row in found) != list(range(len(found))):
                problems[f"reader: {doc_id}: ordinals are not 0..{len(found) - 1}"] = None
            if len({row["content_hash"] for row in found}) != 1:
                problems[f"reader: {doc_id}: rows of two contents"] = None
        problems.update(dict.fromkeys(f"reader: {doc_id} was missing" for doc_id in lasting - by_document.keys()))
    print(reads, *problems, sep="\n")


def main(kills: int, seed: int) -> int:
    """Run the rounds; the exit code."""
    chance, tally = random.Random(seed), Tally()
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder) / "killed")
        corpus = Corpus(project, chance)
        timed_refresh(project)
        corpus.change()
        lasts = timed_refresh(project)
        print(f"an undisturbed refresh takes {lasts[BEGUN]:.1f} s, {lasts[LAUNCHED]:.1f} s with its run", flush=True)
        with watched(project, tally):
            for number in range(1, kills + 1):
                corpus.change()
                since = LAUNCHED if number % 4 == 0 else BEGUN
                point = kill_refresh(project, since, chance.uniform(0, lasts[since]))
                if point is None:
                    tally.ended_before += 1
                else:
                    tally.killed_after[point] += 1
                undone = chance.random() < 0.5
                if undone:
                    corpus.undo()
                when = f"after {point!r}" if point else "too late"
                print(f"kill {number:3} of {kills}: {when}{', edits undone' if undone else ''}", flush=True)
                if number % CHECK_EVERY == 0 or number == kills:
                    timed_refresh(project)
                    found = differences(project, Path(folder) / f"fresh-{number}")
                    tally.differences += [f"after kill {number}: {difference}" for difference in found]
                    print(f"refreshed and compared with an index from scratch: {found or 'equal'}", flush=True)
    print(f"\n{kills - tally.ended_before} refreshes killed, {tally.ended_before} ended before their kill")
    for point, count in tally.killed_after.most_common():
        print(f"  {count:4} after {point}")
    for difference in tally.differences:
        print(f"DIFFERENCE {difference}")
    print("every index equals one from scratch" if not tally.differences else "FAILED")
    return 1 if tally.differences else 0


def _spawn(what: str, project: Project, **options: Any) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CTX_", "DAGSTER_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.kills", what],
        cwd=ROOT,
        env={**inherited, **project.environment},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def _rows(project: Project, table: str) -> list[dict[str, Any]]:
    store = project.pipeline().store
    return sorted(store.table(table).to_arrow().to_pylist(), key=lambda row: str(row["chunk_id"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="refreshes to kill (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the edits and the moments (default: 1)")
    parser.add_argument("--refresh", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.refresh:
        refresh()
    elif given.watch:
        watch()
    else:
        sys.exit(main(given.kills, given.seed))
