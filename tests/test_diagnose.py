"""Why queries fail: each cause by a corpus that has it, and the command's contract."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ctx_pipeline.errors import QueryError
from ctx_pipeline.evaluation.advice import Advisor
from ctx_pipeline.evaluation.diagnose import diagnose_queries
from ctx_pipeline.evaluation.diagnosis_report import text
from ctx_pipeline.evaluation.findings import Diagnosis, Finding
from ctx_pipeline.evaluation.query_terms import Vocabulary, Words, fold
from tests.project import Project

CROWD = 40
"""Documents that answer as well as the one that is meant: more than the 20 chunks that are looked at."""


def line(project: Project, question: str, doc: str, passage: str, qid: str = "q1") -> dict[str, Any]:
    start = (project.docs / doc).read_text().index(passage)
    return {"qid": qid, "query": question, "doc": doc, "start": start, "end": start + len(passage)}


def write_lines(project: Project, lines: Sequence[Mapping[str, Any]], name: str = "queries.jsonl") -> Path:
    path = project.root / name
    path.write_text("".join(json.dumps(values) + "\n" for values in lines))
    return path


def diagnose(project: Project, *lines: Mapping[str, Any], chunks: Path | None = None, files: bool = True) -> Diagnosis:
    return diagnose_queries(project.pipeline(), write_lines(project, lines), files=files, chunks=chunks)


def only_finding(diagnosis: Diagnosis) -> Finding:
    [failed] = diagnosis.failed
    [finding] = failed.findings
    return finding


def advice(project: Project, diagnosis: Diagnosis) -> str:
    return Advisor(project.pipeline(), diagnosis).of(only_finding(diagnosis))


def write_crowd(project: Project, body: str) -> None:
    for number in range(CROWD):
        project.write(f"crowd/{number:02}.md", f"# {body}\n\n{body}.\n")


def test_a_document_that_is_not_there_is_told_from_one_left_out_and_one_that_failed(project: Project) -> None:
    project.write("good.md", "# Good\n\nText.\n")
    project.write("bad.md", b"\x80")
    project.write("code.py", "text = 1\n")
    project.refresh()
    span = {"query": "text?", "start": 0, "end": 4}
    docs = ["godd.md", "code.py", "bad.md", "../" + "x" * 5000, "/\0"]
    lines = [{"qid": doc[:9], "doc": doc, **span} for doc in docs]
    diagnosis = diagnose(project, *lines, files=False)
    findings = {failed.query.qid: failed.findings[0] for failed in diagnosis.failed}
    assert {finding.causes for finding in findings.values()} == {("document_missing",)}
    assert "did you mean good.md?" in findings["godd.md"].reason
    assert "left out by the patterns of source 'docs'" in findings["code.py"].reason
    assert "not valid UTF-8" in findings["bad.md"].reason
    assert "no source has a file" in findings["/\0"].reason
    assert diagnosis.recall_candidates == 0


def test_a_passage_that_an_edit_moved_is_not_looked_for_elsewhere(project: Project) -> None:
    project.write("a.md", "# Limits\n\nThe limit is 60.\n")
    project.write_settings(search={"candidates": 20})
    asked = {**line(project, "Which limit?", "a.md", "The limit is 60."), "text": "The limit is 60."}
    assert (diagnose(project, asked).failed, diagnose(project, asked).warnings) == ([], [])
    write_crowd(project, "Which limit")
    new = "# Limits\n\n" + "An introduction was added here.\n\n" * 30 + "The limit is 60.\n"
    project.write("a.md", new)
    diagnosis = diagnose(project, asked)
    assert "1 passage of the queries moved or changed" in diagnosis.warnings[0]
    finding = only_finding(diagnosis)
    assert finding.causes == ("stale_span",)
    assert f"now is at characters {new.index('The limit')}-" in finding.reason
    project.write("a.md", "# Limits\n")
    assert "not in it any more" in only_finding(diagnose(project, asked)).reason


def test_a_passage_outside_the_text_needs_no_written_text_to_be_stale(project: Project) -> None:
    project.write("a.md", "# Limits\n")
    project.write("b.md", "Intro.\n\n\n\n\n\n\nEnd.\n")
    beyond = {"qid": "q1", "query": "x?", "doc": "a.md", "start": 500, "end": 600}
    assert only_finding(diagnose(project, beyond)).causes == ("stale_span",)


def test_an_answer_that_a_copy_outranks_is_a_duplicate(project: Project) -> None:
    passage = "The limit of the plan is sixty requests a minute for every key."
    for number in range(CROWD):
        project.write(f"copies/{number:02}.md", f"# Limit of requests\n\n{passage}\n")
    project.write("zoo.md", f"# Zoo\n\n{passage} Lions sleep.\n")
    diagnosis = diagnose(project, line(project, "limit of requests", "zoo.md", passage))
    finding = only_finding(diagnosis)
    assert finding.cause == "duplicate"
    assert finding.copy is not None
    assert finding.copy.startswith("docs/copies/")
    assert "add its span" in advice(project, diagnosis)


def test_a_long_passage_in_short_overlong_pieces_is_cut(project: Project) -> None:
    body = "".join(f"Sentence {number} of the tale. " for number in range(100))
    project.write("a.md", body)
    # The passage reaches into two chunks, and fills neither.
    passage = body[400:1400]
    boundaries = [
        {"doc": "a.md", "start": 0, "end": 700},
        {"doc": "a.md", "start": 700, "end": 1101},
        {"doc": "a.md", "start": 1101, "end": len(body)},
    ]
    chunks = write_lines(project, [boundaries[0], boundaries[2]], "chunks.jsonl")
    asked = line(project, "what is sentence 20 of the tale?", "a.md", passage)
    diagnosis = diagnose(project, asked, chunks=chunks)
    finding = only_finding(diagnosis)
    assert finding.cause == "cut"
    assert [(piece.chunk_id, round(piece.share, 2)) for piece in finding.pieces] == [
        ("docs/a.md#00000", 0.3),
        ("docs/a.md#00001", 0.3),
    ]
    assert {piece.rank for piece in finding.pieces} == {1, 2}
    assert "a piece is found (rank 1)" in advice(project, diagnosis)
    assert "boundaries in the file of chunks" in advice(project, diagnosis)


def test_a_chunk_that_leaves_the_name_to_its_document_is_an_orphan(project: Project) -> None:
    project.write_settings(contexts={"method": "none"}, search={"candidates": 20})
    write_crowd(project, "How many requests a minute does the plan allow")
    passage = "It rises to a thousand."
    project.write("orion.md", f"# Tariffs\n\nAbout the plan Orion.\n\n# Details\n\n{passage}\n")
    question = "How many requests a minute does the plan Orion allow?"
    diagnosis = diagnose(project, line(project, question, "orion.md", passage))
    finding = only_finding(diagnosis)
    assert finding.causes == ("orphan", "absent")
    assert [(missing.name, missing.in_context) for missing in finding.missing] == [("Orion", False)]
    assert 'contexts.method = "outline"' in advice(project, diagnosis)
    write_crowd(project, "How many requests a minute does the plan Orion allow")
    project.write("orion.md", f"# Orion\n\nAbout the plan.\n\n# Details\n\n{passage}\n")
    project.write_settings(contexts={"method": "outline"})
    finding = only_finding(diagnose(project, line(project, question, "orion.md", passage)))
    assert "orphan" in finding.causes
    assert finding.cause != "orphan", "its context names it: contexts cannot do more"
    assert [missing.in_context for missing in finding.missing] == [True]


def test_a_chunk_that_only_one_leg_finds_tells_which(project: Project) -> None:
    project.write_settings(search={"candidates": 25, "rrf_k": 60})
    write_crowd(project, "colour of the small stone")
    filler = " ".join(f"word{number}" for number in range(150))
    project.write("a.md", f"sapphire sapphire {filler}\n")
    question = "sapphire, colour of the small stone"
    diagnosis = diagnose(project, line(project, question, "a.md", "sapphire sapphire"))
    finding = only_finding(diagnosis)
    assert finding.causes == ("one_leg", "ranked_low")
    assert (finding.keyword_rank, finding.vector_rank) == (1, None)
    assert "the vector leg does not have it at all" in advice(project, diagnosis)
    assert "share of the keyword leg" in advice(project, diagnosis)


def test_a_chunk_below_the_first_twenty_is_for_a_reranker(project: Project) -> None:
    write_crowd(project, "tariff of the premium plan")
    project.write("a.md", "# Zoo\n\nThe tariff is what lions pay for the meat of the week.\n")
    diagnosis = diagnose(project, line(project, "tariff of the premium plan", "a.md", "The tariff is what lions pay"))
    finding = only_finding(diagnosis)
    assert finding.causes == ("ranked_low",)
    assert finding.rank == CROWD + 1
    assert f"it is number {CROWD + 1}" in advice(project, diagnosis)
    assert diagnosis.mendable == 1


def test_a_chunk_that_shares_no_word_is_absent(project: Project) -> None:
    project.write_settings(search={"candidates": 20})
    write_crowd(project, "tariff of the premium plan")
    project.write("a.md", "# Zoo\n\nLions pay nothing.\n")
    diagnosis = diagnose(project, line(project, "tariff of the premium plan", "a.md", "Lions pay nothing."))
    assert only_finding(diagnosis).causes == ("absent",)
    assert "share no word" in advice(project, diagnosis)
    assert "nothing in the question tells this document from others" in advice(project, diagnosis)
    assert diagnosis.mendable == 0
    shown = text(diagnosis, Advisor(project.pipeline(), diagnosis))
    assert "q1  tariff of the premium plan\n  absent\n    answer   docs/a.md:3  in docs/a.md#00000" in shown
    assert "ranks    fused -, vector -, keyword -; best of its document -" in shown
    assert "1 query: 0 fine, 1 failed (1 passage)" in shown


def test_a_question_in_words_that_the_document_never_says_is_told_so(project: Project) -> None:
    project.write_settings(search={"candidates": 20})
    write_crowd(project, "tariff of the premium plan")
    project.write("a.md", "# Zoo\n\nLions pay nothing.\n")
    question = 'tariff of the premium plan for "the doors" and Tigers'
    diagnosis = diagnose(project, line(project, question, "a.md", "Lions pay nothing"))
    finding = only_finding(diagnosis)
    assert finding.unsaid == ("the doors", "Tigers")
    assert (finding.causes, finding.missing) == (("absent",), ())
    assert "the document never says the doors, Tigers" in advice(project, diagnosis)


def test_each_passage_that_was_not_found_has_a_finding(project: Project) -> None:
    project.write_settings(search={"candidates": 20})
    write_crowd(project, "tariff of the premium plan")
    project.write("a.md", "# Zoo\n\nLions pay nothing.\n")
    question = "tariff of the premium plan"
    found = line(project, question, "a.md", "Lions pay nothing.")
    lines = [found, {**found, "doc": "b.md"}, {"qid": "q2", **{k: v for k, v in found.items() if k != "qid"}}]
    lines[2]["query"] = "Do lions pay nothing?"
    diagnosis = diagnose(project, *lines)
    [failed] = diagnosis.failed
    assert [finding.cause for finding in failed.findings] == ["absent", "document_missing"]
    assert (failed.recall, diagnosis.recall, diagnosis.queries) == (0, 0.5, 2)


def test_names_are_what_a_question_is_about() -> None:
    chunks = ["the plan is the plan of Orion"] * 5 + ["She sang in San Diego", "San Bernardino, run_all"]
    vocabulary = Vocabulary(chunks, [])
    named = {
        'What does "daily limit" mean?': ["daily limit"],
        "What is the plan Orion?": ["Orion"],
        "Orion: where is it?": [],
        "Did she sing The Wall?": ["Wall"],
        "¿Qué condado es San Bernardino?": ["San Bernardino"],
        "When does run_all call parseUrl2 in 1994, or 3 times?": ["run_all", "parseUrl2", "1994"],
        "Is the NASA there?": ["NASA"],
        "WHAT IS THE PLAN ORION": [],
        "What Is The Plan Orion": [],
        "what is it": [],
    }
    for question, names in named.items():
        assert [term.text for term in vocabulary.names(question)] == names, question
    [term] = vocabulary.names("¿Qué condado es San Bernardino?")
    assert term.word == "bernardino", "San is in other names, too"


@pytest.mark.parametrize(
    ("word", "written", "same"),
    [
        ("condados", "condado", True),
        ("Límite", "limite", True),
        ("create", "creating", True),
        ("Microsoft", "microscope", False),
        ("1994", "1995", False),
        ("test_one", "test_two", False),
        ("ríos", "río", False),
        ("Å", unicodedata.normalize("NFD", "Å"), True),
    ],
)
def test_words_are_the_same_in_other_inflections(word: str, written: str, same: bool) -> None:
    assert (fold(word) in Words(f"a {written} b")) is same


def test_the_command_prints_the_contract_for_the_index(project: Project) -> None:
    project.write_settings(search={"candidates": 20})
    write_crowd(project, "tariff of the premium plan")
    project.write("a.md", "# Zoo\n\nLions pay nothing.\n")
    project.refresh()
    lines = [
        line(project, "tariff of the premium plan", "a.md", "Lions pay nothing."),
        line(project, "Do lions pay?", "a.md", "Lions pay nothing.", "q2"),
    ]
    done = project.command("diagnose", str(write_lines(project, lines)), "--json")
    assert done.returncode == 1, done.stderr
    reply = json.loads(done.stdout)
    assert set(reply) == {"failed", "summary", "warnings"}
    [failed] = reply["failed"]
    assert set(failed) == {"qid", "query", "recall@20", "findings"}
    [finding] = failed["findings"]
    assert set(finding) == {
        "doc", "start", "end", "line", "cause", "causes", "chunk_id", "rank", "vector_rank", "keyword_rank", "pieces",
        "missing", "shared", "copy", "advice", "document_rank", "unsaid",
    }  # fmt: skip
    assert (finding["doc"], finding["line"], finding["chunk_id"]) == ("docs/a.md", 3, "docs/a.md#00000")
    summary = reply["summary"]
    assert (summary["queries"], summary["fine"], summary["failed"]) == (2, 1, 1)
    assert (summary["recall@20"], summary["recall@candidates"], summary["reranker_could_mend"]) == (0.5, 0.5, 0)
    [cause] = summary["causes"]
    assert (cause["cause"], cause["primary"], cause["holds"]) == ("absent", 1, 1)

    done = project.command("diagnose", str(write_lines(project, lines[1:])))
    assert done.returncode == 0, "everything is found"
    assert done.stdout.startswith("1 query: 1 fine, 0 failed")


def test_twenty_failures_are_shown_and_the_rest_counted(project: Project) -> None:
    project.write("a.md", "# A\n\nText.\n")
    missing = {"query": "text\u001b[31m?", "doc": "b.md", "start": 0, "end": 4}
    diagnosis = diagnose(project, *({"qid": f"q{number}", **missing} for number in range(25)))
    advisor = Advisor(project.pipeline(), diagnosis)
    shown = text(diagnosis, advisor)
    assert shown.count("document_missing\n") == 20
    assert "… and 5 more (--all shows them" in shown
    assert "\x1b" not in shown
    assert text(diagnosis, advisor, all_queries=True).count("document_missing\n") == 25


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "cannot be read as UTF-8"),
        (b"", "holds no query"),
        (b"[1]\n", "line 1: not a JSON object"),
        (b'{"qid": "a", "query": "x", "doc": "a.md", "start": 5, "end": 5}', "no span of characters"),
        (b'{"qid": "a", "query": "\\ud800", "doc": "a.md", "start": 0, "end": 5}', "line 1: 'utf-8' codec"),
        (b'{"qid": "a", "query": "x", "doc": 7, "start": 0, "end": 5}', "not the path of a document"),
    ],
)
def test_a_query_file_that_cannot_be_read_says_where(project: Project, content: bytes, message: str) -> None:
    project.write("a.md", "# A\n\nText.\n")
    path = project.root / "queries.jsonl"
    path.write_bytes(content)
    with pytest.raises(QueryError, match=re.escape(message)) as raised:
        diagnose_queries(project.pipeline(), path, files=True)
    assert str(path) in str(raised.value)


def test_files_that_cannot_be_read_are_wrong_use(project: Project) -> None:
    project.write("a.md", "# A\n\nText.\n")
    queries = str(write_lines(project, [line(project, "x?", "a.md", "Text.")]))
    for arguments in ([str(project.root / "nowhere")], [queries, "--chunks", str(project.docs / "a.md")]):
        done = project.command("diagnose", *arguments, "--json")
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr
