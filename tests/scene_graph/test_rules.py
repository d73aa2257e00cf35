"""One caption or more for every rule, from the words to the graph, under both taggers."""

from __future__ import annotations

from functools import cache
from importlib import metadata

import pytest

from itrpipe.errors import DataError, MissingInputError
from itrpipe.scene_graph import rules
from itrpipe.scene_graph.declaration import ParseSettings
from itrpipe.scene_graph.extract import extract_graph
from itrpipe.scene_graph.graph import SceneGraph
from itrpipe.scene_graph.hanta import HantaTagger
from itrpipe.scene_graph.rules import RulesParser
from tests.scene_graph.scoring import facts_of

TAGGERS = ("hanta", "lexicon")


@cache
def parser(tagger: str) -> RulesParser:
    return RulesParser("lexicon") if tagger == "lexicon" else RulesParser("hanta")


def parse(text: str, tagger: str = "hanta") -> SceneGraph:
    return extract_graph(text, parser(tagger).analyse(text))


def said(graph: SceneGraph) -> tuple[str, str, str]:
    objects, attributes, relations = facts_of(graph)
    return (
        " ".join(sorted(objects)),
        ", ".join(sorted(f"{noun}:{lemma}" for noun, lemma in attributes)),
        ", ".join(sorted(f"{subject} [{predicate}] {thing}" for subject, predicate, thing in relations)),
    )


