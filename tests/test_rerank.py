"""Reranking: over emulated services and a stand-in for a cross-encoder, alone and at the end of a search."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ctx_pipeline.errors import CtxError, FatalError, PermanentError, TransientError
from ctx_pipeline.http_api import Patience
from ctx_pipeline.index.search import SearchIndex
from ctx_pipeline.rerank import open_reranker
from ctx_pipeline.rerank.cohere import CohereReranker
from ctx_pipeline.rerank.cross_encoder import CrossEncoderReranker
from ctx_pipeline.rerank.model import complete
from ctx_pipeline.rerank.scoring_api import ScoringApi
from ctx_pipeline.rerank.voyage import VoyageReranker
from ctx_pipeline.settings import SearchSettings
from tests.emulators.rerank_api import KEY, Fault, RerankApi, rerank_api
from tests.project import Project

SERVICES = [(VoyageReranker, "/v1"), (CohereReranker, "/v2")]
QUERY = "limit of the Pro plan"
PASSAGES = [
    "Weather\n\nThe weather is fine.",
    "Limit of the Pro plan\n\nIt is raised to a thousand requests.",
    "A plan.",
    "Free\n\nThe limit of the plan.",
]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[RerankApi]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with rerank_api() as running:
        yield running


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds waited between attempts; nothing really waits."""
    waited: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time", SimpleNamespace(sleep=waited.append, time=time.time))
    return waited


@pytest.fixture(params=SERVICES, ids=lambda service: service[0].name)
def service(request: pytest.FixtureRequest, api: RerankApi) -> ScoringApi:
    kind, version = request.param
    made: ScoringApi = kind(KEY, base_url=api.url + version)
    return made


# The services ----------------------------------------------------------------------------------------------------


def test_the_service_orders_the_passages(service: ScoringApi, api: RerankApi) -> None:
    report = service.rerank(QUERY, PASSAGES, 4)
    assert report.order == [1, 3, 0, 2]
    assert report.scores == [1.0, 0.8, 0.2, 0.2]
    [sent] = api.received
    assert sent.body["documents"] == PASSAGES
    assert sent.body["query"] == QUERY


def test_only_the_k_best_are_asked_for(service: ScoringApi, api: RerankApi) -> None:
    report = service.rerank(QUERY, PASSAGES, 2)
    assert (report.order, len(report.scores)) == ([1, 3], 2)
    assert api.received[0].body.get("top_k", api.received[0].body.get("top_n")) == 2


def test_the_requests_are_in_the_format_of_each_service(api: RerankApi) -> None:
    VoyageReranker(KEY, base_url=f"{api.url}/v1").rerank("q", PASSAGES[2:3], 1)
    CohereReranker(KEY, base_url=f"{api.url}/v2/").rerank("q", PASSAGES[2:3], 1)
    assert [(request.path, request.body) for request in api.received] == [
        (
            "/v1/rerank",
            {"query": "q", "documents": ["A plan."], "model": "rerank-2.5", "top_k": 1, "truncation": True},
        ),
        ("/v2/rerank", {"model": "rerank-v3.5", "query": "q", "documents": ["A plan."], "top_n": 1}),
    ]
    assert {request.authorization for request in api.received} == {f"Bearer {KEY}"}


def test_cost_time_and_the_answering_model_are_reported(api: RerankApi) -> None:
    report = VoyageReranker(KEY, base_url=f"{api.url}/v1").rerank("plan", PASSAGES[2:], 1)
    assert (report.model, report.tokens, report.usd) == ("emulator", 2 + 2 + 6, pytest.approx(10 * 0.05 / 1e6))
    assert report.seconds > 0
    report = CohereReranker(KEY, base_url=f"{api.url}/v2").rerank("plan", PASSAGES * 30, 1)
    assert (report.model, report.tokens, report.usd) == ("emulator", None, pytest.approx(2 * 2.00 / 1000))
    unpriced = VoyageReranker(KEY, "rerank-99", f"{api.url}/v1").rerank("plan", PASSAGES, 1)
    assert (unpriced.usd, unpriced.tokens is not None) == (None, True)


