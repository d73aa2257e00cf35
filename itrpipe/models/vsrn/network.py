"""VSRN: reasoning over image regions by graph layers and a GRU, matched with a GRU over words.

The regions of an image are projected, look at each other in residual graph layers, and are read by a GRU, whose last
state is the vector of the image. The vector of a caption is the last state of a GRU over its words, as in VSE++, whose
`GruTextEncoder` and initial weights of the projection (`image_projection`) are taken. Both vectors have unit length,
and the score of a pair is their inner product (`EmbeddingModel`).

Source: Li et al., "Visual Semantic Reasoning for Image-Text Matching", ICCV 2019. Where the published code and
the paper differ the code is followed, since all published weights come from it: the region l2-norms run over
the R regions of each channel (`region_l2_axis`), affinities are divided by R (regions, not the paper's matrix R)
without a softmax, graph layers have a BatchNorm, and `region_norm` and `final_batch_norm` differ between the Flickr30K
and COCO models. The published code updates the captioner's parameters twice a step; here they are updated once.

The captioning branch regenerates the caption from the reasoned regions, in training only (VSRN §3.4); the
network is S2VT with attention (Venugopalan et al., ICCV 2015) as published with VSRN.

Shapes: B images, R regions, D width, H width of the captioner, P caption tokens in total, V token ids.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from itrpipe.datasets.vocabulary import END, PAD
from itrpipe.engine.work import to_device
from itrpipe.errors import DataError
from itrpipe.models.base import (
    EmbeddingModel,
    ImageBatch,
    ImageEncoding,
    TextBatch,
    TextEncoding,
    at_least_single,
    l2_normalise,
    placed_regions,
    real_count,
    region_width,
)
from itrpipe.models.vsepp.network import GruTextEncoder, gru_step, image_projection
from itrpipe.models.vsrn.declaration import Vsrn


class GraphLayer(nn.Module):
    """One residual graph layer over the regions of an image, regions as rows:

        out = v + BatchNorm(W(((theta(v) phi(v)^T) / R) g(v)))

    `relations` holds theta, phi and g, stacked in this order along its output, so that one matrix product
    serves the three (published as `theta`, `phi`, `g`; `output` is `W.0`, `norm` is `W.1`). The scale of
    the BatchNorm starts at zero, as its shift always does: the layer starts as the identity.

    Args:
        dim: width D of a region.

    Source: VSRN §3.2; BatchNorm and the division by R as in its published code.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.relations = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, regions: Tensor) -> Tensor:
        """Let the regions [B, R, D] of each image attend to each other."""
        theta, phi, g = self.relations(regions).chunk(3, dim=-1)  # each [B, R, D]
        affinity = theta @ phi.transpose(1, 2) / regions.shape[1]  # [B, R, R]
        mixed = self.output(affinity @ g)  # [B, R, D]
        return regions + self.norm(mixed.flatten(0, 1)).view_as(regions)


class RegionReasoning(nn.Module):
    """Image encoder of VSRN (§3.1 to 3.3): projection, graph layers, GRU over the regions in file order.

    Args:
        settings: the options of the model.
        image_dim: width D_in of the region features.
    """

    def __init__(self, settings: Vsrn, image_dim: int) -> None:
        super().__init__()
        self.settings = settings
        self.l2_dim = 1 if settings.region_l2_axis == "regions" else 2
        width = settings.embed_dim
        self.fc = image_projection(region_width(image_dim, settings.boxes), width)
        layers = [GraphLayer(width) for _ in range(settings.graph_layers)]
        self.graph = nn.Sequential(*layers)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.norm = nn.Identity()
        if settings.final_batch_norm:
            self.norm = nn.BatchNorm1d(width)

    def forward(self, regions: Tensor) -> ImageEncoding:
        """Encode region features [B, R, D_in] as unit vectors [B, D] and reasoned regions [B, R, D]."""
        regions = self.fc(regions.to(self.fc.weight.dtype))  # [B, R, D]
        if self.settings.region_norm:
            regions = l2_normalise(regions, self.l2_dim)
        regions = l2_normalise(self.graph(regions), self.l2_dim)
        _, last_hidden = self.rnn(regions)  # [1, B, D]
        embedding = at_least_single(self.norm(last_hidden[0]))
        return ImageEncoding(l2_normalise(embedding, dim=-1), regions)


