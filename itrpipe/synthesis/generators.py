"""Settings of writers of negative sentences, and the names by which people ask for their sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from itrpipe.config import Settings, load_declaration, resolve, unknown
from itrpipe.models.declaration import backbone_names, canonical_backbone, settings_of
from itrpipe.models.declaration import backbones as backbone_classes
from itrpipe.storage.artifact import LOCAL_MODEL

TRAIN = "train"
_NAME = re.compile(r"([^.]+)(?:\.([^.]+))??(?:\.s([0-9]+))?")
"""Configuration, method and seed."""


@dataclass(frozen=True, order=True)
class Generator:
    """A writer of negative sentences.

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
        """Return the generator that `NAME[.METHOD][.sN]` names; by default of the declared method and the seed 0.

        Raises:
            ValueError: not of this form, there is no such configuration or method, or rules are given a method.
        """
        parts = _NAME.fullmatch(name)
        if parts is None:
            raise ValueError(f"{name!r} is not of the form NAME[.METHOD][.sN], such as phrases.s1")
        conf, method, seed = parts.groups()
        for what, value, stage in (("generator", conf, "synthesize"), ("method", method, "train")):
            names = load_declaration(stage).confs
            if value and value not in names:
                raise ValueError(unknown(what, value, sorted(names)))
        default = default_method(conf)
        if method and not default:
            raise ValueError(f"{conf} writes by rules, so that {name!r} names no model; leave the method out")
        return cls(conf, method or default, int(seed or 0))

    @property
    def name(self) -> str:
        """Return its shortest name."""
        name = self.conf
        if self.method != default_method(self.conf):
            name += f".{self.method}"
        if self.seed:
            name += f".s{self.seed}"
        return name

    def settings_for(self, split: str) -> dict[str, Any]:
        """Return the settings of `synthesize` that give its sentences for the captions of a split."""
        settings: dict[str, Any] = {"seed": self.seed, "split": split}
        if self.method:
            settings["method"] = self.method
        return settings


def generator_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the shortest names of generators in one order, since the order they are given in changes nothing.

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


def default_method(conf: str) -> str:
    """Return the training of the model that writes where none is named; empty for rules, which need no model."""
    return resolve(load_declaration("synthesize"), conf).values.get("method", "")


class SynthesizeSettings(Settings):
    """Settings of all makers of sentences.

    Attributes:
        split: whose captions the sentences are made of. Training reads those of the training split alone.
        train_share: share of the training images that anything is learned from.
        seed: of the model that writes, and of everything drawn.
        keep: sentences kept of a caption at most; of rules, by each rule.
        block: captions that are worked on together; what is drawn depends on it.
        language_model: hub id or folder of a GPT-2 that measures perplexity; empty: none.
        language_model_sentences: sentences that it reads.
    """

    split: Literal["train", "val", "test"] = "train"
    train_share: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(ge=0)
    keep: int = Field(ge=1, le=10_000)
    block: int = Field(ge=1)
    language_model: Annotated[str, LOCAL_MODEL] = ""
    language_model_sentences: int = Field(ge=1)


class ByModel(SynthesizeSettings):
    """A masked language model that sees the image writes and ranks. Source: TAGS-DC §2.1, §2.2.

    Attributes:
        method: configuration of `train` of the model.
        backbone, features: of the model.
        masks: what is masked: phrases of scene graphs, or single words.
        copies: K, masked copies of a caption.
        draws: L, refills of a copy.
        temperature: tau of the draws.
        noise: put random words at 10 % of the labelled positions and leave 10 % as they are.
        compare: the filter against false negatives compares token ids with the captions of the image (`piece`); `off`
            leaves it out.
    """

    maker: Literal["model"]
    method: str
    backbone: str
    features: str
    masks: Literal["phrases", "words"]
    copies: int = Field(ge=1, le=10_000)
    draws: int = Field(ge=1, le=10_000)
    temperature: float = Field(gt=0)
    noise: bool
    compare: Literal["piece", "off"]

    @field_validator("backbone")
    @classmethod
    def _writes(cls, value: str) -> str:
        name = canonical_backbone(value)
        if name not in backbone_names():
            raise ValueError(unknown("backbone", name, sorted(backbone_names())))
        if "writing" not in settings_of(name).answers:
            able = [name for name, declared in backbone_classes().items() if "writing" in declared.answers]
            writers = " or ".join(able)
            raise ValueError(f"it cannot write words in masked places, only {writers} can; give --backbone {writers}")
        return name


RuleName = Literal[
    "nouns", "numerals", "relations", "attribute", "exchange", "object", "ends", "relation", "side", "count"
]


class ByRules(SynthesizeSettings):
    """Rules write, without a model. Source: VSE-C (Shi et al., COLING 2018); `itrpipe.synthesis.edits`.

    Attributes:
        rules: which of them.
        min_count: fewest occurrences of a noun, or of a statement, that is written.
        refined: sentences that can be told from their captions without the image are left out.
        twins: those are kept alone of which a training image is found that they are true of; so many captions of either
            image have to agree. 0: all are kept, and no image is looked for.
    """

    maker: Literal["rules"]
    rules: tuple[RuleName, ...] = Field(min_length=1)
    min_count: int = Field(ge=1)
    refined: bool = False
    twins: int = Field(default=0, ge=0, le=100)

    @model_validator(mode="after")
    def _twins_are_trained_on(self) -> ByRules:
        if self.twins and self.split != TRAIN:
            raise ValueError(f"twins are training images, and split = {self.split} has none; leave it out")
        return self


MAKERS: dict[str, type[SynthesizeSettings]] = {"model": ByModel, "rules": ByRules}
