"""Searches that meet damage, filters that fail and defects: each is told as what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ctx_pipeline.chunking.recursive import RecursiveChunker
from ctx_pipeline.embedding.hashing import HashingEmbedder
from ctx_pipeline.errors import CtxError, QueryError, StorageError
from ctx_pipeline.index import legs as legs_module
from ctx_pipeline.index.maintenance import ensure_vector_index
from ctx_pipeline.index.search import SearchIndex
from tests.project import Project

FULL_TEXT = ("text_spanish", "text_english", "identifiers")


@pytest.fixture
def index(project: Project) -> SearchIndex:
    project.write("runs.md", "# Jobs\n\nA run starts every night and writes its report.\n")
    project.write("errors.md", "# Errors\n\nTS-999 means that the ledger is locked.\n")
    project.write("cuotas.md", "# Cuotas\n\nEl límite del plan sube en mayo.\n")
    project.refresh()
    return SearchIndex.open(project.settings.storage.uri, project.settings)


def spoil(project: Project, *columns: str, remove: bool = False) -> SearchIndex:
    """Zero or remove the files of the indexes on some columns; the index as another process opens it then."""
    for config in project.pipeline().store.table("search_1").list_indices():
        if config.columns[0] in columns:
            folder = project.settings.storage.uri / "search_1.lance" / "_indices" / config.index_uuid
            for file in folder.iterdir():
                file.unlink() if remove else file.write_bytes(b"")
    return SearchIndex.open(project.settings.storage.uri, project.settings)


@pytest.mark.parametrize("remove", [False, True])
def test_without_the_full_text_indexes_the_vector_leg_answers_and_a_warning_says_so(
    index: SearchIndex, project: Project, remove: bool
) -> None:
    spoilt = spoil(project, *FULL_TEXT, remove=remove)
    result = spoilt.search_with_warnings("TS-999 report")
    assert [hit.doc_id for hit in result.hits] == [hit.doc_id for hit in index.search("TS-999 report", mode="vector")]
    assert all(hit.keyword_rank is None for hit in result.hits)
    assert len(result.warnings) == 3
    for column, warning in zip(("identifiers", "text_spanish", "text_english"), result.warnings, strict=True):
        assert f"the full-text index of column {column} cannot be read" in warning
        assert "ctx-pipeline doctor --fix" in warning
    with pytest.raises(StorageError, match="doctor --fix"):
        spoilt.search("TS-999 report", mode="keyword")
    assert spoilt.search_with_warnings("TS-999 report", mode="vector").warnings == []


@pytest.mark.parametrize("column", FULL_TEXT)
def test_one_full_text_column_less_leaves_the_others(index: SearchIndex, project: Project, column: str) -> None:
    result = spoil(project, column).search_with_warnings("TS-999", mode="keyword")
    assert result.hits[0].doc_id == "docs/errors.md"
    assert len(result.warnings) == 1
    assert column in result.warnings[0]


def test_without_the_vector_index_the_keyword_leg_answers(project: Project) -> None:
    for n in range(260):
        project.write(f"d{n}.md", f"# Doc {n}\n\nWords about topic {n} and number {n * 7}.\n")
    project.refresh()
    assert ensure_vector_index(project.pipeline().store.table("search_1"), min_rows=256)
    spoilt = spoil(project, "vector")
    result = spoilt.search_with_warnings("topic 77", where="start = 0")
    assert result.hits[0].doc_id == "docs/d77.md"
    assert [warning[:34] for warning in result.warnings] == ["the vector index of column vector "]
    with pytest.raises(StorageError, match="doctor --fix"):
        spoilt.search("topic 77", mode="vector")


def test_damage_is_not_blamed_on_the_filter(index: SearchIndex, project: Project) -> None:
    spoilt = spoil(project, *FULL_TEXT)
    assert (
        len(spoilt.search_with_warnings("TS-999", where="start = 0", filters={"language": ["en", "es"]}).warnings) == 3
    )
    with pytest.raises(StorageError):
        spoilt.search("TS-999", mode="keyword", where="start = 0")


def test_rows_that_cannot_be_read_are_the_storages_failure(index: SearchIndex, project: Project) -> None:
    for file in (project.settings.storage.uri / "search_1.lance" / "data").iterdir():
        file.write_bytes(b"")
    opened = SearchIndex.open(project.settings.storage.uri, project.settings)
    for where in (None, "start = 0"):
        with pytest.raises(StorageError, match="doctor"):
            opened.search("TS-999", where=where)


@pytest.mark.parametrize("mode", ["hybrid", "keyword", "vector"])
@pytest.mark.parametrize(
    ("where", "said"), [("start / 0 = 1", "zero"), ("cast(doc_id as int) = 1", "Cannot cast string")]
)
def test_a_filter_that_fails_on_the_rows_is_named(index: SearchIndex, mode: Any, where: str, said: str) -> None:
    with pytest.raises(QueryError, match=f"(?i)check the filter .*{said}"):
        index.search("TS-999 report", where=where, mode=mode)


def test_values_and_sql_restrict_every_leg(index: SearchIndex) -> None:
    for mode in ("hybrid", "keyword", "vector"):
        for restricted in ({"filters": {"doc_id": "docs/r*"}}, {"where": "title = 'Jobs'", "filters": {"start": 0}}):
            hits = index.search("TS-999 report", mode=mode, **restricted)  # type: ignore[arg-type]
            assert [hit.doc_id for hit in hits] == ["docs/runs.md"]
    assert "among the rows of the filter" in index.search_with_warnings("report", filters={"title": "none"}).warnings[0]


@pytest.mark.parametrize("where", ["", "title = 'Jobs' garbage", "1=1) OR (1=1", "title = 'Jobs' --"])
def test_the_command_line_refuses_what_is_no_whole_filter(index: SearchIndex, project: Project, where: str) -> None:
    done = project.command("search", "report", "--where", where)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the search failed, check the filter")
    assert done.stderr.count("\n") == 1


# Defects ---------------------------------------------------------------------------------------------------------

DEFECTS = [TypeError("a defect"), KeyError("a defect"), ValueError("a defect"), RuntimeError("a defect"), OSError("x")]


@pytest.mark.parametrize("where", [None, "start = 0"])
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: type(defect).__name__)
def test_a_defect_rises_as_one(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch, defect: Exception, where: str | None
) -> None:
    calls = []

    def fail(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        raise defect

    for module, name in ((legs_module, "query_text"), (HashingEmbedder, "embed_query"), (SearchIndex, "_fuse")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(type(defect)) as raised:
                index.search("report", where=where)
            assert raised.value is defect
    assert len(calls) == 3, "nothing is tried again"


def test_a_wrong_call_into_lancedb_is_a_defect(index: SearchIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legs_module, "timedelta", lambda seconds: "ten seconds")
    with pytest.raises(TypeError):
        index.search("report", where="start = 0", mode="keyword")


@pytest.mark.parametrize("defect", [KeyError("no such heading"), AssertionError(), RuntimeError("a defect")])
def test_a_defect_met_by_one_document_is_told_as_one_and_stops_no_other(
    project: Project, monkeypatch: pytest.MonkeyPatch, defect: Exception
) -> None:
    original = RecursiveChunker.split

    def split(self: RecursiveChunker, parsed: Any) -> Any:
        if "strange" in parsed.text:
            raise defect
        return original(self, parsed)

    monkeypatch.setattr(RecursiveChunker, "split", split)
    project.write("a.md", "# A\n\nstrange\n")
    project.write("b.md", "# B\n\nplain\n")
    result, report = project.dagster_refresh(monkeypatch)
    assert project.documents() == {"docs/b.md"}
    assert report.summary is not None
    reason = report.summary.failures["docs/a.md"]
    assert reason.startswith(f"{type(defect).__name__}: {defect}".strip())
    assert "a defect of ctx-pipeline, not of the document, at index/stages.py:" in reason
    with project.instance() as instance:
        log = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert any("docs/a.md met a defect" in text and "Traceback" in text and "in split" in text for text in log)
    monkeypatch.undo()
    project.refresh(retry=True)
    assert project.documents() == {"docs/a.md", "docs/b.md"}


def test_what_is_wrong_with_a_document_is_no_defect(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("a.md", b"\xff\xfe\xfa")
    result, report = project.dagster_refresh(monkeypatch)
    assert report.summary is not None
    assert "defect" not in report.summary.failures["docs/a.md"]
    with project.instance() as instance:
        assert not any("defect" in entry.user_message for entry in instance.all_logs(result.run_id))


# Hostile queries -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchIndex]:
    project = Project(tmp_path_factory.mktemp("small") / "project")
    project.write("runs.md", "# Jobs\n\nA run of C++ and TS-999, \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645.\n")
    project.write("empty.md", "")
    project.refresh()
    yield SearchIndex.open(project.settings.storage.uri, project.settings)


SCRAPS = ["C++", ".NET", "a/b", "--", "AND", "'", '"', "*", "(", "#", "\\", "\u00ad", "\ud800", "\0"]
QUERIES = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(SCRAPS), max_size=12).map("".join),
    st.builds(lambda character, times: character * times, st.characters(), st.sampled_from([1, 41, 5_000])),
)


@given(QUERIES)
@example("C++" * 20_000)
@example("a_" * 30_000)
@example("\u200d\u0301" * 30_000)
@hypothesis_settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_query_fails(small_index: SearchIndex, query: str) -> None:
    for mode in ("keyword", "hybrid"):
        try:
            hits = small_index.search(query, mode=mode)  # type: ignore[arg-type]
        except CtxError as error:  # pragma: no cover
            raise AssertionError(f"{query[:100]!r} is taken for something else than text") from error
        assert {hit.doc_id for hit in hits} <= {"docs/runs.md"}