class VsrnEncoder(EmbeddingModel):
    """VSRN with its optional captioning branch, which only training uses.

    Args:
        settings: the options of the model.
        image_dim: width D_in of the region features.
        vocabulary_size: number of token ids.
    """

    def __init__(self, settings: Vsrn, image_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        self.image = RegionReasoning(settings, image_dim)
        self.text = GruTextEncoder(vocabulary_size, settings.word_dim, settings.embed_dim)
        self.captioner = None
        if settings.captioner:
            self.captioner = RegionCaptioner(settings, vocabulary_size)

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        """Encode images as vectors [B, D] of unit length and reasoned regions [B, R, D].

        Raises:
            DataError: an image has fewer regions than the batch is wide; the graph, its BatchNorm and the
                GRU mix all R rows, so padding would change the image.
        """
        count = real_count(images)
        if count is not None:
            raise DataError(
                f"an image has {count.min()} of {images.regions.shape[1]} regions, but vsrn needs the same number for "
                "every image: extract a fixed number of regions, or train vsepp, which leaves out missing ones"
            )
        return self.image(placed_regions(images, self.image.settings.boxes))

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        """Encode captions as vectors [T, D] of unit length: the last states of the GRU over words."""
        return TextEncoding(self.text(texts))

    def auxiliary_loss(self, images: ImageEncoding, texts: TextBatch) -> Tensor | None:
        """Compute the captioning loss of caption k given the regions of image k; None without a captioner."""
        if self.captioner is None:
            return None
        assert images.regions is not None
        # The decoder's many small steps cost more in bfloat16 than in single precision.
        with torch.autocast(images.regions.device.type, enabled=False):
            regions = images.regions.to(self.captioner.output.weight.dtype)
            return self.captioner(regions, texts)


class RegionCaptioner(nn.Module):
    """Encoder-decoder with attention over regions, trained to reproduce the caption of the image.

    The attention e_r = u . tanh(W [o_r; h]) is split as W [o_r; h] = W_o o_r + W_h h, so that the region part
    is computed once per image and not at every step; the word part of the GRU's input likewise.

    Args:
        settings: the `caption_*` options of VSRN, and `embed_dim` as the width of a region.
        vocabulary_size: number of token ids.
    """

    def __init__(self, settings: Vsrn, vocabulary_size: int) -> None:
        super().__init__()
        hidden = settings.caption_dim
        words = settings.caption_word_dim
        self.max_length = settings.caption_max_length
        self.dropout = settings.caption_dropout
        self.region_projection = nn.Linear(settings.embed_dim, hidden)
        self.region_rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.embed = nn.Embedding(vocabulary_size, words)
        self.attention = nn.Linear(2 * hidden, hidden)
        self.attention_score = nn.Linear(hidden, 1, bias=False)
        self.decoder_rnn = nn.GRUCell(words + hidden, hidden)
        self.output = nn.Linear(hidden, vocabulary_size)
        nn.init.xavier_normal_(self.region_projection.weight)
        nn.init.xavier_normal_(self.output.weight)

    def forward(self, regions: Tensor, texts: TextBatch) -> Tensor:
        """Compute the negative log-likelihood of the captions, summed over tokens and divided by B.

        A caption of more than `max_length` tokens is cut to that many and its last token becomes the end token. After
        the end token one pad token is predicted too, unless the label is full: the published mask runs through the
        first zero. The published loop always runs `max_length - 1` steps and multiplies those past the mask by zero;
        here they are not computed at all, which gives the identical loss and gradient.

        Args:
            regions: [B, R, D] reasoned regions of image k.
            texts: caption k, B of them.
        """
        # Lengths are read on the host, so that shapes wait for no device.
        longest = self.max_length
        steps = texts.host_lengths.clamp(max=longest - 1)
        steps, order = steps.sort(descending=True, stable=True)
        order = to_device(order, texts.tokens.device)
        # One more pad token, to predict after a caption that fills the width.
        labels = F.pad(texts.tokens[order, :longest], (0, 1), value=PAD)
        if labels.shape[1] > longest:
            is_cut = texts.lengths[order] >= longest
            labels[:, longest - 1] = torch.where(is_cut, END, labels[:, longest - 1])
        inputs = pack_padded_sequence(labels[:, :-1], steps, batch_first=True)
        targets = pack_padded_sequence(labels[:, 1:], steps, batch_first=True)
        states = self.hidden_states(regions.index_select(0, order), inputs)
        logits = self.output(states)  # [P, V]
        return F.cross_entropy(logits, targets.data, reduction="sum") / len(regions)

    def hidden_states(self, regions: Tensor, inputs: PackedSequence) -> Tensor:
        """Decode [P, H] states after each of the P input tokens; row k of regions [B, R, D] belongs to caption k."""
        projected = F.dropout(self.region_projection(regions), self.dropout, self.training)
        memory, (hidden,) = self.region_rnn(projected)  # [B, R, H], [1, B, H]
        width = hidden.shape[1]

        # The part of the gates that words alone decide, for all steps at once.
        decoder = self.decoder_rnn
        weight_words, weight_context = decoder.weight_ih.split([self.embed.embedding_dim, width], dim=1)
        words = F.dropout(self.embed(inputs.data), self.dropout, self.training)  # [P, words]
        batch_sizes = inputs.batch_sizes.tolist()
        word_gates = F.linear(words, weight_words, decoder.bias_ih)  # [P, 3H]

        # Attention on region o_r in state h is softmax_r of u . tanh(W [o_r; h] + b). As tanh(x) = 2 sigmoid(2x) - 1,
        # it is that of 2u . sigmoid(2W [o_r; h] + 2b) too: a softmax does not see the constant. Sigmoid is several
        # times cheaper than tanh on a CPU, so W, b and u are doubled here, once for all steps.
        weight_memory, weight_query = (2 * self.attention.weight).split(width, dim=1)
        keys = F.linear(memory, weight_memory, 2 * self.attention.bias)  # [B, R, H]: 2W o_r + 2b
        score = 2 * self.attention_score.weight[0]  # [H]
        weight_hidden = torch.cat([decoder.weight_hh, weight_query])  # [4H, H]: gates and 2W h in one product
        bias_hidden = F.pad(decoder.bias_hh, (0, width))

        states = []
        for size, gates in zip(batch_sizes, word_gates.split(batch_sizes), strict=True):
            if size < len(hidden):  # shorter captions have ended
                keys = keys[:size]
                memory = memory[:size]
                hidden = hidden[:size]
            products = F.linear(hidden, weight_hidden, bias_hidden)
            from_hidden, query = products.split([3 * width, width], dim=1)
            energy = torch.sigmoid(keys + query[:, None]) @ score  # [b, R]
            attention = energy.softmax(dim=1)[:, None]
            context = (attention @ memory)[:, 0]  # [b, H]
            context = F.dropout(context, self.dropout, self.training)
            from_input = F.linear(context, weight_context) + gates
            hidden = gru_step(from_input, from_hidden, hidden)
            states.append(hidden)
        return torch.cat(states)


build = VsrnEncoder
