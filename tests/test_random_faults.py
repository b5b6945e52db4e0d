"""Tables, index files, the ledger, Dagster's storage and the sources broken one by one and in pairs, at random.

After `doctor`, `doctor --fix` and a refresh nothing that was good is gone, what can be mended is, and what was paid for
stays paid for. `FAULT_ROUNDS` and `FAULT_SEED` set how many rounds the long test takes, and from which on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ctx_pipeline.defs.launch import partition_doc_ids, reconcile_partitions
from ctx_pipeline.doctor import diagnose, fix
from ctx_pipeline.errors import CtxError, SettingsError, StorageError
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.maintenance import maintain
from ctx_pipeline.index.schemas import MEMO
from tests import index_faults
from tests.emulators.messages import KEY, MessagesEmulator
from tests.project import Project

TABLES = ("documents", "chunks", "contexts", "ledger", "state", "search_1", MEMO)
SOURCES = ("docs", "notes")


class Faulty(Project):
    """Two sources, contexts by an emulated model, and an index that was edited and optimized, copied for each round."""

    def __init__(self, root: Path, template: Path | None = None) -> None:
        if template is not None:
            shutil.copytree(template, root)
            self.root, self.docs = root, root / "docs"
            self.sections: dict[str, dict[str, Any]] = {}
        else:
            super().__init__(root)
            (root / "notes").mkdir()
        self.source_lines = "\n[[source]]\n".join(f'name = "{name}"\npath = "{root / name}"' for name in SOURCES) + "\n"
        self.write_settings(
            storage={"uri": str(root / "index"), "retention": 3_600},
            contexts={"method": "claude"},
            chunking={"max_tokens": 96},
            safety={"max_delete_count": 1, "max_delete_share": 0.1},
        )

    @property
    def index(self) -> Path:
        return self.root / "index"

    def keys_of_dagster(self) -> set[str]:
        return partition_doc_ids("documents")


def text(name: str, number: int) -> str:
    parts = [f"# Guide {name} {number}"]
    for part in range(3):
        parts.append(f"## Part {part}\n\n" + f"The rule {name}{number} of part {part} is told here at length. " * 8)
    return "\n\n".join(parts) + "\n"


def make_templates(root: Path) -> tuple[Path, Path]:
    """The same index twice: with old versions and many files, and just optimized to one file a table."""
    project = Faulty(root / "many")
    for name in SOURCES:
        for number in range(4):
            (project.root / name / f"{number}.md").write_text(text(name, number))
    project.refresh()
    for name in SOURCES:
        path = project.root / name / "1.md"
        path.write_text(path.read_text() + "\n## Added\n\nOne more part of it.\n")
        project.refresh()
    (project.docs / "3.md").unlink()
    project.refresh(allow_mass_delete=True)
    shutil.copytree(project.root, root / "one")
    pipeline = Faulty(root / "one_", root / "one").pipeline()
    maintain(pipeline.store, ["search_1"], 0, force=True)
    return project.root, root / "one_"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[MessagesEmulator]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with MessagesEmulator() as emulator:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", emulator.url)
        yield emulator


class Fault:
    """One thing that is broken."""

    def __init__(self, kind: str, subject: str, random: Random, project: Faulty) -> None:
        self.kind, self.subject, self._random, self._project = kind, subject, random, project
        self.detail = ""

    def __repr__(self) -> str:
        return f"{self.kind} of {self.subject}"

    def apply(self) -> None:
        index, root = self._project.index, self._project.root
        if self.kind == "data":
            index_faults.any_data_file(index, self.subject, self._random)
        elif self.kind == "manifest":
            index_faults.any_manifest(index, self.subject, self._random)
        elif self.kind == "folder":
            shutil.rmtree(index_faults.table(index, self.subject))
        elif self.kind == "indexes":
            index_faults.any_index_file(index, self.subject, self._random)
        elif self.kind == "history":
            shutil.rmtree(root / "dagster_home" / "history")
        elif self.kind == "database":
            index_faults.zeroed(root / "dagster_home" / "history" / "runs" / "index.db")
        elif self.kind == "renamed":
            (root / self.subject).rename(root / f"{self.subject} elsewhere")
        elif self.kind == "emptied":
            (root / self.subject).rename(root / f"{self.subject} elsewhere")
            (root / self.subject).mkdir()

    def undo(self) -> None:
        """Bring a source back, or do what the finding about Dagster's database says."""
        root = self._project.root
        if self.kind in ("renamed", "emptied"):
            shutil.rmtree(root / self.subject, ignore_errors=True)
            (root / f"{self.subject} elsewhere").rename(root / self.subject)
        elif self.kind == "database":
            shutil.rmtree(root / "dagster_home" / "history")


