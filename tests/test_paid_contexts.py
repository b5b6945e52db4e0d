"""Contexts that are paid for: what is counted and told, what waits, and who takes it up again."""

from __future__ import annotations

import json

import dagster as dg
import pytest
from click.testing import CliRunner

from ctx_pipeline.cli import cli
from ctx_pipeline.defs.checks import CHECKS
from ctx_pipeline.doctor import diagnose
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.summary import Summary
from tests.project import Project
from tests.scripted_contexts import CALL, ScriptedContextualizer, scripted

__all__ = ["scripted"]


def text(*sections: str) -> str:
    """A document with one chunk for each section."""
    return "\n\n".join(f"# {section}\n\n{section} en palabras. {'Relleno con palabras. ' * 8}" for section in sections)


@pytest.fixture(autouse=True)
def small_chunks(project: Project) -> None:
    project.write_settings(chunking={"max_tokens": 64})


def statuses(project: Project) -> list[str]:
    return [f"{row['doc_id']} {row['context_status']}: {row['context']}" for row in project.search_rows()]


def command(project: Project, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """The command line in this process: exit code, standard output, standard error."""
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(cli, list(arguments), standalone_mode=False)
    assert done.exception is None, done.exception
    return done.return_value, done.stdout, done.stderr


def reply(project: Project, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, dict]:
    code, output, _ = command(project, monkeypatch, *arguments, "--json")
    return code, json.loads(output)


def metadata(project: Project, asset: str, partition: str | None = None) -> dict:
    with project.instance() as instance:
        records = instance.fetch_materializations(
            dg.AssetRecordsFilter(dg.AssetKey(asset), asset_partitions=[partition] if partition else None), limit=1
        ).records
    event = records[0].asset_materialization
    assert event is not None
    return {name: value.value for name, value in event.metadata.items()}


# What waits ----------------------------------------------------------------------------------------------------------


def test_what_waits_is_written_when_its_reason_no_longer_holds(
    project: Project, scripted: ScriptedContextualizer
) -> None:
    project.write("a.md", text("Uno", "Dos"))
    scripted.outcomes["Dos"] = ("pending", "budget")
    first = project.refresh()
    assert (first.contexts["written"], first.contexts["pending"], first.stopped) == (1, 1, True)
    assert not project.pipeline().plan().owed
    scripted.taken_up, scripted.outcomes = {"budget"}, {}
    assert [(w.stage.name, w.reason) for w in project.pipeline().plan().work] == [
        ("CONTEXTS", "1 context pending: budget")
    ]
    second = project.refresh()
    assert (second.contexts, second.stopped) == ({"written": 1, "reused": 1, "fallback": 0, "pending": 0}, False)
    assert statuses(project) == ["docs/a.md written: About Uno.", "docs/a.md written: About Dos."]
    assert not project.pipeline().plan().owed
    assert len(scripted.asked) == len(set(scripted.asked)) == 2


def test_what_stops_the_calls_leaves_the_documents_that_wait_as_they_are(
    project: Project, scripted: ScriptedContextualizer
) -> None:
    for n in range(3):
        project.write(f"d{n}.md", text(f"Uno{n}", f"Dos{n}"))
    scripted.outcomes["Dos"] = ("pending", "budget")
    project.refresh()
    scripted.taken_up = {"budget"}
    project.write("d0.md", text("Uno0", "Dos0", "Tres"))
    before = project.versions()
    summary = project.refresh()
    assert summary.contexts == {"written": 1, "reused": 1, "fallback": 0, "pending": 3}
    assert summary.pending == {"budget": 3}
    assert scripted.batches == [6, 3], "only the edited document was handed to the contextualizer again"
    assert sum("max_usd" in warning for warning in summary.warnings) == 1
    assert project.versions() != before
    assert {row.doc_id for row in Ledger.read(project.pipeline().store).rows.values() if row.writing} == set()


def test_a_refresh_in_which_everything_stays_pending_ends_and_says_what_to_do(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", text("Uno", "Dos"))
    scripted.outcomes["a"], scripted.taken_up = ("pending", "auth"), {"auth"}
    for _ in range(2):
        code, found = reply(project, monkeypatch, "refresh")
        assert (code, found["contexts"]["pending"], found["usage"]["usd"]) == (1, 2, 0.0)
    result, report = project.dagster_refresh(monkeypatch)
    assert result.success, "nothing failed: what is missing shows as a check"
    assert report.summary is not None
    assert ["auth" in warning and "then run" in warning for warning in report.summary.warnings] == [True]
    assert statuses(project) == ["docs/a.md pending: Outline."] * 2


def test_contexts_without_a_key_make_no_work_until_there_is_one(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", text("Uno"))
    scripted.outcomes["Uno"] = ("pending", "no_key")
    assert command(project, monkeypatch, "refresh")[0] == 1
    before = project.versions()
    code, output, errors = command(project, monkeypatch, "refresh")
    assert code == 0
    assert "nothing to do" in output
    assert "1 context pending (no_key)" in errors
    assert "ANTHROPIC_API_KEY" in errors
    assert project.versions() == before
    scripted.taken_up, scripted.outcomes = {"no_key"}, {}
    assert command(project, monkeypatch, "refresh")[0] == 0
    assert statuses(project) == ["docs/a.md written: About Uno."]


def test_contexts_that_belong_to_another_job_are_no_reason_to_stop(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", text("Uno"))
    scripted.outcomes["Uno"] = ("pending", "deferred")
    code, output, errors = command(project, monkeypatch, "refresh")
    assert (code, "pending (" in errors) == (0, False)
    assert "1 pending" in output


def test_retry_asks_again_for_fallback_contexts_and_nothing_else_does(
    project: Project, scripted: ScriptedContextualizer
) -> None:
    project.write("a.md", text("Uno", "Dos"))
    project.write("b.md", text("Tres"))
    scripted.outcomes["Dos"] = ("fallback", "the model refused")
    assert project.refresh().contexts["fallback"] == 1
    scripted.outcomes = {}
    assert not project.pipeline().plan().owed
    summary = project.refresh(retry=True)
    assert summary.contexts == {"written": 1, "reused": 1, "fallback": 0, "pending": 0}
    assert (summary.changed, summary.unchanged, summary.embedded) == (1, 1, 1)
    assert "docs/a.md written: About Dos." in statuses(project)


def test_contexts_that_were_materialized_alone_reach_the_index(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", text("Uno"))
    scripted.outcomes["Uno"] = ("pending", "no_key")
    project.dagster_refresh(monkeypatch)
    scripted.outcomes = {}
    assert project.materialize(monkeypatch, "contexts", key="docs/a.md").success
    assert [work.reason for work in project.pipeline().plan().work] == ["interrupted"]
    project.refresh()
    assert statuses(project) == ["docs/a.md written: About Uno."]
    assert len(scripted.asked) == 1


# What it cost --------------------------------------------------------------------------------------------------------


def test_a_refresh_tells_what_it_paid(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", text("Uno", "Dos", "Tres"))
    scripted.outcomes["Tres"] = ("fallback", "the model refused")
    code, found = reply(project, monkeypatch, "refresh")
    assert code == 0
    assert found["contexts"] == {"written": 2, "reused": 0, "fallback": 1, "pending": 0, "earlier_wording": 0}
    assert found["usage"] == {"input": 20, "cache_write": 200, "cache_read": 600, "output": 10, "usd": 0.002}
    _, nothing = reply(project, monkeypatch, "refresh")
    assert set(nothing["usage"].values()) == {0}


def test_what_is_in_the_memo_is_reused_and_costs_nothing(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = project.write("a.md", text("Uno", "Dos"))
    reply(project, monkeypatch, "refresh")
    first.rename(project.docs / "b.md")
    _, found = reply(project, monkeypatch, "refresh")
    assert found["contexts"] == {"written": 0, "reused": 2, "fallback": 0, "pending": 0, "earlier_wording": 0}
    assert set(found["usage"].values()) == {0}


def test_people_read_tokens_hit_rate_and_usd(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", text("Uno", "Dos"))
    _, output, errors = command(project, monkeypatch, "refresh")
    assert "tokens     820 in (73.2% from the cache), 10 out; 2 calls, 0.0020 USD" in output
    assert "2 of 2 contexts: 830 tokens, 0.0020 USD, 73% of the prompts from the cache" in errors


def test_what_was_paid_for_a_document_that_fails_later_is_counted(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", text("Uno"))

    def refuse(self: object, texts: object) -> None:
        raise ValueError("no vector for this")

    monkeypatch.setattr("ctx_pipeline.embedding.hashing.HashingEmbedder.embed_passages", refuse)
    summary = project.refresh()
    assert (summary.failed, summary.calls, float(summary.usd)) == (1, 1, 0.001)


def test_dagster_shows_cost_and_reasons_by_document_and_by_refresh(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", text("Uno", "Dos", "Tres", "Cuatro"))
    project.write("b.md", text("Cinco"))
    scripted.outcomes = {"Tres": ("fallback", "the model refused"), "Cuatro": ("pending", "budget")}
    project.dagster_refresh(monkeypatch)
    costs = {
        "usd": 0.002, "calls": 2, "tokens_input": 20, "tokens_cache_write": 200, "tokens_cache_read": 600,
        "tokens_output": 10, "cache_hit_rate": CALL.cache_hit_rate, "contexts_written": 2, "contexts_fallback": 1,
        "contexts_pending": 1, "contexts_reused": 0,
    }  # fmt: skip
    of_document = metadata(project, "contexts", "docs/a.md")
    assert {name: of_document[name] for name in costs} == costs
    assert of_document["fallback_reasons"] == "- 1: the model refused"
    assert of_document["pending_reasons"] == "- 1: budget"
    of_refresh = metadata(project, "corpus_refresh")
    assert (of_refresh["usd"], of_refresh["calls"], of_refresh["tokens_cache_read"]) == (0.003, 3, 900)
    assert of_refresh["contexts_pending_budget"] == 1
    assert "fallback_reasons" not in metadata(project, "contexts", "docs/b.md")


def test_the_run_log_tells_what_was_paid_before_an_error(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", text("Uno"))
    monkeypatch.setattr("ctx_pipeline.index.search_tables.SearchTables.embed_and_replace", lambda *_: 1 / 0)
    result, _ = project.dagster_refresh(monkeypatch)
    assert not result.success
    with project.instance() as instance:
        logged = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert [line for line in logged if line.startswith("at least 0.0010 USD were paid before the end, for 415 tokens")]


# Nothing is silent ---------------------------------------------------------------------------------------------------


def test_the_check_names_counts_and_reasons(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asset, check, severity = CHECKS["contexts_are_written"]
    assert (asset, severity) == ("contexts", dg.AssetCheckSeverity.WARN)
    project.write("a.md", text("Uno", "Dos", "Tres"))
    scripted.outcomes = {"Dos": ("fallback", "the model refused"), "Tres": ("pending", "budget")}
    result, _ = project.dagster_refresh(monkeypatch)
    [logged] = [e for e in result.get_asset_check_evaluations() if e.check_name == "contexts_are_written"]
    assert not logged.passed
    found = {name: value.value for name, value in logged.metadata.items()}
    counts = [found[f"contexts_{name}"] for name in ("written", "fallback", "pending", "pending_budget")]
    assert counts == [1, 1, 1, 1]
    assert found["reasons"] == "- 1: pending, budget\n- 1: fallback, the model refused"
    assert "max_usd" in found["remedies"].replace("\\", "")
    assert "--retry" in found["remedies"]
    scripted.outcomes, scripted.taken_up = {}, {"budget"}
    project.refresh(retry=True)
    assert check(project.pipeline(), False)[0]


def test_status_and_doctor_tell_by_reason_what_to_do(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", text("Uno", "Dos", "Tres"))
    scripted.outcomes = {"Dos": ("fallback", "the model refused"), "Tres": ("pending", "no_key")}
    project.refresh()
    code, found = reply(project, monkeypatch, "status")
    assert (code, found["owed"]) == (1, {})
    assert found["contexts"] == {"written": 1, "fallback": 1, "pending": 1}
    assert found["contexts_pending"] == {"no_key": 1}
    assert found["contexts_fallback"] == {"the model refused": 1}
    _, output, _ = command(project, monkeypatch, "status")
    for words in ("pending    1: no_key", "fallback   1: the model refused", "ANTHROPIC_API_KEY", "--retry"):
        assert words in output
    findings = [
        finding for finding in diagnose(project.pipeline(), project.keys_of_ledger) if finding.check == "contexts"
    ]
    assert [finding.message for finding in findings] == [
        "1 context pending (no_key)",
        "1 context fell back to the outline",
    ]


def test_a_dry_run_names_the_contexts_that_would_be_written(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", text("Uno"))
    scripted.outcomes["Uno"] = ("pending", "budget")
    project.refresh()
    scripted.taken_up = {"budget"}
    _, output, _ = command(project, monkeypatch, "refresh", "--dry-run")
    assert "contexts   docs/a.md  (1 context pending: budget)" in output


# Batches -------------------------------------------------------------------------------------------------------------


def test_calls_of_many_documents_share_one_pool(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctx_pipeline.index.batches.BATCH_DOCUMENTS", 2)
    for n in range(20):
        project.write(f"d{n:02}.md", text(f"Parte{n}"))
    project.refresh()
    assert scripted.batches == [16, 4]
    scripted.batches.clear()
    project.write_settings(contexts={"concurrency": 200}, chunking={"max_tokens": 65})
    project.refresh()
    assert scripted.batches == [20], "a wider pool needs larger batches"


def test_progress_adds_up_over_batches(
    project: Project, scripted: ScriptedContextualizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctx_pipeline.index.batches.PAID_BATCHES", 1)
    monkeypatch.setattr("ctx_pipeline.index.batches.BATCH_DOCUMENTS", 2)
    for n in range(3):
        project.write(f"d{n}.md", text(f"Parte{n}"))
    told = []

    def refresh() -> Summary:
        from ctx_pipeline.summary import NullSink

        sink = NullSink()
        sink.contexts_progress = told.append  # type: ignore[method-assign, assignment]
        return project.pipeline().refresh("run", sink)

    refresh()
    assert [(p.done, p.total, float(p.usd)) for p in told] == [(1, 2, 0.001), (2, 2, 0.002), (3, 3, 0.003)]