# Name of the rule, caption, objects, attributes, relations.
RULES = [
    # The rules of SPICE, in their order.
    ("verb with object", "A dog bites a man.", "dog man", "", "dog [bite] man"),
    ("verb with preposition", "A dog jumps over a log.", "dog log", "", "dog [jump over] log"),
    ("particle and preposition", "A man looks up at the sky.", "man sky", "", "man [look up at] sky"),
    ("phrasal verb", "A man puts on a hat.", "hat man", "", "man [put on] hat"),
    ("participle of a noun", "A man riding a horse.", "horse man", "", "man [ride] horse"),
    ("passive participle", "A car parked on a street.", "car street", "", "car [park on] street"),
    ("verb alone", "A woman is smiling.", "woman", "woman:smile", ""),
    ("copula and preposition", "The man is in a pool.", "man pool", "", "man [in] pool"),
    ("copula and noun", "The man is a pilot.", "man", "man:pilot", ""),
    ("copula and described noun", "The man is a tall pilot.", "man pilot", "man:pilot, pilot:tall", ""),
    ("adjective", "A tall man.", "man", "man:tall", ""),
    ("joined adjectives", "A black, white and brown dog.", "dog", "dog:black, dog:brown, dog:white", ""),
    ("predicative adjective", "The sky is blue and clear.", "sky", "sky:blue, sky:clear", ""),
    ("noun and preposition", "A clock on a tower.", "clock tower", "", "clock [on] tower"),
    ("preposition of an adjective", "The room is ready for a guest.", "guest room", "room:ready", ""),
    ("adjective and part", "The tie is blue with dots.", "dot tie", "tie:blue", "tie [with] dot"),
    ("adjective and place", "The cup is safe on a shelf.", "cup shelf", "cup:safe", "cup [on] shelf"),
    ("possessive noun", "A man's hat.", "hat man", "", "man [have] hat"),
    ("plural possessive", "The boys' hats.", "boy hat", "", "boy [have] hat"),
    ("possessive pronoun", "A woman brushes her hair.", "hair woman", "", "woman [brush] hair, woman [have] hair"),
    ("owner unknown", "A dog in someone's yard.", "dog yard", "", "dog [in] yard"),
    ("agent", "A ball is held by a boy.", "ball boy", "", "boy [hold] ball"),
    ("by as a place", "A car is parked by a tree.", "car tree", "", "car [park by] tree"),
    ("number", "Two dogs.", "dog", "dog:two", ""),
    ("vague number", "Several dogs.", "dog", "dog:several", ""),
    ("quantity", "A couple of dogs run.", "dog", "dog:couple, dog:run", ""),
    ("plural quantity", "Lots of birds.", "bird", "bird:lot", ""),
    ("number of the", "Two of the boys swim.", "boy", "boy:swim, boy:two", ""),
    ("compound", "A soccer ball.", "ball", "ball:soccer", ""),
    ("joined subjects", "A man and a woman sing.", "man woman", "man:sing, woman:sing", ""),
    ("joined objects", "A man eats bread and cheese.", "bread cheese man", "", "man [eat] bread, man [eat] cheese"),
    ("comma list", "A cup, a pot and a pan on a stove.", "cup pan pot stove", "",
     "cup [on] stove, pan [on] stove, pot [on] stove"),
    ("noun alone", "Dog.", "dog", "", ""),
    # Additions to them.
    ("participle alone", "A man sleeping.", "man", "man:sleep", ""),
    ("collective", "A group of people walk.", "group people", "people:walk", "group [of] people"),
    ("place on the top", "A cat sits on the top of a car.", "car cat", "", "cat [sit on top of] car"),
    ("place in the middle", "A boat in the middle of a lake.", "boat lake", "", "boat [in middle of] lake"),
    ("side of its own", "The side of a bus.", "bus side", "", "side [of] bus"),
    ("colour that modifies", "A red and white bus.", "bus", "bus:red, bus:white", ""),
    ("colour that is worn", "A woman in red.", "red woman", "", "woman [in] red"),
    ("owner of an object", "A boy near a man throws his ball.", "ball boy man", "",
     "boy [have] ball, boy [near] man, boy [throw] ball"),
    ("owner after a preposition", "A dog with a stick in its mouth.", "dog mouth stick", "",
     "dog [have] mouth, dog [with] stick, stick [in] mouth"),
    ("participle of a list", "A man and a boy holding bags.", "bag boy man", "", "boy [hold] bag, man [hold] bag"),
    ("participle after a distant list", "A man in a hat and a woman holding bags.", "bag hat man woman", "",
     "man [in] hat, woman [hold] bag"),
    ("list after a preposition", "A man in a hat and a coat.", "coat hat man", "", "man [in] coat, man [in] hat"),
    # What attachment decides.
    ("particle before an action", "People stand around talking.", "people", "people:stand around, people:talk", ""),
    ("made of", "A wall made of bricks.", "brick wall", "", "wall [make of] brick"),
    ("idiom", "A dog in front of a house.", "dog house", "", "dog [in front of] house"),
    ("existential", "There are two cats on a mat.", "cat mat", "cat:two", "cat [on] mat"),
    ("relative clause", "A man who is wearing a hat sings.", "hat man", "man:sing", "man [wear] hat"),
    ("object relative", "The ball that a boy throws is red.", "ball boy", "ball:red", "boy [throw] ball"),
    ("whose", "A dog whose tail is short sits outside.", "dog tail", "dog:sit, tail:short", "dog [have] tail"),
    ("infinitive", "A dog jumps to catch a ball.", "ball dog", "dog:jump", "dog [catch] ball"),
    ("joined verbs", "A man sits and eats an apple.", "apple man", "man:sit", "man [eat] apple"),
    ("joined participles", "A man is eating and drinking.", "man", "man:drink, man:eat", ""),
    ("subordinate clause", "A man sings while a boy watches.", "boy man", "boy:watch, man:sing", ""),
    ("subordinate participle", "A man sings while holding a flag.", "flag man", "man:sing", "man [hold] flag"),
    ("new clause after and", "A man sings and a boy dances.", "boy man", "boy:dance, man:sing", ""),
    ("thing before participle", "A man on a road holding a bag.", "bag man road", "", "man [hold] bag, man [on] road"),
    ("thing that acts", "A man near a sign hanging there.", "man sign", "sign:hang", "man [near] sign"),
    ("clothes after another noun", "A man on a bench in a hat.", "bench hat man", "", "man [in] hat, man [on] bench"),
    ("part after with", "A man holds a dog with a collar.", "collar dog man", "", "dog [with] collar, man [hold] dog"),
    ("place after a comma", "A boy on a bench, in a park.", "bench boy park", "", "boy [in] park, boy [on] bench"),
    ("action after a comma", "A man near a dog chasing cats, singing.", "cat dog man", "man:sing",
     "dog [chase] cat, man [near] dog"),
    ("hair and clothes", "A man with long hair and a coat sits.", "coat hair man", "hair:long, man:sit",
     "man [with] coat, man [with] hair"),
    ("perfect", "A man has thrown a ball.", "ball man", "", "man [throw] ball"),
    ("new thing after a part", "A man with a bag in his hand and a car driving.", "bag car hand man", "car:drive",
     "bag [in] hand, man [have] hand, man [with] bag"),
    ("joined participles of an object", "This is a man holding a cup and wearing a hat.", "cup hat man", "",
     "man [hold] cup, man [wear] hat"),
    ("adjective after its noun", "A dog with its mouth open.", "dog mouth", "mouth:open",
     "dog [have] mouth, dog [with] mouth"),
    ("held by a thing", "A boy sits by a wall with drawings on it.", "boy drawing wall", "",
     "boy [sit by] wall, drawing [on] wall, wall [with] drawing"),
    ("held by the nearest thing", "A table with a plate with a fork on it.", "fork plate table", "",
     "fork [on] plate, plate [with] fork, table [with] plate"),
    ("not held by a thing", "A boy runs on a beach with dogs behind him.", "beach boy dog", "",
     "boy [run on] beach, boy [run with] dog, dog [behind] boy"),
    ("what happens beside", "A man stands with a hat spinning.", "hat man", "hat:spin", "man [stand with] hat"),
    ("infinitive of a participle", "A man holds a dog trying to catch a ball.", "ball dog man", "dog:try",
     "dog [catch] ball, man [hold] dog"),
    ("place of who wears", "A man wearing a hat on a horse.", "hat horse man", "", "man [on] horse, man [wear] hat"),
    ("place of what is worn", "A man wearing a hat on his head.", "hat head man", "",
     "hat [on] head, man [have] head, man [wear] hat"),
    ("dress of the last", "A man and a woman in a dress.", "dress man woman", "", "woman [in] dress"),
    ("container", "A glass of wine on a table.", "glass table wine", "", "glass [of] wine, glass [on] table"),
    ("watched", "People watch a dog jump over a log.", "dog log people", "", "dog [jump over] log, people [watch] dog"),
    ("insertion", "A man, hat in hand, sings.", "hand hat man", "man:sing", "hat [in] hand"),
    ("participle first", "Dressed in black, a man sings.", "black man", "man:sing", "man [dress in] black"),
    ("past tense", "A boy kicked the ball.", "ball boy", "", "boy [kick] ball"),
    ("two objects", "A man gives a boy a ball.", "ball boy man", "", "man [give] ball, man [give] boy"),
    ("personal pronoun", "A dog sits while a boy feeds it.", "boy dog", "dog:sit", "boy [feed] dog"),
    ("nobody to mean", "He sings.", "", "", ""),
    ("reciprocal", "Two dogs chase each other.", "dog", "dog:chase, dog:two", ""),
    ("reciprocal owner", "Two boys hold each other's hands.", "boy hand", "boy:two", "boy [hold] hand"),
    ("one of two", "Two men, one with a hat, sing.", "hat man", "man:sing, man:two", "man [with] hat"),
    ("action of two words", "A woman is rock climbing.", "woman", "woman:rock climb", ""),
    ("bare phrase", "man wearing red shirt", "man shirt", "shirt:red", "man [wear] shirt"),
    ("number after its noun", "number 5 on jersey", "jersey number", "number:5", "number [on] jersey"),
]  # fmt: skip