def test_an_answer_without_usage_has_an_unknown_cost(service: ScoringApi, api: RerankApi) -> None:
    api.edit = lambda answer: {name: answer[name] for name in ("data", "results") if name in answer}
    report = service.rerank(QUERY, PASSAGES, 4)
    assert (report.usd, report.tokens, report.model) == (None, None, service.model)


def test_more_passages_than_a_request_takes_are_merged_by_score(service: ScoringApi, api: RerankApi) -> None:
    many = ["nothing"] * 1_200
    many[1_100], many[7] = PASSAGES[1], PASSAGES[3]
    report = service.rerank(QUERY, many, 3)
    assert report.order == [1_100, 7, 0]
    assert [len(request.body["documents"]) for request in api.received] == [1_000, 200]


def test_voyage_counts_the_query_for_every_passage_against_its_limit(api: RerankApi) -> None:
    passages = [f"word {n}" for n in range(4)]
    query = "word " * 120_000
    VoyageReranker(KEY, base_url=f"{api.url}/v1").rerank(query, passages, 4)
    assert [len(request.body["documents"]) for request in api.received] == [3, 1]


def test_what_the_service_leaves_out_follows_in_the_order_of_the_fusion(service: ScoringApi, api: RerankApi) -> None:
    def first_only(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, **{name: answer[name][:1] for name in ("data", "results") if name in answer}}

    api.edit = first_only
    report = service.rerank(QUERY, PASSAGES, 3)
    assert (report.order, report.scores[1:]) == ([1, 0, 2], [None, None])


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        (None, "malformed"),
        ({}, "without scores"),
        ([], "without scores"),
        ([7], "malformed"),
        ([{"index": 0}], "malformed"),
        ([{"relevance_score": 1}], "malformed"),
        ([{"index": 0, "relevance_score": "high"}], "malformed"),
        ([{"index": 0, "relevance_score": float("nan")}], "without scores"),
        ([{"index": 4, "relevance_score": 1}], "indexes"),
        ([{"index": -1, "relevance_score": 1}], "indexes"),
        ([{"index": True, "relevance_score": 1}], "indexes"),
        ([{"index": "0", "relevance_score": 1}], "indexes"),
        ([{"index": 0, "relevance_score": 1}, {"index": 0, "relevance_score": 2}], "indexes"),
    ],
)
def test_a_malformed_answer_says_what_is_wrong(service: ScoringApi, api: RerankApi, items: Any, reason: str) -> None:
    api.edit = lambda _: {"data": items, "results": items}
    with pytest.raises(TransientError, match=reason):
        service.rerank(QUERY, PASSAGES, 4)


@pytest.mark.parametrize("body", ["[]", "7", '"x"', "null"])
def test_an_answer_that_is_no_object_is_malformed(service: ScoringApi, api: RerankApi, body: str) -> None:
    api.faults = [Fault(body=body)]
    with pytest.raises(TransientError, match="malformed"):
        service.rerank(QUERY, PASSAGES, 4)


def test_a_failing_service_is_asked_three_times_and_waited_for_briefly(
    service: ScoringApi, api: RerankApi, waits: list[float]
) -> None:
    api.faults = [Fault(429, headers={"Retry-After": "3600"}), Fault(503)]
    assert service.rerank(QUERY, PASSAGES, 1).order == [1]
    assert len(api.received) == 3
    assert waits[0] == 5
    assert max(waits) <= 5


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        (Fault(401, '{"detail": "no such key"}'), FatalError, "401: no such key; set {KEY} to a key that may use"),
        (Fault(403, '{"message": "not yours"}'), FatalError, "403: not yours; set {KEY}"),
        (Fault(404, '{"message": "model x not found"}'), FatalError, "404: .*search.rerank_model"),
        (Fault(400, '{"detail": "Model x is not supported."}'), FatalError, "400: .*search.rerank_model"),
        (Fault(400, '{"detail": "query too long"}'), PermanentError, "400: query too long; lower search.candidates"),
        (Fault(429, '{"message": "slow down"}'), TransientError, "429: slow down, after 2 retries"),
        (Fault(500, "oops"), TransientError, "500: oops, after 2 retries"),
        (Fault(200, "<html>"), TransientError, "did not answer with JSON: <html>"),
        (Fault(body=None), TransientError, "no answer from .* after 2 retries"),
    ],
    ids=str,
)
def test_a_failure_is_told_with_its_remedy(
    service: ScoringApi, api: RerankApi, fault: Fault, error: type[CtxError], reason: str
) -> None:
    reason = reason.replace("{KEY}", service.key_variable)
    api.faults = [fault] * 9
    with pytest.raises(error, match=reason) as raised:
        service.rerank(QUERY, PASSAGES, 2)
    assert KEY not in str(raised.value)


