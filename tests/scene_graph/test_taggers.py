"""Tokens, the dictionary, both taggers and the repair of tags."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.scene_graph.chunks import Chunker
from itrpipe.scene_graph.hanta import HantaTagger
from itrpipe.scene_graph.lexicon import describes, lemma_of, look_up
from itrpipe.scene_graph.repairs import repair
from itrpipe.scene_graph.tagger import TAGS, tag_by_lexicon
from itrpipe.scene_graph.tokenise import tokenise
from itrpipe.scene_graph.words import INCORPORATED


@cache
def hanta() -> HantaTagger:
    return HantaTagger()


WORDS = ("a", "dog", "runs", "red", "the", "in", "park", "man", "with", "plays", "and", "fast", "blorp")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("A dog's t-shirt, red.", "A|dog|'s|t-shirt|,|red|."),
        ("men 's o'clock", "men|'s|o'clock"),
        ("boys' isn't", "boys|'|isn't"),
        ("the man\u2019s", "the|man|\u2019s"),
        ("3-year-old  (5)!", "3-year-old|(|5|)|!"),
        ("caf\u00e9 \U0001f436dog", "caf\u00e9|\U0001f436|dog"),
        (" - ", "-"),
    ],
)
def test_tokens(text: str, tokens: str) -> None:
    assert "|".join(word for word, _, _ in tokenise(text)) == tokens


@pytest.mark.parametrize(
    ("word", "tag", "lemma"),
    [
        ("leaves", "N", "leaf"),
        ("leaves", "V", "leave"),
        ("glasses", "N", "glasses"),
        ("jeans", "N", "jeans"),
        ("people", "N", "people"),
        ("men", "N", "man"),
        ("policemen", "N", "policeman"),
        ("dresses", "N", "dress"),
        ("is", "BE", "be"),
        ("worn", "VBN", "wear"),
        ("sitting", "VBG", "sit"),
        ("smiling", "J", "smiling"),
        ("over", "P", "over"),
        # Not in the dictionary:
        ("frisbees", "N", "frisbee"),
        ("t-shirts", "N", "t-shirt"),
        ("selfies", "N", "selfie"),
        ("walrusboxes", "N", "walrusbox"),
        ("cactus", "N", "cactus"),
        ("wakeboarding", "VBG", "wakeboard"),
        ("rollerblading", "VBG", "rollerblade"),
        ("zumbed", "VBN", "zumb"),
        ("vlogging", "VBG", "vlog"),
        ("skrelated", "VBN", "skrelate"),
        ("gloaded", "VBN", "gload"),
    ],
)
def test_lemmas(word: str, tag: str, lemma: str) -> None:
    assert lemma_of(word, tag) == lemma


def test_dictionary_knows_parts_of_speech() -> None:
    assert look_up("rides").is_third_person("rides")
    assert not look_up("ride").is_third_person("ride")
    assert (look_up("asian").adjective, look_up("shirtless").adjective) == ("asian", "shirtless")
    assert not look_up("zzyzx").known
    assert describes("long-haired")
    assert describes("snow-clad")
    assert not describes("t-shirt")


# The first word that stands between stars is the one in question.
LEXICON = [
    ("the dog *'s* ear", "POS"),
    ("the boys *'* hats", "POS"),
    ("the dog *'s* running", "BE"),
    ("the dog *'s* a puppy", "BE"),
    ("dogs *are* here", "BE"),
    ("he *can* swim", "AUX"),
    ("he *has* jumped", "AUX"),
    ("boys *do* tricks", "V"),
    ("boys *do* not swim", "AUX"),
    ("he *has* just jumped", "AUX"),
    ("he *has* just a dog", "V"),
    ("he *has* a dog", "V"),
    ("cats *and* dogs", "CC"),
    ("*several* dogs", "CD"),
    ("number *12* runs", "CD"),
    ("a man sings *while* a boy sits", "SUB"),
    ("dressed *as* a clown", "P"),
    ("they wave *as* a man waves", "SUB"),
    ("the man *who* sings", "WH"),
    ("a sign *that* says stop", "WH"),
    ("*that* man sings", "D"),
    ("*her* dog", "D"),
    ("two *more* dogs", "D"),
    ("a picture with the sky *as* background .", "P"),
    ("*her* sleeping baby", "D"),
    ("a man behind *her*", "PRP"),
    ("*there* is a dog", "EX"),
    ("he walks *very* slowly", "R"),
    ("a *still* lake", "J"),
    ("a boy plays *outdoors*", "R"),
    ("he goes *to* a park", "P"),
    ("he tries *to* jump over it", "TO"),
    ("he goes *to* play areas", "P"),
    ("the *inside* wall", "J"),
    ("in *opposite* directions", "J"),
    ("a *red* bus", "J"),
    ("a *smiling* woman", "J"),
    ("over *rolling* hills", "J"),
    ("in a red *building* .", "N"),
    ("a man *holding* a cup", "VBG"),
    ("the man is *sitting* .", "VBG"),
    ("a *parked* car", "J"),
    ("a car *parked* on a street", "VBN"),
    ("a snow *covered* hill", "J"),
    ("a hat *worn* by a man", "VBN"),
    ("he eats *slowly*", "R"),
    ("a man *rides* a bike", "V"),
    ("two dogs *play* in a park", "V"),
    ("the bus *rides* are long", "N"),
    ("he tries to *swim*", "V"),
    ("a man sits and *eats* an apple", "V"),
    ("a *wooden* table", "J"),
    ("the bus is *full*", "J"),
    ("a *plastic* bag", "J"),
    ("a *frisbee* .", "N"),
    ("a *long-haired* cat", "J"),
    ("the *dog* , a puppy", "N"),
    ("a dog *,* a cat", ","),
    ("a dog *.*", "."),
]


@pytest.mark.parametrize(("text", "tag"), LEXICON)
def test_lexicon_rule(text: str, tag: str) -> None:
    words = text.split()
    place = next(i for i, word in enumerate(words) if word.startswith("*"))
    words = [word.strip("*") or "*" for word in words]
    assert tag_by_lexicon(words)[0][place] == tag


def test_every_tag_is_given_by_a_rule() -> None:
    assert {tag for _, tag in LEXICON} == set(TAGS)


@pytest.mark.parametrize(
    "text",
    [
        "A man rides a horse",
        "the little girl who wears a pink dress is sitting on top of her father",
        "Two snowboarders zworkling down the Hillside",
    ],
)
def test_viterbi_agrees_with_the_library(text: str) -> None:
    words = text.split()
    words[0] = words[0].lower()
    assert hanta().most_likely(words, [None] * len(words)) == hanta().model.tag_sent(words, taglevel=0)


@given(st.lists(st.sampled_from(WORDS), max_size=9))
@settings(derandomize=True)
def test_viterbi_agrees_with_the_library_on_any_words(words: list[str]) -> None:
    assert hanta().most_likely(words, [None] * len(words)) == hanta().model.tag_sent(words, taglevel=0)


def test_given_tags_are_kept_where_the_model_knows_them() -> None:
    words = ["he", "likes", "that"]
    assert hanta().most_likely(words, [None, None, frozenset({"CJT"})])[2] == "CJT"
    assert hanta().most_likely(words, [None, None, frozenset({"DT0"})])[2] == "DT0"
    assert hanta().most_likely(words, [None, None, frozenset({"POS"})]) == hanta().most_likely(words, [None] * 3)


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("A man poses next to a bus", "D N V P P D N"),
        ("A double decker bus drives by", "D J N N V P"),
        ("The boy is surfing", "D N BE VBG"),
        ("A painting on a wall", "D N P D N"),
        ("Kayacker riding", "N VBG"),
        ("She goes to the park to run", "PRP V P D N TO V"),
        ("A girl smiles", "D N V"),
    ],
)
def test_hanta_decides_open_classes(text: str, tags: str) -> None:
    assert " ".join(hanta().tag(text.split())) == tags


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("a chef in an apron chops wood", "D N P D N N N", "D N P D N V N"),
        ("the cups on a shelf", "D N P D N", "D N P D N"),
        ("a man in red jumps high", "D N P J N R", "D N P J V R"),
        ("people in white standing on grass", "N P J N P N", "N P J VBG P N"),
        ("a man in red shoes on skis", "D N P J N P N", "D N P J N P N"),
        ("a boy throws", "D N N", "D N V"),
        ("a player in white swings her bat", "D N P J N D N", "D N P J V D N"),
        ("a crowd of fans cheers .", "D N P N N .", "D N P N V ."),
        ("cyclists race down a hill", "N N P D N", "N V P D N"),
        ("people hold signs", "N N N", "N V N"),
        ("two kids in mud laugh at him", "CD N P N N P PRP", "CD N P N V P PRP"),
        ("girls dance and clap .", "N V CC N .", "N V CC V ."),
        ("they watch a dog jump over it", "PRP V D N N P PRP", "PRP V D N V P PRP"),
        ("dogs run", "N VBN", "N V"),
        ("a race is run", "D N BE VBN", "D N BE VBN"),
        ("batter swings a bat", "V V D N", "N V D N"),
        ("an overpass", "D V", "D N"),
        ("a young male surfing", "D J J VBG", "D J N VBG"),
        ("a young male is tall", "D J J BE J", "D J N BE J"),
        ("its mouth open", "D N J", "D N J"),
        ("the red", "D J", "D J"),
        ("the top shelf", "D J N", "D J N"),
        ("a man in mud laugh at him", "D N P N N P PRP", "D N P N N P PRP"),
        ("a blue top and hat", "D J J CC N", "D J N CC N"),
        ("its tongue out runs through it", "D N P N P PRP", "D N P V P PRP"),
        ("a man sings and a boy dances .", "D N V CC D N N .", "D N V CC D N V ."),
    ],
)
def test_repairs(text: str, before: str, after: str) -> None:
    assert " ".join(repair(text.split(), before.split())) == after


@pytest.mark.parametrize(
    ("text", "tags", "chunks"),
    [
        ("a big dog runs", "D J N V", "NP:dog V:runs"),
        ("black , white and brown dogs", "J , J CC J N", "NP:dogs"),
        ("red and blue", "J CC J", "J:red CC:and J:blue"),
        ("in front of cars", "P N P N", "P:in NP:cars"),
        ("in front", "P N", "P:in NP:front"),
        ("the man 's red hat", "D N POS J N", "NP:hat"),
        ("at the man 's .", "P D N POS .", "P:at NP:man .:."),
        ("is being led", "BE BE VBN", "BE:is VBN:led"),
        ("each other", "D J", "NP:other"),
        ("is rock climbing .", "BE N VBG .", "BE:is VBG:climbing .:."),
        ("a rock climbing wall", "D N VBG N", "NP:wall"),
        ("two men", "CD N", "NP:men"),
        ("men two", "N CD", "NP:men NP:two"),
        ("number 5", "N CD", "NP:number"),
        ("a boy the girl sees", "D N D N V", "NP:boy NP:girl V:sees"),
        ("can very slowly jump", "AUX R R V", "V:jump"),
        ("a very big dog", "D R J N", "NP:dog"),
        ("a ice cold drink", "D N J N", "NP:drink"),
        ("the elderly", "D J", "NP:elderly"),
        ('a " stop " sign', "D , N , N", "NP:sign"),
        ('says " stop "', "V , N ,", "V:says NP:stop"),
    ],
)
def test_chunks(text: str, tags: str, chunks: str) -> None:
    words = text.split()
    found = Chunker(words, tags.split()).chunks()
    assert " ".join(f"{chunk.kind}:{words[chunk.head]}" for chunk in found) == chunks


def test_incorporated_actions_are_noun_and_participle() -> None:
    assert all(len(pair) == 2 and pair[1].endswith("ing") for pair in INCORPORATED)
