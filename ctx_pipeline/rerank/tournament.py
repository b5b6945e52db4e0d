"""A tournament: a ranking of more passages than fit one request, from rankings of groups of them."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections.abc import Awaitable, Callable, Sequence

Ask = Callable[[Sequence[int], int], Awaitable[list[int]]]
"""Ranks passages, given by their positions in the order to show them, and how many are wanted. Answers with places in
that order, best first."""


def shuffled(query: str, count: int) -> list[int]:
    """The positions 0..count-1 in an order that depends on the query alone, so that an answer can be reproduced."""
    order = list(range(count))
    random.Random(hashlib.sha256(query.encode("utf-8", "replace")).digest()).shuffle(order)
    return order


def groups(order: Sequence[int], tokens: Sequence[int], most_tokens: int) -> list[list[int]]:
    """The order dealt into as few groups of about equal size as keep to `most_tokens`, at least two passages each."""
    count = max(1, min(math.ceil(sum(tokens[at] for at in order) / most_tokens), len(order) // 2))
    while True:
        dealt = [list(order[first::count]) for first in range(count)]
        if count >= len(order) // 2 or all(sum(tokens[at] for at in group) <= most_tokens for group in dealt):
            return dealt
        count += 1


def requests(order: Sequence[int], tokens: Sequence[int], most_tokens: int, k: int) -> list[tuple[int, int]]:
    """Passage tokens and wanted numbers of every request of a tournament, at most.

    Who reaches the second round is not known, so the longest passages are taken.
    """
    dealt = groups(order, tokens, most_tokens)
    last = len(dealt) == 1
    sizes = [(sum(tokens[at] for at in group), wanted(len(group), k, last=last)) for group in dealt]
    if last:
        return sizes
    longest = [at for group in dealt for at in sorted(group, key=lambda at: -tokens[at])[: kept(len(group))]]
    return [*sizes, *requests(longest, tokens, most_tokens, k)]


def kept(size: int) -> int:
    """How many of a group go on to the next round: half of it."""
    return (size + 1) // 2


def wanted(size: int, k: int, *, last: bool) -> int:
    """How many numbers are asked for: all that go on, or in the last round twice the k, which a fusion needs."""
    return min(size, 2 * k) if last else kept(size)


async def tournament(order: Sequence[int], tokens: Sequence[int], most_tokens: int, k: int, ask: Ask) -> list[int]:
    """All positions of `order`, best first.

    What fits one request is ranked by it. More is dealt into groups, ranked side by side; the better half of each goes
    on to the next round, the others follow by their place in their group. Passages that the model leaves out come after
    those it names, by position.
    """
    dealt = groups(order, tokens, most_tokens)
    last = len(dealt) == 1
    asked = [_ranked(group, wanted(len(group), k, last=last), ask) for group in dealt]
    # All are waited for, also when one has failed: the others are paid for and belong on the bill.
    replies = await asyncio.gather(*asked, return_exceptions=True)
    ranked = [reply for reply in replies if not isinstance(reply, BaseException)]
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    if last:
        return ranked[0]
    on = {at for ranking in ranked for at in ranking[: kept(len(ranking))]}
    out = [(place, at) for ranking in ranked for place, at in enumerate(ranking) if at not in on]
    best = await tournament([at for at in order if at in on], tokens, most_tokens, k, ask)
    return best + [at for _, at in sorted(out)]


def fused(rankings: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    """Positions by their mean rank, best first, with 1 for always first down to nearly 0 for always last.

    Every ranking holds the same positions; equal means keep the order of the positions.
    """
    count = len(rankings[0])
    total = dict.fromkeys(range(count), 0)
    for ranking in rankings:
        for rank, at in enumerate(ranking):
            total[at] += rank
    scores = {at: 1 - rank / (count * len(rankings)) for at, rank in total.items()}
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


async def _ranked(group: Sequence[int], wanted_count: int, ask: Ask) -> list[int]:
    if len(group) == 1:
        return list(group)
    named = [group[at] for at in await ask(group, wanted_count)]
    return named + sorted(set(group) - set(named))
