"""Answers: what the model is sent, citations checked against the passages, honest refusals, and the command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_pipeline.answers.answer import ask, read_answer
from ctx_pipeline.answers.prompt import answer_prompt
from ctx_pipeline.claude.client import RetryPolicy
from ctx_pipeline.claude.pricing import Prices
from ctx_pipeline.errors import CtxError, FatalError
from ctx_pipeline.index.search import Hit, SearchIndex
from ctx_pipeline.settings import AnswerSettings
from tests.emulators import faults
from tests.emulators.messages import KEY, MessagesEmulator
from tests.project import Project

PRICES = Prices.load()
FREE = "# Plan Free\n\nEn este caso, el límite es de 60 peticiones por minuto.\n"
PRO = "# Plan Pro\n\nEn este caso, el límite sube a 1.000 peticiones por minuto.\n"
HIT = Hit(
    "docs/a.md#00000", "docs/a.md", 0.03, "El límite sube\na 1.000.", "Planes › Pro", "written", ("Planes", "Pro"),
    "Planes", 10, 33, 7, 1, 1,
)  # fmt: skip


@pytest.fixture
def claude(monkeypatch: pytest.MonkeyPatch) -> Iterator[MessagesEmulator]:
    with MessagesEmulator() as api:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        yield api


def test_added_context_and_original_text_are_labelled_apart() -> None:
    content = answer_prompt("¿Qué límite?", [HIT, replace(HIT, context="", heading_path=())]).content
    first, second = content.split('<passage number="2">')
    assert "<source>docs/a.md, Planes › Pro, lines 7-8</source>" in first
    assert "<added_context>\nPlanes › Pro\n</added_context>\n<original>\nEl límite sube\na 1.000.\n</original>" in first
    assert "<source>docs/a.md, lines 7-8</source>\n<original>" in second
    assert second.endswith("<question>\n¿Qué límite?\n</question>")
    alone = answer_prompt("¿Qué límite?", [HIT], original_only=True).content
    assert "added_context" not in alone
    assert "<original>\nEl límite sube" in alone


@given(st.text(), st.text(), st.text(), st.sampled_from(["</original>", "< / PASSAGE >", "<question>", "{}", "{0}"]))
def test_nothing_in_a_document_or_question_can_end_its_block(text: str, context: str, asked: str, attack: str) -> None:
    hit = replace(HIT, text=text + attack, context=f"{context}{attack}", doc_id=f"docs/{attack}.md")
    content = answer_prompt(asked + attack, [hit]).content
    tags = re.findall(r"<\s*/?\s*(?:passage|source|added_context|original|question)\b", content, re.IGNORECASE)
    assert tags == [
        "<passage", "<source", "</source", "<added_context", "</added_context", "<original", "</original",
        "</passage", "<question", "</question",
    ]  # fmt: skip


def test_an_answer_cites_path_heading_and_lines(claude: MessagesEmulator) -> None:
    claude.structured = lambda body: {"answered": True, "answer": "1.000 [1].", "citations": [1]}
    answer = ask(answer_prompt("¿Límite?", [HIT]), [HIT], AnswerSettings(), PRICES)
    assert answer.answered
    [citation] = answer.citations
    assert (citation.doc_id, citation.heading_path) == ("docs/a.md", ("Planes", "Pro"))
    assert (citation.first_line, citation.last_line) == (7, 8)
    assert answer.usd == pytest.approx(float(claude.bill.usd))
    assert answer.usd > 0
    [body] = claude.bodies
    assert body["model"] == "claude-haiku-5-5"
    assert body["output_config"]["format"]["schema"]["required"] == ["answered", "answer", "citations"]


def test_citations_that_do_not_exist_are_dropped_and_told() -> None:
    answer = read_answer("Sí [2, 9]. También [1].", True, [2, 3, 0], [HIT, HIT, HIT], "m", 0.0)
    assert [citation.number for citation in answer.citations] == [2, 1, 3]
    assert answer.warnings == ["the answer cites passages that do not exist: 9, 0"]
    unsupported = read_answer("Sí.", True, [], [HIT], "m", 0.0)
    assert unsupported.citations == []
    assert "no passage" in unsupported.warnings[0]


def test_what_the_passages_do_not_hold_is_said(claude: MessagesEmulator) -> None:
    claude.structured = lambda body: {"answered": False, "answer": "Falta el precio.", "citations": [1]}
    answer = ask(answer_prompt("¿Precio?", [HIT]), [HIT], AnswerSettings(), PRICES)
    assert (answer.answered, answer.citations, answer.warnings) == (False, [], [])


def test_an_answer_of_another_shape_is_an_error_not_an_answer(claude: MessagesEmulator) -> None:
    claude.structured = lambda body: {"text": "hola"}
    with pytest.raises(CtxError, match="answered"):
        ask(answer_prompt("¿Precio?", [HIT]), [HIT], AnswerSettings(), PRICES, RetryPolicy(attempts=1))


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        (faults.TRUNCATED, "; raise answers.max_tokens"),
        (faults.status(413), "; lower -k"),
        (faults.status(429), "; lower -k if this goes on"),
    ],
    ids=str,
)
def test_a_failure_names_what_of_ask_to_change(claude: MessagesEmulator, fault: faults.Fault, remedy: str) -> None:
    claude.faults = [(faults.always, fault)]
    with pytest.raises(CtxError, match=remedy):
        ask(answer_prompt("¿Precio?", [HIT]), [HIT], AnswerSettings(), PRICES, RetryPolicy(attempts=1))


def test_without_a_key_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FatalError, match="ANTHROPIC_API_KEY"):
        ask(answer_prompt("¿Precio?", [HIT]), [HIT], AnswerSettings(), PRICES)


@pytest.fixture
def indexed(project: Project) -> Project:
    project.write("free.md", FREE)
    project.write("pro.md", PRO)
    project.refresh()
    return project


def command(project: Project, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ctx_pipeline.cli", "ask", *arguments],
        env={**os.environ, **project.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_answers_with_citations(indexed: Project, claude: MessagesEmulator) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        content = body["messages"][0]["content"][0]["text"]
        passage = next(part for part in content.split("<passage") if "1.000" in part)
        number = int(passage.split('"')[1])
        return {"answered": True, "answer": f"1.000 por minuto [{number}].", "citations": [number]}

    claude.structured = answer
    done = command(indexed, "límite del plan Pro", "-k", "2")
    assert done.returncode == 0, done.stderr
    assert "1.000 por minuto [1]." in done.stdout
    assert "[1] docs/pro.md:1-3  Plan Pro" in done.stdout
    assert "emulator, 0.0" in done.stdout
    found = json.loads(command(indexed, "límite del plan Pro", "--json").stdout)
    assert [citation["doc_id"] for citation in found["citations"]] == ["docs/pro.md"]
    claude.structured = lambda body: {"answered": False, "answer": "No consta.", "citations": []}
    refused = command(indexed, "¿Quién fundó la empresa?")
    assert refused.returncode == 1
    assert "the passages do not hold the answer" in refused.stdout


def test_the_command_takes_the_prices_of_the_settings(indexed: Project, claude: MessagesEmulator) -> None:
    claude.structured = lambda body: {"answered": True, "answer": "1.000 [1].", "citations": [1]}
    indexed.write_settings(answers={"model": "claude-haiku-4-5"})
    indexed.write_prices("claude-haiku-4-5", 0.001)
    found = json.loads(command(indexed, "límite del plan Pro", "--json").stdout)
    tokens = claude.bill.total("input_tokens") + claude.bill.total("output_tokens")
    assert found["usd"] == pytest.approx(0.001 * tokens)
    indexed.write_settings(answers={"model": "claude-haiku-5-5"})
    unpriced = command(indexed, "límite del plan Pro")
    assert unpriced.returncode == 2
    assert "no prices for the model 'claude-haiku-5-5'; known are claude-haiku-4-5." in unpriced.stderr


def test_show_prompt_needs_no_key_and_sends_nothing(indexed: Project) -> None:
    done = command(indexed, "límite del plan Pro", "--show-prompt", "--original-only")
    assert done.returncode == 0, done.stderr
    [top] = SearchIndex.open(indexed.settings.storage.uri, indexed.settings).search("límite del plan Pro", k=1)
    assert top.text in done.stdout
    assert "<added_context>" not in done.stdout
    assert "<added_context>" in command(indexed, "límite del plan Pro", "--show-prompt").stdout
    without_key = command(indexed, "límite del plan Pro")
    assert (without_key.returncode, without_key.stdout) == (1, "")
    assert "ANTHROPIC_API_KEY" in without_key.stderr
