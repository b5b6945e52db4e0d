"""Commands that search and answer."""

from __future__ import annotations

from typing import Any

import click

from ctx_pipeline.cli_options import DONE, FOUND, json_option, rerank_option
from ctx_pipeline.errors import CtxError
from ctx_pipeline.terminal import say, say_json, say_text, show


@click.command()
@click.argument("query")
@click.option("-k", default=10, show_default=True, type=click.IntRange(1, 10_000), help="How many chunks.")
@click.option("--mode", default="hybrid", show_default=True, type=click.Choice(["hybrid", "vector", "keyword"]))
@click.option("--where", help="SQL filter on the rows, such as \"language = 'es'\" or \"doc_id LIKE 'docs/legal/%'\".")
@rerank_option
@json_option
def search(query: str, k: int, mode: Any, where: str | None, rerank: Any, as_json: bool) -> int:
    """Find the chunks that answer a query, which is always taken literally."""
    from ctx_pipeline.index.search import SearchIndex
    from ctx_pipeline.settings_file import load_settings

    settings = load_settings()
    result = SearchIndex.open(settings.storage.uri, settings).search_with_warnings(query, k, mode, where, rerank)
    if as_json:
        say_json([hit.to_json() for hit in result.hits])
    else:
        from ctx_pipeline.display import hits_table, rerank_line

        show(hits_table(result.hits, query)) if result.hits else say("nothing found")
        if result.rerank is not None:
            say(rerank_line(result.rerank), err=True)
    say(*result.warnings, err=True)
    return DONE


@click.command()
@click.argument("question")
@click.option("-k", default=20, show_default=True, type=click.IntRange(1, 200), help="How many passages are read.")
@click.option("--where", help="SQL filter on the rows, as for `search`.")
@rerank_option
@click.option("--original-only", is_flag=True, help="Leave the added contexts out of the prompt.")
@click.option("--show-prompt", is_flag=True, help="Print what would be sent, and send nothing; no key is needed.")
@json_option
def ask(
    question: str, k: int, where: str | None, rerank: Any, original_only: bool, show_prompt: bool, as_json: bool
) -> int:
    """Answer a question from the best passages, with citations. Needs ANTHROPIC_API_KEY.

    Exits with 1 when the passages do not hold the answer.
    """
    from ctx_pipeline.answers.prompt import answer_prompt
    from ctx_pipeline.index.search import SearchIndex
    from ctx_pipeline.settings_file import load_settings

    settings = load_settings()
    found = SearchIndex.open(settings.storage.uri, settings).search_with_warnings(
        question, k, where=where, rerank=rerank
    )
    prompt = answer_prompt(question, found.hits, original_only=original_only)
    if show_prompt:
        if as_json:
            say_json({"system": prompt.system, "content": prompt.content})
        else:
            say_text(str(prompt))
        return DONE
    if not found.hits:
        raise CtxError("nothing was found to answer from; `ctx-pipeline search` shows what a query finds")
    from ctx_pipeline.answers.answer import ask as ask_claude
    from ctx_pipeline.claude.pricing import Prices

    answer = ask_claude(prompt, found.hits, settings.answers, Prices.load(settings.contexts.prices))
    if as_json:
        say_json(answer.to_json())
    else:
        from ctx_pipeline.display import answer_lines

        say_text(answer.text)
        say(*answer_lines(answer))
    say(*found.warnings, *answer.warnings, err=True)
    return DONE if answer.answered else FOUND
