"""Closed classes of English words and the small lists of open ones that the rules ask for; lower case throughout.

Lists of nouns that say what a thing is (persons, clothes, containers and so on) hold lemmas; all others hold words.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _phrases(text: str) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(phrase.split()) for phrase in text.split(","))


# -- closed classes ---------------------------------------------------------------------------------------------------

BE = _words("be is are was were been being am isn't aren't wasn't weren't")
HAVE = _words("has have had having")
DO = _words("do does did")
AUXILIARIES = _words("can could will would shall should may might must don't doesn't didn't can't")
CONJUNCTIONS = _words("and or & nor plus")
SUBORDINATORS = _words("while when whilst because since where whereas if until unless but although though so")
RELATIVES = _words("who that which whom")
ARTICLES = _words("a an the")
POSSESSIVE_PRONOUNS = _words("his her its their my your our whose")
DETERMINERS = (
    ARTICLES | POSSESSIVE_PRONOUNS | _words("this that these those some any no another each every both all either")
)
DEGREES = _words("more most less fewer such")
"""Determiners before a noun, adverbs elsewhere."""
PERSONAL_PRONOUNS = _words("he she it they him them i we you me us hers theirs")
OTHER_PRONOUNS = _words(
    "himself herself itself themselves themself oneself each-other someone somebody something anyone anybody "
    "anything everyone everybody everything nobody nothing none others one ones what whatever"
)
PRONOUNS = PERSONAL_PRONOUNS | OTHER_PRONOUNS | RELATIVES
NUMERALS = _words(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand"
)
VAGUE_NUMBERS = _words("several many few multiple numerous various")
NUMBERS = NUMERALS | VAGUE_NUMBERS
PREPOSITIONS = _words(
    "in on at with of by from to into onto through over under near behind beside besides between among "
    "amongst along across around against above below beneath underneath inside outside toward towards past "
    "for about after before during down up off out upon within without next like alongside atop amidst amid "
    "beyond as via throughout per than aboard opposite astride despite nearby"
)
PARTICLES = _words("up down out off on over in away back around along by apart together through forward")
LONE_PARTICLES = _words("up down out off away around over")
"""Particles that need no noun before an action: people stand around talking."""
ADVERBS = _words(
    "outdoors indoors together away very too also just still almost nearly not n't quite rather really only "
    "ahead overhead downhill uphill upstairs downstairs forward forwards backward backwards sideways upward "
    "upwards downward downwards alone again then there here home apart aside nearby somewhere high low fast "
    "hard well mid-air half aloft ashore abroad midair upside inside-out already back even so as more most "
    "less yet now soon perhaps onstage offstage underwater downstream upstream poolside bareback"
)
ALWAYS_ADVERBS = _words("very too also just still almost nearly quite not n't")
BEFORE_PARTICIPLES = _words("in with on at through into over near under along behind across against between")
"""Prepositions after which a word in -ing before a noun describes it: over rolling hills."""
SPATIAL_ADJECTIVES = _words("opposite inside outside near overhead")
COLOURS = _words(
    "red orange yellow green blue purple pink brown black white gray grey tan beige gold golden silver maroon "
    "turquoise teal navy violet lavender magenta khaki burgundy blond blonde brunette crimson scarlet "
    "multicolored multi-colored colorful colourful"
)
MISSING_ADJECTIVES = _words(
    "other asian american african german indian japanese chinese european arab irish mexican hispanic multicolor"
)
"""Adjectives that the dictionary lacks."""

# -- idioms -----------------------------------------------------------------------------------------------------------

IDIOMS: frozenset[tuple[str, ...]] = _phrases(
    "across from, adjacent to, ahead of, all over, along with, away from, because of, close to, down to, due "
    "to, from behind, from under, full of, in back of, in between, in front of, in the midst of, inside of, "
    "instead of, near to, next to, off of, on board, on top of, out of, outside of, such as, up against, up "
    "to"
)
"""Words that act as one preposition."""

LOCATIONS = _words("top side front back middle bottom edge center centre end base midst left right")
"""Nouns that only say where: "on the edge of X" is one relation to X."""
PLACES = _words("in on at near next inside outside by beside behind under over above below along among atop across")
"""Prepositions that say where all members of a list are."""
ADJECTIVE_PREPOSITIONS = _words("for of to about from")
"""After "is" and an adjective these belong to the adjective: is ready for."""
LOCATION_PREPOSITIONS = _words("on at in to")

# -- quantities -------------------------------------------------------------------------------------------------------

QUANTITY_NOUNS = _words(
    "lot assortment number couple bunch handful litany sheaf slew dozen series variety multitude wad clutch "
    "wave mountain array spate string ton range plethora heap sort form kind type version bit pair triple "
    "total hundred thousand million majority myriad trio"
)
"""Source: Schuster et al., 2015 (quantificational modifiers); SPICE (Anderson et al., 2016) uses the same."""
QUANTITY_PLURALS = _words("lots tons dozens hundreds thousands piles loads heaps kinds types sorts pairs bunches")
QUANTITY_WORDS = NUMBERS | _words("some all both most any each plenty none much half")
COLLECTIVES = _words("group crowd herd flock team pack gang line row band class family swarm school pair")
"""Groups are objects of their own, yet what they do is done by their members."""
CONTAINERS = _words(
    "bottle glass cup bowl plate slice piece pile stack box basket bag can jar row bunch vase tray mug pot "
    "bucket loaf body sheet picture photo image painting view game"
)
"""In "a glass of wine on a table", the glass is on the table, not the wine."""

# -- open classes -----------------------------------------------------------------------------------------------------

FEMALES = _words(
    "woman girl lady female mother mom mum grandmother daughter sister bride wife queen waitress actress "
    "ballerina cheerleader princess aunt grandma policewoman businesswoman"
)
MALES = _words(
    "man boy guy gentleman male father dad grandfather son brother groom husband king waiter fireman "
    "policeman businessman cowboy grandpa uncle monk santa"
)
PERSONS = (
    FEMALES
    | MALES
    | _words(
        "person people child kid baby toddler infant teenager teen adult couple player rider skier snowboarder "
        "skateboarder surfer cyclist bicyclist biker runner swimmer climber hiker worker officer soldier friend "
        "fan spectator dancer performer musician singer guitarist drummer chef cook artist student athlete "
        "gymnast goalie goalkeeper referee umpire catcher batter pitcher driver vendor customer passenger tourist "
        "pedestrian crowd audience family team parent wrestler boxer fisherman firefighter police clown nurse "
        "doctor teacher band cowboy photographer youth youngster group jogger golfer acrobat motorcyclist "
        "bystander onlooker senior lifeguard"
    )
)
ANIMALS = _words(
    "dog puppy cat kitten horse cow bull sheep lamb goat elephant zebra giraffe bear bird duck goose seagull "
    "pigeon animal monkey poodle retriever labrador greyhound terrier collie bulldog dalmatian husky pug "
    "dachshund beagle lion tiger fish parrot rabbit squirrel swan fox deer pony camel chicken donkey pig owl "
    "eagle dolphin whale"
)
ANIMATE = PERSONS | ANIMALS

CLOTHES = (
    _words(
        "shirt t-shirt tshirt shorts pants jeans trousers dress skirt jacket coat hat cap helmet uniform suit "
        "sweater sweatshirt vest hoodie shoe boot sandal sneaker glove scarf tie glasses sunglasses goggles "
        "swimsuit bikini wetsuit outfit costume clothing clothes robe apron gown top tuxedo jersey trunks pajamas "
        "overalls attire gear leotard tutu blouse tank kimono jumpsuit bandana headscarf headband beanie"
    )
    | COLOURS
)
FEATURES = (
    _words(
        "hair beard mustache moustache tail ear eye collar mohawk ponytail dreadlock tattoo goatee bang stripe "
        "spot sleeve handle roof horn fur logo pattern design trim face freckle glasses lettering petal tusk hood "
        "button pocket braid pigtail dot curl mane beak wing stem lid"
    )
    | CLOTHES
)
"""What follows "with" as a part of the noun before it, not of the action."""
BODY_PARTS = _words(
    "head hand arm face wrist neck finger ear eye foot leg back shoulder chest mouth nose waist hip hair lap knee tail"
)
ING_NOUNS = _words(
    "building buildings ceiling ceilings wedding weddings clothing railing railings painting paintings awning "
    "awnings morning evening opening frosting icing stuffing topping toppings lightning king ring string wing "
    "spring thing swing lighting scaffolding bedding seating siding crossing drawing drawings clearing "
    "landing meeting training offering gathering housing rigging paneling molding marking markings writing "
    "parking setting viking earring earrings sibling siblings duckling ducklings pudding dumpling dumplings "
    "dressing carving carvings flooring"
)
"""Words in -ing that name things rather than actions."""
IRREGULAR_PARTICIPLES = _words(
    "worn held seen made built torn thrown lit hung shown taken given driven ridden eaten written drawn "
    "broken caught bound sewn woven worn-out grown blown stuck strung bent led laid sat left wet-down kept "
    "put set cut cast"
)
COVER_WORDS = _words(
    "covered lined filled shaped colored coloured sized themed capped style styled patterned flavored clad "
    "topped laden looking wearing made sleeved haired legged faced eyed striped tiled stained framed"
)
"""Participles that make one adjective with the noun before them: snow covered hill."""
STATIVE_PARTICIPLES = _words(
    "parked seated situated located positioned perched placed stationed set moored docked stopped"
)
"""After these, "by" says where and not who."""
PERSONAL_PARTICIPLES = _words("dressed clothed clad seated bundled costumed disguised")
"""Said of people, even where a thing stands nearer."""
THING_VERBS = _words(
    "hang lead overlook contain feature show say read display depict advertise grow blow flow burn fly shine "
    "cover line float connect reflect protrude stick surround separate face fall drip hold melt rise glow"
)
"""Active participles that may well be said of a thing."""
PERCEPTION_VERBS = _words("watch see help let make hear have observe feel")
"""A bare verb after their object is what the object does."""
BARE_ONLY = _words("run come become")
"""Verbs whose participle looks like the base form and is never said of a thing alone."""
INCORPORATED: frozenset[tuple[str, ...]] = _phrases(
    "base jumping, belly dancing, body boarding, body surfing, boogie boarding, break dancing, bungee "
    "jumping, cross-country skiing, hang gliding, horseback riding, ice climbing, ice skating, kite boarding, "
    "kite surfing, mountain biking, mountain climbing, river rafting, rock climbing, roller blading, roller "
    "skating, scuba diving, skate boarding, sky diving, snow boarding, wake boarding, water skiing, wind "
    "surfing, window shopping"
)
"""Noun and participle that name one action."""
MOSTLY_VERBS = _words("smile point wave look laugh pose cheer dance sing watch clap talk play jump run walk stand sit")
"""After "and", in a clause with a verb like them, these are verbs even where they could be nouns."""
ACTION_VERBS = (MOSTLY_VERBS - {"wave"}) | _words(
    "ride climb skate surf ski swim leap race hold catch kick throw take dive attempt sleep rest lounge wrestle"
)
"""What people and animals do; in the s of the third person they are verbs where a verb is due: a man in red jumps."""
PHRASAL_VERBS: frozenset[tuple[str, ...]] = _phrases(
    "blow out, blow up, bring out, carry out, check out, chop up, clean up, cook up, cut down, cut up, dig "
    "up, dress up, dry off, fill up, give away, give out, hand out, hang up, hold down, hold out, hold up, "
    "kick up, knock down, knock over, lift up, light up, line up, load up, pick up, pull off, pull out, push "
    "over, put away, put down, put on, put out, put together, put up, raise up, roll up, serve up, set down, "
    "set off, set up, shake off, show off, spit out, spray out, stick out, stir up, take down, take off, take "
    "out, throw out, throw up, tie up, try on, turn off, turn on, warm up, wash off, wipe off"
)
"""Verb (lemma) and particle that take an object together."""
PERSON_VERBS = _words("wear hold read talk smile use carry speak laugh smoke drink")
"""Active participles that are said of people rather than of animals and things."""
VEHICLES = _words(
    "car bus train truck boat plane airplane jet bike bicycle motorcycle van taxi ship tractor helicopter "
    "scooter trolley kite ball frisbee"
)
VEHICLE_VERBS = _words("drive fly float sail travel roll pass approach move land")
"""Active participles that are said of a vehicle where one stands right before."""
GARMENT_FEATURES = _words("stripe dot logo pattern design sleeve trim lettering hood button pocket")
"""Parts of clothes: after "with" they stay with the clothes before them."""
HOLDERS = CONTAINERS | PERSONS - COLLECTIVES
"""Nouns before "of" that a further preposition speaks of: a glass of wine on a table, people of all ages on a beach."""
NEVER_VERBS = ANIMATE | CLOTHES - _words("dress coat cap suit tie top gear")
"""Nouns that the dictionary knows as verbs too, which captions never use as such."""
OUTSIDE_PHRASES = PREPOSITIONS | CONJUNCTIONS | PRONOUNS | DETERMINERS | BE | SUBORDINATORS | ALWAYS_ADVERBS
"""Words that no noun phrase goes on with."""
PHRASE_OPENERS = DETERMINERS | NUMBERS | COLOURS
