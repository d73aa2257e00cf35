"""Parts of speech by closed classes, the dictionary and the neighbours of a word: the tagger `lexicon`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from itrpipe.scene_graph import words as lists
from itrpipe.scene_graph.lexicon import Entry, describes, look_up

TAGS: dict[str, str] = {
    "N": "noun",
    "J": "adjective, or participle before a noun",
    "V": "finite or bare verb",
    "VBG": "active participle",
    "VBN": "passive participle",
    "BE": "form of be",
    "AUX": "auxiliary: can, does, has before a participle",
    "TO": "to before a verb",
    "R": "adverb",
    "D": "determiner or possessive pronoun",
    "CD": "number",
    "PRP": "pronoun",
    "P": "preposition or particle",
    "CC": "and, or",
    "SUB": "word that opens a clause",
    "WH": "relative pronoun",
    "EX": "there before be",
    "POS": "possessive 's",
    ",": "mark inside a sentence",
    ".": "mark that ends a sentence",
}
SENTENCE_ENDS = frozenset(".;:!?")
NOUN_PHRASE = frozenset({"D", "J", "CD", "POS"})
END = ""
"""Tag before the first word, and word after the last one."""


@dataclass(slots=True)
class Sentence:
    """A caption on its way through the tagger.

    Attributes:
        words: lower case.
        entries: of the words.
        tags: of the words before the current one.
    """

    words: list[str]
    entries: list[Entry]
    tags: list[str] = field(default_factory=list)

    def previous(self, i: int) -> str:
        return self.tags[i - 1] if i else END

    def word(self, i: int) -> str:
        return self.words[i] if 0 <= i < len(self.words) else END

    def entry(self, i: int) -> Entry:
        return self.entries[i] if 0 <= i < len(self.entries) else Entry()

    def clause_has_verb(self, i: int) -> bool:
        """Whether a finite verb was seen since the last border of a clause."""
        verbs = 0
        for tag in reversed(self.tags[:i]):
            if tag in {"SUB", "."}:
                break
            verbs += (tag in {"V", "BE"}) - (tag == "WH")
        return verbs > 0

    def opens_noun_phrase(self, i: int) -> bool:
        """Whether a noun phrase can start at a word."""
        word = self.word(i)
        return word in lists.PHRASE_OPENERS or word.isdecimal()

    def nounish(self, i: int) -> bool:
        """Whether a word can stand inside a noun phrase after its first word."""
        word, entry = self.word(i), self.entry(i)
        if word in lists.OUTSIDE_PHRASES or not word or not word[0].isalnum() or word.isdecimal():
            return False
        return bool(entry.noun or entry.adjective or not entry.known)

    def describable(self, i: int) -> bool:
        """Whether a noun phrase goes on at a word, if by a participle: a crowded dining room."""
        return self.nounish(i) or (self.word(i).endswith(("ing", "ed")) and self.nounish(i + 1))


Rule = Callable[[Sentence, int], str]
"""Tag of a word, or "" where the rule has nothing to say."""


def punctuation(sentence: Sentence, i: int) -> str:
    """Signs, of which some end a sentence."""
    word = sentence.words[i]
    if word[0].isalnum() or (word[0] in "'_" and len(word) > 1) or word == "&":
        return ""
    return "." if word in SENTENCE_ENDS else ","


def possessive(sentence: Sentence, i: int) -> str:
    """The mark of the owner; before an article or an action, the same letters are a form of be."""
    if sentence.words[i] == "'" and sentence.word(i - 1).endswith("s") and sentence.previous(i) == "N":
        return "POS" if sentence.nounish(i + 1) else ""
    if sentence.words[i] != "'s":
        return ""
    after = sentence.word(i + 1)
    return "BE" if after in lists.ARTICLES or (after.endswith("ing") and after not in lists.ING_NOUNS) else "POS"


def verbs_of_grammar(sentence: Sentence, i: int) -> str:
    """Forms of be, do and have, and other auxiliaries; do and have may be ordinary verbs."""
    word, after = sentence.words[i], sentence.word(i + 1)
    if word in lists.BE:
        return "BE"
    if word in lists.DO:
        bare = sentence.entry(i + 1).verb == after and not sentence.entry(i + 1).noun
        return "AUX" if after == "not" or (bare and after) else "V"
    if word in lists.AUXILIARIES:
        return "AUX" if sentence.entry(i + 1).verb or after in lists.BE or after == "not" else "V"
    if word in lists.HAVE:
        i += after in lists.ALWAYS_ADVERBS or after.endswith("ly")
        after = sentence.word(i + 1)
        participle = after.endswith(("ed", "en")) or after in lists.IRREGULAR_PARTICIPLES
        return "AUX" if participle and sentence.entry(i + 1).verb and not sentence.nounish(i + 1) else ""
    return ""


def conjunction(sentence: Sentence, i: int) -> str:
    """And, or, but."""
    return "CC" if sentence.words[i] in lists.CONJUNCTIONS else ""


def number(sentence: Sentence, i: int) -> str:
    """Numbers, in words or digits."""
    word = sentence.words[i]
    return "CD" if word in lists.NUMBERS or word.replace("-", "").isdecimal() else ""


def subordinator(sentence: Sentence, i: int) -> str:
    """What opens a subordinate clause; "as" may be a preposition."""
    word, previous = sentence.words[i], sentence.previous(i)
    if word == "as":
        if sentence.word(i + 1) in lists.ARTICLES and not _verb_follows(sentence, i + 1):
            return "P"
        if sentence.nounish(i + 1) and sentence.word(i + 2) in SENTENCE_ENDS | {END}:
            return "P"
        return "P" if previous in {"VBN", "VBG", "J", "R"} else "SUB"
    return "SUB" if word in lists.SUBORDINATORS else ""


def _verb_follows(sentence: Sentence, i: int) -> bool:
    """Whether a third-person verb or a form of be comes within the next five words of the clause."""
    for j in range(i + 1, min(i + 6, len(sentence.words))):
        word = sentence.words[j]
        if word in lists.BE or (sentence.entries[j].is_third_person(word) and not sentence.entries[j].noun):
            return True
        if not word[0].isalnum():
            return False
        if sentence.entries[j].is_third_person(word) and not sentence.nounish(j + 1):
            return True
    return False


def relative(sentence: Sentence, i: int) -> str:
    """Who, which and that behind a noun; "that" may be a determiner."""
    word = sentence.words[i]
    if word not in lists.RELATIVES:
        return ""
    if word == "that" and (sentence.previous(i) != "N" or sentence.nounish(i + 1)):
        after, entry = sentence.word(i + 1), sentence.entry(i + 1)
        verb = entry.is_third_person(after) or (
            bool(entry.verb) and entry.verb == after and _plural_before(sentence, i)
        )
        return "WH" if sentence.previous(i) == "N" and verb else "D"
    return "WH"


def determiner(sentence: Sentence, i: int) -> str:
    """Articles and possessive pronouns; "her" may be an object."""
    word = sentence.words[i]
    if word == "her":
        participle = sentence.word(i + 1).endswith(("ing", "ed")) and sentence.nounish(i + 2)
        return "D" if participle or sentence.nounish(i + 1) or sentence.opens_noun_phrase(i + 1) else "PRP"
    if word in lists.DEGREES:
        return "D" if sentence.nounish(i + 1) else ""
    return "D" if word in lists.DETERMINERS else ""


def pronoun(sentence: Sentence, i: int) -> str:
    """Pronouns, which are never objects of the graph."""
    return "PRP" if sentence.words[i] in lists.PERSONAL_PRONOUNS | lists.OTHER_PRONOUNS else ""


def there(sentence: Sentence, i: int) -> str:
    """The "there" of "there is"."""
    return "EX" if sentence.words[i] == "there" and sentence.word(i + 1) in lists.BE | lists.AUXILIARIES else ""


def adverb(sentence: Sentence, i: int) -> str:
    """Adverbs from the lists, unless they stand before a noun."""
    word = sentence.words[i]
    if word in lists.ALWAYS_ADVERBS:
        after = sentence.entry(i + 1)
        describes_noun = sentence.previous(i) == "D" and after.noun and not after.adjective
        return "" if describes_noun and sentence.entry(i).adjective else "R"
    if word in lists.PREPOSITIONS or word not in lists.ADVERBS:
        return ""
    if sentence.previous(i) == "P" and (sentence.entry(i).noun or not sentence.entry(i).known):
        return ""
    return (
        "" if sentence.previous(i) in NOUN_PHRASE or (sentence.nounish(i + 1) and sentence.entry(i).adjective) else "R"
    )


def preposition(sentence: Sentence, i: int) -> str:
    """Prepositions; before a bare verb "to" is none."""
    word = sentence.words[i]
    if word == "to" and _bare_verb_follows(sentence, i):
        return "TO"
    if word not in lists.PREPOSITIONS:
        return ""
    owned = sentence.previous(i) == "D" and sentence.word(i - 1) in lists.ARTICLES | lists.POSSESSIVE_PRONOUNS
    if owned and word not in {"of", "to", "with", "at", "for", "from", "in", "on"}:
        return "J" if sentence.nounish(i + 1) else "N"
    if word in lists.SPATIAL_ADJECTIVES and sentence.previous(i) == "P" and sentence.nounish(i + 1):
        return "J"
    if word == "like" and sentence.previous(i) in {"PRP", "TO"}:
        return "V"
    return "P"


def _bare_verb_follows(sentence: Sentence, i: int) -> bool:
    entry, word = sentence.entry(i + 1), sentence.word(i + 1)
    if not entry.verb or entry.verb != word:
        return word == "be"
    return not entry.noun or sentence.word(i + 2) in lists.DETERMINERS | lists.PREPOSITIONS | lists.PRONOUNS | {"", "."}


def colour(sentence: Sentence, i: int) -> str:
    """Colours are adjectives."""
    return "J" if sentence.words[i] in lists.COLOURS else ""


def ing_form(sentence: Sentence, i: int) -> str:
    """A word in -ing is an adjective before a noun, a noun after a determiner, and an action elsewhere."""
    word, previous = sentence.words[i], sentence.previous(i)
    if not word.endswith("ing") or len(word) < 5:
        return ""
    after_is_noun = sentence.describable(i + 1)
    if sentence.entry(i - 1).noun in lists.ANIMATE and sentence.entry(i).verb:
        return "VBG"
    if sentence.word(i + 1) in lists.DETERMINERS | {"to"} and sentence.entry(i).verb and previous in {"P", "N"}:
        return "VBG"
    if word in lists.ING_NOUNS and (
        previous in NOUN_PHRASE | {"P", "N", END, "CC", "VBG", "V"} or not sentence.entry(i).verb
    ):
        return "N"
    if after_is_noun and (previous in NOUN_PHRASE or (previous == "V" and sentence.entry(i).adjective)):
        return "J"
    if previous in NOUN_PHRASE and sentence.entry(i).noun:
        return "N"
    if previous == "P" and after_is_noun and sentence.word(i - 1) in lists.BEFORE_PARTICIPLES:
        return "J"
    return "VBG" if sentence.entry(i).verb or not sentence.entry(i).known else ""


def ed_form(sentence: Sentence, i: int) -> str:
    """A word in -ed is an adjective before what it describes, and a participle elsewhere."""
    word, previous, entry = sentence.words[i], sentence.previous(i), sentence.entry(i)
    irregular = word in lists.IRREGULAR_PARTICIPLES
    if not irregular and (not word.endswith("ed") or len(word) < 5 or (entry.noun and not entry.verb)):
        return ""
    if describes(word):
        return "J"
    if irregular and entry.verb == word and previous in NOUN_PHRASE | {END}:
        return ""
    if word in lists.COVER_WORDS and previous == "N" and sentence.nounish(i + 1):
        return "J"
    return "J" if previous in NOUN_PHRASE | {"P", END} and sentence.describable(i + 1) else "VBN"


def ly_form(sentence: Sentence, i: int) -> str:
    """A word in -ly is an adverb, unless the dictionary knows it as a noun or an adjective."""
    word, entry = sentence.words[i], sentence.entry(i)
    return "R" if word.endswith("ly") and len(word) > 4 and not entry.noun and not entry.adjective else ""


def finite_verb(sentence: Sentence, i: int) -> str:
    """A verb where one is due: after a noun, a pronoun or and, while the clause still lacks its verb."""
    word, entry, previous = sentence.words[i], sentence.entries[i], sentence.previous(i)
    if previous in {"TO", "AUX"}:
        return "V" if entry.verb else ""
    if not entry.verb or entry.noun in lists.NEVER_VERBS or previous not in {"N", "PRP", "WH", "R", "CC", ","}:
        return ""
    if not entry.noun and not entry.adjective:
        return "V"
    if sentence.word(i + 1) in lists.BE and "WH" not in sentence.tags:
        return ""
    closes = not sentence.nounish(i + 1) or sentence.opens_noun_phrase(i + 1)
    due = not sentence.clause_has_verb(i)
    if entry.is_third_person(word):
        return "V" if (closes and (due or previous in {"PRP", "WH"})) or _follows_verb(sentence, i) else ""
    if entry.verb != word or not due or not _plural_before(sentence, i):
        return ""
    return "V" if (closes and sentence.word(i + 1) != ".") or _is_plural_noun(sentence, i + 1) else ""


def _follows_verb(sentence: Sentence, i: int) -> bool:
    """Whether a word in s comes right after "and" in a clause with such a verb: kneels and roasts marshmallows."""
    return sentence.previous(i) == "CC" and any(
        tag == "V" and entry.is_third_person(word)
        for word, entry, tag in zip(sentence.words, sentence.entries, sentence.tags[:i], strict=False)
    )


def _is_plural_noun(sentence: Sentence, i: int) -> bool:
    word, noun = sentence.word(i), sentence.entry(i).noun
    return word.endswith("s") and bool(noun) and noun != word


def _plural_before(sentence: Sentence, i: int) -> bool:
    """Whether the words before are a plural subject."""
    if sentence.previous(i) == "PRP":
        return sentence.words[i - 1] not in {"it", "he", "she"}
    noun, head = sentence.word(i - 1), sentence.entry(i - 1).noun
    if noun in {"people", "couple", "group"} or (head and noun != head):
        return True
    first = max(i - 1, 0)
    while first > 0 and sentence.tags[first] in {"N", "J", "D", "CD"}:
        first -= 1
    return (
        sentence.tags[first : first + 1] == ["CC"]
        and "P" not in sentence.tags[:first]
        and "," not in sentence.tags[:first]
    )


def open_class(sentence: Sentence, i: int) -> str:
    """What the dictionary says, adjectives before nouns and after be, nouns elsewhere."""
    word, entry, previous = sentence.words[i], sentence.entries[i], sentence.previous(i)
    if describes(word):
        return "J"
    ends = sentence.word(i + 1) in SENTENCE_ENDS | {END}
    if entry.adjective and not entry.noun and (ends or not (entry.verb and previous == "N")):
        return "J"
    described = sentence.nounish(i + 1) and sentence.word(i + 1) not in lists.ADVERBS
    joined = previous == "CC" and i > 1 and sentence.tags[i - 2] == "J" and not sentence.nounish(i + 1)
    if entry.adjective and (described or joined or previous == "BE"):
        return "J"
    if entry.noun or not entry.known or (entry.verb == word and previous in NOUN_PHRASE):
        return "N"
    return "V" if entry.verb else "J" if entry.adjective else "R"


CLOSED: tuple[Rule, ...] = (
    possessive,
    punctuation,
    verbs_of_grammar,
    conjunction,
    number,
    subordinator,
    there,
    relative,
    determiner,
    pronoun,
    adverb,
    preposition,
    colour,
)
OPEN: tuple[Rule, ...] = (ing_form, ed_form, ly_form, finite_verb, open_class)


def tag_by_lexicon(words: list[str]) -> tuple[list[str], list[bool]]:
    """Tags the words of a caption from left to right; the first rule that fires decides.

    Args:
        words: lower case.

    Returns:
        A key of `TAGS` for each word, and whether a rule of a closed class gave it.
    """
    sentence = Sentence(words, [look_up(word) for word in words])
    closed: list[bool] = []
    for i in range(len(words)):
        tag = next((tag for rule in CLOSED if (tag := rule(sentence, i))), "")
        closed.append(bool(tag))
        sentence.tags.append(tag or next(tag for rule in OPEN if (tag := rule(sentence, i))))
    return sentence.tags, closed
