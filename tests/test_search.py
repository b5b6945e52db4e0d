"""Search: both legs, full text for Spanish and English, filters, literal queries, pinned reads."""

from __future__ import annotations

import pytest

from ctx_pipeline.embedding.hashing import HashingEmbedder
from ctx_pipeline.errors import QueryError, StorageError
from ctx_pipeline.index.legs import Legs
from ctx_pipeline.index.maintenance import ensure_vector_index, maintain
from ctx_pipeline.index.search import SearchIndex
from ctx_pipeline.settings import SearchWeights
from tests.project import Project


@pytest.fixture
def index(project: Project) -> SearchIndex:
    project.write("facturas.md", "# Cobros\n\nLa facturación se emite el primer día del mes.\n")
    project.write("limites.md", "# Cuotas\n\nEl límite del plan Pro sube a 1.000 peticiones por minuto.\n")
    project.write("runs.md", "# Jobs\n\nA run starts every night and writes its report.\n")
    project.write("errors.md", '# Errors\n\nTS-999 means that the "ledger" is locked. See error_code {42}.\n')
    project.write("weather.md", "# Weather\n\nSunny days are expected in the whole valley.\n")
    project.refresh()
    return SearchIndex.open(project.settings.storage.uri, project.settings)


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("facturación", "facturas"), ("facturacion", "facturas"), ("facturas", "facturas"), ("FACTURACIÓN", "facturas"),
        ("límites", "limites"), ("limite", "limites"), ("running", "runs"), ("runs", "runs"), ("report", "runs"),
        ("TS-999", "errors"), ("error_code", "errors"),
    ],
)  # fmt: skip
def test_words_are_found_in_either_language_by_their_stem(index: SearchIndex, query: str, document: str) -> None:
    hits = index.search(query, mode="keyword")
    assert hits[0].doc_id == f"docs/{document}.md"
    assert hits[0].keyword_rank == 1
    assert hits[0].vector_rank is None


def test_a_version_number_finds_its_own_release_alone(project: Project) -> None:
    releases = [f"# {number} (2026-03-02)\n\n## Fixes\n\nThe importer of release {number} is mended." for number in
                ("5.0.0", "4.9.0", "4.0.5")]  # fmt: skip
    project.write("history.md", "\n\n".join(releases))
    project.refresh()
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    assert [hit.heading_path[0][:5] for hit in index.search("5.0.0", mode="keyword")] == ["5.0.0"]
    assert index.search("importer 5.0.0", mode="keyword")[0].heading_path[0].startswith("5.0.0")
    assert len(index.search("importer 5.0.0", mode="keyword")) == 3, "other words of the query are asked for as ever"
    assert len(index.search("5.0.9", mode="keyword")) == 3, "a number that no row holds is asked for by its parts"


@pytest.mark.parametrize(
    "query",
    [
        '"',
        '""',
        '"ledger"',
        '"ledger is',
        "a AND (b OR",
        "{42}",
        "ledger:locked^2~",
        "\\",
        "'; DROP TABLE x",
        "💥",
        "%_",
        "\0",
    ],
)
def test_a_query_is_always_literal(index: SearchIndex, query: str) -> None:
    for mode in ("hybrid", "keyword", "vector"):
        index.search(query, mode=mode)  # type: ignore[arg-type]
    assert index.search(f"{query} TS-999", mode="keyword")[0].doc_id == "docs/errors.md"


def test_a_query_of_unknown_words_falls_back_to_the_vector_leg_and_says_so(index: SearchIndex) -> None:
    result = index.search_with_warnings("xyzzy plugh")
    assert len(result.hits) == 5
    assert all(hit.keyword_rank is None for hit in result.hits)
    assert "no word of the query" in result.warnings[0]


def test_an_empty_query_finds_nothing(index: SearchIndex) -> None:
    assert index.search("") == index.search("  \n ") == []