def faults(random: Random, project: Faulty) -> list[Fault]:
    """One or two faults of different subjects. A table that is gone without a trace is the one thing that a memo
    cannot be told from one that never was, so that it is not among them."""
    kinds = [("data", name) for name in TABLES] * 2 + [("manifest", name) for name in TABLES]
    kinds += [("folder", name) for name in TABLES if name != MEMO]
    kinds += [("indexes", "search_1")] * 4 + [("history", "dagster"), ("database", "dagster")] * 2
    kinds += [("renamed", name) for name in SOURCES] * 2 + [("emptied", name) for name in SOURCES]
    first, second = random.choice(kinds), random.choice(kinds)
    chosen = [first] if random.random() < 0.3 or first[1] == second[1] else [first, second]
    return [Fault(kind, subject, random, project) for kind, subject in chosen]


def every_row(project: Faulty) -> dict[str, list[str]]:
    """The rows of all tables."""
    store = project.pipeline().store
    return {name: sorted(map(str, store.table(name).to_arrow().to_pylist())) for name in sorted(store.names())}


def searchable(project: Faulty) -> set[str]:
    """Documents of which every row can be read whole."""
    found = set()
    for doc_id in (f"{source}/{number}.md" for source in SOURCES for number in range(4)):
        with suppress(StorageError):
            store = project.pipeline().store
            if store.rows(project.pipeline().search_tables().live, [doc_id]):
                found.add(doc_id)
    return found


def keys(project: Faulty) -> Callable[[], set[str]]:
    return project.keys_of_dagster


def repair(project: Faulty, **options: bool) -> list[str]:
    """`doctor --fix` as the command line does it."""
    pipeline = project.pipeline()
    done = fix(pipeline, **options)
    with suppress(StorageError):
        done += reconcile_partitions("documents", pipeline)
    return done


def play(seed: int, template: Path, folder: Path, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch) -> str:
    """One round; what was broken, in words. Raises AssertionError where a promise is broken."""
    random = Random(seed)
    project = Faulty(folder / f"round-{seed}", template)
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    reconcile_partitions("documents", project.pipeline())
    before, good, paid = project.search_rows(), project.documents(), project.pipeline().store.count(MEMO)
    asked, rows = len(api.bill.entries), every_row(project)
    broken = faults(random, project)
    for fault in broken:
        fault.apply()
    story = f"seed {seed}: {broken}"
    subjects = {fault.subject for fault in broken}
    memo = index_faults.content(index_faults.table(project.index, MEMO))
    away = {fault.subject for fault in broken if fault.kind in ("renamed", "emptied")}
    files = index_faults.content(project.index)

    findings = diagnose(project.pipeline(), keys(project))
    # A data file may be one that only older versions have.
    assert findings or every_row(project) == rows, f"{story}: not found"
    assert all(finding.remedy for finding in findings), story
    after = index_faults.content(project.index)
    after.pop(".writer.lock", None), files.pop(".writer.lock", None)
    assert after == files, f"{story}: doctor changed something"
    intact = searchable(project)

    told = repair(project)
    assert searchable(project) >= intact, f"{story}: less can be found after {told}"
    is_memo_given_up = MEMO in subjects and any("left as it is" in line for line in told)
    if is_memo_given_up:
        assert index_faults.content(index_faults.table(project.index, MEMO)) == memo, f"{story}: the memo was touched"
    else:
        assert project.pipeline().store.count(MEMO) == paid, f"{story}: {told}"

    try:
        project.refresh()
        assert set(Ledger.read(project.pipeline().store).rows) >= good, f"{story}: documents are gone"
    except SettingsError:
        assert away, story
    except StorageError as error:
        assert is_memo_given_up and "doctor" in str(error), f"{story}: {error}"
    assert searchable(project) >= intact, f"{story}: less can be found after a refresh"
    assert len(api.bill.entries) == asked, f"{story}: paid again"
    if away and not is_memo_given_up and "documents" not in subjects:
        # The documents are stored, and everything else follows from them.
        assert project.documents() == good, f"{story}: {told}"

    for fault in broken:
        fault.undo()
    repair(project, give_up_memo=is_memo_given_up)
    project.refresh()
    repair(project)
    assert project.search_rows() == before, f"{story}: other rows than before"
    left = diagnose(project.pipeline(), keys(project))
    assert left == [], f"{story}: {left}"
    if not is_memo_given_up:
        assert len(api.bill.entries) == asked, f"{story}: paid again"
        assert project.pipeline().store.count(MEMO) == paid, story
    shutil.rmtree(project.root)
    return story


def test_what_breaks_at_random_is_mended_and_nothing_good_is_lost(
    tmp_path: Path, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = make_templates(tmp_path)
    for seed in range(6):
        play(seed, templates[seed % 2], tmp_path, api, monkeypatch)


@pytest.mark.long
def test_hundreds_of_faults(tmp_path: Path, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = make_templates(tmp_path)
    first = int(os.environ.get("FAULT_SEED", "1000"))
    failed = []
    for seed in range(first, first + int(os.environ.get("FAULT_ROUNDS", "120"))):
        try:
            print(play(seed, templates[seed % 2], tmp_path, api, monkeypatch))
        except (AssertionError, CtxError, RuntimeError, ValueError, OSError, TypeError, KeyError) as error:
            failed.append(f"{seed}: {type(error).__name__}: {str(error)[:500]}")
            print(failed[-1])
    assert failed == []