def test_a_service_that_does_not_answer_in_time_is_given_up(api: RerankApi) -> None:
    api.faults = [Fault(delay_s=0.3)] * 3
    hasty = VoyageReranker(KEY, base_url=f"{api.url}/v1", patience=Patience(0, 0, 0.05))
    with pytest.raises(TransientError, match="no answer from"):
        hasty.rerank(QUERY, PASSAGES, 4)


@pytest.mark.parametrize("kind", [VoyageReranker, CohereReranker])
def test_a_missing_key_is_named_before_anything_is_sent(kind: type[ScoringApi]) -> None:
    with pytest.raises(FatalError, match=f"{kind.key_variable} is not set"):
        kind(" ").rerank(QUERY, PASSAGES, 1)


def test_completing_an_order_drops_unknown_and_repeated_positions() -> None:
    assert complete([(2, 0.9), (2, 0.8), (5, 0.7), (-1, 0.6), (0, 0.5)], 4, 9) == ([2, 0, 1, 3], [0.9, 0.5, None, None])


# The settings ----------------------------------------------------------------------------------------------------


def test_settings_name_the_reranker_and_its_model() -> None:
    assert open_reranker(SearchSettings()) is None
    settings = SearchSettings(rerank="voyage", rerank_model="rerank-2.5-lite")
    voyage = open_reranker(settings, environ={})
    assert isinstance(voyage, VoyageReranker)
    assert voyage.model == "rerank-2.5-lite"
    assert open_reranker(settings, "none", {}) is None
    cohere = open_reranker(settings, "cohere", {})
    assert isinstance(cohere, CohereReranker)
    assert cohere.model == "rerank-v3.5", "the settings' model is that of another method"
    cross_encoder = open_reranker(SearchSettings(rerank_model="folder"), "cross-encoder", {})
    assert isinstance(cross_encoder, CrossEncoderReranker)
    assert cross_encoder.model == "folder"


# The cross-encoder -----------------------------------------------------------------------------------------------


