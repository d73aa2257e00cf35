"""Exported dual encoders in the libraries of others: transformers, sentence-transformers, open_clip, datasets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

import itrpipe
from itrpipe.cli.export import Export
from itrpipe.cli.request import Request
from itrpipe.config import parse_override
from itrpipe.datasets.pictures import decode_rgb
from itrpipe.errors import DataError, UsageError
from itrpipe.training.saved import load_model

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
TEXTS = ["A dog number 1000 is on the road 0.", "a cat on the beach", "a bird is number 3 on the roof, a roof!"]
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-5}


@pytest.fixture(scope="module")
def root(finished_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(finished_chain / "data", tmp_path_factory.mktemp("interop") / "data"))


@pytest.fixture(scope="module")
def exported(
    root: Path, saved_encoders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Path, Path]]:
    """Exports a model of two encoders with everything; the folder, and the artifact that it was trained as."""
    targets = tmp_path_factory.mktemp("exported")
    known: dict[str, tuple[Path, Path]] = {}

    def export(
        vision: str | Path, text: str | Path, *sets: str, method: str = "zero-shot", **more: Any
    ) -> tuple[Path, Path]:
        name = "-".join((str(vision), str(text), method, *sets, *more)).replace("/", "-")
        if name not in known:
            given = [f"method={method}", "backbone=dual-encoder", "evaluate.bootstrap_samples=100", "train.epochs=1"]
            given.append("train.batch_size=20")
            given += [
                f"train.model.{side}={saved_encoders / each}" for side, each in (("vision", vision), ("text", text))
            ]
            wanted = Export(target=targets / name, embeddings="parquet", **more)
            wanted.export(Request(root, "tiny", [parse_override(each) for each in [*given, *sets]]))
            artifacts = json.loads((wanted.target / "export.json").read_text())["artifacts"]
            (trained,) = (each for each in artifacts if each.startswith("train/"))
            known[name] = wanted.target, root / "tiny" / trained
        return known[name]

    return export


@pytest.fixture(scope="module")
def photographs(finished_chain: Path) -> list[Image.Image]:
    files = sorted((finished_chain / "source" / "flickr30k-images").glob("*.jpg"))[:4]
    return [Image.fromarray(decode_rgb(path.read_bytes())) for path in files]


def theirs(folder: Path, images: list[Image.Image]) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Model of transformers, and its embeddings of unit length."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    padding = "max_length" if type(model).__name__ == "SiglipModel" else True
    with torch.no_grad():
        seen = model.get_image_features(**processor(images=images, return_tensors="pt")).pooler_output
        read = processor(text=TEXTS, padding=padding, truncation=True, return_tensors="pt")
        texts = model.get_text_features(**read).pooler_output
    return model, *(torch.nn.functional.normalize(each) for each in (seen, texts))


# transformers


@pytest.mark.parametrize(("pair", "sets", "method", "architecture"), CASES["native"])
def test_transformers_and_sentence_transformers_embed_photographs_and_captions_as_we_do(
    pair: list[str],
    sets: list[str],
    method: str,
    architecture: str,
    exported: Callable[..., Any],
    photographs: list[Image.Image],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_open_clip = pair == ["clip", "clip"] and not sets
    folder, trained = exported(*pair, *sets, method=method, **{"open_clip": True} if with_open_clip else {})
    ours = itrpipe.load(trained, device="cpu")
    model, images, texts = theirs(folder, photographs)
    assert type(model).__name__ == architecture
    sentences = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    for seen, read in ((images, texts), (sentences.encode(photographs), sentences.encode(TEXTS))):
        np.testing.assert_allclose(seen, ours.encode_images(photographs), **CLOSE)
        np.testing.assert_allclose(read, ours.encode_texts(TEXTS), **CLOSE)
    assert sentences.similarity_fn_name == "cosine"
    saved = tmp_path / "saved"
    model.save_pretrained(saved)
    transformers.AutoProcessor.from_pretrained(folder).save_pretrained(saved)
    with safe_open(folder / "model.safetensors", "pt") as file, safe_open(saved / "model.safetensors", "pt") as own:
        assert set(file.keys()) == set(own.keys())
        assert file.metadata() == {"format": "pt"}
    for place in (folder, saved):  # as it was exported, and as transformers saves it again
        opened = itrpipe.load(place, device="cpu")
        np.testing.assert_allclose(opened.encode_images(photographs), ours.encode_images(photographs), atol=1e-6)
        np.testing.assert_array_equal(opened.encode_texts(TEXTS), ours.encode_texts(TEXTS))
    whole = "".join(path.read_text() for path in folder.rglob("*.json"))
    assert "auto_map" not in whole
    assert str(trained.parents[3]) not in whole
    # The lines of code in the card.
    copy = Path(shutil.copytree(folder, tmp_path / "it"))
    photographs[0].save(copy / "photograph.jpg")
    monkeypatch.chdir(copy)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    shown = (copy / "README.md").read_text().partition("## Use")[2].partition("## Files")[0].split("\n### ")[1:]
    found: dict[str, dict[str, Any]] = {section.partition("\n")[0]: {} for section in shown}
    native = ["transformers", "sentence-transformers", *(["open_clip"] if with_open_clip else [])]
    assert list(found) == [*native, "datasets", "mteb"]
    for title, section in zip(found, shown, strict=True):
        if title != "mteb":  # its tasks lie on the hub
            exec(section.partition("```python\n")[2].partition("```")[0], found[title])
    normed = torch.nn.functional.normalize(found["transformers"]["text_vectors"].detach()).numpy()
    np.testing.assert_allclose(found["sentence-transformers"]["vectors"], normed, **CLOSE)
    assert len(found["datasets"]["captions"]) == 20
    if with_open_clip:
        np.testing.assert_allclose(found["open_clip"]["text_vectors"].detach(), normed, **CLOSE)
        seen = torch.nn.functional.normalize(found["transformers"]["image_vectors"].detach())
        assert float((seen * found["open_clip"]["image_vectors"]).sum()) == pytest.approx(1, abs=1e-3)  # other resizing


def test_a_folder_that_lost_our_settings_or_a_weight_is_told(exported: Callable[..., Any], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(exported("clip", "clip")[0], tmp_path / "copy"))
    with safe_open(copy / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if name != "visual_projection.weight"}  # noqa: SIM118
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(DataError, match=r"model\.safetensors has"):
        itrpipe.load(copy, device="cpu")
    (copy / "export.json").unlink()
    with pytest.raises(DataError, match=r"copy: 1 of the weights .*lack 'visual_projection.weight'"):
        load_model(copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key != "itrpipe"}))
    with pytest.raises(DataError, match="as settings of itrpipe"):
        load_model(copy)


def test_the_scale_of_the_logits_is_what_training_made_of_it(
    exported: Callable[..., Any], saved_encoders: Path
) -> None:
    for kind in ("clip", "siglip"):
        first = transformers.AutoModel.from_pretrained(saved_encoders / kind)
        untrained = transformers.AutoModel.from_pretrained(exported(kind, kind)[0])
        torch.testing.assert_close(untrained.logit_scale, first.logit_scale)
    folder, trained = exported("clip", "clip", "contrastive.loss.temperature=0.05", method="contrastive")

    row = pq.read_table(trained / "history.parquet").to_pylist()[-1]
    moved = transformers.AutoModel.from_pretrained(folder).logit_scale.detach()
    assert float(moved.exp()) == pytest.approx(1 / row["mean_temperature"], rel=1e-5) == pytest.approx(20, rel=0.01)


@pytest.mark.parametrize(("pair", "sets", "reason"), CASES["no class"])
def test_what_transformers_has_no_class_for_keeps_our_layout_and_says_so(
    pair: list[str],
    sets: list[str],
    reason: str,
    exported: Callable[..., Any],
    photographs: list[Image.Image],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, trained = exported(*pair, *sets, method="triplet")
    assert reason in " ".join(capsys.readouterr().out.split())
    assert reason in (folder / "README.md").read_text()
    assert not (folder / "modules.json").exists()
    opened, ours = (itrpipe.load(each, device="cpu") for each in (folder, trained))
    np.testing.assert_array_equal(opened.encode_texts(TEXTS), ours.encode_texts(TEXTS))


# open_clip


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_open_clip_embeds_as_we_do(
    activation: str,
    exported: Callable[..., Any],
    photographs: list[Image.Image],
    saved_encoders: Path,
    tmp_path: Path,
) -> None:
    import open_clip

    changed = Path(shutil.copytree(saved_encoders / "clip", tmp_path / "clip"))
    config = json.loads((changed / "config.json").read_text())
    for side in ("vision_config", "text_config"):
        config[side] |= {"hidden_act": activation, "layer_norm_eps": 1e-3}
    (changed / "config.json").write_text(json.dumps(config))
    folder, trained = exported(changed, changed, open_clip=True)
    assert {each.stat().st_mode for each in folder.iterdir() if each.is_file()} == {
        (folder / "config.json").stat().st_mode
    }
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    tokenizer, ours = open_clip.get_tokenizer(f"local-dir:{folder}"), itrpipe.load(trained, device="cpu")
    with torch.no_grad():
        images = model.eval().encode_image(torch.stack([preprocess(each) for each in photographs]), normalize=True)
        texts = model.encode_text(tokenizer(TEXTS), normalize=True)
    np.testing.assert_allclose(images, ours.encode_images(photographs), atol=1e-3)  # Pillow resizes otherwise
    np.testing.assert_allclose(texts, ours.encode_texts(TEXTS), **CLOSE)
    np.testing.assert_allclose(theirs(folder, photographs)[2], ours.encode_texts(TEXTS), **CLOSE)
    read, cleaned = ["it's &amp; x", "\ufb01ne dogs", "\u201cquoted\u201d"], ["it's & x", "fine dogs", '"quoted"']
    with torch.no_grad():
        texts = model.encode_text(tokenizer(read), normalize=True)
    np.testing.assert_allclose(texts, ours.encode_texts(cleaned), **CLOSE)
    assert np.abs(texts[0].numpy() - ours.encode_texts(read[:1])[0]).max() > 1e-3


def test_open_clip_is_refused_for_what_it_has_not(exported: Callable[..., Any], root: Path, tmp_path: Path) -> None:
    for pair in (("siglip", "siglip"), ("vit", "bert")):
        with pytest.raises(UsageError, match="--open-clip: open_clip has no model like this one"):
            exported(*pair, method="triplet", open_clip=True)
    wanted = Export(target=tmp_path / "out", open_clip=True)
    with pytest.raises(UsageError, match="--open-clip: open_clip has no model like vsepp"):
        wanted.export(Request(root, "tiny", [parse_override("backbone=vsepp")]))


# datasets
