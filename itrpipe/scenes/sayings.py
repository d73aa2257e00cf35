"""Five English captions for a scene, each with its logical form; sayings.json has their words.

The styles differ in how much they tell: *long* (two clauses and the setting), *middle* (one relation),
*enumeration*, *single* (one object) and *general* (counts and hypernyms).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from pydantic import TypeAdapter

from itrpipe.errors import DataError
from itrpipe.scenes.layout import CLEARLY_LEFT, Scene, Triple
from itrpipe.scenes.oracle import Caption, LogicalForm, Predicate, describes, fulfils
from itrpipe.scenes.world import COLOURS, KIND_TABLE, PEOPLE

MAX_WORDS = 22
_SPECIFIC_TRIES = 10
_MAX_TRIES = 200
_HYPERNYM_RATE = 0.16
_GENERAL_SETTING_RATE = 0.12
USUAL_DETAIL = 0.5

Words = tuple[str, ...]


@dataclass(frozen=True)
class Hypernym:
    """A word for several kinds.

    Attributes:
        kinds: what it covers.
        singular: words for one.
        plural: words for several.
    """

    kinds: Words
    singular: Words
    plural: Words


@dataclass(frozen=True)
class Sayings:
    """The words of the captions. A word that is listed twice is drawn twice as often.

    Attributes:
        nouns, plurals: of each kind.
        hypernyms: words for several kinds.
        looks: attribute -> value -> adjectives.
        numbers: value -> word.
        garments: of people; and `unisex_garment`, what someone wears whose noun does not tell.
        settings: setting -> phrases; and `general_settings`, phrases for several settings.
        relations: relation -> wordings, where {a} is the first object and {b} the second.
        clause_joints, enumeration_leads: what joins two clauses, and what begins an enumeration.
        verbs, flying_verbs: kind -> what it does on the ground and in the air; `air_phrases` follow the latter.
        slots, spare_styles: styles of the five captions, of each slot, and of captions that are drawn again.
    """

    nouns: dict[str, Words]
    plurals: dict[str, str]
    hypernyms: tuple[Hypernym, ...]
    looks: dict[str, dict[str, Words]]
    numbers: dict[int, str]
    garments: dict[str, Words]
    unisex_garment: str
    settings: dict[str, Words]
    general_settings: tuple[tuple[Words, Words], ...]
    relations: dict[str, Words]
    clause_joints: Words
    enumeration_leads: Words
    verbs: dict[str, Words]
    flying_verbs: dict[str, Words]
    air_phrases: Words
    slots: tuple[Words, ...]
    spare_styles: Words


SAYINGS = TypeAdapter(Sayings).validate_json(Path(__file__).with_name("sayings.json").read_bytes())


def write_captions(
    rng: Random,
    scene: Scene,
    siblings: Sequence[Scene],
    keep_probability: float,
    caption_detail: float = USUAL_DETAIL,
    *,
    largest: bool = False,
) -> list[Caption]:
    """Write the captions of a scene.

    Args:
        rng: source of randomness.
        scene: the scene to describe.
        siblings: the other scenes of its family.
        keep_probability: probability in 0..1 with which a drawn caption that is also true of a sibling is kept.
            Otherwise more are drawn, and the one true of the fewest siblings wins: a few captions that fit
            several images remain even at 0, as in real data.
        caption_detail: 0..1, how much captions tell. At 0 they name no looks and no setting, and say "animal" for
            "dog" wherever there is such a word, but in counts; at 1 they name all looks and the setting, never say
            "animal" for one, and as few as can be are *single* or *general*.
        largest: what is counted is the largest group, else any.

    Returns:
        Five captions with different texts of at most `MAX_WORDS` words, all true of `scene`.

    Raises:
        DataError: the scene does not allow five different captions.
    """
    captions: list[Caption] = []
    for styles in SAYINGS.slots:
        style = rng.choice(styles)
        tells_little = style in ("single", "general")
        if tells_little and caption_detail > USUAL_DETAIL and rng.random() < _leaning(0.0, caption_detail):
            style = "middle"
        texts = [caption.text for caption in captions]
        best = None
        fewest = len(siblings) + 1
        for attempt in range(_MAX_TRIES):
            if attempt >= _SPECIFIC_TRIES:
                if best is not None:
                    break
                style = rng.choice(SAYINGS.spare_styles)
            write = _STYLES[style]
            caption = write(_Draft(rng, scene, caption_detail, largest))
            if caption.text in texts or len(caption.text.split()) > MAX_WORDS:
                continue
            confusable = sum(describes(caption, sibling) for sibling in siblings)
            is_kept = confusable == 0 or rng.random() < keep_probability
            if is_kept or confusable < fewest:
                best = caption
                fewest = confusable
            if is_kept:
                break
        if best is None:
            raise DataError(
                f"{scene.image_id}: no further caption of at most {MAX_WORDS} words in {_MAX_TRIES} tries; "
                "choose another seed"
            )
        captions.append(best)
    return captions


@dataclass
class _Draft:
    """The logical form of a caption while it is being written; objects are numbered as in the scene."""

    rng: Random
    scene: Scene
    caption_detail: float
    largest: bool
    objects: dict[int, Predicate] = field(default_factory=dict)
    relations: list[Triple] = field(default_factory=list)
    settings: Words = ()
    counts: list[tuple[Predicate, int]] = field(default_factory=list)

    def tells(self, probability: float) -> bool:
        """Draw whether the caption tells something that usual captions tell with this probability."""
        return self.rng.random() < _leaning(probability, self.caption_detail)

    def is_vague(self, probability: float) -> bool:
        """Draw whether the caption is vague where usual captions are with this probability."""
        return self.rng.random() < _leaning(probability, 1 - self.caption_detail)

    def mention(self, index: int, detail: float) -> str:
        """Return a noun phrase for an object, such as "a striped red box"; note what it claims.

        Args:
            index: of the object.
            detail: 0..1; the more, the more attributes are mentioned and the rarer is a hypernym.
        """
        rng = self.rng
        item = self.scene.objects[index]
        hypernyms = [hypernym for hypernym in SAYINGS.hypernyms if item.kind in hypernym.kinds]
        if hypernyms and self.is_vague(_HYPERNYM_RATE * (1.3 - detail)):
            hypernym = rng.choice(hypernyms)
            noun = rng.choice(hypernym.singular)
            kinds = hypernym.kinds
        else:
            noun = rng.choice(SAYINGS.nouns[item.kind])
            kinds = (item.kind,)

        claims: dict[str, str] = {}
        sizes = SAYINGS.looks["size"]
        if KIND_TABLE[item.kind].sized and item.size in sizes and self.tells(0.55 * detail):
            claims["size"] = item.size
        if item.pattern != "plain" and self.tells(0.15 + 0.65 * detail):
            claims["pattern"] = item.pattern
        if self.tells(0.25 + 0.70 * detail):
            claims["colour"] = item.colour
        self.objects[index] = Predicate(kinds, **claims)

        looks = []
        if "pattern" in claims:
            looks.append(rng.choice(SAYINGS.looks["pattern"][item.pattern]))
        if "colour" in claims:
            looks.append(item.colour)
        if item.kind not in PEOPLE:
            if rng.random() < 0.4:
                looks.reverse()
            if "size" in claims:
                looks.insert(0, rng.choice(sizes[item.size]))
            return _with_article(*looks, noun)
        # A person's colour and pattern are those of the clothes: "a man in a red shirt".
        person = _with_article(noun)
        if not looks:
            return person
        if looks == [item.colour] and rng.random() < 0.35:
            return f"{person} {rng.choice(('in', 'dressed in'))} {item.colour}"
        if rng.random() < 0.5:
            looks.reverse()
        garment = SAYINGS.unisex_garment
        if len(kinds) == 1:
            garment = rng.choice(SAYINGS.garments[item.kind])
        return f"{person} {rng.choice(('in', 'wearing'))} {_with_article(*looks, garment)}"

    def clause(self, triple: Triple, detail: float) -> str:
        """Return the wording of a relation; note it and its objects."""
        first, name, second = triple
        self.relations.append(triple)
        wording = self.rng.choice(SAYINGS.relations[name])
        return wording.format(
            a=self.mention(first, detail),
            b=self.mention(second, detail),
        )

    def setting(self, probability: float) -> str:
        """Return a phrase for the setting, or nothing with probability 1 - `probability`, of usual captions."""
        setting = self.scene.setting
        if not self.tells(probability):
            return ""
        self.settings = (setting,)
        phrases = SAYINGS.settings[setting]
        if self.is_vague(_GENERAL_SETTING_RATE):
            for settings, general_phrases in SAYINGS.general_settings:
                if setting in settings:
                    self.settings = settings
                    phrases = general_phrases
                    break
        return self.rng.choice(phrases)

    def lateral(self, name: str, count: int) -> list[Triple]:
        """Draw up to `count` relations `name` of the scene; left only where it is plain to see."""
        objects = self.scene.objects
        triples = []
        for triple in self.scene.relations:
            first, relation, second = triple
            distance = objects[second].centre - objects[first].centre
            if relation == name and (name != "left" or distance > CLEARLY_LEFT):
                triples.append(triple)
        return self.rng.sample(triples, min(count, len(triples)))

    def salient(self) -> list[Triple]:
        """Return relations that do not merely follow from the order of the objects."""
        triples = []
        for triple in self.scene.relations:
            _, name, _ = triple
            if name not in ("left", "near"):
                triples.append(triple)
        return triples

    def caption(
        self,
        text: str,
        style: str,
        probability: float = 0.0,
    ) -> Caption:
        """Return the finished caption, its objects renumbered in the order of the scene.

        Args:
            text: of the caption; a phrase for the setting may follow.
            style: of the caption.
            probability: that such a phrase follows.
        """
        if probability:
            text = f"{text} {self.setting(probability)}".rstrip()
        indices = sorted(self.objects)
        objects = tuple(self.objects[index] for index in indices)
        relations = []
        for first, name, second in self.relations:
            relations.append((indices.index(first), name, indices.index(second)))
        form = LogicalForm(
            objects,
            tuple(relations),
            self.settings,
            tuple(self.counts),
        )
        return Caption(text, form, style)


def _leaning(probability: float, share: float) -> float:
    """Return the probability at a share of 0.5; below, it falls in proportion to 0, and above it rises evenly to 1."""
    if share <= 0.5:
        return 2 * share * probability
    return probability + (2 * share - 1) * (1 - probability)


def _with_article(*words: str) -> str:
    if words == ("someone",):
        return "someone"
    article = "an" if words[0][0] in "aeiou" else "a"
    return " ".join((article, *words))


def _long(draft: _Draft) -> Caption:
    """Write two clauses about different objects (or one, and another object) and usually the setting."""
    rng = draft.rng
    detail = 0.85
    salient = draft.salient()
    lateral = draft.lateral("left", 1) + draft.lateral("near", 1)
    rng.shuffle(salient)
    rng.shuffle(lateral)
    parts: list[str] = []
    for triple in salient + lateral:
        first, _, second = triple
        if len(parts) < 2 and first not in draft.objects and second not in draft.objects:
            parts.append(draft.clause(triple, detail))
    indices = range(len(draft.scene.objects))
    rest = [index for index in indices if index not in draft.objects]
    if len(parts) < 2 and rest:
        parts.append(draft.mention(rng.choice(rest), detail))
    joint = " and "
    if len(parts) == 2 and all(" is " in part for part in parts):
        joint = rng.choice(SAYINGS.clause_joints)
    text = joint.join(parts)
    setting = draft.setting(0.85)
    if setting and rng.random() < 0.3:
        text = f"{setting}, {text}"
    elif setting:
        text = f"{text} {setting}"
    return draft.caption(text, "long")


def _middle(draft: _Draft) -> Caption:
    """Write one relation and, about as often as not, the setting."""
    triples = 2 * draft.salient() + draft.lateral("left", 2) + draft.lateral("near", 1)
    if not triples:
        return _enumeration(draft)
    triple = draft.rng.choice(triples)
    detail = draft.rng.choice((0.5, 0.75, 0.9))
    return draft.caption(draft.clause(triple, detail), "middle", 0.55)


def _enumeration(draft: _Draft) -> Caption:
    """Write two or three objects without their relations."""
    rng = draft.rng
    indices = range(len(draft.scene.objects))
    count = min(len(indices), rng.choice((2, 3)))
    phrases = [draft.mention(index, 0.75) for index in rng.sample(indices, count)]
    lead = rng.choice(SAYINGS.enumeration_leads)
    text = f"{lead}{', '.join(phrases[:-1])} and {phrases[-1]}"
    return draft.caption(text, "enumeration", 0.6)


def _single(draft: _Draft) -> Caption:
    """Write one object with all that is to say about it, and nearly always the setting."""
    rng = draft.rng
    index = rng.randrange(len(draft.scene.objects))
    item = draft.scene.objects[index]
    text = draft.mention(index, 1.0)
    if rng.random() < 0.6:
        if item.state == "fly":
            draft.objects[index] = replace(draft.objects[index], state="fly")
            verb = rng.choice(SAYINGS.flying_verbs[item.kind])
            text += f" {verb}{rng.choice(SAYINGS.air_phrases)}"
        elif item.state == "ground" and item.kind in SAYINGS.verbs:
            text += f" {rng.choice(SAYINGS.verbs[item.kind])}"
    return draft.caption(text, "single", 0.95)


def _general(draft: _Draft) -> Caption:
    """Write how many there are of a kind, perhaps with one object of another kind."""
    rng = draft.rng
    objects = draft.scene.objects
    plurals = []
    for hypernym in SAYINGS.hypernyms:
        plurals.append((hypernym.kinds, hypernym.plural))
    for kind, plural in SAYINGS.plurals.items():
        plurals.append(((kind,), (plural,)))
    groups: list[tuple[int, Predicate, Words]] = []  # several of something: number, predicate, plural nouns
    for kinds, nouns in plurals:
        predicates = [Predicate(kinds)]
        # "two red people" is not English for two people in red.
        if draft.caption_detail > 0 and not set(kinds) & set(PEOPLE):
            predicates += [Predicate(kinds, colour=colour) for colour in COLOURS]
        for predicate in predicates:
            number = sum(fulfils(item, predicate) for item in objects)
            if number in SAYINGS.numbers:
                groups.append((number, predicate, nouns))
    if not groups:
        write = _STYLES[rng.choice(("middle", "single", "enumeration"))]
        return write(draft)
    if draft.largest:
        largest = max(number for number, _, _ in groups)
        groups = [group for group in groups if group[0] == largest]
    number, predicate, nouns = rng.choice(groups)
    draft.counts.append((predicate, number))
    text = SAYINGS.numbers[number]
    if predicate.colour:
        text += f" {predicate.colour}"
    text += f" {rng.choice(nouns)}"
    others = [index for index, item in enumerate(objects) if item.kind not in predicate.kinds]
    if others and rng.random() < 0.75:
        joint = rng.choice((" and ", " with "))
        text += joint + draft.mention(rng.choice(others), 0.7)
    return draft.caption(text, "general", 0.8)


_STYLES: dict[str, Callable[[_Draft], Caption]] = {
    "long": _long,
    "middle": _middle,
    "enumeration": _enumeration,
    "single": _single,
    "general": _general,
}
