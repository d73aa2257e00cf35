"""Link grammar's linkages as links: hand-written linkages everywhere, and real parses where the library is."""

from __future__ import annotations

import ctypes
import ctypes.util
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import MissingInputError
from itrpipe.scene_graph import linkgrammar_library
from itrpipe.scene_graph.extract import extract_graph
from itrpipe.scene_graph.linkage_links import links_of, words_of
from itrpipe.scene_graph.linkgrammar import LinkGrammarBackend, linkgrammar_version
from itrpipe.scene_graph.linkgrammar_library import Linkage, RawLink, open_library
from itrpipe.scene_graph.links import KINDS
from itrpipe.scene_graph.scoring import Facts, facts_of, score_facts

HERE = Path(__file__).parent
INSTALLED = ctypes.util.find_library("link-grammar") is not None
real = pytest.mark.skipif(not INSTALLED, reason="needs liblink-grammar5 and link-grammar-dictionaries-en")


def linkage(words: str, links: str) -> Linkage:
    """A linkage from words with subscripts and links such as `dog.n-Ss-runs.v`, every word being there once."""
    names = words.split()
    raw = []
    for link in links.split():
        left, label, right = link.split("-", 2)
        raw.append(RawLink(label, names.index(left), names.index(right)))
    return Linkage(names, [0] * len(names), [0] * len(names), raw, 0.0, 0, 0)


def mapped(words: str, links: str) -> set[str]:
    """The typed links, written as `kind head dependent`."""
    each = linkage(words, links)
    texts = words_of(each)
    return {f"{link.kind} {texts.texts[link.head]} {texts.texts[link.dependent]}" for link in links_of(each, texts)}


