"""Whether a model tells anything apart: it ranks no better than chance, or answers most queries alike.

Source: Radovanović et al., "Hubs in space", JMLR 2010, for items that are the answer to many queries.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable, Iterable

MOST = 10
"""Items that are returned most often."""
MANY = 0.5
"""Of the way from the share in random answers to all queries, from which on most queries are answered alike."""
REMEDY = "train longer or use better features"
_DRAWS = 200
"""Random answers to all queries, whose mean share is taken."""


def share_of_hubs(first: Iterable[Hashable]) -> float:
    """Share of queries, 0..1, whose first answer is one of the `MOST` items that stand first most often."""
    counts = Counter(first)
    return sum(count for _, count in counts.most_common(MOST)) / max(counts.total(), 1)


@functools.cache
def random_share(items: int, queries: int) -> float:
    """The share, on average, where every query is answered with some item or other."""
    import numpy as np  # not needed to plan

    rng = np.random.default_rng(0)
    first = [np.bincount(rng.integers(items, size=queries), minlength=items) for _ in range(_DRAWS)]
    return float(np.mean([np.sort(counts)[-MOST:].sum() for counts in first])) / queries


def is_alike(share: float, items: int, queries: int) -> bool:
    """Whether `share_of_hubs` is that of a model that answers most queries alike."""
    random = random_share(items, queries)
    return share > random + MANY * (1 - random)
