"""The papers that methods and backbones come from, as BibTeX cites them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Paper:
    """A paper as BibTeX cites it.

    Attributes:
        kind: of entry, such as `inproceedings`.
        key: that it is cited by.
        title: with the capitals that are to be kept.
        authors: given name first.
        fields: others, by their BibTeX name.
    """

    kind: str
    key: str
    title: str
    authors: tuple[str, ...]
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def bibtex(self) -> str:
        """The entry, without a line break at its end."""
        values = {"title": f"{{{self.title}}}", "author": " and ".join(self.authors), **self.fields}
        lines = [f"  {name} = {{{value}}}," for name, value in values.items()]
        return "\n".join([f"@{self.kind}{{{self.key},", *lines, "}"])


VSEPP = Paper(
    "inproceedings",
    "faghri2018vsepp",
    "VSE++: Improving Visual-Semantic Embeddings with Hard Negatives",
    ("Fartash Faghri", "David J. Fleet", "Jamie Ryan Kiros", "Sanja Fidler"),
    {"booktitle": "Proceedings of the British Machine Vision Conference (BMVC)", "year": "2018"},
)
VSE_C = Paper(
    "article",
    "shi2018contrastive",
    "Learning Visually-Grounded Semantics from Contrastive Adversarial Samples",
    ("Haoyue Shi", "Jiayuan Mao", "Tete Xiao", "Yuning Jiang", "Jian Sun"),
    {"journal": "arXiv preprint arXiv:1806.10348", "year": "2018"},
)
VSRN = Paper(
    "inproceedings",
    "li2019vsrn",
    "Visual Semantic Reasoning for Image-Text Matching",
    ("Kunpeng Li", "Yulun Zhang", "Kai Li", "Yuanyuan Li", "Yun Fu"),
    {
        "booktitle": "Proceedings of the IEEE International Conference on Computer Vision (ICCV)",
        "pages": "4654--4662",
        "year": "2019",
    },
)
SCAN = Paper(
    "inproceedings",
    "lee2018scan",
    "Stacked Cross Attention for Image-Text Matching",
    ("Kuang-Huei Lee", "Xi Chen", "Gang Hua", "Houdong Hu", "Xiaodong He"),
    {
        "booktitle": "Proceedings of the European Conference on Computer Vision (ECCV)",
        "pages": "201--216",
        "year": "2018",
    },
)
BFAN = Paper(
    "inproceedings",
    "liu2019bfan",
    "Focus Your Attention: A Bidirectional Focal Attention Network for Image-Text Matching",
    ("Chunxiao Liu", "Zhendong Mao", "An-An Liu", "Tianzhu Zhang", "Bin Wang", "Yongdong Zhang"),
    {
        "booktitle": "Proceedings of the 27th ACM International Conference on Multimedia",
        "pages": "3--11",
        "year": "2019",
    },
)
UNITER = Paper(
    "inproceedings",
    "chen2020uniter",
    "UNITER: Universal Image-Text Representation Learning",
    (
        "Yen-Chun Chen",
        "Linjie Li",
        "Licheng Yu",
        "Ahmed El Kholy",
        "Faisal Ahmed",
        "Zhe Gan",
        "Yu Cheng",
        "Jingjing Liu",
    ),
    {"booktitle": "European Conference on Computer Vision (ECCV)", "pages": "104--120", "year": "2020"},
)
AOQ = Paper(
    "inproceedings",
    "chen2020aoq",
    "Adaptive Offline Quintuplet Loss for Image-Text Matching",
    ("Tianlang Chen", "Jiajun Deng", "Jiebo Luo"),
    {"booktitle": "European Conference on Computer Vision (ECCV)", "pages": "549--565", "year": "2020"},
)
SSAMT = Paper(
    "inproceedings",
    "fan2022ssamt",
    "Constructing Phrase-level Semantic Labels to Form Multi-Grained Supervision for Image-Text Retrieval",
    (
        "Zhihao Fan",
        "Zhongyu Wei",
        "Zejun Li",
        "Siyuan Wang",
        "Haijun Shan",
        "Xuanjing Huang",
        "Jianqing Fan",
    ),
    {
        "booktitle": "International Conference on Multimedia Retrieval (ICMR)",
        "year": "2022",
        "doi": "10.1145/3512527.3531368",
    },
)
TAGS_DC = Paper(
    "inproceedings",
    "fan2022tagsdc",
    "Negative Sample is Negative in Its Own Way: Tailoring Negative Sentences for Image-Text Retrieval",
    ("Zhihao Fan", "Zhongyu Wei", "Zejun Li", "Siyuan Wang", "Xuanjing Huang", "Jianqing Fan"),
    {
        "booktitle": "Findings of the Association for Computational Linguistics: NAACL 2022",
        "pages": "2667--2678",
        "year": "2022",
    },
)
FNE = Paper(
    "inproceedings",
    "li2023fne",
    "Your Negative May not Be True Negative: Boosting Image-Text Matching with False Negative Elimination",
    ("Haoxuan Li", "Yi Bin", "Junrong Liao", "Yang Yang", "Heng Tao Shen"),
    {
        "booktitle": "Proceedings of the 31st ACM International Conference on Multimedia",
        "doi": "10.1145/3581783.3612101",
        "year": "2023",
    },
)
ASCL = Paper(
    "inproceedings",
    "gong2024ascl",
    "AsCL: An Asymmetry-sensitive Contrastive Learning Method for Image-Text Retrieval with Cross-Modal Fusion",
    ("Ziyu Gong", "Chengcheng Mai", "Yihua Huang"),
    {
        "booktitle": "IEEE International Conference on Multimedia and Expo (ICME)",
        "eprint": "2405.10029",
        "archiveprefix": "arXiv",
        "year": "2024",
    },
)
CLIP = Paper(
    "inproceedings",
    "radford2021clip",
    "Learning Transferable Visual Models From Natural Language Supervision",
    (
        "Alec Radford",
        "Jong Wook Kim",
        "Chris Hallacy",
        "Aditya Ramesh",
        "Gabriel Goh",
        "Sandhini Agarwal",
        "Girish Sastry",
        "Amanda Askell",
        "Pamela Mishkin",
        "Jack Clark",
        "Gretchen Krueger",
        "Ilya Sutskever",
    ),
    {"booktitle": "Proceedings of the International Conference on Machine Learning (ICML)", "year": "2021"},
)
SIGLIP = Paper(
    "inproceedings",
    "zhai2023siglip",
    "Sigmoid Loss for Language Image Pre-Training",
    ("Xiaohua Zhai", "Basil Mustafa", "Alexander Kolesnikov", "Lucas Beyer"),
    {"booktitle": "Proceedings of the IEEE/CVF International Conference on Computer Vision (ICCV)", "year": "2023"},
)
NEG_CLIP = Paper(
    "inproceedings",
    "yuksekgonul2023negclip",
    "When and Why Vision-Language Models Behave like Bags-Of-Words, and What to Do About It?",
    ("Mert Yuksekgonul", "Federico Bianchi", "Pratyusha Kalluri", "Dan Jurafsky", "James Zou"),
    {"booktitle": "International Conference on Learning Representations (ICLR)", "year": "2023"},
)
ANCE = Paper(
    "inproceedings",
    "xiong2021ance",
    "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text Retrieval",
    (
        "Lee Xiong",
        "Chenyan Xiong",
        "Ye Li",
        "Kwok-Fung Tang",
        "Jialin Liu",
        "Paul N. Bennett",
        "Junaid Ahmed",
        "Arnold Overwijk",
    ),
    {"booktitle": "Proceedings of the International Conference on Learning Representations (ICLR)", "year": "2021"},
)
NV_RETRIEVER = Paper(
    "article",
    "moreira2024nvretriever",
    "NV-Retriever: Improving text embedding models with effective hard-negative mining",
    (
        "Gabriel de Souza P. Moreira",
        "Radek Osmulski",
        "Mengyao Xu",
        "Ronay Ak",
        "Benedikt Schifferer",
        "Even Oldridge",
    ),
    {"journal": "arXiv preprint arXiv:2407.15831", "year": "2024"},
)
LORA = Paper(
    "inproceedings",
    "hu2022lora",
    "LoRA: Low-Rank Adaptation of Large Language Models",
    (
        "Edward J. Hu",
        "Yelong Shen",
        "Phillip Wallis",
        "Zeyuan Allen-Zhu",
        "Yuanzhi Li",
        "Shean Wang",
        "Lu Wang",
        "Weizhu Chen",
    ),
    {"booktitle": "International Conference on Learning Representations (ICLR)", "year": "2022"},
)
LIT = Paper(
    "inproceedings",
    "zhai2022lit",
    "LiT: Zero-Shot Transfer with Locked-image text Tuning",
    (
        "Xiaohua Zhai",
        "Xiao Wang",
        "Basil Mustafa",
        "Andreas Steiner",
        "Daniel Keysers",
        "Alexander Kolesnikov",
        "Lucas Beyer",
    ),
    {
        "booktitle": "Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)",
        "year": "2022",
    },
)
WISE_FT = Paper(
    "inproceedings",
    "wortsman2022wiseft",
    "Robust fine-tuning of zero-shot models",
    (
        "Mitchell Wortsman",
        "Gabriel Ilharco",
        "Jong Wook Kim",
        "Mike Li",
        "Simon Kornblith",
        "Rebecca Roelofs",
        "Raphael Gontijo-Lopes",
        "Hannaneh Hajishirzi",
        "Ali Farhadi",
        "Hongseok Namkoong",
        "Ludwig Schmidt",
    ),
    {
        "booktitle": "Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)",
        "year": "2022",
    },
)