@pytest.mark.parametrize(
    ("words", "links", "expected"),
    [
        ("dog.n runs.v", "dog.n-Ss*s-runs.v", {"S runs dog"}),
        ("there.r is.v dog.n", "there.r-PFb-is.v is.v-SIs*x-dog.n", {"S is dog"}),
        ("dog.n is.v running.v", "dog.n-Ss-is.v is.v-Pg*b-running.v", {"S is dog", "Pg is running"}),
        ("dog.n was.v held.v", "dog.n-Ss-was.v was.v-Pv-held.v", {"S was dog", "Pv was held"}),
        ("dog.n is.v red.a", "dog.n-Ss-is.v is.v-Pa-red.a", {"S is dog", "Pa is red"}),
        ("dog.n can.v run.v", "dog.n-Ss-can.v can.v-I-run.v", {"S run dog"}),
        ("dog.n tries.v to.r run.v", "dog.n-Ss-tries.v tries.v-TO-to.r to.r-I-run.v", {"S tries dog", "S run dog"}),
        ("man.n holding.v cup.n", "man.n-Mg-holding.v holding.v-Os-cup.n", {"Mg man holding", "O holding cup"}),
        (
            "man.n seated.v on bench.n",
            "man.n-Mv-seated.v seated.v-MVp-on on-Js-bench.n",
            {"Mv man seated", "MVp seated on", "J on bench"},
        ),
        ("is.v going.v to.r", "is.v-Pg-going.v is.v-MVp-to.r", {"Pg is going", "MVp going to"}),
        ("is.v dancing.g on", "is.v-Ost-dancing.g dancing.g-Mp-on", {"Pg is dancing", "MVp dancing on"}),
        ("is.v being.n held.v", "is.v-Os-being.n being.n-Mv-held.v", {"Pv is held"}),
        (
            "pulls.v cart.n filled.v with",
            "pulls.v-Os-cart.n cart.n-Mv-filled.v pulls.v-MVp-with",
            {"O pulls cart", "Mv cart filled", "MVp filled with"},
        ),
        (
            "eats.v dog.n on mat.n",
            "eats.v-MVp-on dog.n-Mp-on on-Js-mat.n eats.v-Os-dog.n",
            {"MVp eats on", "J on mat", "O eats dog"},
        ),
        ("dog.n in.r hat.n", "dog.n-Mp-in.r in.r-Js-hat.n", {"Mp dog in", "J in hat"}),
        (
            "group.d of people.p",
            "group.d-OFd-of of-Jd-people.p group.d-Dmc-people.p",
            {"OF group of", "J of people", "D people group"},
        ),
        ("front.n of car.n", "front.n-Mf-of of-Js-car.n", {"OF front of", "J of car"}),
        ("fallen.v log.n", "fallen.v-A-log.n", {"A log fallen"}),
        ("soccer.n ball.n", "soccer.n-AN-ball.n", {"AN ball soccer"}),
        ("two dogs.n", "two-Dmcn-dogs.n", {"Dmcn dogs two"}),
        ("several.d dogs.n", "several.d-Dmc-dogs.n", {"Dmcn dogs several"}),
        ("boy.n 's.p ball.n", "boy.n-YS-'s.p 's.p-Ds**c-ball.n", {"YS 's boy", "D ball 's"}),
        ("picks.v up.r cup.n", "picks.v-K-up.r picks.v-Os-cup.n", {"K picks up", "O picks cup"}),
        ("man.n who sits.v", "man.n-R-who who-RS-sits.v man.n-Bs-sits.v", {"R man who", "RS who sits"}),
        ("horse.n man.n rides.v", "horse.n-Bs*m-rides.v man.n-Ss-rides.v", {"S rides man", "O rides horse"}),
        (
            "next to car.n sits.v",
            "next-_IBJH-to sits.v-MVp-to to-Js-car.n",
            {"IX next to", "MVp sits next", "J next car"},
        ),
        (
            "man.n and.jn woman.n run.v",
            "man.n-SJls-and.jn and.jn-SJrs-woman.n and.jn-Spx-run.v",
            {"SJl and man", "SJr and woman", "S run man"},
        ),
        (
            "man.n runs.v and.jv jumps.v",
            "man.n-Ss-and.jv runs.v-VJlsi-and.jv and.jv-VJrsi-jumps.v",
            {"S runs man", "S jumps man"},
        ),
        (
            "black.a and.ja white.a dog.n",
            "black.a-AJla-and.ja and.ja-AJra-white.a and.ja-A-dog.n",
            {"A dog black", "A dog white"},
        ),
        (
            "cat.n ,.j dog.n and.jn man.n",
            "cat.n-SJl-,.j ,.j-SJr-dog.n ,.j-SJl-and.jn and.jn-SJr-man.n",
            {"SJl and cat", "SJl and dog", "SJr and man"},
        ),
        (
            "man.n reads.v while sitting.v",
            "man.n-Ss-reads.v reads.v-MVs-while while-Mgp-sitting.v",
            {"S reads man", "Mg man sitting"},
        ),
    ],
)
def test_labels_become_typed_links(words: str, links: str, expected: set[str]) -> None:
    found = mapped(words, links)
    assert found == expected
    assert {link.partition(" ")[0] for link in found} <= KINDS.keys()


@pytest.mark.parametrize(
    ("word", "text", "tag"),
    [
        ("dogs.n", "dogs", "N"),
        ("people.p", "people", "N"),
        ("for.p", "for", "P"),
        ("'s.p", "'s", "P"),
        ("is.v", "is", "BE"),
        ("running.v", "running", "VBG"),
        ("runs.v", "runs", "V"),
        ("[blah]", "blah", "X"),
        (".", ".", "X"),
    ],
)
def test_subscripts_become_tags(word: str, text: str, tag: str) -> None:
    assert words_of(linkage(word, "")) == ([text], [tag])


@pytest.fixture
def forgotten() -> Iterator[None]:
    """The library as if it had never been opened."""
    open_library.cache_clear()
    yield
    open_library.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(linkgrammar_library, "CDLL", absent)
    with pytest.raises(MissingInputError, match=r"liblink-grammar\.so\.5, which is not installed: apt-get install -y"):
        linkgrammar_version()


