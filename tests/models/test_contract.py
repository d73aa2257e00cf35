"""All backbones: features of half precision or all zero, going on from a description, and what they refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.models.ascl.declaration import Ascl
from itrpipe.models.base import TextBatch
from itrpipe.models.declaration import network_module
from itrpipe.models.dual_encoder.network import Encoders
from itrpipe.models.uniter.network import load_published
from itrpipe.testing import GLOBAL_DIM, IMAGE_DIM, VOCABULARY
from itrpipe.training.saved import MODEL, save_model
from tests.models.toys import PUBLISHED, built, close, encoded, recorded, toys

OF_REGIONS = ("vsepp", "vsrn", "scan", "bfan", "ssamt", "uniter", "ascl")


@pytest.mark.parametrize("name", OF_REGIONS)
def test_features_may_be_in_half_precision_or_all_zero(name: str) -> None:
    model, (images, texts) = built(name), toys(uneven=False)
    exact, half = (
        model.score_matrix(*encoded(model, replace(images, regions=each), texts))
        for each in (images.regions, images.regions.half())
    )
    assert half.dtype == torch.float32
    close(half, exact, 1e-2)
    for part in model.modules():
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
    zero = replace(images, regions=images.regions.index_fill(0, torch.tensor(2), 0.0))
    model.score_matrix(*encoded(model, zero, texts)).sum().backward()
    assert all(each.grad.abs().max() < 1e3 for each in model.parameters() if each.grad is not None)


SAVED: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text())["saved"]


@torch.no_grad()
@pytest.mark.parametrize("case", SAVED)
def test_a_model_is_built_again_from_its_folder_without_the_files_of_its_encoders(
    case: str, saved_encoders: Path, tmp_path: Path
) -> None:
    name, options = SAVED[case]
    root = Path(shutil.copytree(saved_encoders, tmp_path / "moved"))
    saved = ("vit", "bert", "clip", "siglip")
    model = built(name, **{key: str(root / each) if each in saved else each for key, each in options.items()})
    save_model(tmp_path / "trained", model, {})
    shutil.rmtree(root)
    assert not any(str(root) in path.read_text() for path in (tmp_path / "trained").rglob("*.json"))
    module = network_module(name)
    boxes = options.get("boxes", True)
    opened = module.open_encoders(model.settings, GLOBAL_DIM, boxes, tmp_path / "trained")
    again = module.build(model.settings, IMAGE_DIM, VOCABULARY, opened).eval()
    again.load_state_dict(load_file(tmp_path / "trained" / MODEL), strict=False)
    assert again.pretrained_scale == model.pretrained_scale
    batch = toys()
    assert torch.equal(again.score_matrix(*encoded(again, *batch)), model.score_matrix(*encoded(model, *batch)))


def images(name: str, options: dict[str, Any] | None = None, **changed: Any) -> Callable[[Path], Any]:
    """A model of these options reads images with something changed."""
    return lambda encoders: built(name, **options or {}).encode_images(replace(toys()[0], **changed))


def texts(name: str, length: int = 40, phrases: Any = None) -> Callable[[Path], Any]:
    """A model reads a caption of this length."""
    batch = TextBatch(torch.ones(1, length, dtype=torch.int64), torch.tensor([length]), phrases)
    return lambda encoders: built(name).encode_texts(batch)


def opened(
    vision: str, text: str, change: Callable[[Path], Any] = Path.exists, **options: Any
) -> Callable[[Path], Any]:
    """A dual encoder of two saved ones, in whose folder something was changed."""

    def run(encoders: Path) -> None:
        change(encoders)
        built("dual-encoder", vision=str(encoders / vision), text=str(encoders / text), **{"embed_dim": 0} | options)

    return run


def smaller_vocabulary(encoders: Path) -> None:
    transformers.BertModel(transformers.BertConfig(vocab_size=9, **TINY)).save_pretrained(encoders / "bert")


def without_poolers(encoders: Path) -> None:
    transformers.DistilBertModel(transformers.DistilBertConfig(vocab_size=99, **TINY)).save_pretrained(
        encoders / "bert"
    )
    vit = json.loads((encoders / "vit" / "config.json").read_text())
    transformers.ViTMSNModel(transformers.ViTMSNConfig(**vit)).save_pretrained(encoders / "vit")


def weights(value: float = 0.0, **changed: Any) -> Callable[[Path], Any]:
    """Weights of a UNITER, some of them set to a value, for a model of other options."""

    def load(folder: Path) -> None:
        state = {name[3:]: each.clone() for name, each in recorded("uniter_forward").items() if name.startswith("sd/")}
        state["uniter.encoder.layer.0.output.dense.bias"].fill_(value)
        save_file(state, folder / "weights.safetensors")
        load_published(built("uniter", **PUBLISHED | changed), folder / "weights.safetensors")

    return load


TINY: dict[str, Any] = {"hidden_size": 16, "dim": 16, "intermediate_size": 32, "num_hidden_layers": 1}
TINY |= {"num_attention_heads": 2, "n_heads": 2, "n_layers": 1}
REFUSED: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "vsrn: fewer": (images("vsrn", count=torch.tensor([4, 2, 3])), DataError, "2 of 4 regions"),
    "ssamt: no phrases": (texts("ssamt", 9), DataError, "itrpipe parse"),
    "uniter: long": (texts("uniter"), DataError, "40 tokens and the model 32"),
    "uniter: no boxes": (images("uniter", boxes=None), DataError, "boxes"),
    "ascl: no vector": (images("ascl", global_=None), DataError, "model.fusion=none"),
    "ascl: none ever": (
        lambda _: network_module("ascl").build(Ascl(text="random"), 8, 9, Encoders()),
        DataError,
        "model.fusion=none",
    ),
    "tokens: no boxes": (images("dual-encoder", {"images": "region-tokens"}, boxes=None), DataError, "boxes"),
    "tokens: own": (lambda _: built("dual-encoder", images="region-tokens", image_pool="own"), ValueError, "pool=mean"),
    "regions: no width": (lambda _: built("dual-encoder", images="regions", embed_dim=0), ValueError, "embed_dim=768"),
    "patches": (lambda _: built("dual-encoder", patch_size=64), ValueError, "patch of 64"),
    "widths": (opened("clip", "bert"), UsageError, "width 12 .* 16; .*embed_dim=16"),
    "vit as text": (opened("vit", "vit"), MissingInputError, "is no encoder of captions"),
    "tokens": (opened("vit", "bert", smaller_vocabulary), DataError, "38 tokens .* embeds 9"),
    "tokenizer": (opened("vit", "bert", lambda e: (e / "bert/tokenizer.json").write_text("{")), DataError, "tokenizer"),
    "image pooler": (opened("vit", "bert", without_poolers, image_pool="own"), UsageError, "image_pool=mean"),
    "text pooler": (opened("vit", "bert", without_poolers, text_pool="own"), UsageError, "text_pool=mean"),
    "nan": (weights(float("nan")), DataError, "'layers.0.* 48 values"),
    "missing layer": (weights(layers=3), DataError, "no weights for 'layers.2"),
    "further layer": (weights(layers=1), DataError, "has weights for 'layers.1"),
    "other size": (weights(max_words=30), DataError, r"text.position.weight: .*\[40, 48\].*\[30, 48\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_backbone_cannot_work_with_is_refused(case: str, saved_encoders: Path, tmp_path: Path) -> None:
    run, error, value = REFUSED[case]
    root = Path(shutil.copytree(saved_encoders, tmp_path / "encoders"))
    with pytest.raises(error, match=value):
        run(root)
