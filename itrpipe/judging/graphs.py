"""Judge pairs by scene graphs: how much of what the captions of two images say is said of both.

The facts of an image are the objects, the attributes and the relations that its captions name, by their lemmas. The
score of an image and a caption is F1, the share of common facts, of the image and the image that the caption belongs
to: as SPICE's, between images.

Shapes: P pairs, n captions, T captions in all.

Source: Anderson et al., "SPICE", ECCV 2016, section 3.2, without synonyms.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.judging.material import Material
from itrpipe.judging.terms import Terms
from itrpipe.scene_graph.build import parse_captions
from itrpipe.scene_graph.settings import ParseSettings
from itrpipe.scene_graph.stored import flattened, graphs_table

_BETWEEN = "\t"


def build(model: str, material: Material, device: str, revision: str) -> GraphsJudge:
    """Open the judge; captions without graphs are parsed by the rules."""
    graphs = material.graphs
    if graphs is None:
        graphs = graphs_table(parse_captions(ParseSettings(tagger="hanta"), material.captions))
    return GraphsJudge(graphs, material)


class GraphsJudge:
    """Compares the facts of captions.

    Args:
        graphs: T rows of `itrpipe.scene_graph.stored.GRAPH_SCHEMA`.
        material: whose captions belong to which image.
    """

    def __init__(self, graphs: pa.Table, material: Material) -> None:
        self._material = material
        captions, facts, size = _facts_of(graphs)
        ones = np.ones(len(facts))
        said = Terms.summed(captions, facts, ones, graphs.num_rows, size)
        self._captions = Terms(said.lists, np.ones_like(said.weights), size)
        groups = material.groups[said.lists.owners()]
        count = len(material.captions_of)
        times = Terms.summed(groups, said.lists.values, self._captions.weights, count, size)
        self._groups = Terms(times.lists, np.ones_like(times.weights), size)
        self._repeated = Terms(times.lists, (times.weights > 1).astype(np.float32), size)

    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return scores [P] float32 of rows [P] and [P].

        Raises:
            UsageError: an image has no captions.
        """
        self._material.require_captions(images)
        groups = self._material.groups[captions]
        common = self._groups.products(images, self._groups, groups)
        counts = self._groups.lists.counts
        return _f1(common, counts[images] + counts[groups])

    def own(self, captions: np.ndarray) -> np.ndarray:
        """Return F1 [n] float32 of captions and the others of their image; NaN where it has no others."""
        groups = self._material.groups[captions]
        common = self._repeated.products(groups, self._captions, captions)  # facts that another caption says, too
        # Facts of the caption and of the others together are those of the image, with common ones twice.
        scores = _f1(common, self._groups.lists.counts[groups] + common)
        scores[self._material.captions_of.counts[groups] < 2] = np.nan
        return scores


def _f1(common: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return F1 [P] float32 of common facts [P] and the facts of both sides [P]; 0 where there are none."""
    return (2 * common / np.maximum(counts, 1)).astype(np.float32)


def _facts_of(graphs: pa.Table) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the rows of captions and the numbers of their facts, [v] int64 each, and how many facts there are."""
    places, objects = flattened(graphs, "objects")
    lemmas = objects.field("lemma")
    captions = [places.owners()]
    facts = [lemmas]
    for column, ends in (("attributes", ("object",)), ("relations", ("subject", "object"))):
        lists, elements = flattened(graphs, column)
        owners = lists.owners()
        words = [elements.field("lemma")]
        for end in ends:
            rows = places.offsets[owners] + elements.field(end).to_numpy()
            words.append(lemmas.take(pa.array(rows)))
        captions.append(owners)
        facts.append(pc.binary_join_element_wise(*words, _BETWEEN))
    numbered = pa.chunked_array(facts).combine_chunks().dictionary_encode()
    return np.concatenate(captions), numbered.indices.to_numpy().astype(np.int64), len(numbered.dictionary)