@real
@pytest.mark.usefixtures("forgotten")
def test_an_old_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linkgrammar_library, "OLDEST", (99, 0))
    with pytest.raises(MissingInputError, match=r"is link-grammar-\d.* needs 5\.12 or later"):
        linkgrammar_version()


@pytest.fixture(scope="module")
def backend() -> LinkGrammarBackend:
    return LinkGrammarBackend()


@real
def test_a_caption_is_understood(backend: LinkGrammarBackend) -> None:
    text = "A dog in a red sweater jumps over two logs."
    analysis = backend.analyse(text)
    assert analysis.status == "ok"
    assert facts_of(extract_graph(text, analysis)) == (
        {"dog", "sweater", "log"},
        {("sweater", "red"), ("log", "two")},
        {("dog", "in", "sweater"), ("dog", "jump over", "log")},
    )


@real
def test_offsets_hold_behind_letters_of_several_bytes(backend: LinkGrammarBackend) -> None:
    text = "Café : a naïve dog — chases two cats"
    analysis = backend.analyse(text)
    assert [text[token.start : token.end] for token in analysis.tokens] == [token.text for token in analysis.tokens]
    objects = {thing.lemma for thing in extract_graph(text, analysis).objects}
    assert {"dog", "cat"} <= objects


@real
def test_noun_phrases_are_no_commands(backend: LinkGrammarBackend) -> None:
    objects, _, relations = facts_of(extract_graph("", backend.analyse("Two dogs and a man holding a ball")))
    assert objects == {"dog", "man", "ball"}
    assert ("man", "hold", "ball") in relations


@real
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=25)
    | st.lists(
        st.sampled_from(["a", "dog's", "[x]", "two", "and", ",", "red", "RUNS", "é", "🐕", "in-front", "."]), max_size=9
    ).map(" ".join)
)
def test_any_text_is_analysed_and_always_alike(backend: LinkGrammarBackend, text: str) -> None:
    analysis = backend.analyse(text)
    count = len(analysis.tokens)
    assert all(text[token.start : token.end] == token.text for token in analysis.tokens)
    assert all(0 <= link.head < count and 0 <= link.dependent < count for link in analysis.links)
    assert all(link.kind in KINDS for link in analysis.links)
    assert backend.analyse(text) == analysis
    extract_graph(text, analysis)


@real
def test_very_long_texts_are_cut(backend: LinkGrammarBackend) -> None:
    text = "a dog and " * 60 + "a cat"
    analysis = backend.analyse(text)
    assert len(analysis.tokens) == 182
    assert analysis.status in ("partial", "failed")
    assert all(link.head < 60 and link.dependent < 60 for link in analysis.links)


@real
def test_the_version_names_library_and_dictionary(backend: LinkGrammarBackend) -> None:
    assert backend.version == linkgrammar_version()
    assert "link-grammar-5." in backend.version
    assert "dictionary-" in backend.version


@real
def test_graphs_agree_with_those_of_people(backend: LinkGrammarBackend) -> None:
    """Lower floors than for `rules`, which these captions were made to measure."""
    content = tomllib.loads((HERE / "gold.toml").read_text(encoding="utf-8"))
    captions = [caption for captions in content.values() for caption in captions]
    pairs: list[tuple[Facts, Facts]] = []
    for caption in captions:
        found = facts_of(extract_graph(caption["text"], backend.analyse(caption["text"])))
        attributes, relations = (frozenset(map(tuple, caption[name])) for name in ("attributes", "relations"))
        pairs.append((found, (frozenset(caption["objects"]), attributes, relations)))  # type: ignore[arg-type]
    scores = score_facts(pairs)
    assert scores["objects"].f1 >= 0.93
    assert scores["attributes"].f1 >= 0.85
    assert scores["relations"].f1 >= 0.79
