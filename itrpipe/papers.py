"""The papers of methods and backbones; their BibTeX entries are in `papers.bib`."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paper:
    """A paper as BibTeX cites it.

    Attributes:
        bibtex: its entry, without a line break at its end.
    """

    bibtex: str

    @property
    def key(self) -> str:
        """Return the key that it is cited by."""
        return self.bibtex.partition("{")[2].partition(",")[0]


_ENTRIES = Path(__file__).with_suffix(".bib").read_text(encoding="utf-8").strip().split("\n\n")
_PAPERS = {paper.key: paper for paper in map(Paper, _ENTRIES)}

VSEPP = _PAPERS["faghri2018vsepp"]
VSE_C = _PAPERS["shi2018contrastive"]
VSRN = _PAPERS["li2019vsrn"]
SCAN = _PAPERS["lee2018scan"]
BFAN = _PAPERS["liu2019bfan"]
UNITER = _PAPERS["chen2020uniter"]
AOQ = _PAPERS["chen2020aoq"]
SSAMT = _PAPERS["fan2022ssamt"]
TAGS_DC = _PAPERS["fan2022tagsdc"]
FNE = _PAPERS["li2023fne"]
ASCL = _PAPERS["gong2024ascl"]
CLIP = _PAPERS["radford2021clip"]
SIGLIP = _PAPERS["zhai2023siglip"]
NEG_CLIP = _PAPERS["yuksekgonul2023negclip"]
ANCE = _PAPERS["xiong2021ance"]
NCR = _PAPERS["huang2021ncr"]
NV_RETRIEVER = _PAPERS["moreira2024nvretriever"]
LORA = _PAPERS["hu2022lora"]
LIT = _PAPERS["zhai2022lit"]
WISE_FT = _PAPERS["wortsman2022wiseft"]
