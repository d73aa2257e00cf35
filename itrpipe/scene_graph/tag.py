"""Parts of speech by closed classes, the dictionary and the neighbours of a word, and the repair of unlikely ones.

The tags are those of `lists.TAGS`. Where the words of closed classes are given, `HantaTagger` finds the others by
statistics; `repair` takes a second look at the tags of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from itrpipe.scene_graph.words import LexiconEntry, is_hyphenated_adjective, lemma_of, lists, look_up

BEYOND = 3
"""Empty words behind the last one, which are those before the first as well: indices may leave a caption."""
NOUN_PHRASE = frozenset({"D", "J", "CD", "POS"})
PHRASE = frozenset({"N", "J", "D", "CD"})
VERBS = frozenset({"V", "BE"})
BORDERS = frozenset({"SUB", "WH", "."})
JOINED_ADJECTIVES = (["J", "CC", "J"], ["J", ",", "J"])
AFTER_VERB = frozenset({"P", "D", "R", "TO", "VBG", "PRP", ".", ",", "SUB", "CC", "CD", ""})
AFTER_PHRASE = frozenset({"", ".", "V", "BE", "VBG", "VBN", "P", "WH", "SUB"})


class TaggedWords:
    """The words of a caption on their way through the rules.

    Args:
        words: see `itrpipe.scene_graph.words.plain`.
        tags: of the words; none before they are tagged.

    Attributes:
        size: number of words.
        words, entries, tags: of each word, with `BEYOND` empty ones behind the last.
    """

    def __init__(self, words: Sequence[str], tags: Sequence[str] = ()) -> None:
        self.size = len(words)
        empty = [""] * BEYOND
        self.words = list(words) + empty
        self.entries = list(map(look_up, words))
        self.entries += [LexiconEntry()] * BEYOND
        self.tags = list(tags) or [""] * self.size
        self.tags += empty

    @cached_property
    def lemmas(self) -> list[str]:
        """Return the lemmas of the words, by their tags."""
        return list(map(lemma_of, self.words[: self.size], self.tags))

    def plural_before(self, i: int) -> bool:
        """Return whether the words before are a plural subject."""
        subject = self.entries[i - 1]
        if self.tags[i - 1] == "PRP":
            return subject.word not in {"it", "he", "she"}
        if subject.word in {"people", "couple", "group"}:
            return True
        if subject.noun and subject.noun != subject.word:
            return True
        first = i - 1
        while first > 0 and self.tags[first] in PHRASE:
            first -= 1
        return self.tags[first] == "CC" and {"P", ","}.isdisjoint(self.tags[:first])


def tag_by_lexicon(sentence: TaggedWords) -> list[bool]:
    """Tag a caption from left to right; of each word, return whether a rule of a closed class gave the tag."""
    closed = []
    for i in range(sentence.size):
        tag = _closed(sentence, i)
        closed.append(bool(tag))
        for rule in (_participle, _finite_verb, _open_class):
            tag = tag or rule(sentence, i)
        sentence.tags[i] = tag
    return closed


def _closed(sentence: TaggedWords, i: int) -> str:
    """Return the tag of a word of a closed class, an adverb, a preposition or a colour, or ""."""
    word = sentence.words[i]
    previous = sentence.tags[i - 1]
    after, later = sentence.entries[i + 1 : i + 3]

    # The mark of the owner; before an article or an action, the same letters are a form of be.
    follows_plural = previous == "N" and sentence.words[i - 1].endswith("s")
    if word == "'" and follows_plural and after.nounish:
        return "POS"
    if word == "'s":
        action = after.word.endswith("ing") and after.word not in lists.ING_NOUNS
        if action or after.word in lists.ARTICLES:
            return "BE"
        return "POS"
    if word in lists.SENTENCE_ENDS:
        return "."
    is_prefixed = word[0] in "'_" and len(word) > 1
    if not word[0].isalnum() and not is_prefixed and word != "&":
        return ","

    # Do and have may be ordinary verbs.
    if word in lists.BE:
        return "BE"
    if word in lists.DO:
        if after.word == "not" or (after.bare and not after.noun):
            return "AUX"
        return "V"
    if word in lists.AUXILIARIES:
        if after.verb or after.word in lists.BE or after.word == "not":
            return "AUX"
        return "V"
    if word in lists.HAVE:
        done = after
        if after.word in lists.ALWAYS_ADVERBS or after.word.endswith("ly"):
            done = later
        participle = done.word.endswith(("ed", "en")) or done.word in lists.IRREGULAR_PARTICIPLES
        if participle and done.verb and not done.nounish:
            return "AUX"

    if word in lists.CONJUNCTIONS:
        return "CC"
    if word in lists.NUMBERS or word.replace("-", "").isdecimal():
        return "CD"
    if word == "as":
        last = after.nounish and (not later.word or later.word in lists.SENTENCE_ENDS)
        if last or previous in {"VBN", "VBG", "J", "R"}:
            return "P"
        if after.word in lists.ARTICLES and not _verb_follows(sentence, i + 1):
            return "P"
        return "SUB"
    if word in lists.SUBORDINATORS:
        return "SUB"
    if word == "there" and (after.word in lists.BE or after.word in lists.AUXILIARIES):
        return "EX"
    if word == "that" and (previous != "N" or after.nounish):
        verb_follows = after.third_person or (after.bare and sentence.plural_before(i))
        if previous == "N" and verb_follows:
            return "WH"
        return "D"
    if word in lists.RELATIVES:
        return "WH"
    if word == "her":
        participle = after.word.endswith(("ing", "ed")) and later.nounish
        if participle or after.nounish or after.opens:
            return "D"
        return "PRP"
    if word in lists.DETERMINERS or (word in lists.DEGREES and after.nounish):
        return "D"
    if word in lists.PRONOUNS:
        return "PRP"
    return _adverb_or_preposition(sentence, i)


def _adverb_or_preposition(sentence: TaggedWords, i: int) -> str:
    """Return the tag of an adverb, a preposition or a colour, or ""."""
    word = sentence.words[i]
    previous = sentence.tags[i - 1]
    here, after, later = sentence.entries[i : i + 3]
    if word in lists.ALWAYS_ADVERBS:
        if not (previous == "D" and here.adjective and after.noun and not after.adjective):
            return "R"
    elif word in lists.ADVERBS and word not in lists.PREPOSITIONS:
        place = previous == "P" and (here.noun or not here.known)
        if not (place or previous in NOUN_PHRASE or (here.adjective and after.nounish)):
            return "R"
    if word == "to":
        if after.word == "be" or (after.bare and not after.noun):
            return "TO"
        verb_ends = later.word in lists.DETERMINERS | lists.PREPOSITIONS | lists.PRONOUNS | {"", "."}
        if after.bare and verb_ends:
            return "TO"
        return "P"
    if word in lists.PREPOSITIONS:
        owned = previous == "D" and sentence.words[i - 1] in lists.ARTICLES | lists.POSSESSIVE_PRONOUNS
        if owned and word not in lists.WHOLE_PREPOSITIONS:
            if after.nounish:
                return "J"
            return "N"
        if word in lists.SPATIAL_ADJECTIVES and previous == "P" and after.nounish:
            return "J"
        if word == "like" and previous in {"PRP", "TO"}:
            return "V"
        return "P"
    if word in lists.COLOURS:
        return "J"
    return ""


def _verb_follows(sentence: TaggedWords, i: int) -> bool:
    """Return whether a third-person verb or a form of be comes within the next five words of the clause."""
    for j in range(i + 1, min(i + 6, sentence.size)):
        here, after = sentence.entries[j : j + 2]
        if here.word in lists.BE or (here.third_person and not here.noun):
            return True
        if not here.word[0].isalnum():
            return False
        if here.third_person and not after.nounish:
            return True
    return False


def _participle(sentence: TaggedWords, i: int) -> str:
    """Return the tag of a word in -ing, -ed or -ly, or "".

    A word in -ing is an adjective before a noun, a noun after a determiner, and an action elsewhere. A word in -ed is
    an adjective before the noun that it describes, and a participle elsewhere. A word in -ly is an adverb, unless the
    dictionary knows it as a noun or an adjective.
    """
    word = sentence.words[i]
    previous = sentence.tags[i - 1]
    before = sentence.entries[i - 1]
    here, after, later = sentence.entries[i : i + 3]
    # A noun phrase goes on at the next word, if by a participle: a crowded dining room.
    described = after.nounish or (after.word.endswith(("ing", "ed")) and later.nounish)
    if word.endswith("ing") and len(word) > 4:
        has_object = after.word in lists.DETERMINERS or after.word == "to"
        if here.verb and before.noun in lists.ANIMATE:
            return "VBG"
        if here.verb and has_object and previous in {"P", "N"}:
            return "VBG"
        is_thing = not here.verb or previous in NOUN_PHRASE | {"P", "N", "", "CC", "VBG", "V"}
        if is_thing and word in lists.ING_NOUNS:
            return "N"
        if described and (previous in NOUN_PHRASE or (previous == "V" and here.adjective)):
            return "J"
        if here.noun and previous in NOUN_PHRASE:
            return "N"
        if described and previous == "P" and before.word in lists.BEFORE_PARTICIPLES:
            return "J"
        if here.verb or not here.known:
            return "VBG"
        return ""
    irregular = word in lists.IRREGULAR_PARTICIPLES
    regular = word.endswith("ed") and len(word) > 4
    if irregular or (regular and (here.verb or not here.noun)):
        if is_hyphenated_adjective(word):
            return "J"
        if irregular and here.bare and previous in NOUN_PHRASE | {""}:
            return ""
        if word in lists.COVER_WORDS and previous == "N" and after.nounish:
            return "J"
        if described and previous in NOUN_PHRASE | {"P", ""}:
            return "J"
        return "VBN"
    if word.endswith("ly") and len(word) > 4 and not here.noun and not here.adjective:
        return "R"
    return ""


def _finite_verb(sentence: TaggedWords, i: int) -> str:
    """Return V for a verb where one is due: after a noun, a pronoun or and, while the clause lacks it; else ""."""
    tags = sentence.tags[:i]
    previous = sentence.tags[i - 1]
    here, after = sentence.entries[i : i + 2]
    if not here.verb:
        return ""
    if previous in {"TO", "AUX"}:
        return "V"
    if here.noun in lists.NEVER_VERBS:
        return ""
    if previous not in {"N", "PRP", "WH", "R", "CC", ","}:
        return ""
    if not here.noun and not here.adjective:
        return "V"
    if after.word in lists.BE and "WH" not in tags:
        return ""
    verbs = 0
    pronouns = 0
    for tag in reversed(tags):
        if tag in {"SUB", "."}:
            break
        verbs += tag in VERBS
        pronouns += tag == "WH"
    due = verbs <= pronouns
    closes = after.opens or not after.nounish
    if here.third_person:
        if closes and (due or previous in {"PRP", "WH"}):
            return "V"
        if previous == "CC":
            for tag, entry in zip(tags, sentence.entries, strict=False):
                if tag == "V" and entry.third_person:
                    return "V"
    elif here.bare and due and sentence.plural_before(i):
        plural = after.word.endswith("s") and after.noun and after.noun != after.word
        if plural or (closes and after.word != "."):
            return "V"
    return ""


def _open_class(sentence: TaggedWords, i: int) -> str:
    """Return the dictionary's tag: of an adjective before nouns and after be, of a noun elsewhere."""
    previous = sentence.tags[i - 1]
    here, after = sentence.entries[i : i + 2]
    if is_hyphenated_adjective(here.word):
        return "J"
    if here.adjective:
        ends = not after.word or after.word in lists.SENTENCE_ENDS
        may_be_verb = here.verb and previous == "N"
        if not here.noun and (ends or not may_be_verb):
            return "J"
        described = after.nounish and after.word not in lists.ADVERBS
        follows_adjective = sentence.tags[max(i - 2, 0) : i] == ["J", "CC"]
        joined = follows_adjective and not after.nounish
        if described or joined or previous == "BE":
            return "J"
    if here.noun or not here.known or (here.bare and previous in NOUN_PHRASE):
        return "N"
    if here.verb:
        return "V"
    if here.adjective:
        return "J"
    return "R"


