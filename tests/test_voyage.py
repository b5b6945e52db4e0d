"""Voyage embeddings against an emulated service: format, limits of a request, window, usage, settings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_pipeline.embedding import open_embedder
from ctx_pipeline.embedding.api import ApiEmbedder
from ctx_pipeline.embedding.voyage import VoyageEmbedder, batches
from ctx_pipeline.errors import FatalError, PermanentError, TransientError
from ctx_pipeline.index.search import SearchIndex
from ctx_pipeline.settings import EmbeddingSettings
from tests.emulators.rerank_api import KEY, Fault, RerankApi, rerank_api
from tests.project import Project


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[RerankApi]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("urllib3.util.retry.time", SimpleNamespace(sleep=lambda _: None, time=time.time))
    with rerank_api() as running:
        yield running


def embedder(api: RerankApi, model: str = "voyage-3.5", **changes: Any) -> VoyageEmbedder:
    return VoyageEmbedder(model, KEY, f"{api.url}/v1", **changes)


def test_passages_and_queries_are_told_apart_and_never_truncated(api: RerankApi) -> None:
    voyage = embedder(api)
    assert voyage.embed_passages(["one", "two"]).shape == (2, 1024)
    assert voyage.embed_query("question").shape == (1024,)
    assert [(request.path, request.body) for request in api.received] == [
        (
            "/v1/embeddings",
            {"model": "voyage-3.5", "input": ["one", "two"], "input_type": "document", "truncation": False},
        ),
        (
            "/v1/embeddings",
            {"model": "voyage-3.5", "input": ["question"], "input_type": "query", "truncation": False},
        ),
    ]
    assert {request.authorization for request in api.received} == {f"Bearer {KEY}"}


def test_vectors_are_unit_rows_of_the_asked_dimension(api: RerankApi) -> None:
    vectors = embedder(api, dimension=256).embed_passages(["a", "bbb"])
    assert vectors.shape == (2, 256)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(vectors[1][:2], np.array([4, 1]) / np.sqrt(17), rtol=1e-6)
    assert api.received[0].body["output_dimension"] == 256


def test_window_and_dimension_are_known_without_asking(api: RerankApi) -> None:
    assert (embedder(api).window_tokens, embedder(api).dimension) == (32_000, 1024)
    assert embedder(api, "voyage-law-2").window_tokens == 16_000
    assert embedder(api, "voyage-3-lite").dimension == 512
    assert api.received == []
    assert (embedder(api, "voyage-99").window_tokens, embedder(api, "voyage-99").dimension) == (16_000, 1024)


def test_a_request_holds_at_most_128_texts(api: RerankApi) -> None:
    texts = [f"text {'x' * n}" for n in range(300)]
    vectors = embedder(api).embed_passages(texts)
    assert [len(request.body["input"]) for request in api.received] == [128, 128, 44]
    assert [text for request in api.received for text in request.body["input"]] == texts
    assert np.argmax(vectors[:, 1]) == 0, "rows are in the order of the texts: the shortest one is the first"


def test_a_request_holds_no_more_tokens_than_the_model_takes(api: RerankApi) -> None:
    texts = ["word " * 20_000] * 9  # 30,000 by the estimate
    embedder(api, "voyage-3-large").embed_passages(texts)
    assert [len(request.body["input"]) for request in api.received] == [3, 3, 3]
    api.received.clear()
    embedder(api, "voyage-3.5").embed_passages(texts)
    assert [len(request.body["input"]) for request in api.received] == [9]


@given(st.lists(st.integers(0, 12)), st.integers(1, 5), st.integers(1, 20))
def test_batches_keep_every_text_in_order_within_both_limits(tokens: list[int], most: int, most_tokens: int) -> None:
    texts = [str(n) for n in range(len(tokens))]
    made = list(batches(texts, tokens, most, most_tokens))
    assert [text for batch in made for text in batch] == texts
    for batch in made:
        assert 1 <= len(batch) <= most
        assert len(batch) == 1 or sum(tokens[int(text)] for text in batch) <= most_tokens


def test_tokens_are_estimated_high(api: RerankApi) -> None:
    assert embedder(api).count_tokens(["", "hello world", "tiktoken is great!"]) == [0, 3, 9]
    assert api.received == []


def test_usage_and_its_price_add_up(api: RerankApi) -> None:
    voyage = embedder(api)
    assert (voyage.usage_tokens, voyage.usage_usd) == (0, 0)
    voyage.embed_passages(["one two three"] * 130)
    voyage.embed_query("one two")
    assert (voyage.usage_tokens, voyage.usage_usd) == (392, pytest.approx(392 * 0.06 / 1e6))
    api.edit = lambda answer: {"data": answer["data"]}
    voyage.embed_query("one two")
    assert voyage.usage_tokens == 392
    assert embedder(api, "voyage-99").usage_usd is None


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        (Fault(401, '{"detail": "no such key"}'), FatalError, "no such key; set VOYAGE_API_KEY"),
        (Fault(400, '{"detail": "Model voyage-x is not supported."}'), FatalError, "not supported.*embedding.model"),
        (Fault(400, '{"detail": "the text is too long"}'), PermanentError, "too long; .*chunking.max_tokens"),
        (Fault(429, '{"detail": "slow down"}'), TransientError, "429: slow down, after 5 retries"),
        (Fault(body='{"data": []}'), TransientError, "0 vectors for 1 texts"),
    ],
    ids=str,
)
def test_failures_are_classified_with_their_remedy(
    api: RerankApi, fault: Fault, error: type[Exception], reason: str
) -> None:
    api.faults = [fault] * 9
    with pytest.raises(error, match=reason) as raised:
        embedder(api).embed_query("text")
    assert KEY not in str(raised.value)


def test_a_missing_key_is_named_before_anything_is_sent() -> None:
    with pytest.raises(FatalError, match=r"voyage-3\.5 needs a key: set VOYAGE_API_KEY"):
        VoyageEmbedder("voyage-3.5", None).embed_query("text")


def test_the_fingerprint_tells_spaces_apart_and_defaults_from_nothing() -> None:
    def fingerprint(*arguments: Any, **changes: Any) -> str:
        return VoyageEmbedder(*arguments, **changes).fingerprint

    plain = fingerprint("voyage-3.5", "k")
    assert fingerprint("voyage-3.5", "another key") == plain
    assert fingerprint("voyage-3.5", "k", dimension=1024) == plain
    assert len({plain, fingerprint("voyage-4", "k"), fingerprint("voyage-3.5", "k", dimension=256)}) == 3
    assert ApiEmbedder("voyage-3.5", "https://api.voyageai.com/v1", "k", 8191, dimension=1024).fingerprint != plain


def test_a_model_of_voyage_needs_no_address(api: RerankApi, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_embedder(EmbeddingSettings(model="voyage-4")), VoyageEmbedder)
    monkeypatch.setenv("VOYAGE_API_KEY", KEY)
    settings = EmbeddingSettings(base_url=f"{api.url}/v1", model="voyage-4", api_key="of another service")  # type: ignore[arg-type]
    open_embedder(settings).embed_query("text")
    monkeypatch.delenv("VOYAGE_API_KEY")
    settings = EmbeddingSettings(base_url=f"{api.url}/v1", model="voyage-4", api_key=KEY)  # type: ignore[arg-type]
    open_embedder(settings).embed_query("text")
    assert {request.authorization for request in api.received} == {f"Bearer {KEY}"}


def test_an_index_built_with_voyage_is_searched_with_it_whatever_the_settings_say(
    project: Project, api: RerankApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOYAGE_API_KEY", KEY)
    project.write("a.md", "# A\n\nText.\n")
    embedding = {"model": "voyage-4", "base_url": f"{api.url}/v1", "dimension": 256}
    project.write_settings(embedding=embedding)
    project.refresh()
    project.sections["embedding"] = {"model": "hashing"}
    project.write_settings()
    api.received.clear()
    hits = SearchIndex.open(project.settings.storage.uri, project.settings).search("text", mode="vector")
    assert [hit.doc_id for hit in hits] == ["docs/a.md"]
    assert api.received[0].body["input_type"] == "query"
    assert api.received[0].body["output_dimension"] == 256
