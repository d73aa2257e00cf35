"""Names by which people ask for negative sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from itrpipe.config import load_declaration, resolve, unknown

_NAME = re.compile(r"(?P<conf>[^.]+)(?:\.(?P<method>[^.]+))??(?:\.s(?P<seed>[0-9]+))?")


@dataclass(frozen=True, order=True)
class Generator:
    """What writes negative sentences.

    Attributes:
        conf: configuration of `synthesize`.
        method: configuration of `train` of the model that writes; empty for rules.
        seed: of the model, and of what is drawn.
    """

    conf: str
    method: str
    seed: int

    @classmethod
    def named(cls, name: str) -> Generator:
        """The generator that `NAME[.METHOD][.sN]` names; the method left out is the declared one, the seed 0.

        Raises:
            ValueError: not of this form, there is no such configuration or method, or rules are given a method.
        """
        parts = _NAME.fullmatch(name)
        if parts is None:
            raise ValueError(f"{name!r} is not of the form NAME[.METHOD][.sN], such as phrases.s1")
        known = {"generator": (parts["conf"], tuple(load_declaration("synthesize").confs))}
        if parts["method"]:
            known["method"] = (parts["method"], tuple(load_declaration("train").confs))
        for what, (value, names) in known.items():
            if value not in names:
                raise ValueError(unknown(what, value, sorted(names)))
        usual = _usual_method(parts["conf"])
        if parts["method"] and not usual:
            raise ValueError(f"{parts['conf']} writes by rules, so that {name!r} names no model; leave the method out")
        return cls(parts["conf"], parts["method"] or usual, int(parts["seed"] or 0))

    @property
    def name(self) -> str:
        """The shortest name of it."""
        method = f".{self.method}" if self.method != _usual_method(self.conf) else ""
        return f"{self.conf}{method}{f'.s{self.seed}' if self.seed else ''}"

    def wanted(self, split: str) -> dict[str, Any]:
        """The settings of `synthesize` that give its sentences for the captions of a split."""
        writer = {"method": self.method} if self.method else {}
        return {"seed": self.seed, "split": split, **writer}


def generator_names(names: Sequence[str]) -> tuple[str, ...]:
    """The shortest names of generators in one order, since the order they are given in changes nothing.

    Raises:
        ValueError: there is no such generator, or one is named twice.
    """
    generators: list[Generator] = []
    for name in names:
        generator = Generator.named(name)
        if generator in generators:
            raise ValueError(f"{name!r} names {generator.name} a second time; leave it out")
        generators.append(generator)
    return tuple(generator.name for generator in sorted(generators))


def _usual_method(conf: str) -> str:
    """Training of the model that writes where none is named; empty for rules."""
    return resolve(load_declaration("synthesize"), conf).values.get("method", "")
