"""Judge pairs by scene graphs: how much of what the captions of two images say is said of both.

Terms are the objects, the attributes and the relations that captions name, as SPICE has them, by their lemmas.

Source: Anderson et al., "SPICE", ECCV 2016, section 3.2; for how they are compared see `itrpipe.judging.terms`.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.judging.material import Material
from itrpipe.judging.terms import TermsJudge
from itrpipe.scene_graph.build import parse_captions
from itrpipe.scene_graph.settings import ParseSettings
from itrpipe.scene_graph.stored import flattened, graphs_table

_ENDS = {
    "attributes": ("object",),
    "relations": ("subject", "object"),
}
"""Element -> fields that name the objects it is about."""


def build(model: str, material: Material, device: str, revision: str) -> TermsJudge:
    """Open the judge; captions without graphs are parsed by the rules."""
    graphs = material.graphs
    if graphs is None:
        settings = ParseSettings(tagger="hanta")
        graphs = graphs_table(parse_captions(settings, material.captions))
    objects_of, objects = flattened(graphs, "objects")
    lemmas = objects.field("lemma")
    captions = [objects_of.owners()]
    terms = [lemmas]
    for column, ends in _ENDS.items():
        elements_of, elements = flattened(graphs, column)
        owners = elements_of.owners()
        words = [elements.field("lemma")]
        for end in ends:
            places = objects_of.offsets[owners] + elements.field(end).to_numpy()
            words.append(lemmas.take(pa.array(places)))
        captions.append(owners)
        terms.append(pc.binary_join_element_wise(*words, "\t"))  # pyright: ignore[reportAttributeAccessIssue]
    return TermsJudge(material, np.concatenate(captions), pa.concat_arrays(terms))
