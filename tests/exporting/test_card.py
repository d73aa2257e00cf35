"""The model card: what the hub reads of it, its table, and the papers that it cites."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from itrpipe.config import load_declaration
from itrpipe.evaluation.protocols import PROTOCOLS
from itrpipe.exporting.card import Card, metric_title, render
from itrpipe.exporting.citations import BACKBONES, METHODS, PAPERS, bibliography, papers_of
from itrpipe.methods.registry import methods
from itrpipe.models.registry import backbone_family, backbones
from itrpipe.stages.train import backbones as with_variants

FULL = {"i2t_r1": {"value": 43.84, "low": 40.0, "high": 47.96}, "rsum": {"value": 400.0, "low": 390.0, "high": 410.0}}
CARD = Card(
    title="VSE++, AOQ, mine",
    run="aoq.vsepp",
    backbone="vsepp",
    conf="aoq",
    dataset="mine",
    split="test",
    license=None,
    embeds=True,
    reads="its features",
    results={"full": FULL, "oracle": {**FULL, "i2t_map_at_r": {"value": 5.0}}},
    level=0.95,
    counts={"train": (2000, 10000)},
    fingerprints={"train/aoq.vsepp-0123abcd": "0123abcd"},
    commands=("itrpipe train --method aoq",),
    trained="2026-01-31T23:59:59+00:00",
    versions={"itrpipe": "0.1.0", "torch": "2.8.0"},
    files={"model.safetensors": "weights"},
    papers=(PAPERS["aoq"],),
)


def test_a_table_has_every_metric_under_every_protocol() -> None:
    text = render(CARD)
    assert (
        "| metric | full | oracle |\n|---|---|---|\n| Image to text R@1 | 43.8 [40.0, 48.0] | 43.8 [40.0, 48.0] |\n"
        in text
    )
    assert "| Image to text mAP@R |  | 5.0 |\n| RSum | 400.0 [390.0, 410.0] |" in text
    assert "95 % bootstrap intervals" in text
    assert "- `oracle`: as `full`, with every true match counted as right.\n" in text


def test_the_hub_reads_every_protocol_as_results_of_its_own() -> None:
    data = ModelCard(render(CARD)).data
    found = {(each.dataset_config, each.metric_type): each.metric_value for each in data.eval_results or []}
    assert found == {
        ("full", "i2t_r1"): 43.84,
        ("full", "rsum"): 400.0,
        ("oracle", "i2t_r1"): 43.84,
        ("oracle", "i2t_map_at_r"): 5.0,
        ("oracle", "rsum"): 400.0,
    }
    assert data.model_name == "VSE++, AOQ, mine"
    assert data.tags == ["image-text-retrieval", "itrpipe", "vsepp", "aoq"]


def test_a_license_is_told_only_where_it_is_known() -> None:
    assert "license" not in render(CARD)
    assert ModelCard(render(replace(CARD, license="mit"))).data.license == "mit"


def test_a_method_named_after_its_backbone_is_one_tag() -> None:
    data = ModelCard(render(replace(CARD, backbone="ssamt", conf="ssamt"))).data
    assert data.tags == ["image-text-retrieval", "itrpipe", "ssamt"]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_is_explained(name: str) -> None:
    assert f"- `{name}`: {PROTOCOLS[name].description}.\n" in render(replace(CARD, results={name: FULL}))


def test_every_metric_of_a_ranking_has_a_title() -> None:
    import numpy as np

    from itrpipe.evaluation.protocols import evaluate

    names = evaluate("full", np.eye(3), np.arange(3))
    titles = {metric_title(name) for name in [*names, "t2i_map_at_r", "t2i_r_precision"]}
    assert len(titles) == len(names) + 2
    assert {"RSum", "Text to image R@10", "Image to text median rank", "Text to image R-Precision"} <= titles


# Citations


@pytest.mark.parametrize("conf", load_declaration("train").confs)
def test_every_training_has_a_paper(conf: str) -> None:
    confs, method = load_declaration("train").confs, conf
    while "method" not in confs[method]:
        method = confs[method]["extends"]
    for backbone in with_variants():
        assert papers_of(conf, confs[method]["method"], backbone_family(backbone))


def test_papers_are_named_by_methods_and_backbones_that_there_are() -> None:
    assert BACKBONES.keys() == set(backbones())
    assert METHODS.keys() <= {*methods(), *load_declaration("train").confs}
    assert {key for keys in (*METHODS.values(), *BACKBONES.values()) for key in keys} == PAPERS.keys()


def test_a_paper_of_method_and_backbone_is_cited_once() -> None:
    assert papers_of("triplet", "triplet", "vsepp") == [PAPERS["vsepp"]]
    assert papers_of("aoq-guarded", "aoq", "vsrn") == [PAPERS["aoq"], PAPERS["fne"], PAPERS["vsrn"]]
    assert papers_of("aoq-triplet", "aoq", "scan") == [PAPERS["aoq"], PAPERS["scan"]]


def test_bibtex_is_whole() -> None:
    text = bibliography(PAPERS.values())
    entries = re.findall(r"^@(\w+)\{([\w-]+),\n((?:  \w+ = \{.*\},\n)+)\}$", text, re.MULTILINE)
    assert len(entries) == len(PAPERS) == len({key for _, key, _ in entries})
    for kind, _, fields in entries:
        names = re.findall(r"^  (\w+) = ", fields, re.MULTILINE)
        assert names[:2] == ["title", "author"]
        assert {"inproceedings": {"booktitle", "year"}, "article": {"journal", "year"}, "misc": set()}[kind] <= {*names}
        assert all(line.count("{") == line.count("}") for line in fields.splitlines())
        assert text.isascii()
