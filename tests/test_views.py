"""Views: every chunk is in one, none is too large, and an edit changes few of them.

Each chunk whose view changes costs a call: the sum of their sizes is what an edit may cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.contexts.view import View, beginning, document_views, windows
from ctx_pipeline.documents.model import Document
from tests.contexts_support import document, prose

Element = tuple[int, int]
"""Priority and size; equal elements are told apart by identity only."""
elements = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), min_size=1, max_size=40)
LIMIT = 100


def views(made: tuple[Document, Sequence[Chunk]], window_tokens: int) -> list[View]:
    return document_views(made[0].parsed, made[1], window_tokens)


def cut(values: Sequence[Element]) -> list[tuple[int, int]]:
    return windows([(priority, b"", b"") for priority, _ in values], [size + 1 for _, size in values], LIMIT)


def window_of_each(values: Sequence[tuple[int, Element]]) -> dict[int, tuple[int, ...]]:
    """The members of the window of each element, by the elements' names."""
    names = [name for name, _ in values]
    return {
        name: tuple(names[first:last])
        for first, last in cut([element for _, element in values])
        for name in names[first:last]
    }


def changed_size(before: Sequence[tuple[int, Element]], after: Sequence[tuple[int, Element]]) -> int:
    """Size of the elements that stayed as they are but are in another window."""
    now, then = window_of_each(after), window_of_each(before)
    sizes = {name: element[1] for name, element in before}
    same = [name for name, element in before if (name, element) in after]
    return sum(sizes[name] for name in same if now[name] != then[name])


@given(elements)
def test_windows_hold_each_element_once_in_order_and_are_within_the_limit(values: list[Element]) -> None:
    found = cut(values)
    assert [at for first, last in found for at in range(first, last)] == list(range(len(values)))
    for first, last in found:
        sizes = [size for _, size in values[first:last]]
        assert len(sizes) == 1 or sum(sizes) + len(sizes) - 1 <= LIMIT


@given(elements, elements, st.data())
def test_what_is_inserted_or_deleted_changes_the_windows_beside_it_only(
    values: list[Element], inserted: list[Element], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(values)))
    before = list(enumerate(values))
    after = before[:at] + list(enumerate(inserted, start=1_000)) + before[at:]
    # Deleting is the way back: the same elements change.
    assert changed_size(before, after) <= 2 * LIMIT


@given(elements, st.tuples(st.integers(0, 5), st.integers(1, 60)), st.data())
def test_an_edited_element_changes_the_windows_beside_it_only(
    values: list[Element], edited: Element, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(values) - 1))
    before = list(enumerate(values))
    after = [*before[:at], (at, edited), *before[at + 1 :]]
    assert changed_size(before, after) <= 2 * LIMIT


@settings(deadline=None)
@given(st.integers(1, 30), st.sampled_from([40, 90, 400, 10_000]))
@example(1, 40)
def test_each_chunk_of_a_document_is_in_exactly_one_view(sections: int, window_tokens: int) -> None:
    made = document(prose("quotas", sections))
    found = views(made, window_tokens)
    assert [chunk for view in found for chunk in view.chunks] == made[1]
    assert [view.first for view in found] == [made[1].index(view.chunks[0]) for view in found]
    for view in found:
        assert view.text == made[0].parsed.text[view.chunks[0].start : view.chunks[-1].end]
        assert view.tokens <= window_tokens or len(view.chunks) == 1


def test_a_document_within_the_limit_is_one_view_and_an_empty_one_has_none() -> None:
    made = document(prose("quotas", 5))
    [view] = views(made, 8_000)
    assert (view.title, view.heading_path, view.text) == ("Guide to quotas", (), made[0].parsed.text.strip())
    assert views(document("\n"), 8_000) == []


def test_windows_begin_at_headings_of_the_highest_level_and_know_the_headings_above_them() -> None:
    text = "# Guide\n\n" + "\n\n".join(f"## Plan {plan}\n\n" + prose("x", 4, level=3)[14:] for plan in range(8))
    found = views(document(text), 500)
    assert len(found) == 8
    assert all(view.text.startswith("## Plan") for view in found[1:])
    assert [view.heading_path[:2] for view in found[1:]] == [("Guide", f"Plan {plan}") for plan in range(1, 8)]


