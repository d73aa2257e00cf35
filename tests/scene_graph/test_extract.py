"""The extractor alone: hand-made links to graphs."""

from __future__ import annotations

import pytest

from itrpipe.scene_graph.extract import extract_graph
from itrpipe.scene_graph.graph import Analysis, Link, SceneGraph, Token
from itrpipe.scene_graph.links import KINDS


def analysis(words: str, links: str) -> Analysis:
    """Tokens from `text/tag/lemma` (tag N and lemma = text where left out), links from `kind head dependent`."""
    tokens: list[Token] = []
    start = 0
    for word in words.split():
        text, tag, lemma = (*word.split("/"), "", "")[:3]
        tokens.append(Token(text, start, start + len(text), tag or "N", lemma or text))
        start += len(text) + 1
    number = {token.text: i for i, token in enumerate(tokens)}
    triples = [link.split() for link in links.split(",") if link.strip()]
    return Analysis(
        tuple(tokens), tuple(Link(kind, number[head], number[dependent]) for kind, head, dependent in triples)
    )


def graph_of(words: str, links: str) -> SceneGraph:
    made = analysis(words, links)
    return extract_graph(" ".join(token.text for token in made.tokens), made)


def said(graph: SceneGraph) -> tuple[list[str], list[str], list[str]]:
    name = [thing.lemma for thing in graph.objects]
    return (
        name,
        [f"{name[said.object]}:{said.lemma}/{said.kind}" for said in graph.attributes],
        [f"{name[edge.subject]} [{edge.lemma}] {name[edge.object]}/{edge.kind}" for edge in graph.relations],
    )