def test_a_hit_keeps_text_and_context_apart_with_its_place(index: SearchIndex, project: Project) -> None:
    hit = index.search("límite del plan Pro", k=1)[0]
    source = (project.docs / "limites.md").read_text(encoding="utf-8")
    assert hit.text == source[hit.start : hit.end]
    assert hit.context == "Cuotas"
    assert hit.line == 1
    assert hit.heading_path == ("Cuotas",)
    assert (hit.vector_rank, hit.keyword_rank) == (1, 1)
    weights = SearchWeights()
    total = weights.vector + weights.keyword + weights.document
    assert hit.score == pytest.approx(total / (project.settings.search.rrf_k + 1))


def test_a_filter_applies_before_the_legs(index: SearchIndex) -> None:
    for mode in ("hybrid", "vector", "keyword"):
        hits = index.search("report run TS-999 límite", where="doc_id = 'docs/runs.md'", mode=mode)  # type: ignore[arg-type]
        assert {hit.doc_id for hit in hits} == {"docs/runs.md"}


def test_a_wrong_filter_is_named(index: SearchIndex) -> None:
    with pytest.raises(QueryError, match="check the filter 'nonsense ='"):
        index.search("report", where="nonsense =")


def test_new_rows_and_deletions_are_seen_at_once(index: SearchIndex, project: Project) -> None:
    project.write("new.md", "# Nuevo\n\nUn ornitorrinco lee facturas.\n")
    (project.docs / "facturas.md").unlink()
    project.refresh()
    assert index.search("ornitorrincos", mode="keyword")[0].doc_id == "docs/new.md"
    assert "docs/facturas.md" not in {hit.doc_id for hit in index.search("facturas", k=50)}


def test_english_documents_do_not_push_spanish_ones_down(project: Project) -> None:
    topics = {
        "facturación": "La facturación se emite el primer día del mes y se cobra con tarjeta.",
        "límite": "El límite del plan Pro sube a 1.000 peticiones por minuto.",
        "copia": "La copia de seguridad se guarda cada noche en otro centro de datos.",
        "clave": "La clave de acceso caduca a los noventa días y se renueva en el panel.",
        "aviso": "Cada aviso llega por correo a los administradores de la cuenta.",
    }
    for name, text in topics.items():
        project.write(f"es/{name}.md", f"# {name.capitalize()}\n\n{text}\n")
    project.refresh()
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    queries = {
        "¿cuándo se emite la facturación?": "facturación",
        "¿cuál es el límite de peticiones por minuto del plan Pro?": "límite",
        "¿dónde se guarda la copia de seguridad?": "copia",
        "¿cuándo caduca la clave de acceso?": "clave",
        "¿a quién llega cada aviso por correo?": "aviso",
    }

    def found() -> list[str]:
        return [index.search(query, k=1, mode="keyword")[0].doc_id for query in queries]

    assert found() == [f"docs/es/{name}.md" for name in queries.values()]
    for n in range(300):
        project.write(
            f"en/{n}.md", f"# Plan {n}\n\nThe Pro plan allows {n} requests a minute; a copy has a panel key.\n"
        )
    project.refresh()
    assert found() == [f"docs/es/{name}.md" for name in queries.values()]


@pytest.mark.parametrize("languages", [["Spanish", "English"], ["Spanish"], ["English"]])
@pytest.mark.parametrize(
    ("query", "partial"),
    [
        ("TS-999", "TS 999 TS-998 ts-9990 TS: 999"),
        ("error_code", "error code, my_error_code, error-code of the code"),
        ("v2.3.1", "v2.3.10 v2.3 v2 3 1 v1.2.3"),
        ("¿qué significa TS-999?", "Significa TS 999, que significa TS-998"),
        ("what does error_code mean", "The error code means an error, and the code means my_error_code"),
    ],
)
def test_a_whole_identifier_ranks_above_its_parts(
    project: Project, query: str, partial: str, languages: list[str]
) -> None:
    project.write_settings(search={"languages": languages})
    identifier = next(word.strip("?") for word in query.split() if any(c in "-_." for c in word))
    padding = "Estas palabras no dicen nada. These words say nothing at all. " * 4
    project.write("exact.md", f"# Notas\n\n{padding} {identifier}. {padding}\n")
    for n in range(8):
        project.write(f"partial{n}.md", f"# Notas {partial}\n\n{partial} {n}\n")
    project.refresh()
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    for mode in ("keyword", "hybrid"):
        assert index.search(query, mode=mode)[0].doc_id == "docs/exact.md"


