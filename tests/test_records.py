"""Logs, chats, transcripts and lines of data: cut between messages, at places that an edit elsewhere does not move."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.chunking.recursive import split
from ctx_pipeline.chunking.structure import StructureChunker
from ctx_pipeline.documents.parse import parse
from ctx_pipeline.documents.plain_text import plain_blocks
from tests.markdown_documents import size_limit

LIMIT = size_limit(300, 300)
SENTENCE = "the pump was greased on monday by nobody who could say when it had last been done or why"
WORDS = SENTENCE.split()


def sentence(source: random.Random) -> str:
    return " ".join(source.choice(WORDS) for _ in range(source.randrange(4, 40))) + ". It is so."


def chat(count: int) -> list[str]:
    source = random.Random(5)
    return [
        f"[{n // 60 % 24:02}:{n % 60:02}] {source.choice(['Ana', 'Bo', 'Cyd'])}: {sentence(source)}"
        for n in range(count)
    ]


def log(count: int) -> list[str]:
    return [f"2024-05-0{n // 5000 + 1} 12:{n // 60 % 60:02}:{n % 60:02} INFO pump {n % 7} ready" for n in range(count)]


def transcript(count: int) -> list[str]:
    source = random.Random(6)
    return [f"{source.choice(['ANA', 'DR. BO', 'CYD'])}: {sentence(source)}\nand goes on: {n}" for n in range(count)]


def subtitles(count: int) -> list[str]:
    source = random.Random(7)
    return [
        f"{n + 1}\n00:{n // 60:02}:{n % 60:02},000 --> 00:{n // 60:02}:{n % 60:02},900\n{sentence(source)}\n"
        for n in range(count)
    ]


def data(count: int) -> list[str]:
    source = random.Random(8)
    return [f"{n};{source.choice(WORDS)};{source.randrange(10_000)}" for n in range(count)]


def chunks_of(text: str) -> list[Chunk]:
    return split(text, markdown=False, limit=LIMIT)


@pytest.mark.parametrize("kind", [chat, log, transcript, subtitles], ids=lambda kind: kind.__name__)
def test_chunks_begin_with_a_message_and_end_with_one(kind: object) -> None:
    assert callable(kind)
    messages = kind(200)
    text = "\n".join(messages)
    starts = {sum(len(message) + 1 for message in messages[:number]) for number in range(len(messages))}
    chunks = chunks_of(text)
    assert len(chunks) > 5
    assert {chunk.start for chunk in chunks} <= starts
    assert StructureChunker(LIMIT, 0, "").split(parse(text.encode(), "a.txt")) == chunks


@pytest.mark.parametrize("kind", [chat, log, transcript, subtitles, data], ids=lambda kind: kind.__name__)
def test_a_message_more_changes_few_chunks_and_chunks_are_well_filled(kind: object) -> None:
    assert callable(kind)
    messages = kind(1_500)
    before = chunks_of("\n".join(messages))
    assert len(before) > 40
    assert sum(chunk.tokens for chunk in before) > 0.7 * len(before) * LIMIT.max_tokens
    known = {chunk.text for chunk in before}
    extra = messages[700]
    for place in (1, 2, 40, 333):
        after = chunks_of("\n".join([*messages[:place], extra, *messages[place:]]))
        assert len({chunk.text for chunk in after} - known) <= 12


def test_a_message_with_lines_below_it_is_one_and_one_that_exceeds_a_chunk_is_divided() -> None:
    text = (
        "10:00 Ana: look\n  at this\n\n  trace of it\n10:01 Bo: yes\n10:02 Ana: " + "word " * 900 + "\n10:03 Bo: oh\n"
    )
    blocks = [text[block.start : block.end] for block in plain_blocks(text)]
    assert blocks[:2] == ["10:00 Ana: look\n  at this\n\n  trace of it", "10:01 Bo: yes"]
    assert len(blocks) == 4
    chunks = chunks_of(text)
    assert len(chunks) > 3
    assert all(chunk.tokens <= LIMIT.max_tokens for chunk in chunks)


def test_what_stands_before_the_messages_begins_their_first_chunk() -> None:
    text = "STANDUP NOTES\n\nOf monday, all were present.\n\n" + "\n".join(chat(100))
    [first, *rest] = chunks_of(text)
    assert first.text.startswith("STANDUP NOTES\n\nOf monday, all were present.\n\n[00:00]")
    assert all(chunk.text.startswith("[") and chunk.heading_path == ("STANDUP NOTES",) for chunk in rest)


@pytest.mark.parametrize(
    "text",
    [
        "The meeting begins at 10:00 and\nlasts until 12:00. Bring: paper,\npens and the note of\nthe last time.\n",
        "Name: Ana\nPlace: Oslo\nDate: today\n",
        "\n".join(["the quick brown fox jumps over a dog"] * 12),
        "",
        "\n\n",
    ],
)
def test_prose_is_no_message(text: str) -> None:
    assert {block.kind for block in plain_blocks(text)} <= {"paragraph"}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(["[10:00] Ana: hi", "[10:01] Bo: " + "word " * 30, "  more", "", "1,2,3", "Ana: x"]),
        max_size=60,
    )
)
def test_every_line_is_in_one_chunk(lines: list[str]) -> None:
    text = "\n".join(lines)
    position = 0
    for chunk in split(text, markdown=False, limit=size_limit(40, 40)):
        assert not text[position : chunk.start].strip()
        assert chunk.text == text[chunk.start : chunk.end]
        position = chunk.end
    assert not text[position:].strip()


@pytest.mark.parametrize(
    "line", ["[10:00] a", "12:00:00 x", "1,2,3,4", "00:00:01,000 --> 00:00:02,000"], ids=lambda line: line[:6]
)
def test_many_lines_alike_are_packed(line: str) -> None:
    chunks = chunks_of(f"{line}\n" * 20_000)
    assert sum(chunk.tokens for chunk in chunks) > 0.7 * len(chunks) * LIMIT.max_tokens
