"""Captions and their logical forms: what a sentence claims, in terms that can be checked against a scene."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Predicate:
    """What is said of one object. None claims nothing.

    Attributes:
        kinds: the kinds it can be: one for a noun, several for a hypernym ("animal").
        colour: of `COLOURS`.
        pattern: of `PATTERNS`.
        size: of `SIZES`.
        state: of the states of a `PlacedObject`.
    """

    kinds: tuple[str, ...]
    colour: str | None = None
    pattern: str | None = None
    size: str | None = None
    state: str | None = None


@dataclass(frozen=True)
class LogicalForm:
    """What a caption claims: there are different objects that fulfil the predicates and stand in the relations.

    Attributes:
        objects: existentially quantified objects; no two of them are the same object of the scene.
        relations: (i, relation, j) over positions in `objects`.
        settings: the settings it can be; empty claims nothing.
        counts: (predicate, n): exactly n objects of the scene fulfil the predicate.
    """

    objects: tuple[Predicate, ...] = ()
    relations: tuple[tuple[int, str, int], ...] = ()
    settings: tuple[str, ...] = ()
    counts: tuple[tuple[Predicate, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings, numbers and None."""
        return {
            "objects": [_predicate_to_json(predicate) for predicate in self.objects],
            "relations": [list(triple) for triple in self.relations],
            "settings": list(self.settings),
            "counts": [[_predicate_to_json(predicate), number] for predicate, number in self.counts],
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> LogicalForm:
        """Inverse of `to_json`, also after a round trip through a JSON file."""
        return cls(
            objects=tuple(_predicate_from_json(item) for item in record["objects"]),
            relations=tuple((first, name, second) for first, name, second in record["relations"]),
            settings=tuple(record["settings"]),
            counts=tuple((_predicate_from_json(item), number) for item, number in record["counts"]),
        )


@dataclass(frozen=True)
class Caption:
    """A sentence with its meaning.

    Attributes:
        text: natural English in lower case, at most 22 words.
        form: what it claims.
        style: "long", "middle", "enumeration", "single" or "general".
    """

    text: str
    form: LogicalForm
    style: str

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings, numbers and None."""
        return {"text": self.text, "form": self.form.to_json(), "style": self.style}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Caption:
        """Inverse of `to_json`."""
        return cls(record["text"], LogicalForm.from_json(record["form"]), record["style"])


def _predicate_to_json(predicate: Predicate) -> dict[str, Any]:
    return {**asdict(predicate), "kinds": list(predicate.kinds)}


def _predicate_from_json(record: dict[str, Any]) -> Predicate:
    return Predicate(**{**record, "kinds": tuple(record["kinds"])})
