"""What a caption leaves open on the way from left to right."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Clause:
    """State of a sentence; every number is a token number, None where there is none.

    Attributes:
        subject: noun that a finite verb would take.
        main_subject: subject of the clause that a relative clause interrupts.
        interrupted: whether a relative clause with a subject of its own waits for its verb.
        actor: noun that does what the last verb says.
        verb: last verb, participle or form of be.
        main_verb: finite verb of the clause.
        be: form of be that still waits for its predicate.
        open_verb: verb that still waits for its object.
        preposition: preposition that still waits for its noun.
        relative: relative pronoun that still waits for its verb.
        gap: noun before a relative clause that has a subject of its own: the ball she throws.
        predicate: noun that stands after a form of be.
        nouns: heads of the noun phrases so far.
        objects: of these, the ones that are the object of a verb, with that verb.
        homes: of these, the ones after a preposition, with the noun that the preposition belongs to.
        prepositions: of these, the ones after a preposition, with that word.
        dangling: participles before the first noun, with the link that they wait for.
        bare_participles: passive participles that follow their noun without a form of be.
        after: kind of the chunk before.
    """

    subject: int | None = None
    main_subject: int | None = None
    actor: int | None = None
    verb: int | None = None
    main_verb: int | None = None
    be: int | None = None
    open_verb: int | None = None
    preposition: int | None = None
    relative: int | None = None
    gap: int | None = None
    predicate: int | None = None
    nouns: list[int] = field(default_factory=list)
    objects: dict[int, int] = field(default_factory=dict)
    homes: dict[int, int | None] = field(default_factory=dict)
    prepositions: dict[int, str] = field(default_factory=dict)
    dangling: list[tuple[str, int]] = field(default_factory=list)
    bare_participles: set[int] = field(default_factory=set)
    interrupted: bool = False
    after: str = ""

    @property
    def last(self) -> int | None:
        """Head of the last noun phrase."""
        return self.nouns[-1] if self.nouns else None

    def close_verb(self) -> None:
        """Nothing waits for a noun or predicate any more."""
        self.be = self.open_verb = self.preposition = None

    def forget_verb(self) -> None:
        """A new clause begins."""
        self.close_verb()
        self.verb = self.actor = self.main_verb = None

    def copy_role(self, noun: int, model: int) -> None:
        """Gives a noun the object and preposition of another one in its list."""
        if model in self.objects:
            self.objects[noun] = self.objects[model]
        if model in self.homes:
            self.homes[noun] = self.homes[model]
        if model in self.prepositions:
            self.prepositions[noun] = self.prepositions[model]