def test_a_live_table_of_an_older_version_is_searched_without_identifiers(index: SearchIndex, project: Project) -> None:
    store = project.pipeline().store
    store.table("search_1").drop_index("identifiers_idx")
    store.table("search_1").drop_columns(["identifiers"])
    for mode in ("keyword", "hybrid"):
        assert index.search("TS-999", mode=mode)[0].doc_id == "docs/errors.md"
    project.write("errors.md", "# Errors\n\nTS-777 is new.\n")
    project.refresh()
    assert index.search("TS-777", mode="keyword")[0].text == "# Errors\n\nTS-777 is new."


def test_the_words_of_a_compound_name_find_it(project: Project) -> None:
    project.write("code.md", "# Notes\n\nCall parseHttpHeader before the body.\n")
    project.write("other.md", "# Notes\n\nNothing of interest, but long enough to be found by its vector.\n")
    project.refresh()
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    for query in ("how are headers parsed", "parseHttpHeader", "parse_http_header"):
        assert index.search(query, mode="keyword")[0].doc_id == "docs/code.md"


def test_weights_decide_between_the_legs(project: Project) -> None:
    project.write("a.md", "# Otter\n\nOtter otter otter swims.\n")
    project.write("b.md", "# Notes\n\nA report about an otter and weather in the valley, the river and its banks.\n")
    project.refresh()
    vector = SearchIndex.open(project.settings.storage.uri, project.settings).search("otter weather", mode="vector")
    weights = SearchWeights(vector=1, keyword=0, identifiers=0, document=0)
    settings = project.settings.model_copy(
        update={"search": project.settings.search.model_copy(update={"weights": weights})}
    )
    hits = SearchIndex.open(project.settings.storage.uri, settings).search("otter weather")
    assert [hit.chunk_id for hit in hits] == [hit.chunk_id for hit in vector]
    assert hits[0].score == pytest.approx(1 / (settings.search.rrf_k + 1))


def test_results_are_the_same_with_a_vector_index(project: Project) -> None:
    for n in range(300):
        project.write(f"d{n}.md", f"# Doc {n}\n\nWords about topic {n} and number {n * 7}.\n")
    project.refresh()
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    queries = [f"topic {n} number" for n in range(0, 300, 30)]
    flat = [index.search(query, k=5, mode="vector") for query in queries]
    store = project.pipeline().store
    assert ensure_vector_index(store.table("search_1"), min_rows=1_000) is False
    assert ensure_vector_index(store.table("search_1"), min_rows=256) is True
    indexed = [index.search(query, k=5, mode="vector") for query in queries]
    assert [hits[0].chunk_id for hits in indexed] == [hits[0].chunk_id for hits in flat]
    project.write("d7.md", "# Doc 7\n\nOtter otter otter.\n")
    project.refresh()
    assert index.search("otter", k=1, mode="vector")[0].doc_id == "docs/d7.md"


def test_a_search_survives_the_removal_of_the_version_it_reads(
    index: SearchIndex, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = Legs.keyword, []

    def remove_then_search(self: Legs, *arguments: object) -> list[str]:
        calls.append(1)
        if len(calls) == 1:
            for name in ("weather", "runs", "errors", "limites", "facturas"):
                project.write(f"{name}.md", "# Otra\n\nFactura nueva.\n")
            project.refresh()
            maintain(project.pipeline().store, ["search_1"], 0, force=True)
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Legs, "keyword", remove_then_search)
    hits = index.search("factura")
    assert {hit.text for hit in hits} == {"# Otra\n\nFactura nueva."}


