"""Names by which people ask for trained models."""

from __future__ import annotations

import re
from dataclasses import dataclass

from itrpipe.config import load_declaration, unknown
from itrpipe.datasets.definition import ModelDefinition
from itrpipe.features.declaration import GIVEN, is_given
from itrpipe.training.settings import backbones, canonical_backbone, method_of, run_label, usual_backbone

_MODEL_NAME = re.compile(r"(?:(?P<method>[^.]+)\.)??(?P<backbone>[^.]+)(?:\.s(?P<seed>[0-9]+))?")


@dataclass(frozen=True, order=True)
class Model:
    """A training run inside its dataset.

    Attributes:
        method: configuration of `train`.
        backbone: canonical.
        seed: of training.
    """

    method: str
    backbone: str
    seed: int

    @property
    def label(self) -> str:
        """Its name, such as `aoq.vsrn.s1`."""
        return run_label(self.method, self.backbone, self.seed)

    def named_by(self, name: str) -> Model:
        """The model that `[method.]backbone[.sN]` names beside this one, whose values stand for what is left out.

        Raises:
            ValueError: not of this form, or there is no such method or backbone.
        """
        parts = _MODEL_NAME.fullmatch(name)
        if parts is None:
            raise ValueError(f"{name!r} is not of the form [method.]backbone[.sN], such as vsrn.s1")
        backbone = canonical_backbone(parts["backbone"])
        if is_given(backbone):
            if parts["method"] not in (None, GIVEN) or int(parts["seed"] or 0):
                raise ValueError(f"{name!r}: given embeddings have no other method and no seed; name {backbone} alone")
            return Model(GIVEN, backbone, 0)
        found = Model(
            parts["method"] or self.method,
            backbone,
            int(parts["seed"] or self.seed),
        )
        known = {"backbone": (found.backbone, backbones())}
        if parts["method"]:
            known["method"] = (found.method, tuple(load_declaration("train").confs))
        for what, (value, names) in known.items():
            if value not in names:
                raise ValueError(unknown(what, value, sorted(names)))
        return found

    @classmethod
    def defined_by(cls, definition: ModelDefinition, seed: int) -> Model:
        """A model that has a name, trained with this seed; what is not trained has none."""
        given = definition.settings.get("backbone")
        backbone = canonical_backbone(given) if given else usual_backbone(definition.method)
        return cls(definition.method, backbone, seed if method_of(definition.method).trains else 0)

    def name_of(self, other: Model) -> str:
        """The shortest name by which `named_by` finds the other; seeds are told unless both are 0."""
        method = f"{other.method}." if other.method != self.method else ""
        return f"{method}{other.backbone}{f'.s{other.seed}' if other.seed or self.seed else ''}"
