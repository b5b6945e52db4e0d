"""Full text: names divide into words, function words ask for nothing, identifiers stay whole."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_pipeline.index.fulltext import (
    asked_identifiers,
    identifiers,
    indexed_identifiers,
    indexed_text,
    normalized,
    query_text,
)
from ctx_pipeline.index.fusion import add_document_ranks, ranked, reciprocal_rank_fusion


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("parseHTTPHeader", "parse HTTP Header"),
        ("HTMLParser2", "HTML Parser 2"),
        ("a DiffExecutor, a DiffExecutor", "Diff Executor"),
        ("leerAñoÚltimo", "leer Año Último"),
        ("get_value of getValue", "get Value"),
    ],
)
def test_the_words_of_a_compound_name_are_added_once(text: str, added: str) -> None:
    assert indexed_text(text) == f"{text}\n{added}"


@pytest.mark.parametrize("text", ["", "plain words", "error_code", "NASA", "facturación", "界" * 50, "aB" * 500])
def test_a_text_without_compound_names_stays_as_it_is(text: str) -> None:
    assert indexed_text(text) == text


@given(st.text(max_size=300))
def test_the_text_itself_is_always_indexed(text: str) -> None:
    assert indexed_text(text).startswith(text)


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("What does the ledger do?", "ledger"),
        ("¿Cuál es el límite del plan Pro?", "límite plan Pro?"),
        ("How do I call getTarget?", "call getTarget?\nget Target"),
        ("the IT department", "IT department"),
        ("what is it", "what is it"),
        ("¿qué es?", "¿qué es?"),
        ("", ""),
    ],
)
def test_a_query_asks_for_its_telling_words(query: str, asked: str) -> None:
    assert query_text(query) == asked


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See TS-999.", ["ts-999"]),
        ("错误TS-999 y TS‑777", ["ts-999", "ts-777"]),
        ("std::vector in /etc/app/config.yaml, e.g. or and/or", ["std::vector", "etc/app/config.yaml"]),
        ("call error_code() twice: error_code", ["error_code"]),
        ("since v2.3.1, not v2.3.10", ["v2.3.1", "v2.3.10"]),
        ("version 2.3.1 costs 3.5 or 1.000", ["2.3.1"]),
        ("in `src/index_rows.py`:", ["src/index_rows.py"]),
        ("a well-known, long-term 1990-2000 plan and/or e.g. 10:30", []),
        ("snake_ _private __ ___", []),
        ("CamelCase", []),
        ("código_año", ["código_año"]),
        ("x_" + "y" * 300, []),
    ],
)
def test_identifiers_have_a_separator_and_are_not_prose(text: str, found: list[str]) -> None:
    assert identifiers(text) == found


def test_the_identifiers_inside_a_path_are_indexed_too() -> None:
    assert indexed_identifiers("open src/index_rows.py or self.error_code") == (
        "src/index_rows.py self.error_code index_rows error_code"
    )


# Names with symbols ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("written in C++, not C", "Cplusplus"),
        ("C++17 and g++", "Cplusplus Cplusplus17 gplusplus"),
        ("(C#) or F#.", "Csharp Fsharp"),
        ("on .NET 8, see .htaccess", "dotNET dothtaccess"),
        ("C#/.NET", "Csharp dotNET"),
        ("the A* search", "Astar"),
        ("I/O over TCP/IP, R&D at AT&T", "IO TCPIP RD ATT"),
    ],
)
def test_a_name_with_symbols_has_a_word_of_its_own(text: str, words: str) -> None:
    assert indexed_text(text) == f"{text}\n{words}"


@pytest.mark.parametrize(
    "text",
    [
        "*A* and **B**",
        "a + b",
        "x+++y",
        "## Heading ##",
        "and/or",
        "etc... so",
        "1.5",
        "e.g. no",
        "path/to/it",
        "R & D",
    ],
)
def test_punctuation_and_markup_are_no_names(text: str) -> None:
    assert indexed_text(text) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("C++17, F# and .NET", ["c++17", "f#", ".net"]),
        ("pass --force to @dataclass, #tag in $PATH", ["--force", "@dataclass", "#tag", "$path"]),
        ("me@example and a--b, page#top", []),
        ("Node.js and A/B", ["node.js", "a/b"]),
    ],
)
def test_names_with_symbols_are_identifiers(text: str, found: list[str]) -> None:
    assert identifiers(text) == found


def test_a_version_of_a_name_is_found_by_the_name() -> None:
    assert indexed_identifiers("C++17") == "c++17 c++"


@pytest.mark.parametrize(
    ("query", "asked"),
    [("what is i/o?", "i/o"), ("at&t", "at&t"), ("c++ or C#", "c++ c#"), ("and plain words", ""), ("TS-999", "ts-999")],
)
def test_a_query_may_write_names_in_small_letters(query: str, asked: str) -> None:
    assert asked_identifiers(query) == asked


@pytest.mark.parametrize(
    ("query", "asked"), [("what is .do", ".do\ndotdo"), ("the A* of it", "A*\nAstar"), ("I/O", "I/O\nIO")]
)
def test_names_with_symbols_are_no_function_words(query: str, asked: str) -> None:
    assert query_text(query) == asked


# Normalized text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("devolucio\u0301n", "devolución"),
        ("Warm\u00adwasser", "Warmwasser"),
        ("long\u200b_\u2060name\ufeff", "long_name"),
        ("man\u00ad\u0303ana", "mañana"),
        ("e\u0323\u0301bo", "ẹbo"),
        ("e\ufb03cient", "efficient"),
        ("ＴＳ－９９９", "TS-999"),
        ("\u00b5m", "\u03bcm"),
        ("Claude™ m² 10½ 1º", "Claude™ m² 10½ 1º"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("क्\u200dष", "क्\u200dष"),
        ("ภาษา\u200bไทย", "ภาษา\u200bไทย"),
        ("abc\u200d\u200cdef", "abcdef"),
        ("й и\u0306", "й й"),
    ],
)
def test_one_spelling_of_what_looks_the_same(text: str, same: str) -> None:
    assert normalized(text) == same


@given(st.text(st.one_of(st.characters(), st.sampled_from("\u00ad\u200b\u200d\u0301\u0e01ae")), max_size=100))
def test_normalized_text_stays_as_it_is_however_it_was_composed(text: str) -> None:
    once = normalized(text)
    assert normalized(once) == once
    assert normalized(unicodedata.normalize("NFD", text)) == normalized(unicodedata.normalize("NFC", text))


def test_fusion_sums_weighted_reciprocal_ranks() -> None:
    scores = reciprocal_rank_fusion([(["a", "b"], 1.0), (["b", "c"], 2.0), (["d"], 0.0)], 60)
    assert scores == {"a": 1 / 61, "b": pytest.approx(1 / 62 + 2 / 61), "c": 2 / 62}
    assert ranked(scores) == ["b", "c", "a"]
    assert ranked({"y": 1.0, "x": 1.0}) == ["x", "y"]


def test_chunks_of_a_document_that_was_found_well_come_before_others() -> None:
    scores = {"one#1": 0.5, "two#1": 0.02, "one#2": 0.0199}
    added = add_document_ranks(scores, lambda item: item[:3], 1.0, 60)
    assert ranked(added) == ["one#1", "one#2", "two#1"]
    assert added["two#1"] == pytest.approx(0.02 + 1 / 62)
    assert add_document_ranks(scores, lambda item: item[:3], 0.0, 60) == scores


@given(st.dictionaries(st.text("ab#01", min_size=1, max_size=4), st.floats(0.001, 1), min_size=1), st.floats(0, 10))
def test_the_best_item_stays_the_best(scores: dict[str, float], weight: float) -> None:
    added = add_document_ranks(scores, lambda item: item[0], weight, 60)
    best = ranked(scores)[0]
    assert added[best] == max(added.values())
