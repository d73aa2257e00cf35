"""The words of the captions: nouns, hypernyms, adjectives, phrases for settings, wordings of relations.

A word that is listed twice is drawn twice as often.
"""

from __future__ import annotations

from dataclasses import dataclass

from itrpipe.scenes.world import ANIMALS, INDOOR_SETTINGS, OUTDOOR_SETTINGS, PEOPLE, VEHICLES

NOUNS: dict[str, tuple[str, ...]] = {
    "man": ("man", "man", "guy"),
    "woman": ("woman", "woman", "lady"),
    "boy": ("boy", "boy", "young boy"),
    "girl": ("girl", "girl", "young girl"),
    "dog": ("dog", "dog", "puppy"),
    "cat": ("cat", "cat", "kitty"),
    "rabbit": ("rabbit", "bunny"),
    "bird": ("bird",),
    "car": ("car", "car", "automobile"),
    "bus": ("bus",),
    "bike": ("bike", "bicycle"),
    "tree": ("tree",),
    "house": ("house", "house", "cottage"),
    "tent": ("tent",),
    "flower": ("flower",),
    "table": ("table", "table", "desk"),
    "chair": ("chair",),
    "box": ("box", "box", "crate"),
    "ball": ("ball",),
    "balloon": ("balloon",),
    "kite": ("kite",),
    "umbrella": ("umbrella", "umbrella", "parasol"),
    "cup": ("cup", "mug"),
    "lamp": ("lamp",),
}
_IRREGULAR_PLURALS = {"man": "men", "woman": "women", "bus": "buses", "box": "boxes"}
PLURALS = {kind: _IRREGULAR_PLURALS.get(kind, f"{kind}s") for kind in NOUNS}


@dataclass(frozen=True)
class Hypernym:
    """A word for several kinds.

    Attributes:
        kinds: what it covers.
        singular: words for one.
        plural: words for several.
    """

    kinds: tuple[str, ...]
    singular: tuple[str, ...]
    plural: tuple[str, ...]


HYPERNYMS = (
    Hypernym(PEOPLE, ("person", "person", "someone"), ("people",)),
    Hypernym(("boy", "girl"), ("child", "kid"), ("children", "kids")),
    Hypernym(("man", "woman"), ("adult",), ("adults",)),
    Hypernym(ANIMALS, ("animal",), ("animals",)),
    Hypernym(("dog", "cat", "rabbit"), ("pet",), ("pets",)),
    Hypernym(VEHICLES, ("vehicle",), ("vehicles",)),
    Hypernym(("tree", "flower"), ("plant",), ("plants",)),
    Hypernym(("ball", "balloon", "kite"), ("toy",), ("toys",)),
    Hypernym(("table", "chair"), ("piece of furniture",), ("pieces of furniture",)),
)

PATTERN_WORDS = {"striped": ("striped", "striped", "stripy"), "dotted": ("dotted", "spotted", "polka dot")}
SIZE_WORDS = {"small": ("small", "small", "little", "tiny"), "large": ("large", "big", "big", "huge")}
NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five"}
GARMENTS = {
    "man": ("shirt", "top"),
    "boy": ("shirt", "top"),
    "woman": ("dress", "outfit"),
    "girl": ("dress", "outfit"),
}
UNISEX_GARMENT = "outfit"
"""What someone wears whose noun does not tell: "a person in a striped outfit"."""

SETTING_PHRASES: dict[str, tuple[str, ...]] = {
    "park": ("on the grass", "in the park", "in a green field", "on the lawn"),
    "beach": ("on the beach", "on the sand", "by the sea", "at the seaside"),
    "snow": ("in the snow", "on a snowy day", "in winter", "on snowy ground"),
    "street": ("on the street", "in the city", "on the road", "in town"),
    "desert": ("in the desert", "among the dunes", "near a cactus"),
    "night": ("at night", "under the stars", "under a crescent moon", "in the dark"),
    "kitchen": ("in the kitchen", "on a checkered floor", "on a tiled floor"),
    "room": ("in the living room", "on a wooden floor", "by a window"),
}
GENERAL_SETTING_PHRASES = (
    (OUTDOOR_SETTINGS, ("outdoors", "outside")),
    (INDOOR_SETTINGS, ("indoors", "inside")),
)

# {a} is the first object of the relation, {b} the second.
RELATION_WORDINGS: dict[str, tuple[str, ...]] = {
    "on": (
        "{a} is on {b}",
        "{a} on top of {b}",
        "{a} sits on {b}",
        "{b} with {a} on it",
        "{a} resting on {b}",
    ),
    "under": ("{a} is under {b}", "{a} beneath {b}", "{a} rests under {b}", "{b} with {a} under it"),
    "hold": ("{a} is holding {b}", "{a} holds {b}", "{a} with {b}", "{b} held by {a}", "{a} carrying {b}"),
    "left": (
        "{a} to the left of {b}",
        "{a} is left of {b}",
        "{b} to the right of {a}",
        "{b} is right of {a}",
        "{a} on the left and {b} on the right",
    ),
    "near": (
        "{a} next to {b}",
        "{a} is near {b}",
        "{a} beside {b}",
        "{a} and {b} side by side",
        "{a} close to {b}",
    ),
    "behind": ("{a} is behind {b}", "{b} in front of {a}", "{a} stands behind {b}", "{b} is in front of {a}"),
    "above": ("{a} above {b}", "{a} is flying over {b}", "{a} floats over {b}", "{b} below {a}"),
}
CLAUSE_JOINTS = (" and ", ", and ", " while ", "; ")
ENUMERATION_LEADS = ("", "", "there is ", "a scene with ", "a picture of ")

_POSES = ("stands", "is standing", "waits")
VERBS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(PEOPLE, (*_POSES, "poses")),
    **dict.fromkeys(("dog", "cat", "rabbit"), _POSES),
    "car": ("is parked", "parked"),
    "bus": ("is parked", "is waiting", "stopped"),
    "bike": ("is parked", "leans"),
}
FLYING_VERBS = {
    "bird": ("flying", "is flying"),
    "kite": ("flying", "is flying"),
    "balloon": ("floating", "floats"),
}
AIR_PHRASES = ("", " in the air")
