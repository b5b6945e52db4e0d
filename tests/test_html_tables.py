"""Tables that are written in HTML: what is indexed of them."""

from __future__ import annotations

from ctx_pipeline.chunking.model import SizeLimit
from ctx_pipeline.chunking.recursive import split


def test_an_html_table_is_seen_without_its_tags() -> None:
    rows = "\n".join(f'<tr><td class="zone">Zone {n}</td><td>{n} EUR</td></tr>' for n in range(40))
    table = f"<table>\n<thead><tr><th>Zone</th><th>Price</th></tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    text = f"# Prices\n\n{table}\n\nIn code, `<td>` is what the text is about.\n\n```html\n<td>x</td>\n```\n"
    words = SizeLimit(10_000, 200, lambda texts: [len(text.split()) for text in texts])
    [chunk] = split(text, markdown=True, limit=words)
    assert table in chunk.text
    assert chunk.text == text[chunk.start : chunk.end]
    assert "Zone 7 7 EUR" in chunk.indexed_text
    assert 'class="zone"' not in chunk.indexed_text
    assert chunk.indexed_text.count("<td>") == 2
    assert chunk.embedder_tokens == len(chunk.indexed_text.split())
