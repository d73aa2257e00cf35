"""Second look at tags: where a caption would be without its verb, or a noun phrase against grammar."""

from __future__ import annotations

from itrpipe.scene_graph import words as lists
from itrpipe.scene_graph.lexicon import lemma_of, look_up

SINGULAR = frozenset({"a", "an", "another", "each", "every", "one"})
PLURALS = frozenset({"people", "men", "women", "children", "couple"})
BORDERS = frozenset({"SUB", "WH", "."})
VERBS = frozenset({"V", "BE"})
PHRASE = frozenset({"N", "J", "D", "CD"})
AFTER_VERB = frozenset({"P", "D", "R", "TO", "VBG", "PRP", ".", ",", "SUB", "CC", "CD", ""})
AFTER_PHRASE = frozenset({"", ".", "V", "BE", "VBG", "VBN", "P", "WH", "SUB"})
AFTER_BARE_VERB = frozenset({"P", "R", "TO", "VBG"})
LONE_PARTICLES = frozenset({"out", "away"})


def repair(words: list[str], tags: list[str]) -> list[str]:
    """Turns nouns into the verbs that they must be, and the other way round.

    Args:
        words: see `itrpipe.scene_graph.tokenise.plain`.
        tags: keys of `itrpipe.scene_graph.tagger.TAGS`.

    Returns:
        New tags.
    """
    draft = _Draft(words, list(tags))
    for i, tag in enumerate(tags):
        draft.tags[i] = draft.better(i) or tag
    return draft.tags


class _Draft:
    """Words of a caption with tags of which those on the left are already repaired."""

    def __init__(self, words: list[str], tags: list[str]) -> None:
        self.words = words
        self.tags = tags

    def tag(self, i: int) -> str:
        return self.tags[i] if 0 <= i < len(self.tags) else ""

    def better(self, i: int) -> str:
        """The tag that a word must have, or "" where the present one may stay."""
        tag, entry = self.tags[i], look_up(self.words[i])
        if tag == "VBN" and self.words[i] in lists.BARE_ONLY:
            return "" if self.tag(i - 1) in {"BE", "AUX"} else "V"
        if tag == "V" and self.tag(i - 1) in {"", ".", "D"}:
            return "N" if entry.noun or self.tag(i - 1) == "D" else ""
        if tag == "J" and entry.noun:
            return "N" if self._stands_for_noun(i) else ""
        if tag != "N" or not entry.verb:
            return ""
        if self.words[i].endswith("ing") and self._is_worn_before(i) and self.tag(i + 1) == "P":
            return "VBG"
        if self._continues_verb(i) or self._is_watched(i):
            return "V"
        return "V" if not self._has_verb(i) and (self._ends_in_s(i) or self._is_bare(i)) else ""

    def _stands_for_noun(self, i: int) -> bool:
        """Whether an adjective ends a noun phrase that has no noun: a young male surfing; a blue top and shorts."""
        if self.words[i] == "top":
            return self.tag(i - 1) in PHRASE and self.tag(i + 1) != "N"
        if self.words[i] in lists.COLOURS or self.tag(i + 1) not in AFTER_PHRASE:
            return False
        j = i - 1
        while self.tag(j) in {"J", "CD"}:
            j -= 1
        return self.tag(j) == "D"

    def _has_verb(self, i: int) -> bool:
        """Whether the clause of a word has a finite verb; "and" ends it to the right, "and a" also to the left."""
        left, right = i - 1, i + 1
        while left >= 0 and self.tags[left] not in BORDERS:
            if self.tags[left] in VERBS:
                return True
            if self.tags[left] == "CC" and self.tags[left + 1] == "D":
                break
            left -= 1
        while right < len(self.tags) and self.tags[right] not in BORDERS | {"CC"}:
            if self.tags[right] in VERBS:
                return True
            right += 1
        return False

    def _ends_in_s(self, i: int) -> bool:
        """Whether a word in s is the verb of a singular subject rather than a plural noun."""
        words, previous, following = self.words, self.tag(i - 1), self.tag(i + 1)
        if not look_up(words[i]).is_third_person(words[i]):
            return False
        if previous in {"N", "J"} and self._is_singular_phrase(i):
            return True
        if following in {"D", "PRP"} and (previous == "N" or words[i - 1] in lists.COLOURS):
            return True
        if self._is_worn_before(i) and following in AFTER_VERB:
            return look_up(words[i]).verb in lists.ACTION_VERBS
        if i > 2 and words[i - 2] == "of" and lemma_of(words[i - 3], "N") in lists.COLLECTIVES:
            return _is_plural(words[i - 1]) and following in AFTER_VERB
        return words[i - 1] in LONE_PARTICLES and following in {"P", "D"}

    def _is_worn_before(self, i: int) -> bool:
        """Whether a colour that somebody wears stands before a word: a man in red."""
        return i > 1 and self.words[i - 1] in lists.COLOURS and self.tags[i - 2] in {"P", "VBG"}

    def _is_singular_phrase(self, i: int) -> bool:
        """Whether a plural ends a noun phrase that a singular determiner opens: a chef in an apron chops vegetables."""
        j = i - 1
        while self.tag(j) in {"N", "J"} or (self.tag(j) in {"CC", ","} and self.tag(j - 1) == self.tag(j + 1) == "J"):
            j -= 1
        return self.tag(j) in {"D", "CD"} and self.words[j] in SINGULAR

    def _is_bare(self, i: int) -> bool:
        """Whether a word is the bare verb of a plural subject: cyclists race down a hill."""
        word, previous, following = self.words[i], self.words[i - 1], self.tag(i + 1)
        if self.tag(i - 1) != "N" or look_up(word).verb != word:
            return False
        if word in lists.MOSTLY_VERBS and following in AFTER_BARE_VERB and self._has_plural_subject(i):
            return True
        return (following in AFTER_VERB and _is_plural(previous)) or (following == "N" and previous in PLURALS)

    def _has_plural_subject(self, i: int) -> bool:
        first = self.tags.index("N")
        joined = any(self.tags[j] == "CC" and self.tag(j + 1) == "D" for j in range(first, i))
        return joined or _is_plural(self.words[first])

    def _continues_verb(self, i: int) -> bool:
        """Whether a word after "and" is a bare verb like one before: they dance and clap, they sit there and smile."""
        if i < 2 or self.tags[i - 1] != "CC" or self.tag(i + 1) not in {"", ".", ",", "P"}:
            return False
        j = i - 2
        while self.words[i] in lists.MOSTLY_VERBS and j > 0 and self.tags[j] not in VERBS | BORDERS:
            j -= 1
        bare = look_up(self.words[i]).verb == self.words[i] and look_up(self.words[j]).verb == self.words[j]
        return self.tags[j] == "V" and bare

    def _is_watched(self, i: int) -> bool:
        """Whether a word says what somebody who is watched does: watching a dog jump over a log."""
        words = self.words
        if i < 2 or self.tags[i - 1] != "N" or self.tag(i + 1) not in AFTER_VERB:
            return False
        if look_up(words[i]).verb != words[i] or lemma_of(words[i - 1], "N") not in lists.ANIMATE:
            return False
        j = i - 1
        while j > 0 and self.tags[j] in PHRASE:
            j -= 1
        return self.tags[j] != "N" and look_up(words[j]).verb in lists.PERCEPTION_VERBS


def _is_plural(word: str) -> bool:
    return word in PLURALS or (word.endswith("s") and lemma_of(word, "N") != word)
