"""Names and text of documents are shown, never obeyed: on a line of a terminal, in Markdown and in JSON."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.table import Table
from rich.text import Text

import ctx_pipeline
from ctx_pipeline.escaping import json_text, markdown, one_line, printable
from ctx_pipeline.terminal import say, say_json, say_text, show

ACTIVE = "\x00\x07\x08\x0b\x0c\x1b\x7f\x85\x9b\u2028\u2029\u202a\u202e\u2066\u2069\ud800"
HOSTILE = [
    "[x](javascript:alert)|`a`<img src=x>.md", "![p](http://e.example/p.png)", "<https://e.example>", "a|b|c",
    "# head", "- item", "1. one", "1) one", "> quote", "===", "---", "+ plus", "* star", "**bold** _it_ ~~gone~~",
    "&lt;b&gt; &copy;", "https://e.example/a_b", "HTTP://e.example", "www.e.example/x|y", "me@e.example", "`` ` ```",
    "a\\|b", "\\", "a\\", "x@y\\|`z@w`", "[^1]", "[ ] todo", "name\nwith\r\nlines", "    code", "\ttab", "a\\`b`@c",
]  # fmt: skip
MARKUP = st.text(st.sampled_from("ab1 .:/@-+#=|`\\<>[]()!*_~&;\n\twww") | st.characters(codec="utf-8"), max_size=40)


def shown(tokens: list[Token]) -> str:
    return "".join(token.content for token in tokens if token.type in ("text", "code_inline"))


def many(test):
    for text in HOSTILE:
        test = example(text)(test)
    return test


@many
@given(MARKUP)
def test_markdown_shows_the_text_of_one_list_item_and_nothing_else(text: str) -> None:
    parsed = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(f"- {markdown(text)}\n")
    kinds = [token.type for token in parsed if token.type != "inline"]
    wanted = one_line(text).strip()
    paragraph = ["paragraph_open", "paragraph_close"] if wanted else []
    assert kinds == ["bullet_list_open", "list_item_open", *paragraph, "list_item_close", "bullet_list_close"]
    inline = [child for token in parsed if token.type == "inline" for child in token.children or ()]
    assert {token.type for token in inline} <= {"text", "code_inline"}
    assert shown(inline) == wanted


@many
@given(MARKUP)
def test_markdown_stays_in_its_cell_of_a_table(text: str) -> None:
    table = f"| name | count |\n| --- | --- |\n| {markdown(text)} | 7 |\n"
    parsed = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(table)
    name, count = [token.children or [] for token in parsed if token.type == "inline"][2:]
    assert (shown(name), shown(count)) == (one_line(text).strip(), "7")
    assert {token.type for token in name} <= {"text", "code_inline"}


@pytest.mark.parametrize(
    "address", ["https://e.example/x", "http://e.example", "www.e.example", "WWW.e.example", "a@b.example"]
)
def test_renderers_that_link_bare_addresses_find_them_in_code_alone(address: str) -> None:
    inline = MarkdownIt("commonmark").parseInline(markdown(f"see {address} now"))[0].children or []
    assert [token.content for token in inline if token.type == "code_inline"] == [address]


def test_an_ordinary_name_is_hardly_changed() -> None:
    assert (
        markdown("docs/planes/límites-de-uso.md: not valid UTF-8") == "docs/planes/límites-de-uso.md: not valid UTF-8"
    )


@given(st.text())
@example(ACTIVE)
def test_a_line_is_one_line_and_holds_no_control(text: str) -> None:
    line = one_line(text)
    assert line.splitlines() in ([], [line])
    assert not set(line) & set(ACTIVE) and "\t" not in line


@given(st.text())
@example(ACTIVE)
@example("a\r\nb\rc\td")
def test_printable_text_keeps_newlines_and_tabs_and_no_other_control(text: str) -> None:
    clean = printable(text)
    assert not {c for c in clean if ord(c) < 32} - {"\n", "\t"} and not set(clean) & set(ACTIVE)


@pytest.mark.parametrize("text", ["ñandú 🦉 👩‍👩‍👧", "שלום عربي \u200f", "« texte »\u00a0:", "می‌خواهم", "中文"])
def test_scripts_emoji_and_their_joiners_are_printed_as_they_are(text: str) -> None:
    assert one_line(text) == printable(text) == text


def test_a_newline_in_a_name_is_seen_as_one() -> None:
    assert one_line("a\nb\r\tc\x1b[2K") == "a\\nb\\r\\tc�[2K"


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
@example([ACTIVE, {"\x9b": "\u202e"}])
def test_json_is_exact_and_holds_nothing_that_a_terminal_acts_on(value: object) -> None:
    text = json_text(value)
    assert json.loads(text) == value
    assert not set(text) & set(ACTIVE + "\n\r\t")


def test_what_is_printed_is_clean_whatever_the_caller_forgot(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b]0;title\x07\u202eb\rc"
    table = Table()
    table.add_column(hostile)
    table.add_row(Text(hostile), style="bold")
    say(f"one\ntwo {hostile}", f"three {hostile}")
    say(hostile, err=True)
    say_text(f"one\ntwo {hostile}")
    say_json({"name": hostile})
    show(table)
    printed = capsys.readouterr()
    assert not set(printed.out + printed.err) & set(ACTIVE + "\r")
    assert printed.out.splitlines()[0] == "one\\ntwo a�]0;title��b\\rc"


def test_nothing_else_prints() -> None:
    package = Path(ctx_pipeline.__file__).parent
    found = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name in (
                "print",
                "click.echo",
                "click.secho",
                "echo",
                "Console",
                "sys.stdout.write",
                "sys.stderr.write",
            ):
                found.append(f"{path.relative_to(package)}: {name}")
    assert {line.partition(":")[0] for line in found} == {"terminal.py"}, found
