"""Language: that of the prose, whatever is around it; the same after a small edit, and none where it is a guess."""

from __future__ import annotations

import pytest

from ctx_pipeline.documents.parse import parse

SPANISH = "El operario revisa la presión de la caldera cada mañana y anota el valor en el cuaderno de la sala. "
ENGLISH = "The operator checks the pressure of the boiler every morning and writes it down in the book of the room. "
CODE = "for name in sorted(the_names_of_the_users):\n    print(the_name_of, 'is a user of the system', name)\n"


def language(text: str, path: str = "a.md") -> str:
    return parse(text.encode(), path).language


@pytest.mark.parametrize(
    "text",
    [
        f"---\ntitle: Holidays\ndescription: {ENGLISH * 3}\n---\n\nPide tus días de vacaciones con dos semanas.\n",
        f"# Instalar el agente\n\n```python\n{CODE * 20}```\n\nDespués abre el puerto de la casa.\n",
        f"# Instalar el agente\n\n    {CODE}\n\nDespués abre el puerto de la casa.\n",
        f"- Instala primero el agente:\n\n  ```\n  {ENGLISH * 5}\n  ```\n\n- Después abre el puerto de la casa.\n",
        f"<!--\n{ENGLISH * 60}\n-->\n\n# Guía\n\n{SPANISH}\n",
        f"<div class='the-name-of-the-class is-the-name'>\n{SPANISH}\n<!-- {ENGLISH * 4} -->\n</div>\n",
        "Abre [la página de ayuda](https://example.org/the/help/page/of/the/system/and/more.html) si hay dudas.\n"
        "[ayuda]: https://example.org/the/other/help/page/of/the/system.html\n",
        "Usa `the_name_of_the_user_who_is_in_the_system` para saber quién lo ha hecho.\n",
    ],
    ids=["front matter", "fence", "indented code", "code in a list", "comment", "HTML", "links", "code in a line"],
)
def test_only_prose_tells_the_language(text: str) -> None:
    assert language(text) == "es"


def test_a_long_document_is_judged_all_over() -> None:
    preface = "\n\n".join(f"{number}. {ENGLISH}" for number in range(60))
    text = preface + "".join(f"\n\n{number}. {SPANISH}" for number in range(600))
    assert language(text) == language(text, "a.txt") == "es"


def test_a_small_edit_does_not_change_the_language() -> None:
    paragraphs = [f"{number}. {SPANISH if number % 3 else ENGLISH}" for number in range(200)]
    before = language("\n\n".join(paragraphs))
    for at in range(0, 200, 7):
        edited = [*paragraphs[:at], "Added: " + ENGLISH, *paragraphs[at + 1 :]]
        assert language("\n\n".join(edited)) == before == "es"


@pytest.mark.parametrize(
    "text",
    [
        *("", "1 2 3 4 5 6 7 8", "Cuatro palabras no bastan", "a b c d e f g h", "API HTTP JSON SQL GET POST"),
        *("qux baz foo bar xyzzy plugh", "Madrid Barcelona Sevilla Valencia Bilbao", "x_y.html a_b.css the/z.js"),
    ],
)
def test_what_could_be_anything_is_not_guessed(text: str) -> None:
    assert language(text) == language(text, "a.txt") == "und"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Horario\n\nAbrimos de lunes a viernes.", "es"),
        ("Pide tus días con dos semanas.", "es"),
        ("Install the agent and open the port", "en"),
        ("Wir haben die Grenze für alle Kunden erhöht", "de"),
        (SPANISH, "es"),
        (" \n" * 5_000 + SPANISH, "es"),
        (ENGLISH * 10_000, "en"),
    ],
)
def test_a_sentence_is_enough(text: str, code: str) -> None:
    assert language(text) == language(text, "a.txt") == code


@pytest.mark.parametrize("text", ["<" * 500_000, "<!--" * 200_000, "`` `" * 200_000, "{{" * 300_000, "](" * 300_000])
def test_hostile_markup(text: str) -> None:
    assert language(text) == "und"
