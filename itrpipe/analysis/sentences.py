"""Scores of sentences beside the captions that they were made of, by a trained model; only pairs are scored.

Shapes: T captions, S sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import tokenize
from itrpipe.models.base import ImageEncoding
from itrpipe.scene_graph.build import SentenceParser
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.batches import blocks
from itrpipe.training.data import SplitData, SplitImages, longer_captions, open_split

ParseTexts = Callable[[pa.Table], Path]
"""Rows with caption_id, image_id and text to a folder with their scene graphs."""


def sentence_parser(evaluation: EvaluatedModel) -> ParseTexts | None:
    """Return the parser that makes scene graphs of sentences, for a model that reads phrases; None for others.

    Raises:
        UsageError: the captions' own graphs came out of a file, or another version of the parser made them.
        MissingInputError: they were removed since.
    """
    if not evaluation.backbone.reads_phrases:
        return None
    graphs = evaluation.existing("parse")
    job = evaluation.job
    return SentenceParser(graphs, read_manifest(graphs), job.work / "graphs", job.reporter)


@torch.inference_mode()
def compared(
    evaluation: EvaluatedModel,
    parse: ParseTexts | None,
    split: Split,
    pictures: SplitImages,
    sentences: pa.Table,
    owners: np.ndarray,
    what: str,
    embeddings: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Score sentences and their captions, once each, every image of a block encoded once.

    Args:
        evaluation: of the model.
        parse: see `sentence_parser`.
        split: captions and their images.
        pictures: features or photographs of these images, as the model reads them.
        sentences: S rows with image_id, that of their caption, and text.
        owners: [S] row of each sentence's caption in the split.
        what: name of the sentences, for the progress.
        embeddings: float32 [N, D] of the images of the split by the model; None where they are not there yet.

    Returns:
        float32 [S] each: of the image with the sentence, that of the caption where the model reads both alike, since it
        does not know the words that differ; and of the image with the caption.
    """
    saved = evaluation.saved
    device = torch.device(evaluation.place)
    used, owner = np.unique(owners, return_inverse=True)
    images = split.caption_image[np.concatenate([used, owners])]
    order = np.argsort(images, kind="stable")  # all that is said of an image follows each other
    columns = ["image_id", "text"]
    captions = split.captions.select(columns).take(pa.array(used))
    texts = pa.concat_tables([captions, sentences.select(columns)])
    texts = texts.take(pa.array(order))
    data = _open_texts(evaluation, parse, split, pictures, texts)
    warning = longer_captions({"captions and negatives": data})
    if warning:
        evaluation.warn(warning)

    unsorted = np.empty(len(order), dtype=np.float32)  # in the order of the rows before they were sorted by image
    with evaluation.job.reporter.task(f"scoring {what}", len(order), "captions and negatives") as task:
        for part in blocks(len(order), evaluation.block):
            rows, image = np.unique(data.caption_image[part], return_inverse=True)
            if embeddings is None:
                encoded_images = saved.model.encode_images(data.images(rows).to(device))
            else:
                encoded_images = ImageEncoding(torch.from_numpy(embeddings[rows]).to(device))
            encoded_texts = saved.model.encode_texts(data.texts(part).to(device))
            image_rows = torch.from_numpy(image).to(device)
            text_rows = torch.arange(len(part))
            scores = saved.model.score_at(encoded_images, encoded_texts, image_rows, text_rows)
            unsorted[order[part]] = scores.float().cpu().numpy()
            task.advance(len(part))
    caption_scores = unsorted[owner]
    scores = unsorted[len(used) :]
    if parse is not None:
        return scores, caption_scores  # equal tokens may have other phrases

    place = np.argsort(order)
    for part in blocks(len(owners), evaluation.block):
        caption = data.texts(place[owner[part]])
        sentence = data.texts(place[len(used) + part])
        width = min(caption.tokens.shape[1], sentence.tokens.shape[1])
        is_token = torch.arange(width) < caption.lengths[:, None]
        is_other = caption.tokens[:, :width] != sentence.tokens[:, :width]
        differs = (is_token & is_other).any(dim=1)
        differs |= caption.lengths != sentence.lengths
        scores[part] = np.where(differs.numpy(), scores[part], caption_scores[part])
    return scores, caption_scores


def _open_texts(
    evaluation: EvaluatedModel,
    parse: ParseTexts | None,
    split: Split,
    pictures: SplitImages,
    texts: pa.Table,
) -> SplitData:
    """Open texts as the model reads them: as the captions of a split, with phrases where a parser is given."""
    saved = evaluation.saved
    ids = [str(row) for row in range(len(texts))]
    words = [tokenize(text) for text in texts["text"].to_pylist()]
    texts = texts.append_column("caption_id", pa.array(ids, pa.string()))
    tokens = pa.array(words, pa.list_(pa.string()))
    texts = texts.append_column("tokens", tokens)
    if parse is None:
        captions = Split(split.name, split.images, texts)
        return open_split(captions, pictures, saved.tokens, saved.settings, saved.images)
    phrases = CaptionPhrases.read(parse(texts), saved.settings.max_words)
    # Other images have no scene graph in the file.
    is_described = pc.field("image_id").isin(texts["image_id"].combine_chunks())
    captions = Split(split.name, split.images.filter(is_described), texts)
    return open_split(captions, pictures, saved.tokens, saved.settings, phrases=phrases)
