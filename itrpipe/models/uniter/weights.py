"""Published weights of UNITER, TAGS and BERT under the names of `itrpipe.models.uniter.network`.

| file                                   | here                                       |
|----------------------------------------|--------------------------------------------|
| `uniter.embeddings.*`                  | `text.*`                                   |
| `uniter.img_embeddings.*`              | `image.*`                                  |
| `uniter.encoder.layer.<i>.*`           | `layers.<i>.*`, query, key and value joined |
| `uniter.pooler.dense.*`                | `pooler.*`                                 |
| `itm_output.*`, `rank_output.*`        | `match.*`, `rank.*`                        |
| `cls.predictions.*`                    | `masked_word.*`                            |
| `disc_output.*`                        | `word_match.*`                             |
| `correction_output.predictions.*`      | `correction.*`                             |

`bert` in a name reads as `uniter`, `gamma` and `beta` at its end as `weight` and `bias`. Decoders are the word
embeddings and are not read; heads that only pre-training had are left out.

Source: UNITER (Chen et al., ECCV 2020) and TAGS-DC (Fan et al., 2022), their published files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from itrpipe.errors import DataError
from itrpipe.features.hub import read_state, refuse_not_finite

_JOINED = ("query", "key", "value")
_PARTS = (
    (r"uniter\.embeddings\.(word|position)_embeddings\.", r"text.\1."),
    (r"uniter\.embeddings\.token_type_embeddings\.", "text.kind."),
    (r"uniter\.embeddings\.LayerNorm\.", "text.norm."),
    (r"uniter\.img_embeddings\.img_linear\.", "image.region."),
    (r"uniter\.img_embeddings\.pos_linear\.", "image.box."),
    (r"uniter\.img_embeddings\.img_layer_norm\.", "image.region_norm."),
    (r"uniter\.img_embeddings\.pos_layer_norm\.", "image.box_norm."),
    (r"uniter\.img_embeddings\.LayerNorm\.", "image.norm."),
    (r"uniter\.encoder\.layer\.(\d+)\.attention\.self\.(query|key|value)\.", r"layers.\1.\2."),
    (r"uniter\.encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"layers.\1.output."),
    (r"uniter\.encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.", r"layers.\1.attention_norm."),
    (r"uniter\.encoder\.layer\.(\d+)\.intermediate\.dense\.", r"layers.\1.feed_forward.0."),
    (r"uniter\.encoder\.layer\.(\d+)\.output\.dense\.", r"layers.\1.feed_forward.2."),
    (r"uniter\.encoder\.layer\.(\d+)\.output\.LayerNorm\.", r"layers.\1.feed_forward_norm."),
    (r"uniter\.pooler\.dense\.", "pooler."),
    (r"itm_output\.", "match."),
    (r"rank_output\.", "rank."),
    (r"disc_output\.", "word_match."),
    (r"cls\.predictions\.transform\.dense\.", "masked_word.transform."),
    (r"cls\.predictions\.transform\.LayerNorm\.", "masked_word.norm."),
    (r"cls\.predictions\.(?=bias)", "masked_word."),
    (r"correction_output\.predictions\.transform\.dense\.", "correction.transform."),
    (r"correction_output\.predictions\.transform\.LayerNorm\.", "correction.norm."),
    (r"correction_output\.predictions\.(?=bias)", "correction."),
)
_OPTIONAL = ("match", "rank", "word_match", "masked_word", "correction", "image")
"""Parts that a file may lack; the last one is what BERT lacks."""


def load_published(model: Any, path: Path) -> str:
    """Gives a model published weights, and says in one line which of its parts they have not.

    Heads that a file lacks start from others where UNITER or TAGS does so (see `UniterEncoder.derive_heads`); whether
    it has a rank head is told by `rank_output.weight`.

    Args:
        model: a `UniterEncoder`.
        path: of UNITER, TAGS or BERT.

    Raises:
        DataError: the file is damaged, has other sizes than the model, lacks a part of the encoder, or holds values
            that are not finite.
    """
    found, ignored = translate(read_state(path))
    expected = model.state_dict()
    absent = {name.partition(".")[0] for name in set(expected) - set(found)}
    for name in sorted(set(expected) - set(found)):
        if name.partition(".")[0] not in _OPTIONAL:
            raise DataError(
                f"{path} has no weights for '{name}': it is not of UNITER, TAGS or BERT with so many layers"
            )
    for name in sorted(set(found) & set(expected)):
        if found[name].shape != expected[name].shape:
            raise DataError(
                f"{path}: the weights of '{name}' have shape {tuple(found[name].shape)}, and the model and its data "
                f"need {tuple(expected[name].shape)}; give --set model.… of that file, its features and its tokens"
            )
    further = sorted(set(found) - set(expected))
    if further:
        raise DataError(f"{path} has weights for '{further[0]}', which this model has not; raise --set model.layers")
    refuse_not_finite(path, found, "get the file again")
    model.load_state_dict(found, strict=False)
    model.derive_heads(absent)
    return _summary(path, absent, ignored)


def translate(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The weights under our names, in single precision, and the names in the file that stand for nothing here."""
    found: dict[str, Tensor] = {}
    ignored = []
    for name, tensor in state.items():
        ours = _own_name(name)
        if ours is None:
            ignored.append(name)
        else:
            found[ours] = tensor.float()
    for first in [name for name in found if ".query." in name]:
        names = [first.replace(".query.", f".{part}.") for part in _JOINED]
        if all(name in found for name in names):
            found[first.replace(".query.", ".project.")] = torch.cat([found.pop(name) for name in names])
    return found, ignored


def _own_name(name: str) -> str | None:
    name = name.removeprefix("module.").replace("bert", "uniter")
    name = re.sub(r"\.(gamma|beta)$", lambda match: {"gamma": ".weight", "beta": ".bias"}[match[1]], name)
    for pattern, ours in _PARTS:
        match = re.match(pattern, name)
        if match:
            return match.expand(ours) + name[match.end() :]
    return None


def _summary(path: Path, absent: set[str], ignored: list[str]) -> str:
    missing = ", ".join(sorted(absent)) or "nothing"
    unused = f"; not used: {len(ignored)} weights such as '{ignored[0]}'" if ignored else ""
    return f"{path}: not in this file: {missing}{unused}"