# Rule, words, links, objects, attributes, relations.
CASES = [
    ("1 verb and object", "man rides/V/ride bike", "S rides man, O rides bike", ["man", "bike"], [],
     ["man [ride] bike/verb"]),
    ("1 particle, preposition, idiom", "man runs/V/run up/P in/P front/N of/P bus",
     "S runs man, K runs up, MVp runs in, IX in front, IX in of, J in bus", ["man", "bus"], [],
     ["man [run up in front of] bus/verb_prep"]),
    ("1 progressive", "man is/BE/be riding/VBG/ride bike", "S is man, Pg is riding, O riding bike", ["man", "bike"], [],
     ["man [ride] bike/verb"]),
    ("1 infinitive", "man tries/V/try to/TO run/V", "S tries man, S run man", ["man"],
     ["man:try/action", "man:run/action"], []),
    ("2 participle", "man holding/VBG/hold cup", "Mg man holding, O holding cup", ["man", "cup"], [],
     ["man [hold] cup/verb"]),
    ("3 verb alone", "man sleeps/V/sleep", "S sleeps man", ["man"], ["man:sleep/action"], []),
    ("3 verb with particle", "man looks/V/look on/P", "S looks man, K looks on", ["man"], ["man:look on/action"], []),
    ("3 verb that links", "man looks/V/look happy/J", "S looks man, Pa looks happy", ["man"],
     ["man:happy/adjective"], []),
    ("3 empty verb", "man seems/V/seem to/TO run/V", "S seems man, S run man", ["man"], ["man:run/action"], []),
    ("3 verb with an adjective", "man stands/V/stand barefoot/J", "S stands man, Pa stands barefoot", ["man"],
     ["man:stand/action", "man:barefoot/adjective"], []),
    ("4 copula and noun", "man is/BE/be fire chief", "S is man, O is chief, AN chief fire", ["man"],
     ["man:fire chief/copula"], []),
    ("4 copula, noun and more", "man is/BE/be chief with/P hat", "S is man, O is chief, Mp chief with, J with hat",
     ["man", "chief", "hat"], ["man:chief/copula"], ["chief [with] hat/prep"]),
    ("4 copula and preposition", "man is/BE/be in/P pool", "S is man, MVp is in, J in pool", ["man", "pool"], [],
     ["man [in] pool/prep"]),
    ("4 no subject", "there/EX is/BE/be dog", "O is dog", ["dog"], [], []),
    ("5 adjective", "red/J bus", "A bus red", ["bus"], ["bus:red/adjective"], []),
    ("6 predicative adjective", "bus is/BE/be red/J", "S is bus, Pa is red", ["bus"], ["bus:red/adjective"], []),
    ("7 noun and preposition", "clock on/P tower", "Mp clock on, J on tower", ["clock", "tower"], [],
     ["clock [on] tower/prep"]),
    ("7 of", "leg of/P chair", "OF leg of, J of chair", ["leg", "chair"], [], ["leg [of] chair/prep"]),
    ("8 possessive", "man 's/POS hat", "YS 's man, D hat 's", ["man", "hat"], [], ["man [have] hat/have"]),
    ("8 pronoun", "woman his/D hat", "D hat his", ["woman", "hat"], [], []),
    ("9 agent", "ball held/VBN/hold by/P man", "Mv ball held, MVp held by, J by man", ["ball", "man"], [],
     ["man [hold] ball/agent"]),
    ("9 active by", "man sits/V/sit by/P tree", "S sits man, MVp sits by, J by tree", ["man", "tree"], [],
     ["man [sit by] tree/verb_prep"]),
    ("9 by as a place", "car parked/VBN/park by/P tree", "Mv car parked, MVp parked by, J by tree", ["car", "tree"], [],
     ["car [park by] tree/verb_prep"]),
    ("9 agent of a form of be", "ball is/BE/be held/VBN/hold by/P man", "S is ball, Pv is held, MVp held by, J by man",
     ["ball", "man"], [], ["man [hold] ball/agent"]),
    ("10 numbers", "two/CD dogs/N/dog several/CD cats/N/cat", "Dmcn dogs two, Dmcn cats several", ["dog", "cat"],
     ["dog:two/number", "cat:several/quantity"], []),
    ("10 quantity", "couple of/P dogs/N/dog run/V", "OF couple of, J of dogs, S run couple", ["dog"],
     ["dog:couple/quantity", "dog:run/action"], []),
    ("10 quantity of a quantity", "lot of/P pairs/N/pair off/P shoes/N/shoe",
     "OF lot of, J of pairs, OF pairs off, J off shoes", ["shoe"], ["shoe:lot/quantity", "shoe:pair/quantity"], []),
    ("11 compound", "ice cream cone", "AN cone ice, AN cone cream", ["ice cream cone"],
     ["ice cream cone:ice/compound", "ice cream cone:cream/compound"], []),
    ("11 distant compound", "steel and/CC glass tower", "AN tower steel, AN tower glass", ["glass tower"],
     ["glass tower:steel/compound", "glass tower:glass/compound"], []),
    ("12 subjects", "man and/CC boy run/V", "SJl and man, SJr and boy, S run boy", ["man", "boy"],
     ["man:run/action", "boy:run/action"], []),
    ("12 objects", "man eats/V/eat ham and/CC egg", "S eats man, O eats ham, SJl and ham, SJr and egg",
     ["man", "ham", "egg"], [], ["man [eat] ham/verb", "man [eat] egg/verb"]),
    ("13 noun alone", "dog", "", ["dog"], [], []),
    ("a participle alone", "man seated/VBN/seat", "Mv man seated", ["man"], ["man:seat/action"], []),
    ("b collective", "group of/P men/N/man run/V", "OF group of, J of men, S run men", ["group", "man"],
     ["man:run/action"], ["group [of] man/prep"]),
    ("c place", "cat sits/V/sit on/P the/D edge of/P roof",
     "S sits cat, MVp sits on, J on edge, D edge the, OF edge of, J of roof", ["cat", "roof"], [],
     ["cat [sit on edge of] roof/verb_prep"]),
    ("c place of a noun", "cat on/P top of/P roof", "Mp cat on, J on top, OF top of, J of roof", ["cat", "roof"], [],
     ["cat [on top of] roof/prep"]),
    ("c no place without of", "cat on/P top", "Mp cat on, J on top", ["cat", "top"], [], ["cat [on] top/prep"]),
    ("d colour alone", "red", "", [], [], []),
    ("d colour worn", "man in/P red", "Mp man in, J in red", ["man", "red"], [], ["man [in] red/prep"]),
    ("e owner is the subject", "girl near/P boy throws/V/throw his/D ball",
     "Mp girl near, J near boy, S throws boy, O throws ball, D ball his", ["girl", "boy", "ball"], [],
     ["girl [near] boy/prep", "boy [throw] ball/verb", "boy [have] ball/have"]),
    ("e owner of an object's place", "girl dog has/V/have ball in/P his/D mouth",
     "S has dog, O has ball, Mp ball in, J in mouth, D mouth his", ["girl", "dog", "ball", "mouth"], [],
     ["dog [have] ball/verb", "dog [have] mouth/have", "ball [in] mouth/prep"]),
    ("e owner is the first that agrees", "girl boy with/P his/D ball", "Mp boy with, J with ball, D ball his",
     ["girl", "boy", "ball"], [], ["boy [with] ball/prep", "boy [have] ball/have"]),
    ("f participle of a list", "man and/CC boy sitting/VBG/sit", "SJl and man, SJr and boy, Mg boy sitting",
     ["man", "boy"], ["man:sit/action", "boy:sit/action"], []),
    ("f not of a distant list", "man in/P hat and/CC boy sitting/VBG/sit",
     "Mp man in, J in hat, SJl and man, SJr and boy, Mg boy sitting", ["man", "hat", "boy"], ["boy:sit/action"],
     ["man [in] hat/prep"]),
    ("g list after a preposition", "man with/P cup and/CC pot", "Mp man with, J with cup, SJl and cup, SJr and pot",
     ["man", "cup", "pot"], [], ["man [with] cup/prep", "man [with] pot/prep"]),
    ("relative", "man who/WH sings/V/sing", "R man who, RS who sings", ["man"], ["man:sing/action"], []),
    ("relative and be", "man who/WH is/BE/be tall/J", "R man who, RS who is, Pa is tall", ["man"],
     ["man:tall/adjective"], []),
    ("personal pronoun", "dog barks/V/bark he/PRP sees/V/see it/PRP cat", "S barks dog, S sees he, O sees cat",
     ["dog", "cat"], ["dog:bark/action"], ["dog [see] cat/verb"]),
    ("never itself", "dog sees/V/see it/PRP", "S sees dog, O sees it", ["dog"], ["dog:see/action"], []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "links", "objects", "attributes", "relations"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_rule(words: str, links: str, objects: list[str], attributes: list[str], relations: list[str]) -> None:
    assert said(graph_of(words, links)) == (objects, attributes, relations)


def test_every_kind_of_link_is_used_by_a_case() -> None:
    used = {link.split()[0] for case in CASES for link in case[2].split(",") if link.strip()}
    assert used == set(KINDS)


def test_nothing_is_said_twice() -> None:
    graph = graph_of("red/J big/J red/J bus with/P wheel", "A bus big, Mp bus with, J with wheel")
    twice = extract_graph(
        graph.text,
        Analysis(graph.tokens, (Link("A", 3, 0), Link("A", 3, 2), Link("Mp", 3, 4), Link("J", 4, 5), Link("J", 4, 5))),
    )
    assert said(twice) == (["bus", "wheel"], ["bus:red/adjective"], ["bus [with] wheel/prep"])


def test_order_of_links_does_not_matter() -> None:
    made = analysis("man and/CC boy hold/V red/J cup", "SJl and man, SJr and boy, S hold boy, O hold cup, A cup red")
    back = Analysis(made.tokens, made.links[::-1])
    assert extract_graph("x", made) == extract_graph("x", back)


def test_status_and_tokens_go_through() -> None:
    made = analysis("dog cat", "")
    assert extract_graph("dog cat", Analysis(made.tokens, (), "partial")).status == "partial"
    assert extract_graph("dog cat", made).tokens == made.tokens


@pytest.mark.parametrize(
    ("pronoun", "owner"),
    [("his", "man"), ("her", "woman"), ("its", "dog"), ("their", "people"), ("whose", "bus"), ("my", None)],
)
def test_owners_agree(pronoun: str, owner: str | None) -> None:
    graph = graph_of(f"people dog man woman bus {pronoun}/D hat", f"D hat {pronoun}")
    assert said(graph)[2] == ([f"{owner} [have] hat/have"] if owner else [])


def test_they_are_many_before_one() -> None:
    assert said(graph_of("woman cups/N/cup dogs/N/dog their/D hat", "D hat their"))[2] == ["dog [have] hat/have"]
    assert said(graph_of("cup woman their/D hat", "D hat their"))[2] == ["woman [have] hat/have"]
