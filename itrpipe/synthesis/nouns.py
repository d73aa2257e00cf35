"""What nouns of everyday captions mean to the rules: which are no contradiction of each other."""

from __future__ import annotations

import functools

# Nouns on a line stand below the noun that it begins with, and a noun on several lines is below several others. Nouns
# joined by a bar mean the same.
_LINES = """
person|someone|individual|human: man|guy|gentleman woman|lady adult child|kid|youngster teenager|teen
person: baby|infant|toddler player athlete rider worker performer musician crowd|audience friend couple
person: family officer soldier customer
person: swimmer surfer skier snowboarder skateboarder climber hiker runner cyclist|bicyclist|biker dancer singer
person: tourist photographer passenger driver pedestrian student teacher doctor nurse waiter chef|cook fisherman
person: bride groom spectator|onlooker|bystander|fan team group
adult: man woman
man: boy father|dad grandfather cowboy king groom fisherman
woman: girl mother|mom grandmother bride queen
child: boy girl baby
athlete: player runner swimmer gymnast wrestler boxer skier snowboarder
player: goalie|goalkeeper pitcher catcher batter quarterback
musician: guitarist drummer singer violinist
officer: policeman
animal|creature: dog|puppy|hound cat|kitten|kitty rabbit|bunny bird horse|pony cow|cattle sheep|lamb goat pig elephant
animal: zebra giraffe bear lion tiger monkey deer camel donkey squirrel fox fish insect pet mouse
pet: dog cat rabbit fish bird
dog: poodle retriever labrador terrier greyhound dalmatian collie bulldog pug
bird: duck goose seagull|gull pigeon parrot eagle owl swan chicken|rooster|hen
insect: butterfly bee
vehicle: car|automobile bus truck|lorry van motorcycle|motorbike bike|bicycle train boat plane|airplane|jet helicopter
vehicle: scooter tractor taxi|cab ship canoe|kayak wagon|cart carriage trolley|tram sled|sledge
car: taxi
boat: canoe sailboat ship ferry raft
plant: tree flower bush|shrub grass cactus palm
tree: palm
flower: rose tulip
furniture: table|desk chair|stool bench sofa|couch bed shelf cabinet|cupboard dresser
building: house|cottage|home church tower castle barn hotel store|shop restaurant school skyscraper hut tent
container: box|crate|carton basket bag|sack bottle cup|mug glass bowl bucket vase jar can suitcase backpack|rucksack
container: pot plate|dish tray
bag: backpack purse|handbag
toy: ball balloon kite doll frisbee
equipment: ball racket|racquet bat skateboard surfboard snowboard ski helmet bicycle net hoop
clothing|clothes: shirt|t-shirt|blouse dress|gown skirt jacket|coat hat|cap helmet shoe|boot|sneaker|sandal glove
clothing: scarf sweater|sweatshirt|hoodie suit uniform|outfit|costume shorts pants|trousers|jeans sock tie
clothing: swimsuit|bikini vest apron
accessory: sunglasses|glasses|goggles umbrella|parasol necklace watch ring belt bracelet
instrument: guitar piano drum violin trumpet flute saxophone accordion
food: pizza sandwich hamburger|burger cake bread fruit vegetable soup salad meat cheese rice cookie doughnut|donut egg
food: chicken fish
fruit: apple banana orange strawberry grape lemon pear watermelon
vegetable: carrot potato tomato broccoli onion
drink: coffee tea beer wine water juice milk
device: phone|telephone|cellphone camera computer|laptop television|tv clock|watch radio keyboard microphone lamp|light
appliance: refrigerator|fridge oven|stove microwave toaster
tool: hammer shovel|spade saw knife fork spoon ladder rope broom scissors
structure: bridge fence wall stairs|staircase|steps ramp fountain statue|sculpture gate pole dock|pier
room: kitchen bathroom bedroom office
place: beach|seaside park street|road city|town mountain|hill|cliff forest|woods river|stream lake|pond ocean|sea field
place: desert airport station garden|yard pool stadium playground market farm sidewalk|pavement grass|lawn snow
furnishing: window door curtain mirror rug|carpet pillow|cushion blanket|towel candle sink bathtub|tub toilet
object: book newspaper magazine sign flag toy pen map picture|painting|photo card rock|stone log stick
"""


def _read() -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Kinds of each noun, and the kinds above each kind; a kind has the name of the first of its nouns."""
    kinds: dict[str, tuple[str, ...]] = {}
    parents: dict[str, tuple[str, ...]] = {}
    for line in _LINES.strip().splitlines():
        top, below = line.split(": ")
        for nouns in (top, *below.split()):
            first, *others = nouns.split("|")
            kind = kinds.setdefault(first, (first,))
            for other in others:
                kinds[other] = tuple(dict.fromkeys((*kinds.get(other, ()), *kind)))
            if nouns is not top:
                above = kinds[top.partition("|")[0]]
                for each in kind:
                    parents[each] = tuple(dict.fromkeys((*parents.get(each, ()), *above)))
    return kinds, parents


KINDS, PARENTS = _read()
"""Noun -> its kinds, and kind -> the kinds right above it."""


def contradict(first: str, second: str) -> bool:
    """Whether what two nouns of `KINDS` name is never the same: neither means what the other means or a kind of it.

    Source: VSE-C (Shi et al., COLING 2018), which asks WordNet for what is next above and below.
    """
    own = set(KINDS[first])
    above = {parent for kind in own for parent in _ancestors(kind)}
    below = {kind for kind in PARENTS if own & _ancestors(kind)}
    return not (own | above | below) & set(KINDS[second])


@functools.cache
def _ancestors(kind: str) -> frozenset[str]:
    parents = PARENTS.get(kind, ())
    return frozenset({*parents, *(above for parent in parents for above in _ancestors(parent))})