# -- repair ------------------------------------------------------------------------------------------------------------


def repair(sentence: TaggedWords) -> None:
    """Turn nouns into the verbs that they must be, and the other way round, from left to right.

    It looks where a caption would be without its verb, or a noun phrase against grammar.
    """
    tags = sentence.tags
    for i in range(sentence.size):
        word = sentence.words[i]
        here = sentence.entries[i]
        tag = tags[i]
        previous = tags[i - 1]
        opens_phrase = previous == "D" or (previous in {"", "."} and here.noun)
        if tag == "V" and opens_phrase:
            tags[i] = "N"
        elif tag == "VBN" and word in lists.BARE_ONLY and previous not in {"BE", "AUX"}:
            tags[i] = "V"
        elif tag == "J" and here.noun and _stands_for_noun(sentence, i):
            tags[i] = "N"
        elif tag == "N" and here.verb:
            is_joined = _continues_verb(sentence, i) or _is_watched(sentence, i)
            is_finite = _ends_in_s(sentence, i) or _is_bare(sentence, i)
            if word.endswith("ing") and tags[i + 1] == "P" and _is_worn_before(sentence, i):
                tags[i] = "VBG"
            elif is_joined or (is_finite and not _has_verb(sentence, i)):
                tags[i] = "V"


def _stands_for_noun(sentence: TaggedWords, i: int) -> bool:
    """Return whether an adjective ends a noun phrase that has no noun: a young male surfing; a blue top and shorts."""
    tags = sentence.tags
    word = sentence.words[i]
    if word == "top":
        return tags[i - 1] in PHRASE and tags[i + 1] != "N"
    if word in lists.COLOURS or tags[i + 1] not in AFTER_PHRASE:
        return False
    j = i - 1
    while tags[j] in {"J", "CD"}:
        j -= 1
    return tags[j] == "D"


