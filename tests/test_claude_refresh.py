"""A refresh with contexts by Claude: the bill is our accounting, nothing is paid for twice, what waits is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal

import pytest

from ctx_pipeline.claude.client import RetryPolicy
from ctx_pipeline.contexts.model import Progress
from ctx_pipeline.evaluation.evaluation import evaluate_corpus
from ctx_pipeline.index.schemas import MEMO
from ctx_pipeline.summary import Summary
from tests.emulators import faults
from tests.emulators.messages import KEY, MessagesEmulator
from tests.project import Project

PLANS = ("Free", "Pro", "Scale")


def document(name: str, *plans: str) -> str:
    """A document with a chunk for each plan, long enough for the prompt cache."""
    sections = (
        f"## Plan {plan}\n\nEn este caso, el límite de {name} es otro. {'Más detalles. ' * 20}" for plan in plans
    )
    return f"# {name}\n\n" + "\n\n".join(sections) + "\n"


@pytest.fixture
def api(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessagesEmulator]:
    """What the project's contexts are asked of."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    project.write_settings(contexts={"method": "claude"}, chunking={"max_tokens": 96})
    with MessagesEmulator() as emulator:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", emulator.url)
        yield emulator


def stored(project: Project) -> list[tuple[str, str]]:
    return [(row["context_status"], row["context"]) for row in project.search_rows()]


def memo_rows(project: Project) -> int:
    return project.pipeline().store.count(MEMO)


def assert_is_billed(summary: Summary, api: MessagesEmulator, before: Decimal = Decimal(0)) -> None:
    assert summary.usd == api.bill.usd - before


def test_the_bill_is_the_accounting_of_the_refresh(project: Project, api: MessagesEmulator) -> None:
    for name in ("Uno", "Dos"):
        project.write(f"{name}.md", document(name, *PLANS))
    summary = project.refresh()
    assert summary.contexts["written"] == len(stored(project)) == memo_rows(project) == len(api.bill.answered)
    assert {status for status, _ in stored(project)} == {"written"}
    usage = summary.usage
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    counted = (usage.input, usage.cache_write, usage.cache_read, usage.output)
    assert counted == tuple(api.bill.total(name) for name in names)
    assert (summary.calls, summary.usd) == (len(api.bill.answered), api.bill.usd)
    api.bill.assert_disciplined()


def test_nothing_that_was_paid_for_is_asked_again(project: Project, api: MessagesEmulator) -> None:
    path = project.write("a.md", document("Uno", *PLANS))
    project.refresh()
    asked, rows = len(api.bill.entries), stored(project)
    versions = project.versions()
    assert project.refresh().calls == 0
    assert project.versions() == versions
    path.rename(project.docs / "b.md")
    renamed = project.refresh()
    assert (renamed.contexts["written"], renamed.contexts["reused"], renamed.usd) == (0, len(rows), 0)
    text = (project.docs / "b.md").read_text()
    project.write("b.md", text + "\n## Plan Más\n\nY otro más.\n")
    edited = project.refresh()
    assert edited.calls == edited.contexts["written"] > 0
    project.write("b.md", text)
    assert project.refresh().calls == 0
    assert stored(project) == rows
    assert len(api.bill.entries) == asked + edited.calls


def test_a_budget_is_spent_refresh_by_refresh_until_all_is_written(project: Project, api: MessagesEmulator) -> None:
    for name in ("Uno", "Dos", "Tres"):
        project.write(f"{name}.md", document(name, *PLANS))
    project.write_settings(contexts={"max_usd": 0.0009, "concurrency": 1})
    spent, rounds = Decimal(0), 0
    while True:
        summary = project.refresh()
        assert_is_billed(summary, api, spent)
        assert summary.usd <= Decimal("0.0009")
        spent, rounds = api.bill.usd, rounds + 1
        if not summary.stopped:
            break
        assert summary.contexts["pending"] > 0
        assert any("max_usd" in warning for warning in summary.warnings)
        assert rounds < 20
    assert rounds > 1
    assert {status for status, _ in stored(project)} == {"written"}
    assert len(api.bill.answered) == memo_rows(project)


def test_a_refused_key_stops_the_calls_and_keeps_what_was_paid_for(project: Project, api: MessagesEmulator) -> None:
    for name in ("Uno", "Dos"):
        project.write(f"{name}.md", document(name, *PLANS))
    api.faults.append((lambda call: call.number > 3, faults.status(401)))
    project.write_settings(contexts={"concurrency": 1})
    summary = project.refresh()
    assert (summary.contexts["written"], summary.pending.keys()) == (3, {"auth"})
    assert len(api.bill.entries) == 4
    api.faults.clear()
    assert project.refresh().contexts["pending"] == 0
    assert len(api.bill.answered) == 6
    assert {status for status, _ in stored(project)} == {"written"}
    assert len(api.bill.answered) == memo_rows(project)