def test_no_index_is_said_with_the_remedy(project: Project) -> None:
    with pytest.raises(StorageError, match="run `ctx-pipeline refresh` first"):
        SearchIndex.open(project.settings.storage.uri)
    assert not project.settings.storage.uri.exists()


def test_an_index_of_no_documents_finds_nothing(project: Project) -> None:
    project.refresh()
    assert SearchIndex.open(project.settings.storage.uri, project.settings).search("anything") == []


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("C++", "plus"), ("c++", "plus"), ("C# guide", "sharp"), ("c#", "sharp"), (".NET", "dot"),
        ("what is .net?", "dot"), ("g++", "compiler"), ("I/O", "io"), ("--dry-run", "flag"), ("A*", "star"),
    ],
)  # fmt: skip
def test_names_with_symbols_are_found_before_their_letters(project: Project, query: str, first: str) -> None:
    texts = {
        "letter": "C, C and C again: a guide to plain C, by C. Wirth; grade A, A and A; i, o and g.",
        "plus": "A guide to house rules. Here C++ is formatted on commit.",
        "sharp": "A guide to house rules. Here C# is formatted on commit.",
        "nets": "The net is cast at dawn: net weight, net of tax, a net, what a net.",
        "dot": "The servers run on .NET these days.",
        "compiler": "Compile it with g++ on the server.",
        "io": "All waiting is for I/O there.",
        "star": "Paths are found by A* there.",
        "flag": "First run it with --dry-run on the server.",
        "dry": "A dry run, a run that is dry: run dry.",
    }
    for name, text in texts.items():
        project.write(f"{name}.md", f"# Notes\n\n{text}\n")
    for n in range(10):
        project.write(f"noise{n}.md", f"# Notes\n\nC and A and net, dry run {n}, g and i and o.\n")
    project.refresh()
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    assert index.search(query, mode="keyword")[0].doc_id == f"docs/{first}.md"


@pytest.mark.parametrize(
    ("stored", "query"),
    [
        ("La devolucio\u0301n tarda.", "devolución"),
        ("La devolución tarda.", "devolucio\u0301n"),
        ("Die Warm\u00adwasser\u00adbereitung startet.", "Warmwasserbereitung"),
        ("Die Warmwasserbereitung startet.", "Warm\u200bwasserbereitung"),
        ("El error_\u200bcode manda.", "error_code"),
    ],
)
def test_what_is_not_seen_keeps_no_word_from_being_found(project: Project, stored: str, query: str) -> None:
    project.write("a.md", f"# Notas\n\n{stored}\n")
    project.write("b.md", "# Notas\n\nOtra cosa.\n")
    project.refresh()
    hits = SearchIndex.open(project.settings.storage.uri, project.settings).search(query, mode="keyword")
    assert [hit.doc_id for hit in hits] == ["docs/a.md"]
    assert stored in hits[0].text, "the text itself stays as it was written"


def test_another_layout_of_full_text_embeds_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("a.md", "# Notas\n\nLa devolucio\u0301n tarda.\n")
    project.write("b.md", "# Notas\n\nOtra cosa.\n")
    with monkeypatch.context() as patch:
        patch.setattr("ctx_pipeline.index.versions.FTS_LAYOUT", "the one before")
        patch.setattr("ctx_pipeline.index.rows.normalized", str)
        project.refresh()
        old = SearchIndex.open(project.settings.storage.uri, project.settings)
    assert old.search("devolución", mode="keyword") == []
    before = project.search_rows(("chunk_id", "vector", "text", "version"))
    with monkeypatch.context() as patch:
        patch.setattr(HashingEmbedder, "embed_passages", lambda *arguments: pytest.fail("embedded anew"))
        summary = project.refresh()
    assert (summary.embedded, summary.reused) == (0, 2)
    after = project.search_rows(("chunk_id", "vector", "text"))
    assert [(r["chunk_id"], r["vector"], r["text"]) for r in after] == [
        (r["chunk_id"], r["vector"], r["text"]) for r in before
    ]
    assert old.search("devolución", mode="keyword")[0].doc_id == "docs/a.md"
    assert not project.pipeline().plan().owed