@pytest.mark.parametrize(
    ("text", "path", "title"),
    [
        ("---\ntitle: Own title\n---\n\nText.\n\n# Heading\n\nMore.", "limits.md", "Own title"),
        ("# Heading\n\nText.\n\nMore.", "limits.md", "Heading"),
        ("Text about limits.\n\nMore.", "limits.md", ""),
        ("# Heading\n\nText.\n\nMore.", "limits.txt", ""),
    ],
)
def test_a_view_has_the_title_that_the_document_gives_itself_never_one_of_its_path(
    text: str, path: str, title: str
) -> None:
    made = document(text, path, chunk_tokens=32)
    assert made[0].parsed.title
    assert {view.title for view in views(made, 8_000)} == {title}
    renamed = document(text, path.replace("limits", "other/name"), chunk_tokens=32)
    assert views(renamed, 8_000) == views(made, 8_000)
    assert views(renamed, 10) == views(made, 10)


def test_repeated_headings_do_not_make_small_windows() -> None:
    text = "# Guide\n\n" + "\n\n".join(f"## Example\n\nExample {n}: " + "words " * 60 + f"{n}." for n in range(200))
    found = views(document(text), 1_000)
    assert len(found) < 45


# --- A file of 100,000 tokens ---------------------------------------------------------------------------------------

BIG = prose("everything", 740, words=100)
WINDOW = 8_000


@pytest.fixture(scope="module")
def big() -> tuple[Document, list[Chunk]]:
    return document(BIG, chunk_tokens=300)


def changed(before: tuple[Document, list[Chunk]], text: str) -> list[View]:
    """Views that are not those of the text before, and hold chunks that were in it."""
    known = {replace(view, first=0, chunks=()) for view in views(before, WINDOW)}
    chunks = {chunk.text for chunk in before[1]}
    return [
        view
        for view in views(document(text, chunk_tokens=300), WINDOW)
        if replace(view, first=0, chunks=()) not in known and any(chunk.text in chunks for chunk in view.chunks)
    ]


def test_a_long_document_is_cut_into_windows_that_are_well_filled(big: tuple[Document, list[Chunk]]) -> None:
    found = views(big, WINDOW)
    assert sum(view.tokens for view in found) > 100_000
    assert sum(view.tokens for view in found) / len(found) > 0.4 * WINDOW


@pytest.mark.parametrize("section", [0, 1, 320, 500, 739, 740])
def test_a_section_inserted_anywhere_changes_at_most_two_windows(
    big: tuple[Document, list[Chunk]], section: int
) -> None:
    new = "## New section\n\n" + "This sentence was not there before. " * 20 + "\n\n"
    at = BIG.index(f"## Part {section} of") if section < 740 else len(BIG)
    assert len(changed(big, BIG[:at] + ("" if section < 740 else "\n") + new + BIG[at:])) <= 2


@pytest.mark.parametrize("section", [0, 320, 739])
def test_an_edited_paragraph_changes_one_window(big: tuple[Document, list[Chunk]], section: int) -> None:
    text = BIG.replace(f"everything {section} 3 applies", f"everything {section} 3 no longer applies")
    assert len(changed(big, text)) == 1


def test_a_deleted_section_changes_at_most_two_windows(big: tuple[Document, list[Chunk]]) -> None:
    start, end = BIG.index("## Part 100 of"), BIG.index("## Part 101 of")
    assert len(changed(big, BIG[:start] + BIG[end:])) <= 2


def test_the_beginning_of_a_document_is_whole_chunks_and_at_least_one(big: tuple[Document, list[Chunk]]) -> None:
    view = beginning(big[0].parsed, big[1], 2_000)
    assert 1_500 < view.tokens <= 2_000
    assert big[0].parsed.text.startswith(view.text)
    assert len(beginning(big[0].parsed, big[1], 1).chunks) == 1


# --- Titles ---------------------------------------------------------------------------------------------------------


def test_no_release_of_a_changelog_is_in_what_is_asked_about_another() -> None:
    releases = [f"# 9.{number}.0\n\n" + prose("x", 3, level=3)[14:] for number in range(8, 0, -1)]
    before, after = (document("\n\n".join(text), "history.md") for text in (releases[1:], releases))
    assert {view.title for made in (before, after) for view in views(made, 500)} == {""}
    known = {replace(view, first=0, chunks=()) for view in views(before, 500)}
    new = [view for view in views(after, 500) if replace(view, first=0, chunks=()) not in known]
    assert [view.text.split("\n")[0] for view in new] == ["# 9.8.0"]


def test_front_matter_is_not_shown_to_the_model() -> None:
    [view] = views(document("---\ntitle: Quotas\nowner: ops\n---\n\nText.\n"), 8_000)
    assert (view.title, view.text) == ("Quotas", "Text.")
