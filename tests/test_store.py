"""A storage: what an index of another schema version says, and what a storage holds that was never one."""

from __future__ import annotations

import pytest

from ctx_pipeline.errors import StorageError
from ctx_pipeline.index.schemas import SCHEMA_VERSION
from ctx_pipeline.index.search import SearchIndex
from ctx_pipeline.index.tables import Store
from ctx_pipeline.inspection import index_status
from tests.project import Project


@pytest.fixture
def of_another_version(project: Project) -> Project:
    project.write("a.md", "# A\n\nText.\n")
    project.refresh()
    project.pipeline().store.set_state(schema_version="999")
    return project


def test_an_index_of_another_schema_version_is_refused_naming_both_and_the_remedy(of_another_version: Project) -> None:
    store = Store(of_another_version.root / "index")
    message = rf"index at .*index has schema version 999, this program reads {SCHEMA_VERSION}; .*another storage\.uri"
    for _ in range(2):
        with pytest.raises(StorageError, match=message):
            store.connect()
    with pytest.raises(StorageError, match=message):
        store.create()
    with pytest.raises(StorageError, match=message):
        SearchIndex.open(of_another_version.root / "index", of_another_version.settings)


def test_nothing_touches_an_index_of_another_schema_version(of_another_version: Project) -> None:
    index = of_another_version.root / "index"
    before = {path: path.stat().st_mtime_ns for path in index.rglob("*.lance/*") if path.is_file()}
    of_another_version.write("b.md", "# B\n\nText.\n")
    with pytest.raises(StorageError, match="schema version 999"):
        of_another_version.refresh()
    with pytest.raises(StorageError, match="schema version 999"):
        index_status(of_another_version.pipeline())
    assert {path: path.stat().st_mtime_ns for path in index.rglob("*.lance/*") if path.is_file()} == before


def test_an_index_of_this_schema_version_opens(project: Project) -> None:
    project.write("a.md", "# A\n\nText.\n")
    project.refresh()
    assert Store(project.root / "index").state()["schema_version"] == SCHEMA_VERSION
