"""`--model st:FOLDER` and `oc:FOLDER`: models of other libraries embed a dataset, which is mined and evaluated."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import itrpipe
from itrpipe.cli.embeddings import embedder_of
from itrpipe.datasets.definition import image_root
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import MissingInputError
from itrpipe.features.embedders import EmbedSplit, SentenceTransformersEmbedder
from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
from tests.chains import FEW, Invoke, done, interrupted, made, only, refused
from tests.encoders import zoo

SMALL = ["--set=num_texts=5", "--set=num_images=3"]


def save_sentence_transformer(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    zoo.save("clip", folder / "clip")
    SentenceTransformer(str(folder / "clip"), device="cpu").save_pretrained(str(folder / "tiny-clip"))


def save_open_clip(folder: Path) -> None:
    import open_clip

    layers = {"width": 16, "layers": 1}
    config = {
        "embed_dim": 8,
        "vision_cfg": {**layers, "image_size": 32, "patch_size": 16, "head_width": 8},
        "text_cfg": {**layers, "heads": 2, "context_length": 20, "vocab_size": 49408},
    }
    torch.manual_seed(0)
    save_file(open_clip.CLIP(**config).state_dict(), folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))


@pytest.fixture(scope="module")
def embedders(once: Callable[..., Path]) -> dict[str, Path]:
    """Give the folders of a tiny CLIP of each library."""
    return {
        "st": once("sentence-transformer", save_sentence_transformer) / "tiny-clip",
        "oc": once("open-clip", save_open_clip),
    }


def encoded(library: str, folder: Path, files: list[Path], captions: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Embed photographs and captions as the library's own documentation says."""
    pictures = [Image.open(file).convert("RGB") for file in files]
    if library == "st":
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(folder), device="cpu")
        return model.encode(pictures), model.encode(captions)
    import open_clip

    opened: Any = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    model, processor = opened
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    with torch.no_grad():
        frames = torch.stack([processor(picture) for picture in pictures])
        return model.encode_image(frames).numpy(), model.encode_text(tokenizer(captions)).numpy()


@pytest.mark.parametrize("library", ["st", "oc"])
def test_a_dataset_is_embedded_once_as_the_library_does_and_mined_and_evaluated(
    library: str, embedders: dict[str, Path], chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("itrpipe.features.embedders._BATCHES_PER_PART", 1)
    where = ["--dataset", "tiny", "--data", chain]
    model = f"{library}:{embedders[library]}"
    name = embedders[library].name
    with interrupted(3, EmbedSplit, "make"):
        assert invoke("mine-negatives", "--model", model, *SMALL, *where).code == 130
    with interrupted(1000, EmbedSplit, "make") as calls:
        mined = made(invoke("mine-negatives", "--model", model, *SMALL, *where))
    assert mined.name.startswith(f"exact.given.given-{name}-")
    embedded = only(chain, f"embeddings/given-{name}.train")
    split = PreparedDataset.open(only(chain, "prepare/files")).split("train")
    sizes = len(split.files), len(split.texts)
    assert len(calls) == sum(-(-size // 32) for size in sizes) - 2
    root = image_root(only(chain, "prepare/files"))
    ours = read_embeddings(embedded / EMBEDDINGS, "train")
    theirs = encoded(library, embedders[library], [root / file for file in split.files], split.texts)
    for found, vectors in zip((ours.images, ours.texts), theirs, strict=True):
        np.testing.assert_allclose(found, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=1e-5)

    few = f"--set={FEW}"
    evaluated = made(invoke("evaluate", "--model", model, few, *where))
    again = invoke("evaluate", "--model", name, few, *where, "--dry-run")  # the model is remembered
    assert f"✓ evaluate/{evaluated.name}" in again.out, again.err
    planned = invoke("train", "--method", "aoq", "--backbone", "vsepp", "--negatives-from", name, *where, "--dry-run")
    assert re.search(rf"✓ embeddings/given-{name}\.train", planned.out), planned.err
    done(invoke("report", *where))
    assert itrpipe.Project(chain, "tiny").evaluate(model, bootstrap_samples=100).folder == evaluated


def test_what_cannot_embed_is_refused_when_it_is_planned_or_opened(
    embedders: dict[str, Path], finished_chain: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = ["evaluate", "--dataset", "tiny", "--data", finished_chain / "data", "--dry-run", "--model"]
    refused(invoke(*planned, f"st:{tmp_path}"), 3, "modules.json")
    pickled = Path(shutil.copytree(embedders["st"], tmp_path / "pickled"))
    for path in pickled.rglob("*.safetensors"):
        path.rename(path.with_name("pytorch_model.bin"))
    refused(invoke(*planned, f"st:{pickled}"), 4, "is a pickle")
    nested = Path(shutil.copytree(embedders["st"], tmp_path / "nested")) / "1_Router" / "0_Dense"
    nested.mkdir(parents=True)
    (nested / "pytorch_model.bin").touch()
    refused(invoke(*planned, f"st:{nested.parents[1]}"), 4, "is a pickle")
    refused(invoke(*planned, f"oc:{embedders['st']}"), 3, "open_clip_model.safetensors")
    refused(invoke(*planned, f"st:{embedders['st']}", "--method", "aoq"), 2, "--method")
    refused(invoke(*planned, f"st:{embedders['st']}", "--owners", "owners.npy"), 2, "belongs to --embeddings")
    with monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", lambda name: None)
        refused(invoke(*planned, f"st:{embedders['st']}"), 3, "pip install itrpipe[sentence-transformers]")
    with monkeypatch.context() as patched:
        patched.setattr("sentence_transformers.__version__", "5.4.1")
        with pytest.raises(MissingInputError, match="runs code"):
            SentenceTransformersEmbedder(embedders["st"], "cpu")
    reader = zoo.save("bert", tmp_path / "bert")
    refused(invoke(*planned, f"st:{reader}"), 2, "no images", "--embeddings", "itrpipe.mine")
    seer = zoo.save("vit", tmp_path / "vit")
    chain = Path(shutil.copytree(finished_chain / "data", tmp_path / "data"))
    refused(invoke("evaluate", "--dataset", "tiny", "--data", chain, "--model", f"st:{seer}"), 2, "no texts")


def test_the_card_of_exported_negatives_opens_the_model_that_mined_by_its_id_alone(
    embedders: dict[str, Path], chain: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("itrpipe.stages.embeddings.require_model", lambda *model: None)
    monkeypatch.setattr("itrpipe.stages.embeddings.fetch_folder", lambda *model: embedders["st"])
    where = ["--dataset", "tiny", "--data", chain]
    opened = {}
    for name, model in (("hub", "some/clip"), ("here", embedders["st"])):
        done(invoke("mine-negatives", "--model", f"st:{model}", "--name", name, *SMALL, *where))
        done(invoke("export-negatives", "--model", name, "--to", tmp_path / name, *where))
        opened[name] = re.findall(r'SentenceTransformer\("(.*)"\)', (tmp_path / name / "README.md").read_text())
    assert opened == {"hub": ["some/clip"], "here": ["MODEL"]}


def test_an_embedder_is_named_by_library_id_and_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own@1").mkdir()
    assert embedder_of("st:clip-ViT-B-32") == ("sentence-transformers", "sentence-transformers/clip-ViT-B-32", "")
    assert embedder_of("st:some/model@refs/pr/1") == ("sentence-transformers", "some/model", "refs/pr/1")
    assert embedder_of("oc:own@1") == ("open-clip", "own@1", "")
    assert embedder_of("clip") is None