def test_a_key_that_is_gone_later_changes_nothing_that_was_paid_for(
    project: Project, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", document("Uno", *PLANS))
    project.refresh()
    before = stored(project)
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    project.write("b.md", document("Dos", *PLANS))
    summary = project.refresh()
    assert set(summary.pending) == {"no_key"}
    assert stored(project)[: len(before)] == before
    assert {status for status, _ in stored(project)[len(before) :]} == {"pending"}
    assert not project.pipeline().plan().owed
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert [work.doc_id for work in project.pipeline().plan().work] == ["docs/b.md"]
    project.refresh()
    assert {status for status, _ in stored(project)} == {"written"}


def test_a_service_that_does_not_answer_for_one_chunk_leaves_that_one_for_the_next_refresh(
    project: Project, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctx_pipeline.claude.client.RetryPolicy", lambda: RetryPolicy(attempts=2, first_wait_s=0.01))
    project.write("a.md", document("Uno", *PLANS))
    api.faults.append((faults.containing("<chunk_section>Uno › Plan Pro"), faults.status(500)))
    summary = project.refresh()
    assert (summary.pending, summary.stopped, summary.unfinished) == ({"unavailable": 1}, False, True)
    api.faults.clear()
    assert project.refresh().contexts["written"] == 1
    assert {status for status, _ in stored(project)} == {"written"}


def test_an_evaluation_of_files_pays_into_the_memo(project: Project, api: MessagesEmulator) -> None:
    project.write("a.md", document("Uno", *PLANS))
    queries = project.root / "queries.jsonl"
    queries.write_text('{"qid": "a", "query": "límite", "doc": "a.md", "start": 0, "end": 80}\n')
    ladder = evaluate_corpus(project.pipeline(), queries, files=True).ladder
    assert {row.not_measured for row in ladder.rows if row.name.startswith("+")} == {
        "the contexts were written by an emulator"
    }
    assert memo_rows(project) == len(api.bill.answered) > 0
    assert project.refresh().calls == 0


def test_refused_chunks_fall_back_and_say_why(
    project: Project, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", document("Uno", *PLANS))
    api.faults.append((faults.containing("<chunk_section>Uno › Plan Pro"), faults.REFUSAL))
    result, report = project.dagster_refresh(monkeypatch)
    assert result.success
    assert report.summary is not None
    assert report.summary.contexts["fallback"] == 1
    [check] = [e for e in result.get_asset_check_evaluations() if e.check_name == "contexts_are_written"]
    assert "refus" in str(check.metadata["reasons"].value)
    assert project.refresh().calls == 0, "it waits for other content, other settings, or --retry"
    api.faults.clear()
    assert project.refresh(retry=True).contexts["written"] == 1


def test_the_key_is_in_no_output_of_a_refresh(
    project: Project, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", document("Uno", *PLANS))
    api.faults.append((faults.nth(1), faults.status(401, f"the key {KEY} is not valid")))
    done = project.command("--debug", "refresh", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["contexts"]["pending"] > 0
    assert KEY not in done.stdout + done.stderr
    with project.instance() as instance:
        for run in instance.get_runs():
            assert KEY not in str(instance.all_logs(run.run_id))


def test_auto_is_resolved_once_and_named_on_every_run(
    project: Project, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", document("Uno", *PLANS))
    project.write_settings(contexts={"method": "auto"})
    first = project.command("refresh").stdout
    assert "contexts.method auto: claude, because ANTHROPIC_API_KEY is set; set contexts.method to" in first
    assert "(claude)" in first
    before = stored(project)
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    assert "contexts.method auto: claude, as before" in project.command("refresh").stdout
    project.write("b.md", document("Dos", *PLANS))
    assert set(project.refresh().pending) == {"no_key"}, "a key that is gone does not make it another method"
    assert stored(project)[: len(before)] == before


def test_auto_without_a_key_is_the_outline_and_stays_it(
    project: Project, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    project.write("a.md", document("Uno", *PLANS))
    project.write_settings(contexts={"method": "auto"})
    assert not project.root.joinpath("index").exists()
    assert not project.refresh().stopped
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert not project.pipeline().plan().owed
    assert "outline, as before" in project.pipeline().method_note
    project.write_settings(contexts={"method": "claude"})
    assert project.refresh().contexts["written"] == len(api.bill.answered) > 0


def test_progress_of_a_refresh_ends_with_all_contexts_and_the_whole_bill(
    project: Project, api: MessagesEmulator
) -> None:
    from ctx_pipeline.summary import NullSink

    project.write("a.md", document("Uno", *PLANS))
    project.write("b.md", document("Dos", *PLANS))
    sink, told = NullSink(), list[Progress]()
    sink.contexts_progress = told.append  # type: ignore[method-assign]
    project.pipeline().refresh("run", sink)
    rows = len(stored(project))
    assert (told[-1].done, told[-1].total, told[-1].usd) == (rows, rows, api.bill.usd)
    assert [progress.done for progress in told] == sorted(progress.done for progress in told)