def _has_verb(sentence: TaggedWords, i: int) -> bool:
    """Return whether the clause of a word has a finite verb; "and" ends it to the right, "and a" also to the left."""
    tags = sentence.tags
    for j in range(i - 1, -1, -1):
        if tags[j] in BORDERS or tags[j : j + 2] == ["CC", "D"]:
            break
        if tags[j] in VERBS:
            return True
    for tag in tags[i + 1 :]:
        if tag in BORDERS or tag == "CC":
            break
        if tag in VERBS:
            return True
    return False


def _ends_in_s(sentence: TaggedWords, i: int) -> bool:
    """Return whether a word in s is the verb of a singular subject rather than a plural noun."""
    here = sentence.entries[i]
    if not here.third_person:
        return False
    words = sentence.words
    tags = sentence.tags
    before = words[i - 1]
    previous = tags[i - 1]
    following = tags[i + 1]
    # A plural ends a noun phrase that a singular determiner opens: a chef in an apron chops vegetables.
    j = i - 1
    while tags[j] in {"N", "J"} or tags[j - 1 : j + 2] in JOINED_ADJECTIVES:
        j -= 1
    is_singular = tags[j] in {"D", "CD"} and words[j] in lists.SINGULAR
    if is_singular and previous in {"N", "J"}:
        return True
    if following in {"D", "PRP"} and (previous == "N" or before in lists.COLOURS):
        return True
    if following in AFTER_VERB and _is_worn_before(sentence, i):
        return here.verb in lists.ACTION_VERBS
    is_group = i > 2 and words[i - 2] == "of"
    if is_group and lemma_of(words[i - 3], "N") in lists.COLLECTIVES:
        return following in AFTER_VERB and _is_plural(before)
    return following in {"P", "D"} and before in lists.PARTED