@pytest.mark.parametrize("tagger", TAGGERS)
@pytest.mark.parametrize(
    ("text", "objects", "attributes", "relations"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES]
)
def test_rule(tagger: str, text: str, objects: str, attributes: str, relations: str) -> None:
    assert said(parse(text, tagger)) == (objects, attributes, relations)


def test_words_of_every_element_are_kept() -> None:
    text = "Two soccer players' coach sits down on the edge of a bench."
    graph = parse(text)
    word = [token.text for token in graph.tokens]
    assert [[word[i] for i in thing.tokens] for thing in graph.objects] == [["soccer", "players"], ["coach"], ["bench"]]
    assert [([word[i] for i in edge.tokens], edge.lemma, edge.kind) for edge in graph.relations] == [
        (["'"], "have", "have"),
        (["sits", "down", "on", "edge", "of"], "sit down on edge of", "verb_prep"),
    ]
    assert [(attribute.lemma, attribute.kind) for attribute in graph.attributes] == [
        ("two", "number"),
        ("soccer", "compound"),
    ]
    assert [graph.objects[i].lemma for i in (0, 1)] == ["soccer player", "coach"]


def test_kinds() -> None:
    graph = parse("A tall man is a pilot and several birds sing; a ball is held by a lot of boys in red.")
    assert {attribute.lemma: attribute.kind for attribute in graph.attributes} == {
        "tall": "adjective",
        "pilot": "copula",
        "several": "quantity",
        "sing": "action",
        "lot": "quantity",
    }
    assert {edge.lemma: edge.kind for edge in graph.relations} == {"hold": "agent", "in": "prep"}


def test_version_names_rules_tagger_and_packages() -> None:
    assert parser("hanta").version == (
        f"{rules.RULES_VERSION} hanta lemminflect-{metadata.version('lemminflect')} HanTa-{metadata.version('HanTa')}"
    )
    assert parser("lexicon").version == f"{rules.RULES_VERSION} lexicon lemminflect-{metadata.version('lemminflect')}"


def test_without_hanta_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        if package == "HanTa":
            raise metadata.PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(rules, "version", missing)
    with pytest.raises(MissingInputError, match=r"HanTa.*pip install HanTa, or choose --tagger lexicon$"):
        RulesParser("hanta")
    assert said(extract_graph("A red bus.", RulesParser("lexicon").analyse("A red bus."))) == ("bus", "bus:red", "")


def test_a_broken_hanta_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "HanTa.HanoverTagger", None)
    with pytest.raises(MissingInputError, match="choose --tagger lexicon"):
        HantaTagger()


@pytest.mark.parametrize("values", [None, {}, {"backend": "rules", "tagger": "hanta"}])
def test_a_parser_of_another_version_is_an_error(values: object) -> None:
    with pytest.raises(DataError):
        ParseSettings.recorded(values)
