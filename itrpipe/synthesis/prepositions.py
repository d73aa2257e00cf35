"""Which prepositions may say the same of two things, so that one is no contradiction of the other."""

from __future__ import annotations

_GROUPS = """
in, inside, inside of, within, into, at
on, on top of, atop, upon, onto, at, in, off of
on, against, with
over, above, on, on top of, across, past
under, beneath, underneath, below
below, near, by, next to
near, near to, close to, by, beside, next to, alongside, along, at, around, against, with, adjacent to
behind, in back of, near, by, after, from behind
in front of, before, near, by, ahead of
between, among, amongst, in between, amid, in
beside, left of, right of
through, across, along, over, down, into, in, past
along, down, up, on, by
to, toward, towards, into, at, up to
from, off, off of, out of, away from, down, outside of
around, about, by, near
outside, outside of, near, by, in front of
across from, opposite, near, in front of
with, alongside, next to, near, along with
during, at, in
"""
GROUPS: tuple[frozenset[str], ...] = tuple(
    frozenset(word.strip() for word in line.split(",")) for line in _GROUPS.strip().splitlines()
)
COMMON = (
    "in",
    "on",
    "over",
    "under",
    "near",
    "behind",
    "in front of",
    "between",
    "through",
    "from",
    "around",
    "outside",
    "above",
    "below",
    "next to",
    "across from",
    "without",
)
"""What is written instead of another one."""


def contradicting(preposition: str) -> tuple[str, ...]:
    """The common prepositions that are in no group with a lower-case one; none where it is unknown.

    Source: VSE-C's third rule; the groups are our own.
    """
    near = {word for group in GROUPS if preposition in group for word in group}
    return tuple(word for word in COMMON if word not in near) if near else ()