def _is_worn_before(sentence: TaggedWords, i: int) -> bool:
    """Return whether a colour that somebody wears stands before a word: a man in red."""
    if i < 2 or sentence.words[i - 1] not in lists.COLOURS:
        return False
    return sentence.tags[i - 2] in {"P", "VBG"}


def _is_bare(sentence: TaggedWords, i: int) -> bool:
    """Return whether a word is the bare verb of a plural subject: cyclists race down a hill."""
    words = sentence.words
    tags = sentence.tags
    following = tags[i + 1]
    if tags[i - 1] != "N" or not sentence.entries[i].bare:
        return False
    if words[i] in lists.MOSTLY_VERBS and following in {"P", "R", "TO", "VBG"}:
        first = tags.index("N")
        has_several_subjects = ("CC", "D") in pairwise(tags[first : i + 1])
        if has_several_subjects or _is_plural(words[first]):
            return True
    if following == "N":
        return words[i - 1] in lists.PLURALS
    return following in AFTER_VERB and _is_plural(words[i - 1])


def _continues_verb(sentence: TaggedWords, i: int) -> bool:
    """Return whether a word after "and" is a bare verb like one before: they dance and clap, they sit and smile."""
    tags = sentence.tags
    entries = sentence.entries
    if i < 2 or tags[i - 1] != "CC":
        return False
    if tags[i + 1] not in {"", ".", ",", "P"}:
        return False
    j = i - 2
    while entries[i].word in lists.MOSTLY_VERBS and j > 0 and tags[j] not in VERBS | BORDERS:
        j -= 1
    return tags[j] == "V" and entries[i].bare and entries[j].bare


def _is_watched(sentence: TaggedWords, i: int) -> bool:
    """Return whether a word says what somebody who is watched does: watching a dog jump over a log."""
    tags = sentence.tags
    entries = sentence.entries
    if i < 2 or tags[i - 1] != "N" or not entries[i].bare:
        return False
    if tags[i + 1] not in AFTER_VERB:
        return False
    if lemma_of(sentence.words[i - 1], "N") not in lists.ANIMATE:
        return False
    j = i - 1
    while j > 0 and tags[j] in PHRASE:
        j -= 1
    return tags[j] != "N" and entries[j].verb in lists.PERCEPTION_VERBS


def _is_plural(word: str) -> bool:
    return word in lists.PLURALS or (word.endswith("s") and lemma_of(word, "N") != word)
