"""Typed links between the words of a caption: the language between the rules and `extract_graph`.

In every `Link`, `head` is the governing word and `dependent` the governed one; `KINDS` names both as
`head -> dependent`. The names are those of link grammar (Sleator & Temperley, 1991) where it has such a link.
"""

from __future__ import annotations

KINDS: dict[str, str] = {
    "S": "verb (a form of be as well, or a participle or infinitive with an understood subject) -> its subject noun",
    "Pg": "form of be -> active participle: is running",
    "Pv": "form of be -> passive participle: is held",
    "Pa": "form of be or of a verb like it -> predicative adjective: is red",
    "Mg": "noun -> active participle that says what it does: man holding",
    "Mv": "noun -> passive participle that says what is done to it: man seated",
    "O": "verb -> object noun; form of be -> predicate noun",
    "J": "preposition (the first word of an idiom, or of) -> its noun",
    "MVp": "verb, participle or form of be -> preposition (the first word of an idiom)",
    "Mp": "noun -> preposition (the first word of an idiom)",
    "OF": "noun -> of: group of",
    "A": "noun -> attributive adjective or participle",
    "AN": "noun -> noun that modifies it: ball <- soccer",
    "Dmcn": "noun -> number or word of quantity: dogs <- two",
    "D": "noun -> determiner, possessive pronoun, or possessive 's",
    "YS": "possessive 's -> owner noun",
    "K": "verb or participle -> particle: pick up",
    "SJl": "and, or, & -> each conjunct on its left",
    "SJr": "and, or, & -> the conjunct on its right",
    "R": "noun -> relative pronoun: man who",
    "RS": "relative pronoun -> verb or form of be of which the noun is the subject",
    "IX": "first word of an idiom -> each other word of it: in -> front, in -> of",
}
"""What each kind joins; the conjuncts of SJl and SJr are nouns."""
