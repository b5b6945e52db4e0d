"""The ladder: same chunks in every arm, honest gaps, results of each query, the asset and its check."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.contexts.model import EMULATOR, Context, Progress, Written
from ctx_pipeline.definitions import build_definitions
from ctx_pipeline.defs.evaluation import CHECK, JOB, NAME
from ctx_pipeline.documents.model import Document
from ctx_pipeline.embedding.hashing import HashingEmbedder
from ctx_pipeline.errors import QueryError
from ctx_pipeline.evaluation import ladder as ladder_module
from ctx_pipeline.evaluation.chunking_comparison import Compared, Comparison, Variant
from ctx_pipeline.evaluation.evaluation import Evaluation, evaluate_corpus
from ctx_pipeline.evaluation.metrics import Judged
from ctx_pipeline.evaluation.queries import read_boundaries, read_queries
from ctx_pipeline.evaluation.report import markdown
from ctx_pipeline.index.search_tables import SearchTables
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings import Strategy
from ctx_pipeline.settings_file import load_settings
from tests.emulators.rerank_api import KEY, rerank_api
from tests.project import QUIET, Project
from tests.scripted_contexts import ScriptedContextualizer, scripted

__all__ = ["scripted"]

FREE = "# Plan Free\n\nEn este caso, el límite es de 60 peticiones por minuto.\n"
PRO = "# Plan Pro\n\nEn este caso, el límite sube a 1.000 peticiones por minuto.\n"
ARMS = [step.name for step in ladder_module.STEPS]


@pytest.fixture
def queries(project: Project) -> Path:
    project.write("free.md", FREE)
    project.write("pro.md", PRO)
    project.write("otros.md", "# Otros\n\n" + "\n\n".join(f"Párrafo {n} sobre la factura." for n in range(40)) + "\n")
    lines = [
        {"qid": "a", "query": "límite del plan Pro", "doc": "pro.md", "start": 12, "end": len(PRO)},
        {"qid": "b", "query": "límite del plan Free", "doc": "docs/free.md", "start": 13, "end": len(FREE)},
        {"qid": "b", "query": "límite del plan Free", "doc": "pro.md", "start": 12, "end": len(PRO)},
    ]
    return write_lines(project.root / "queries.jsonl", lines)


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path


def evaluate(project: Project, queries: Path, **options: Any) -> Evaluation:
    return evaluate_corpus(project.pipeline(), queries, **options)


def test_the_command_prints_every_arm_and_writes_every_query(project: Project, queries: Path) -> None:
    project.refresh()
    done = project.command("eval", str(queries), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [arm["arm"] for arm in found["arms"]] == ARMS
    assert (found["queries"], found["documents"]) == (2, 3)
    *measured, reranking = found["arms"]
    assert "none" in reranking["not_measured"]
    for arm in measured:
        assert arm["recall"]["20"] == 1
        assert arm["failure_rate"] == 0
        assert arm["seconds_per_query"] > 0
    assert measured[-1]["sign_test"] == {"wins": 0, "losses": 0, "ties": 2, "p": 1}
    lines = [json.loads(line) for line in Path(found["results"]).read_text().splitlines()]
    assert len(lines) == 2 * len(measured)
    spans = [line["spans"] for line in lines if line["qid"] == "b"]
    assert all(len(own) == 2 and own[0]["doc"] == "docs/free.md" for own in spans)
    table = project.command("eval", str(queries)).stdout
    assert "| + reranking | not measured" in table


def test_context_finds_what_the_chunk_does_not_say(project: Project, queries: Path) -> None:
    """The chunk of 60 characters does not name its plan; its heading, one chunk above, does."""
    boundaries = write_lines(
        project.root / "chunks.jsonl",
        [
            {"doc": name, "index": 0, "start": start, "end": len(text)}
            for name, text, start in (("free.md", FREE, 13), ("pro.md", PRO, 12))
        ],
    )
    ladder = evaluate(project, queries, chunks=boundaries).ladder
    assert ladder.chunks == 2
    plain, contextual = ladder.row(ladder_module.BM25), ladder.row(ladder_module.CONTEXTUAL_BM25)
    assert plain and contextual and plain.measures and contextual.measures
    assert contextual.measures.recall[1] > plain.measures.recall[1] - 1e-9
    assert contextual.measures.recall[1] == pytest.approx(0.75)  # one of two spans of query b fits at rank 1


@pytest.mark.parametrize(
    ("model", "usd", "shown"),
    [("voyage-3.5", (4 + 4) / 2 * 0.06 / 1e6, "2.4e-07"), ("voyage-99", None, "unknown"), ("hashing", 0.0, "0")],
)
def test_what_embedding_a_query_costs_is_told_of_each_arm(
    project: Project, queries: Path, monkeypatch: pytest.MonkeyPatch, model: str, usd: float | None, shown: str
) -> None:
    monkeypatch.setenv("VOYAGE_API_KEY", KEY)
    with rerank_api() as api:
        address = {} if model == "hashing" else {"base_url": f"{api.url}/v1"}
        project.write_settings(embedding={"model": model, **address})
        project.refresh()
        ladder = evaluate(project, queries).ladder
    rows = {row.name: row for row in ladder.rows if row.measures}
    assert set(rows) == set(ARMS[:-1])
    assert rows.pop(ladder_module.BM25).usd_per_query == 0, "no query is embedded"
    for row in rows.values():
        assert row.usd_per_query == (None if usd is None else pytest.approx(usd))
    [line] = [line for line in markdown(ladder).splitlines() if line.startswith("| embeddings |")]
    assert line.split("|")[-2].strip() == shown


def test_min_recall_decides_the_exit_code(project: Project, queries: Path) -> None:
    project.refresh()
    project.write_settings(evaluation={"min_recall": 0.99})
    assert project.command("eval", str(queries)).returncode == 0
    write_lines(queries, [{"qid": "c", "query": "x", "doc": "pro.md", "start": 0, "end": 1}, *_lines(queries)])
    project.write_settings(evaluation={"min_recall": 1.0})
    lost = {"qid": "d", "query": "zzz", "doc": "gone.md", "start": 0, "end": 9}
    write_lines(queries, [*_lines(queries), lost])
    done = project.command("eval", str(queries))
    assert done.returncode == 1
    assert "below evaluation.min_recall = 1.0" in done.stderr
    assert "gone.md" in done.stdout


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_running_again_embeds_and_writes_only_what_changed(
    project: Project, queries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.refresh()
    embedded: list[str] = []
    embed = HashingEmbedder.embed_passages
    monkeypatch.setattr(HashingEmbedder, "embed_query", lambda self, text: embed(self, [text])[0])
    monkeypatch.setattr(
        HashingEmbedder, "embed_passages", lambda self, texts: embedded.extend(texts) or embed(self, texts)
    )
    first = evaluate(project, queries).ladder
    assert len(embedded) == 2 * first.chunks  # with their contexts the index has them already
    embedded.clear()
    assert evaluate(project, queries).ladder.row(ARMS[0]) is not None
    assert embedded == []
    project.write("pro.md", PRO.replace("1.000", "1.200"))
    project.write("nuevo.md", "# Nuevo\n\nTexto.\n")
    (project.docs / "otros.md").unlink()
    project.refresh()
    embedded.clear()
    second = evaluate(project, queries).ladder
    assert (second.documents, second.chunks) == (3, 3)
    assert len(embedded) == 2 * 2
    assert all("1.200" in text or "Texto" in text for text in embedded)
    found = [chunk for row in second.rows for chunks in row.found for chunk in chunks]
    assert found and not any(chunk.startswith("docs/otros.md") for chunk in found)


def test_given_chunks_beyond_the_window_are_counted_as_truncated(project: Project) -> None:
    text = "palabra " * 2000
    project.write("largo.md", text)
    boundaries = write_lines(
        project.root / "chunks.jsonl",
        [
            {"doc": "largo.md", "index": 0, "start": 0, "end": 8000},
            {"doc": "largo.md", "index": 1, "start": 8000, "end": 8080},
        ],
    )
    queries = write_lines(
        project.root / "queries.jsonl", [{"qid": "a", "query": "palabra", "doc": "largo.md", "start": 0, "end": 80}]
    )
    rows = evaluate(project, queries, chunks=boundaries).ladder.rows
    assert {row.truncated for row in rows if row.measures} == {1}


def test_contexts_of_an_emulator_never_enter_the_table(project: Project, queries: Path) -> None:
    class Emulated:
        method = "claude"
        fingerprint = "emulated"
        warnings: list[str] = []  # noqa: RUF012

        def __init__(self) -> None:
            self.warnings: list[str] = []

        def can_take_up(self) -> frozenset[str]:
            return frozenset()

        def write(
            self,
            documents: Sequence[tuple[Document, Sequence[Chunk]]],
            progress: Callable[[Progress], None] = lambda progress: None,
        ) -> list[Written | Exception]:
            emulated = Context("digest", "", EMULATOR)
            return [Written([emulated for _ in chunks]) for _, chunks in documents]

    pipeline = Pipeline(project.settings, contextualizer=Emulated())
    ladder = evaluate_corpus(pipeline, queries, files=True).ladder
    contextual = [row for row in ladder.rows if row.name.startswith("+")]
    assert [row.measures for row in contextual] == [None] * 3
    assert all("emulator" in row.not_measured for row in contextual)
    assert ladder.served is None
    project.write_settings(evaluation={"min_recall": 0.1})
    pipeline = Pipeline(project.settings, contextualizer=Emulated())
    assert "was not measured" in evaluate_corpus(pipeline, queries, files=True).shortfall


def test_contexts_that_are_not_written_are_told_of(
    project: Project, queries: Path, scripted: ScriptedContextualizer
) -> None:
    scripted.outcomes = {"Free": ("fallback", "refused"), "Pro": ("pending", "budget")}
    project.refresh()
    [warning] = evaluate(project, queries).ladder.warnings
    chunks = len(project.search_rows())
    assert warning.startswith(f"2 of {chunks} contexts are not written by claude (1 fallback, 1 pending)")
    scripted.outcomes, scripted.taken_up = {}, {"budget"}
    project.refresh(retry=True)
    assert evaluate(project, queries).ladder.warnings == []


def test_without_a_key_contexts_of_a_model_are_not_measured(project: Project, queries: Path) -> None:
    project.write("dos.md", "\n\n".join(f"# Parte {n}\n\n" + "palabra " * 300 for n in range(3)))
    project.write_settings(contexts={"method": "claude"})
    ladder = evaluate(project, queries, files=True).ladder
    contextual = [row for row in ladder.rows if row.name.startswith("+")]
    assert [row.measures for row in contextual] == [None] * 3
    assert contextual[0].not_measured == "no context is written by claude (no_key)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no query"),
        ("not json\n", "line 1: not JSON"),
        ("[1]\n", "line 1: not a JSON object"),
        ('{"qid": 1, "query": "x", "doc": "a.md", "start": 0}\n', "no 'end'"),
        ('{"qid": 1, "query": " ", "doc": "a.md", "start": 0, "end": 1}\n', "empty"),
        ('{"qid": 1, "query": "x", "doc": "a.md", "start": 5, "end": 5}\n', "no span"),
        ('{"qid": 1, "query": "x", "doc": "a.md", "start": true, "end": 5}\n', "no span"),
        ('{"qid": 1, "query": "x", "doc": "", "start": 0, "end": 5}\n', '"doc"'),
        (
            '{"qid": 1, "query": "x", "doc": "a.md", "start": 0, "end": 5}\n\n'
            '{"qid": 1, "query": "y", "doc": "a.md", "start": 0, "end": 5}\n',
            "line 3: qid 1 has another query text",
        ),
    ],
)
def test_a_bad_query_file_is_one_line_that_names_the_place(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text(content)
    with pytest.raises(QueryError, match=r"queries\.jsonl") as raised:
        read_queries(path)
    assert message in str(raised.value)


def test_files_that_do_not_fit_together_are_refused(project: Project, queries: Path, tmp_path: Path) -> None:
    elsewhere = write_lines(tmp_path / "q.jsonl", [{"qid": 1, "query": "x", "doc": "x.md", "start": 0, "end": 5}])
    with pytest.raises(QueryError, match="they name x"):
        evaluate(project, elsewhere, files=True)
    beyond = write_lines(tmp_path / "c.jsonl", [{"doc": "pro.md", "index": 0, "start": 0, "end": 5000}])
    with pytest.raises(QueryError, match="ends at 5000"):
        evaluate(project, queries, chunks=beyond)
    unknown = write_lines(tmp_path / "d.jsonl", [{"doc": "x.md", "index": 0, "start": 0, "end": 5}])
    with pytest.raises(QueryError, match="in no source"):
        evaluate(project, queries, chunks=unknown)
    assert project.command("eval", str(tmp_path / "none.jsonl")).returncode == 2
    with pytest.raises(QueryError, match="no such file"):
        read_boundaries(tmp_path / "none.jsonl")


def run_job(project: Project, monkeypatch: pytest.MonkeyPatch) -> dg.ExecuteInProcessResult:
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    job = build_definitions().resolve_job_def(JOB)
    with project.instance() as instance:
        return job.execute_in_process(instance=instance, raise_on_error=False, run_config=QUIET)


def test_the_asset_shows_table_plot_and_numbers(
    project: Project, queries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.refresh()
    project.write_settings(evaluation={"queries": str(queries), "min_recall": 0.9})
    result = run_job(project, monkeypatch)
    assert result.success
    [event] = result.asset_materializations_for_node(NAME)
    metadata = event.metadata
    assert metadata["recall_at_20"].value == 1.0
    assert metadata[f"recall_at_20: {ladder_module.EMBEDDINGS}"].value == 1.0
    assert metadata["ladder"].value.startswith("| arm | recall@1")
    assert metadata["plot"].value.startswith("![recall of each arm](data:image/png;base64,iVBOR")
    assert Path(metadata["per_query_results"].value).is_file()
    [check] = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed) == (CHECK, True)


def test_the_check_fails_below_the_minimum(project: Project, queries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project.refresh()
    write_lines(queries, [*_lines(queries), {"qid": "z", "query": "zzz", "doc": "gone.md", "start": 0, "end": 9}])
    project.write_settings(evaluation={"queries": str(queries), "min_recall": 0.9})
    result = run_job(project, monkeypatch)
    assert result.success
    [check] = result.get_asset_check_evaluations()
    assert not check.passed
    assert check.metadata["recall_at_20"].value == pytest.approx(2 / 3)


def test_without_a_query_set_the_asset_says_what_to_set(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("a.md", PRO)
    project.refresh()
    result = run_job(project, monkeypatch)
    assert not result.success
    failure = result.failure_data_for_node(NAME)
    assert failure is not None and "evaluation.queries" in str(failure.user_failure_data)


def test_the_chunking_comparison_measures_each_way_to_cut_and_recommends(project: Project) -> None:
    parts = [f"## Parte {n}\n\n" + f"La parte {n} trata del asunto número {n * 7}. " * 12 + "\n" for n in range(12)]
    text = "# Manual\n\n" + "\n".join(parts)
    project.write("manual.md", text)
    lines = []
    for n in range(12):
        start = text.index(f"La parte {n} trata")
        lines.append(
            {
                "qid": n,
                "query": f"asunto {n * 7} de la parte {n}",
                "doc": "manual.md",
                "start": start,
                "end": start + 45,
            }
        )
    queries = write_lines(project.root / "queries.jsonl", lines)
    arguments = ["eval", str(queries), "--source", str(project.docs), "--compare-chunking", "--json"]
    done = project.command(*arguments, "--size", "64", "--size", "128", "--overlap", "0", "--overlap", "20")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = [variant["variant"] for variant in found["variants"]]
    assert names == [
        *(f"{s} {size}{o}" for s in ("recursive", "fixed", "structure") for size in (64, 128)
          for o in ("", ", overlap 20 %")),
        "semantic 64", "semantic 128", "recursive 64, late chunking", "recursive 128, late chunking",
    ]  # fmt: skip
    measured = {variant["variant"]: variant for variant in found["variants"] if "chunks" in variant}
    assert "no vectors of single tokens" in found["variants"][-1]["not_measured"]
    assert measured["fixed 64"]["chunks"] > measured["fixed 128"]["chunks"]
    assert measured["fixed 64, overlap 20 %"]["chunks"] > measured["fixed 64"]["chunks"]
    assert all(variant["mean_tokens"] <= 128 for variant in measured.values())
    assert {"hybrid", "vector", "keyword"} == set(measured["recursive 64"]["recall"])
    assert found["recommended"] in measured
    table = project.command(*arguments[:-1], "--strategy", "recursive", "--size", "64", "--overlap", "0").stdout
    assert "recommended: recursive 64" in table


def test_the_recommendation_is_the_cheapest_of_those_within_the_noise() -> None:
    def compared(strategy: Strategy, chunks: int, *found: bool) -> Compared:
        judged = [Judged(str(n), (1 if hit else None,), (), 0) for n, hit in enumerate(found)]
        return Compared(Variant(strategy, 256), "", chunks, 1.0, {"hybrid": judged}, judged)

    best = compared("fixed", 300, *[True] * 100)
    near = compared("recursive", 200, *[True] * 99, False)
    bad = compared("structure", 100, *[True] * 85, *[False] * 15)
    comparison = Comparison([best, near, bad], 100, 1, "m", "outline", [])
    recommended = comparison.recommended()
    assert recommended is not None
    assert recommended[:2] == (near, best)
    assert recommended[2].is_noise


def test_sweep_options_belong_to_the_comparison(project: Project, queries: Path) -> None:
    assert project.command("eval", str(queries), "--size", "64").returncode == 2
    assert project.command("eval", str(queries), "--compare-chunking", "--chunks", str(queries)).returncode == 2


def test_the_example_queries_point_at_what_they_quote() -> None:
    root = Path(__file__).parents[1]
    queries = root / load_settings({"CTX_CONFIG": str(root / "ctx.toml")}).evaluation.queries  # type: ignore[operator]
    for line in _lines(queries):
        text = (root / "examples" / "docs" / line["doc"]).read_bytes().decode()
        assert text[line["start"] : line["end"]] == line["text"]
    assert len(read_queries(queries)) >= 25


def test_an_arm_that_was_killed_while_it_changed_is_written_again(
    project: Project, queries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = evaluate(project, queries, files=True).ladder
    project.write("pro.md", "# Otro\n\nNada.\n")
    project.write("nuevo.md", "# Nuevo\n\nlímite del plan Pro\n")

    def killed(self: SearchTables, *_: object) -> None:
        original(self, *_)
        raise KeyboardInterrupt

    original = SearchTables.embed_and_replace
    monkeypatch.setattr(SearchTables, "embed_and_replace", killed)
    with pytest.raises(KeyboardInterrupt):
        evaluate(project, queries, files=True)
    monkeypatch.undo()
    project.write("pro.md", PRO)
    (project.docs / "nuevo.md").unlink()
    after = evaluate(project, queries, files=True).ladder
    assert [row.found for row in after.rows] == [row.found for row in before.rows]


def test_a_refresh_meanwhile_does_not_change_what_is_measured(project: Project, queries: Path) -> None:
    project.refresh()

    def edit_and_refresh(line: str) -> None:
        if line.endswith(ladder_module.CONTEXTUAL_EMBEDDINGS):
            for name in ("free.md", "pro.md"):
                (project.docs / name).unlink()
            project.refresh(allow_mass_delete=True)

    ladder = evaluate(project, queries, progress=edit_and_refresh).ladder
    contextual = ladder.row(ladder_module.CONTEXTUAL_BM25)
    assert contextual is not None and contextual.measures is not None
    assert contextual.measures.recall[20] == 1


def test_what_the_index_was_built_with_is_told_not_what_the_settings_say(project: Project, queries: Path) -> None:
    project.write_settings(contexts={"method": "none"})
    project.refresh()
    project.write_settings(contexts={"method": "outline"})
    ladder = evaluate(project, queries).ladder
    assert ladder.context_method == "none"
    assert any("indexed with other settings" in warning for warning in ladder.warnings)
    assert {row.not_measured for row in ladder.rows if row.name.startswith("+")} == {
        "the index was built without contexts"
    }
    assert ladder.served is not None and ladder.served.name == ladder_module.HYBRID


def test_documents_without_text_are_documents_without_chunks(project: Project, queries: Path) -> None:
    project.write("vacío.md", "")
    project.write("blanco.md", " \n\n")
    project.refresh()
    assert evaluate(project, queries).ladder.documents == 5


def test_passages_that_moved_are_warned_of(project: Project, queries: Path) -> None:
    lines = _lines(queries)
    lines[0]["text"] = "lo que decía antes"
    write_lines(queries, [*lines, {"qid": "z", "query": "x", "doc": "pro.md", "start": 9_000, "end": 9_100}])
    warnings = evaluate(project, queries, files=True).ladder.warnings
    assert any(warning.startswith("2 passages of the queries moved or changed") for warning in warnings)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([("pro.md", 0, 10), ("pro.md", 0, 10)], "the same chunk was given before"),
        ([("pro.md", 0, 10), ("docs/pro.md", 10, 20)], "in two ways"),
    ],
)
def test_chunks_given_twice_are_refused(
    project: Project, queries: Path, lines: list[tuple[str, int, int]], message: str
) -> None:
    given = [{"doc": doc, "index": 0, "start": start, "end": end} for doc, start, end in lines]
    with pytest.raises(QueryError, match=message):
        evaluate(project, queries, chunks=write_lines(project.root / "chunks.jsonl", given))


def test_results_never_replace_what_is_read(project: Project, queries: Path) -> None:
    before = queries.read_bytes()
    done = project.command("eval", str(queries), "--source", str(project.docs), "--results", str(queries))
    assert done.returncode == 2
    assert queries.read_bytes() == before


def test_nothing_is_recommended_where_nothing_was_found_and_noise_does_not_excuse_a_loss() -> None:
    def compared(strategy: Strategy, chunks: int, *found: bool) -> Compared:
        judged = [Judged(str(n), (1 if hit else None,), (), 0) for n, hit in enumerate(found)]
        return Compared(Variant(strategy, 256), "", chunks, 1.0, {"hybrid": judged}, judged)

    lost = compared("structure", 10, *[False] * 5)
    assert Comparison([lost], 5, 1, "m", "outline", []).recommended() is None
    good = compared("fixed", 300, *[True] * 5)
    recommended = Comparison([lost, good], 5, 1, "m", "outline", []).recommended()
    assert recommended is not None and recommended[0] is good
