"""What a question names, and which texts name it too. Knows no language, but needs words with spaces between them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”|«([^»]+)»|„([^“”]+)[“”]|`([^`]+)`|(?<!\w)['‘]([^'’]+)['’](?!\w)")
_SENTENCE_END = ".?!:;¿¡\n"
_INNER_CAPITAL = re.compile(r"[a-z][A-Z]")
CAPITALIZED_SHARE = 0.6
"""Of the words after the first: a question with more capitalized ones is a title, or shouted; its capitals tell
nothing."""
COMMON_SHARE, COMMON_CHUNKS = 0.1, 3
"""Of the chunks: a word in lower case in more of them is no name, although a name may begin with it."""
RARE_SHARE = 0.02
"""Of the chunks: a word in more of them tells documents apart no better than any other."""
ASKING_SHARE = 0.05
"""Of the questions: a word in more of them is one to ask with, unless all are about the same."""
_COMMON_BEGINNING, _ENDING = 4, 3


@dataclass(frozen=True, slots=True)
class Term:
    """A name as the question writes it, and the folded word by which it is recognized: its rarest."""

    text: str
    word: str
    quoted: bool = False


class Words:
    """The words of a text, found again in other inflections."""

    def __init__(self, text: str) -> None:
        words = [fold(found) for found in _WORD.findall(text)]
        self._phrase = f" {' '.join(words)} "
        self._by_beginning: dict[str, set[str]] = defaultdict(set)
        for word in words:
            self._by_beginning[word[:_COMMON_BEGINNING]].add(word)

    def __contains__(self, word: str) -> bool:
        return any(_same(word, other) for other in self._by_beginning.get(word[:_COMMON_BEGINNING], ()))

    def say(self, term: Term) -> bool:
        """Whether the text has the term: all of a quoted one, the rarest word of another."""
        if term.quoted:
            return f" {' '.join(map(fold, _WORD.findall(term.text)))} " in self._phrase
        return term.word in self


class Vocabulary:
    """In how many chunks of a corpus each word is, and in how many of the questions."""

    def __init__(self, chunks: Iterable[str], questions: Iterable[str]) -> None:
        self._chunks: Counter[str] = Counter()
        self._in_lower_case: Counter[str] = Counter()
        self._size = 0
        for text in chunks:
            words = set(_WORD.findall(text))
            self._chunks.update({fold(word) for word in words})
            self._in_lower_case.update({fold(word) for word in words if word.islower()})
            self._size += 1
        asked = [{fold(word) for word in _WORD.findall(question)} for question in set(questions)]
        self._questions = Counter(word for words in asked for word in words)
        self._asking = max(1, ASKING_SHARE * len(asked))

    def names(self, question: str) -> list[Term]:
        """Quoted terms, identifiers, acronyms, numbers of several digits and proper names, each once.

        A capital makes a name inside a sentence; at its beginning it tells nothing.
        """
        later = [word for word in _WORD.findall(question)[1:] if word[0].isalpha()]
        capitals_tell = sum(word[0].isupper() for word in later) <= CAPITALIZED_SHARE * len(later)
        quoted = [next(filter(None, match.groups())) for match in _QUOTED.finditer(question)]
        found: list[str] = []
        run: list[re.Match[str]] = []
        for match in _WORD.finditer(question):
            if not self._is_name(question, match, capitals_tell):
                continue
            if run and question[run[-1].end() : match.start()] != " ":
                found.append(question[run[0].start() : run[-1].end()])
                run = []
            run.append(match)
        if run:
            found.append(question[run[0].start() : run[-1].end()])
        terms = [self._term(text, quoted=text in quoted) for text in [*quoted, *found]]
        return list({term.word: term for term in reversed(terms) if term}.values())[::-1]

    def rare_words(self, question: str) -> list[Term]:
        """Words of the question, of at least four letters, that few chunks have or none; the rarest first."""
        words = {fold(word): word for word in _WORD.findall(question) if len(word) >= _COMMON_BEGINNING}
        limit = max(1, RARE_SHARE * self._size)
        rare = [word for word in words if self._chunks[word] <= limit and self._questions[word] <= self._asking]
        return [Term(words[word], word) for word in sorted(rare, key=lambda word: self._chunks[word])]

    def _term(self, text: str, *, quoted: bool) -> Term | None:
        words = [fold(word) for word in _WORD.findall(text)]
        known = [word for word in words if self._chunks[word]] or words
        if not known:
            return None
        return Term(text, min(known, key=lambda word: (self._chunks[word], -len(word))), quoted)

    def _is_name(self, question: str, match: re.Match[str], capitals_tell: bool) -> bool:
        word = match[0]
        if word.isdigit():
            return len(word) > 1
        if "_" in word.strip("_") or _INNER_CAPITAL.search(word) or any(c.isdigit() for c in word):
            return True
        if not (capitals_tell and word[0].isupper() and len(word) > 1):
            return False
        if word.isupper():
            return True
        before = question[: match.start()].rstrip(" \t\"'“«„`‘(")
        common = self._in_lower_case[fold(word)] > max(COMMON_CHUNKS, COMMON_SHARE * self._size)
        return bool(before) and before[-1] not in _SENTENCE_END and not common


@lru_cache(maxsize=100_000)
def fold(word: str) -> str:
    """The word without case and accents."""
    decomposed = unicodedata.normalize("NFD", word.casefold())
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def shared_words(question: str, text: Words) -> list[str]:
    """Words of the question, of at least four letters, that a text has too."""
    words = {fold(word): word for word in _WORD.findall(question) if len(word) >= _COMMON_BEGINNING}
    return [word for folded, word in words.items() if folded in text]


def _same(word: str, other: str) -> bool:
    """Whether two words are equal but for their last letters; identifiers and numbers must be equal."""
    if word == other:
        return True
    if not (word.isalpha() and other.isalpha()):
        return False
    common = max(_COMMON_BEGINNING, len(word) - _ENDING, len(other) - _ENDING)
    return min(len(word), len(other)) >= common and word[:common] == other[:common]