@pytest.fixture
def encoders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models loaded by a stand-in for sentence-transformers, which scores by the length of the passage."""
    loaded: list[str] = []

    class CrossEncoder:
        def __init__(self, model: str) -> None:
            if model == "nowhere":
                raise OSError("We couldn't connect to\n the hub")
            loaded.append(model)

        def predict(self, pairs: list[tuple[str, str]], show_progress_bar: bool) -> Any:
            assert not show_progress_bar
            assert all(query == QUERY for query, _ in pairs)
            scores = np.array([len(passage) for _, passage in pairs], np.float32)
            return scores if loaded[-1] != "classifier" else np.stack([scores, scores], axis=1)

    module = ModuleType("sentence_transformers")
    module.CrossEncoder = CrossEncoder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    return loaded


def test_a_cross_encoder_reads_query_and_passage_and_is_loaded_once(encoders: list[str]) -> None:
    reranker = CrossEncoderReranker("folder/model")
    assert encoders == []
    report = reranker.rerank(QUERY, PASSAGES, 3)
    lengths = [len(passage) for passage in PASSAGES]
    assert (report.order, report.scores) == ([1, 0, 3], [lengths[1], lengths[0], lengths[3]])
    assert (report.usd, report.model) == (0.0, "folder/model")
    reranker.rerank(QUERY, PASSAGES, 3)
    assert encoders == ["folder/model"]


def test_equal_scores_keep_the_order_of_the_fusion(encoders: list[str]) -> None:
    assert CrossEncoderReranker().rerank(QUERY, ["same"] * 50, 50).order == list(range(50))


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(FatalError, match=r"pip install -e '.\[cross-encoder\]'"):
        CrossEncoderReranker().rerank(QUERY, PASSAGES, 1)


@pytest.mark.parametrize(("model", "reason"), [("nowhere", "cannot be loaded .*rerank_model"), ("classifier", "one")])
def test_a_model_that_cannot_be_used_is_fatal(encoders: list[str], model: str, reason: str) -> None:
    with pytest.raises(FatalError, match=reason) as raised:
        CrossEncoderReranker(model).rerank(QUERY, PASSAGES, 1)
    assert "\n" not in str(raised.value)


# At the end of a search ------------------------------------------------------------------------------------------


@pytest.fixture
def indexed(project: Project, api: RerankApi, monkeypatch: pytest.MonkeyPatch) -> Project:
    for n in range(6):
        project.write(f"{n}.md", f"# Plan {n}\n\nThe plan allows {n} requests. {'Requests are counted. ' * n}\n")
    project.write("pro.md", "# Pro quota\n\nIt is raised.\n")
    project.write_settings(search={"rerank": "voyage", "rerank_base_url": f"{api.url}/v1", "candidates": 5})
    project.refresh()
    monkeypatch.setenv("VOYAGE_API_KEY", KEY)
    return project


def opened(project: Project) -> SearchIndex:
    return SearchIndex.open(project.settings.storage.uri, project.settings)


def test_a_search_reranks_the_fused_candidates_to_k(indexed: Project, api: RerankApi) -> None:
    index = opened(indexed)
    plain = index.search("requests of the Pro quota", k=5, rerank="none")
    assert api.received == []
    assert {hit.rerank_score for hit in plain} == {None}
    result = index.search_with_warnings("requests of the Pro quota", k=2)
    [request] = api.received
    assert request.body["documents"] == [f"{hit.context}\n\n{hit.text}" for hit in plain], "all candidates, fused order"
    assert request.body["top_k"] == 2
    assert (len(result.hits), result.warnings) == (2, [])
    assert result.hits[0].doc_id == "docs/pro.md"
    assert result.hits[0].rerank_score == pytest.approx(0.4)
    assert result.rerank is not None
    assert (result.rerank.model, result.rerank.usd is not None) == ("emulator", True)
    assert set(result.hits[0].to_json()) == set(plain[0].to_json())
    assert index.search("requests of the Pro quota", k=2, rerank="voyage") == result.hits


def test_a_search_whose_reranker_fails_is_the_search_without_it(indexed: Project, api: RerankApi) -> None:
    index = opened(indexed)
    api.faults = [Fault(401, '{"detail": "expired key"}')] * 2
    for _ in range(2):  # said each time
        result = index.search_with_warnings("requests", k=3)
        assert result.hits == index.search("requests", k=3, rerank="none")
        assert result.rerank is None
        [warning] = result.warnings
        assert warning.startswith("not reranked, the order is that of the fusion: voyage: ")
        assert "expired key; set VOYAGE_API_KEY" in warning


def test_nothing_found_asks_nobody(indexed: Project, api: RerankApi) -> None:
    assert opened(indexed).search("requests", where="doc_id = 'docs/none.md'") == []
    assert api.received == []


def test_an_unknown_reranker_is_refused(indexed: Project) -> None:
    with pytest.raises(ValueError, match="'rankgpt' is not one of none, claude"):
        opened(indexed).search("requests", rerank="rankgpt")  # type: ignore[arg-type]


def test_the_reranker_is_in_no_hash(indexed: Project) -> None:
    indexed.write_settings(search={"rerank": "cohere", "rerank_model": "rerank-v4.0-pro", "rerank_max_usd": 1.0})
    assert not indexed.pipeline().plan().owed


def test_the_command_says_what_reranking_took(indexed: Project, api: RerankApi) -> None:
    done = indexed.command("search", "Pro quota", "-k", "1")
    assert done.returncode == 0, done.stderr
    assert "docs/pro.md" in done.stdout
    assert "reranked" in done.stdout
    assert "reranked by emulator: " in done.stderr
    assert " USD, " in done.stderr
    done = indexed.command("search", "Pro quota", "-k", "1", "--rerank", "cohere", "--json")
    assert len(json.loads(done.stdout)) == 1
    assert "COHERE_API_KEY is not set" in done.stderr
    assert "reranked by" not in done.stderr
