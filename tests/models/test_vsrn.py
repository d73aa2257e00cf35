"""VSRN against reference outputs, losses, gradients and BatchNorm buffers; the captioner against a plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

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


def naive_caption_loss(captioner: RegionCaptioner, regions: Tensor, texts: TextBatch) -> Tensor:
    """The published loop: max_length - 1 steps for every caption, masked afterwards, dropout off."""
    steps, size = captioner.max_length - 1, len(regions)
    labels, mask = torch.zeros(size, steps + 2, dtype=torch.long), torch.zeros(size, steps + 2)
    for row, length in enumerate(texts.lengths.tolist()):
        label = texts.tokens[row, :length].tolist()
        if length > captioner.max_length - 1:
            label = [*label[: captioner.max_length - 1], 2]
        labels[row, : len(label)] = torch.tensor(label)
        mask[row, : len(label) + 1] = 1
    memory, hidden = captioner.region_rnn(captioner.region_projection(regions))
    hidden, loss = hidden[0], torch.tensor(0.0)
    for step in range(steps):
        repeated = hidden[:, None].expand_as(memory)
        energy = captioner.attention_score(torch.tanh(captioner.attention(torch.cat([memory, repeated], dim=-1))))
        context = (energy.softmax(dim=1) * memory).sum(dim=1)
        hidden = captioner.decoder_rnn(torch.cat([captioner.embed(labels[:, step]), context], dim=1), hidden)
        token_loss = F.cross_entropy(captioner.output(hidden), labels[:, step + 1], reduction="none")
        loss = loss + (token_loss * mask[:, step + 1]).sum()
    return loss / size


@pytest.mark.parametrize("max_length", [5, 9, 10, 11, 30])
def test_captioner_equals_the_loop_over_all_steps_and_drops_in_training_only(max_length: int) -> None:
    settings = Vsrn(embed_dim=6, caption_dim=7, caption_word_dim=5, caption_max_length=max_length, caption_dropout=0.5)
    captioner = RegionCaptioner(settings, vocabulary_size=20).eval()
    lengths = torch.tensor([4, 10, 2, 9, 5])
    tokens = torch.randint(4, 20, (5, 10)).masked_fill(torch.arange(10) >= lengths[:, None], 0)
    regions, texts = torch.randn(5, 3, 6), TextBatch(tokens, lengths)
    losses = captioner(regions, texts), naive_caption_loss(captioner, regions, texts)
    torch.testing.assert_close(*losses)
    gradients = (torch.autograd.grad(loss, [*captioner.parameters()]) for loss in losses)
    for ours, naive in zip(*gradients, strict=True):
        close(ours, naive)
    captioner.train()
    assert captioner(regions, texts) != captioner(regions, texts)
