"""The embedder without a model: repeatable vectors that only know words."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_pipeline.embedding.hashing import HashingEmbedder


@pytest.fixture(scope="module")
def embedder() -> HashingEmbedder:
    return HashingEmbedder()


@given(st.lists(st.text(st.characters(codec=None))))
def test_every_text_has_a_unit_vector_of_its_own(embedder: HashingEmbedder, texts: list[str]) -> None:
    vectors = embedder.embed_passages(texts)
    assert vectors.shape == (len(texts), embedder.dimension)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_array_equal(embedder.embed_query(text), vector)


def test_shared_words_bring_texts_together_whatever_their_order_and_case(embedder: HashingEmbedder) -> None:
    query = embedder.embed_query("request limit per minute")
    same, near, far = embedder.embed_passages(
        ["Per minute, REQUEST limit!", "the request limit of the free plan", "cats sleep all day long"]
    )
    assert query @ same == pytest.approx(1, abs=1e-6)
    assert query @ near > 0.3 > query @ far


def test_texts_without_words_share_a_fixed_vector(embedder: HashingEmbedder) -> None:
    vectors = embedder.embed_passages(["", " \n", "¡…!"])
    np.testing.assert_array_equal(vectors, np.tile(vectors[0], (3, 1)))


def test_vectors_are_the_same_in_another_process(embedder: HashingEmbedder) -> None:
    code = (
        "from ctx_pipeline.embedding.hashing import HashingEmbedder\n"
        "print(HashingEmbedder().embed_query('límite de peticiones').tobytes().hex())"
    )
    elsewhere = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert elsewhere.strip() == embedder.embed_query("límite de peticiones").tobytes().hex()


def test_words_and_punctuation_are_tokens(embedder: HashingEmbedder) -> None:
    assert embedder.count_tokens(["", "Hello, world!", "a_b  c\n…", "límite: 1.000"]) == [0, 4, 3, 5]
