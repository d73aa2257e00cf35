"""VSRN against reference outputs, losses, gradients and BatchNorm buffers; the captioner against a plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from itrpipe.learning.losses import triplet_loss
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.vsrn.declaration import Vsrn
from itrpipe.models.vsrn.network import RegionCaptioner
from tests.models.toys import built, close, encoded, recorded

SIZES = {"image_dim": 20, "vocabulary_size": 40, "embed_dim": 16, "word_dim": 10, "graph_layers": 4}
SIZES |= {"caption_dim": 12, "caption_word_dim": 8, "caption_max_length": 12}
RENAMED = {
    "image.fc.": "img.fc.",
    "image.rnn.": "img.img_rnn.",
    "text.": "txt.",
    "captioner.region_projection.": "cap.encoder.vid2hid.",
    "captioner.region_rnn.": "cap.encoder.rnn.",
    "captioner.embed.": "cap.decoder.embedding.",
    "captioner.attention.": "cap.decoder.attention.linear1.",
    "captioner.attention_score.": "cap.decoder.attention.linear2.",
    "captioner.decoder_rnn.": "cap.decoder.rnn.",
    "captioner.output.": "cap.decoder.out.",
}
GRAPH = {"output": ["W.0"], "norm": ["W.1"], "relations": ["theta", "phi", "g"]}


def published(reference: dict[str, Tensor], kind: str, name: str) -> Tensor | None:
    """The published array for our parameter `name`, or None where the reference does not hold all its parts."""
    if name.startswith("image.graph."):
        layer, part, leaf = name.removeprefix("image.graph.").split(".")
        names = [f"{kind}_img.Rs_GCN_{int(layer) + 1}.{module}.{leaf}" for module in GRAPH[part]]
    else:
        ours = next(prefix for prefix in RENAMED if name.startswith(prefix))
        suffix = "_l0" if "decoder_rnn" in name else ""
        names = [f"{kind}_{RENAMED[ours]}{name.removeprefix(ours)}{suffix}"]
    if any(each not in reference for each in names):
        return None
    stacked = reference[names[0]] if len(names) == 1 else torch.cat([reference[each] for each in names])
    return stacked[..., 0] if stacked.ndim == 3 else stacked  # 1x1 convolutions are linear layers here


@pytest.fixture
def run() -> tuple[Any, dict[str, Tensor], ImageBatch, TextBatch]:
    """A model of the published weights, in double precision: only the reference then adds the rounding that its
    BatchNorms amplify; what the released code made of them; and its inputs."""
    reference = recorded("vsrn_coco")
    model = built("vsrn", **SIZES, caption_dropout=0)
    model.load_state_dict({name: published(reference, "w", name) for name in model.state_dict()})
    texts = TextBatch(reference["in_captions"], reference["in_lens"])
    return model.double(), reference, ImageBatch(reference["in_images"].double()), texts


@torch.no_grad()
def test_evaluation_outputs_match_reference(run: Any) -> None:
    model, reference, images, texts = run
    image, text = encoded(model, images, texts)
    close(image.embedding, reference["out_eval_img_emb"], 5e-6)
    close(image.regions, reference["out_eval_gcn"], 5e-6)
    close(text.embedding, reference["out_eval_cap_emb"], 5e-6)
    close(model.score_matrix(image, text), reference["out_eval_sim"], 5e-6)
    close(model.auxiliary_loss(image, texts), reference["out_eval_lm_loss"], 2e-5)


def test_training_step_matches_reference(run: Any) -> None:
    model, reference, images, texts = run
    image, text = encoded(model.train(), images, texts)
    retrieval, caption = triplet_loss(model.score_matrix(image, text)), model.auxiliary_loss(image, texts)
    close(image.embedding, reference["out_train_img_emb"], 5e-6)
    close(retrieval, reference["out_train_retrieval_loss"], 5e-6)
    close(caption, reference["out_train_caption_loss"], 2e-5)
    (retrieval + caption).backward()
    compared = 0
    for name, parameter in model.named_parameters():
        expected = published(reference, "grad", name)
        if expected is not None:
            close(parameter.grad, expected, 5e-5)
            compared += expected.numel()
    recorded_values = sum(array.numel() for key, array in reference.items() if key.startswith("grad_"))
    assert compared == recorded_values - 16 * 16 - 16  # all but two parts of the relations of layer 4
    for name, buffer in model.named_buffers():
        if ".norm." in name:
            layer, _, leaf = name.removeprefix("image.graph.").split(".")
            close(buffer, reference[f"post_Rs_GCN_{int(layer) + 1}.W.1.{leaf}"], 5e-6)


def test_captions_as_long_as_the_captioner_reads_cost_the_same_without_their_end_and_drop_in_training_only() -> None:
    settings = Vsrn(embed_dim=6, caption_dim=7, caption_word_dim=5, caption_max_length=5, caption_dropout=0.5)
    captioner, regions = RegionCaptioner(settings, vocabulary_size=20).eval(), torch.randn(1, 3, 6)
    tokens = torch.tensor([[1, 4, 5, 6, 7, 8, 2]])
    long, cut = (
        captioner(regions, TextBatch(torch.cat([tokens[:, :size], tokens[:, 6:]], dim=1), torch.tensor([size + 1])))
        for size in (6, 4)
    )
    close(long, cut)
    texts = TextBatch(tokens, torch.tensor([7]))
    captioner.train()
    assert captioner(regions, texts) != captioner(regions, texts)
