"""VSRN against reference outputs, losses, gradients and BatchNorm buffers; the captioner against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from itrpipe.errors import DataError
from itrpipe.losses.triplet import triplet_loss
from itrpipe.models.base import ImageBatch, ImageEncoding, TextBatch
from itrpipe.models.vsrn.declaration import Vsrn
from itrpipe.models.vsrn.network import GraphLayer, RegionCaptioner, build, caption_steps
from tests.models.published import arrays

SETTINGS = Vsrn(embed_dim=16, word_dim=10, caption_dim=12, caption_word_dim=8, caption_max_length=12, caption_dropout=0)
RELATIONS = ("theta", "phi", "g")  # rows of GraphLayer.relations
RENAMED = {
    "image.fc.": "img.fc.",
    "image.rnn.": "img.img_rnn.",
    "text.": "txt.",
    "captioner.region_projection.": "cap.encoder.vid2hid.",
    "captioner.region_rnn.": "cap.encoder.rnn.",
    "captioner.embed.": "cap.decoder.embedding.",
    "captioner.attention.": "cap.decoder.attention.linear1.",
    "captioner.attention_score.": "cap.decoder.attention.linear2.",
    "captioner.decoder_rnn.weight_ih": "cap.decoder.rnn.weight_ih_l0",
    "captioner.decoder_rnn.weight_hh": "cap.decoder.rnn.weight_hh_l0",
    "captioner.decoder_rnn.bias_ih": "cap.decoder.rnn.bias_ih_l0",
    "captioner.decoder_rnn.bias_hh": "cap.decoder.rnn.bias_hh_l0",
    "captioner.output.": "cap.decoder.out.",
}


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    return arrays("vsrn_coco")


def published_names(name: str) -> list[str]:
    """Names of the published arrays that, stacked along axis 0, make up our parameter `name`."""
    if name.startswith("image.graph."):
        layer, part, kind = name.removeprefix("image.graph.").split(".")
        prefix = f"img.Rs_GCN_{int(layer) + 1}"
        inside = {"output": ["W.0"], "norm": ["W.1"], "relations": RELATIONS}[part]
        return [f"{prefix}.{module}.{kind}" for module in inside]
    ours = next(prefix for prefix in RENAMED if name.startswith(prefix))
    return [RENAMED[ours] + name.removeprefix(ours)]


def published(reference, kind: str, name: str) -> np.ndarray | None:
    """The published array for our parameter `name`, or None where the reference does not hold all its parts."""
    keys = [f"{kind}_{published_name}" for published_name in published_names(name)]
    if any(key not in reference for key in keys):
        return None
    parts = [reference[key] for key in keys]
    stacked = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return stacked[..., 0] if stacked.ndim == 3 else stacked  # 1x1 convolutions are linear layers here


@pytest.fixture
def model(reference):
    """The published weights, in double precision: only the reference then adds the rounding its BatchNorms amplify."""
    model = build(SETTINGS, image_dim=20, vocabulary_size=40)
    state = {}
    for name in model.state_dict():
        weight = published(reference, "w", name)
        assert weight is not None, name
        state[name] = torch.tensor(weight)
    model.load_state_dict(state)
    return model.double()


@pytest.fixture
def batch(reference) -> tuple[ImageBatch, TextBatch]:
    texts = TextBatch(torch.tensor(reference["in_captions"]), torch.tensor(reference["in_lens"]))
    return ImageBatch(torch.tensor(reference["in_images"]).double()), texts


def test_evaluation_outputs_match_reference(reference, model, batch):
    images, texts = batch
    with torch.no_grad():
        image, text = model.eval().encode_images(images), model.encode_texts(texts)
        scores = model.score_matrix(image, text)
        caption_loss = model.auxiliary_loss(image, texts)
    np.testing.assert_allclose(image.embedding, reference["out_eval_img_emb"], atol=5e-6)
    np.testing.assert_allclose(image.regions, reference["out_eval_gcn"], atol=5e-6)
    np.testing.assert_allclose(text.embedding, reference["out_eval_cap_emb"], atol=5e-6)
    np.testing.assert_allclose(scores, reference["out_eval_sim"], atol=5e-6)
    assert caption_loss.item() == pytest.approx(float(reference["out_eval_lm_loss"]), abs=2e-5)


def test_caption_log_probabilities_match_reference(reference, model, batch):
    images, texts = batch
    captioner = model.eval().captioner
    steps = caption_steps(texts, captioner.max_length)
    with torch.no_grad():
        states = captioner.hidden_states(model.encode_images(images).regions, steps)
        log_probabilities = F.log_softmax(captioner.output(states), dim=-1)
    expected = reference["out_eval_cap_logprobs"].transpose(1, 0, 2)[:, steps.order.numpy()]  # [S, B, V]
    mask = reference["in_cap_masks"][steps.order.numpy()][:, 1:12].astype(bool)
    expected = expected[mask.T]  # [P, V]
    np.testing.assert_allclose(log_probabilities, expected, atol=5e-6)


def test_training_step_matches_reference(reference, model, batch):
    images, texts = batch
    image, text = model.train().encode_images(images), model.encode_texts(texts)
    retrieval, caption = triplet_loss(model.score_matrix(image, text)), model.auxiliary_loss(image, texts)
    np.testing.assert_allclose(image.embedding.detach(), reference["out_train_img_emb"], atol=5e-6)
    np.testing.assert_allclose(image.regions.detach(), reference["out_train_gcn"], atol=5e-6)
    assert retrieval.item() == pytest.approx(float(reference["out_train_retrieval_loss"]), abs=5e-6)
    assert caption.item() == pytest.approx(float(reference["out_train_caption_loss"]), abs=2e-5)

    (retrieval + caption).backward()
    compared = 0
    for name, parameter in model.named_parameters():
        expected = published(reference, "grad", name)
        if expected is not None:
            np.testing.assert_allclose(parameter.grad, expected, atol=5e-5, err_msg=name)
            compared += expected.size
    g_of_last = model.image.graph[3].relations.weight.grad[2 * 16 :]
    np.testing.assert_allclose(g_of_last, reference["grad_img.Rs_GCN_4.g.weight"][..., 0], atol=5e-5)
    recorded = sum(array.size for key, array in reference.items() if key.startswith("grad_"))
    assert compared == recorded - g_of_last.numel() - 16  # all but the two single rows of layer 4


def test_batch_norm_buffers_after_a_training_pass_match_reference(reference, model, batch):
    model.train().encode_images(batch[0])
    buffers = {name: buffer for name, buffer in model.named_buffers() if ".norm." in name}
    assert len(buffers) == 12
    for name, buffer in buffers.items():
        published_name = published_names(name)[0].removeprefix("img.")
        np.testing.assert_allclose(buffer, reference[f"post_{published_name}"], atol=5e-6, err_msg=name)


def test_a_graph_layer_starts_as_the_identity():
    regions = torch.randn(3, 5, 8)
    torch.testing.assert_close(GraphLayer(8)(regions), regions, rtol=0, atol=0)


def naive_caption_loss(captioner: RegionCaptioner, regions, texts: TextBatch):
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
def test_captioner_equals_the_loop_over_all_steps(max_length):
    torch.manual_seed(max_length)
    settings = Vsrn(embed_dim=6, caption_dim=7, caption_word_dim=5, caption_max_length=max_length, caption_dropout=0.5)
    captioner = RegionCaptioner(settings, vocabulary_size=20).eval()
    lengths = torch.tensor([4, 10, 2, 9, 5])
    tokens = torch.randint(4, 20, (5, 10)).masked_fill(torch.arange(10) >= lengths[:, None], 0)
    regions = torch.randn(5, 3, 6, requires_grad=True)
    texts = TextBatch(tokens, lengths)
    losses = captioner(regions, texts), naive_caption_loss(captioner, regions, texts)
    torch.testing.assert_close(*losses)
    parameters = [regions, *captioner.parameters()]
    for ours, naive in zip(*(torch.autograd.grad(loss, parameters) for loss in losses), strict=True):
        torch.testing.assert_close(ours, naive, atol=1e-5, rtol=1e-4)


def test_caption_dropout_acts_in_training_only(model, batch):
    captioner = model.captioner
    captioner.dropout = 0.5
    regions = torch.randn(6, 7, 16, dtype=torch.float64)
    torch.manual_seed(0)
    drawn = {captioner.train()(regions, batch[1]).item() for _ in range(3)}
    fixed = {captioner.eval()(regions, batch[1]).item() for _ in range(3)}
    assert (len(drawn), len(fixed)) == (3, 1)


def test_an_all_zero_channel_gives_finite_gradients(model, batch):
    with torch.no_grad():
        model.image.fc.weight[3] = 0
        model.image.fc.bias[3] = 0
    encoding = model.train().encode_images(batch[0])
    encoding.embedding.square().sum().backward()
    assert torch.isfinite(encoding.embedding).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.image.parameters())


def test_flickr30k_variant_normalises_the_image_vector_by_batch(batch):
    settings = Vsrn(embed_dim=16, word_dim=10, region_norm=False, final_batch_norm=True, captioner=False)
    model = build(settings, image_dim=20, vocabulary_size=40).train()
    encoded = model.encode_images(batch[0])
    hidden = model.image.rnn(encoded.regions)[1][0]
    standardised = (hidden - hidden.mean(dim=0)) / (hidden.var(dim=0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(encoded.embedding, F.normalize(standardised, dim=1))
    assert model.auxiliary_loss(encoded, batch[1]) is None


def test_channel_axis_gives_unit_regions_and_region_axis_unit_channels(batch):
    by_channels = build(Vsrn(embed_dim=16, region_l2_axis="channels"), 20, 40).encode_images(batch[0])
    by_regions = build(Vsrn(embed_dim=16), 20, 40).encode_images(batch[0])
    torch.testing.assert_close(by_channels.regions.norm(dim=2), torch.ones(6, 7))
    torch.testing.assert_close(by_regions.regions.norm(dim=1), torch.ones(6, 16))


def test_missing_regions_are_refused(model, batch):
    images = ImageBatch(batch[0].regions, torch.tensor([7, 7, 4, 7, 7, 7]))
    with pytest.raises(DataError, match="an image has 4 of 7 regions"):
        model.encode_images(images)
    full = ImageBatch(batch[0].regions, torch.full((6,), 7))
    assert isinstance(model.eval().encode_images(full), ImageEncoding)
