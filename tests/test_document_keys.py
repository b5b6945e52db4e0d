"""A document's partition key: reversible, harmless to Dagster, and readable for ordinary paths."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.partitions.utils.base import INVALID_PARTITION_SUBSTRINGS
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctx_pipeline.documents.model import doc_id_of, partition_key

TROUBLE = st.sampled_from(
    [*INVALID_PARTITION_SUBSTRINGS, *"%,[]{}*?'\"\\ .\r\n\u2028\u00a0\u3000\x7f/", "..", "%2E", "%25"]
)
PATH = st.lists(st.one_of(TROUBLE, st.characters(exclude_categories=["Cs"])), min_size=1).map("".join)


@settings(deadline=None)
@given(PATH)
@example("docs/a....md")
@example("docs/100%25.md")
@example("docs/.\n")
def test_the_key_gives_back_the_document(doc_id: str) -> None:
    assert doc_id_of(partition_key(doc_id)) == doc_id


@settings(deadline=None)
@given(PATH)
@example("docs/a.....md")
@example(".")
@example("docs/a\u3000")
def test_a_key_holds_nothing_that_dagster_or_a_command_line_misreads(doc_id: str) -> None:
    key = partition_key(doc_id)
    assert not [text for text in INVALID_PARTITION_SUBSTRINGS if text in key]
    assert not set(key) & set(",[]'\"\\")
    assert key == "".join(key.split()), "no white space anywhere"
    assert key.strip(".") == key
    assert min(key) > " ", "no control character either"


@settings(deadline=None)
@given(PATH, PATH)
@example("docs/a b", "docs/a%20b")
@example("docs/...", "docs/%2E..")
def test_two_documents_never_share_a_key(one: str, other: str) -> None:
    for rival in (other, partition_key(one), doc_id_of(one)):
        assert (partition_key(one) == partition_key(rival)) == (one == rival)


@pytest.mark.parametrize(
    "doc_id",
    [
        "docs/guide.md", "docs/planes/límites-de-uso.md", "wiki/用户指南/开始.md", "docs/a.b.c_d-e.tar.md",
        "docs/🦉.md", "d/v1.2/x+y.md", "docs/a@b#c&d=e;f:g!h~i(j).md", "docs/.hidden/file.md", "docs/a..b.md",
    ],
)  # fmt: skip
def test_an_ordinary_path_is_its_own_key(doc_id: str) -> None:
    assert partition_key(doc_id) == doc_id


@pytest.mark.parametrize(
    ("doc_id", "key"),
    [
        ("docs/with space.md", "docs/with%20space.md"),
        ("docs/100%.md", "docs/100%25.md"),
        ("docs/[a...b].md", "docs/%5Ba%2E..b%5D.md"),
        ("docs/new\nline.md", "docs/new%0Aline.md"),
        ("docs/a,b.md", "docs/a%2Cb.md"),
        ("docs/\u202egnp.md", "docs/%E2%80%AEgnp.md"),
        ("docs/\u2066gnp\u2069.md", "docs/%E2%81%A6gnp%E2%81%A9.md"),
    ],
)
def test_what_is_escaped_is_percent_encoded_utf8(doc_id: str, key: str) -> None:
    assert partition_key(doc_id) == key


def test_dagster_stores_every_key_and_gives_it_back(tmp_path: Path) -> None:
    characters = [chr(code) for code in range(0x100)] + ["...", "....", "\u2028", "\u3000", "🦉", "%2E", "%"]
    doc_ids = {f"docs/{text}.md" for text in characters} | {f"docs/{text}" for text in characters}
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.add_dynamic_partitions("documents", [partition_key(doc_id) for doc_id in sorted(doc_ids)])
        assert {doc_id_of(key) for key in instance.get_dynamic_partitions("documents")} == doc_ids


@pytest.mark.parametrize("key", ["docs/100%", "docs/%FF.md", "docs/%ZZ", "%", "[a...b]"])
def test_a_key_added_by_hand_breaks_nothing(key: str) -> None:
    assert partition_key(doc_id_of(key)) != key
