"""Declarations, their layers, and that every declared value is read by a settings class."""

from __future__ import annotations

import copy
import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

import itrpipe
from itrpipe import cli as command_line
from itrpipe import config
from itrpipe.config import (
    DATASET_SELECTORS,
    Declaration,
    Override,
    Resolved,
    Settings,
    bind,
    complete_key,
    declared_stages,
    leaves,
    load_declaration,
    parse_override,
    resolve,
    scoped_override,
    setting_keys,
)
from itrpipe.engine.run import MapExecution, SharedExecution
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.models.declaration import backbone_names
from itrpipe.pipeline.planning import Planner
from itrpipe.stages.base import Need

OTHER_DATASET = "holiday-photos"
NAMES = st.text(st.characters(categories=["Ll", "Nd"], include_characters="_"), min_size=1, max_size=8)
SCALARS = st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.text(max_size=9))
TABLES = st.recursive(
    st.dictionaries(NAMES, SCALARS, min_size=1, max_size=4),
    lambda inner: st.dictionaries(NAMES, st.one_of(SCALARS, inner), min_size=1, max_size=4),
    max_leaves=12,
)

PROSE = {"title", "description"}


class Loss(Settings):
    margin: float = Field(default=0.2, ge=0)


class Example(Settings):
    epochs: int = Field(ge=1)
    rate: float
    loss: Loss


def declaration(**tables: Any) -> Declaration:
    tables = {"defaults": {}, "execution": {}, "confs": {"aoq": {}}} | tables
    return Declaration(stage="train", path=Path("4_train.toml"), **tables)


def resolved_by(tables: dict[str, Any], **chosen: Any) -> Resolved:
    return resolve(declaration(**tables), "aoq", backbones=("vsepp", "vsrn"), **chosen)


# Layers

KNOWN = ("vsepp", "vsrn", "vsrn-wide")
OF_BOTH = {
    "vsrn": {"epochs": 1, "rate": 1.0, "coco": {"epochs": 2, "rate": 2.0}},
    "vsrn-wide": {"rate": 3.0},
    "coco": {"epochs": 4, "rate": 4.0, "vsepp": {"epochs": 5}},
}


def test_later_layers_win_and_are_remembered_as_origin() -> None:
    tables = {
        "defaults": {"epochs": 1, "rate": 1.0, "loss": {"margin": 0.1}, "vsrn": {"epochs": 2, "coco": {"epochs": 3}}},
        "confs": {"aoq": {"loss": {"margin": 0.4}, "vsrn": {"rate": 5.0}}},
    }
    before = copy.deepcopy(tables)
    plain = resolved_by(tables, backbone="vsepp")
    assert plain.values == {"epochs": 1, "rate": 1.0, "loss": {"margin": 0.4}}
    assert plain.origins == {
        "epochs": "4_train.toml [defaults]",
        "rate": "4_train.toml [defaults]",
        "loss.margin": "4_train.toml [conf.aoq]",
    }
    chosen = resolved_by(tables, backbone="vsrn", dataset="coco")
    assert chosen.values == {"epochs": 3, "rate": 5.0, "loss": {"margin": 0.4}}
    assert chosen.origins["epochs"] == "4_train.toml [defaults.vsrn.coco]"
    assert chosen.origins["rate"] == "4_train.toml [conf.aoq.vsrn]"
    over = [({"epochs": 9}, "dataset.json"), ({"epochs": 10, "loss.margin": 0}, "command line")]
    final = resolved_by(tables, backbone="vsrn", dataset="coco")
    for layer, origin in over:
        final.merge(layer, origin)
    assert (final.values["epochs"], final.values["loss"]["margin"]) == (10, 0)
    assert final.origins["epochs"] == final.origins["loss.margin"] == "command line"
    assert tables == before


@pytest.mark.parametrize(
    ("backbone", "dataset", "expected"),
    [
        ("vsrn", "coco", {"epochs": 2, "rate": 2.0}),
        ("vsrn", None, {"epochs": 1, "rate": 1.0}),
        ("vsepp", "coco", {"epochs": 5, "rate": 4.0}),
        ("vsepp", None, {}),
        ("vsrn-wide", "coco", {"epochs": 2, "rate": 3.0}),  # a variant takes what its backbone has, and its own
        (None, "coco", {"epochs": 4, "rate": 4.0}),
    ],
)
def test_what_is_said_of_a_backbone_on_a_dataset_outweighs_what_is_said_of_either(
    backbone: str | None, dataset: str | None, expected: dict[str, Any]
) -> None:
    declared = declaration(defaults=OF_BOTH)
    assert resolve(declared, "aoq", backbones=KNOWN, backbone=backbone, dataset=dataset).values == expected


def test_a_configuration_that_extends_another_comes_after_it_and_is_named_in_the_origins() -> None:
    tables = {
        "defaults": {"epochs": 1},
        "confs": {
            "base": {"shown_as": "Base", "loss": {"margin": 0.1}, "vsrn": {"epochs": 2, "rate": 2.0}},
            "aoq": {"extends": "base", "epochs": 3},
        },
    }
    resolved = resolved_by(tables, backbone="vsrn")
    assert resolved.values == {"epochs": 3, "rate": 2.0, "loss": {"margin": 0.1}}
    assert resolved.origins["loss.margin"] == "4_train.toml [conf.base]"
    for base in ("nowhere", "aoq"):
        with pytest.raises(DataError, match=rf"\[conf.aoq\] extends '{base}', which is no other configuration"):
            resolved_by({"confs": {"aoq": {"extends": base}}})


def test_epochs_may_be_those_of_other_configurations() -> None:
    tables = {
        "defaults": {"epochs": 30, "decay_every": 15, "decay_at": [3], "vsrn": {"coco": {"epochs": 20}}},
        "confs": {"base": {}, "second": {"epochs": 10}, "aoq": {"epochs": "base + 2 second", "vsepp": {"epochs": 7}}},
    }
    found = resolved_by(tables, backbone="vsrn")
    assert found.values == {"epochs": 50, "decay_every": 25, "decay_at": [5]}
    assert found.origins["epochs"] == "4_train.toml [conf.aoq]"
    assert resolved_by(tables, backbone="vsrn", dataset="coco").values["epochs"] == 40
    assert resolved_by(tables, backbone="vsepp").values == {"epochs": 7, "decay_every": 15, "decay_at": [3]}


@pytest.mark.parametrize("rule", ["twice", "base +", "base - second", "aoq", "0 base", ""])
def test_epochs_of_another_form_are_refused(rule: str) -> None:
    tables = {"defaults": {"epochs": 30}, "confs": {"base": {}, "second": {}, "aoq": {"epochs": rule}}}
    with pytest.raises((DataError, UsageError), match=r"such as|method 'twice' is not declared"):
        resolved_by(tables)


@pytest.mark.parametrize("dataset", ["scenes", "flickr30k", "coco", "mine"])
def test_the_longer_round_one_takes_the_epochs_of_both_rounds(data_root: Path, dataset: str) -> None:
    for backbone in sorted(backbone_names()):
        first, second, control = (
            configured(data_root, conf, f"backbone={backbone}", dataset=dataset)["epochs"]
            for conf in ("triplet", "aoq", "triplet-long")
        )
        assert control == first + second, backbone


@pytest.mark.parametrize(
    ("conf", "dataset", "more", "patience"),
    [
        ("triplet", "mine", (), 5),
        ("triplet", "mine", ("schedule=cosine",), 0),
        ("triplet", "mine", ("schedule=cosine", "patience=3"), 3),
        ("clip-finetune", "mine", (), 0),
        *(("triplet", dataset, (), 0) for dataset in ("scenes", "flickr30k", "coco")),
    ],
)
def test_training_ends_where_validation_is_flat_unless_a_recipe_or_a_schedule_has_its_epochs(
    data_root: Path, conf: str, dataset: str, more: tuple[str, ...], patience: int
) -> None:
    assert configured(data_root, conf, *more, dataset=dataset)["patience"] == patience


@given(TABLES)
def test_leaves_and_merging_are_inverse(table: dict[str, Any]) -> None:
    rebuilt = Resolved()
    for key, value in leaves(table):
        rebuilt.merge({key: value}, "layer")
    assert rebuilt.values == table


# Binding


def bound(values: dict[str, Any], origin: str = "command line") -> Example:
    resolved = Resolved()
    resolved.merge({"epochs": 1, "rate": 1.0, "loss": {"margin": 0.2}}, "4_train.toml [defaults]")
    resolved.merge(values, origin)
    return bind(Example, resolved, "train aoq")


def configured(root: Path, conf: str, *texts: str, dataset: str = "scenes") -> dict[str, Any]:
    """Settings of a training."""
    planner = Planner(root, dataset, list(map(parse_override, texts)))
    return planner.configure(Need("train", conf))[0].model_dump()


@pytest.mark.parametrize(
    ("values", "origin", "said"),
    [
        ({"epochs": 0}, "command line", r"train aoq: epochs = 0 \(from command line\): .*greater than or equal to 1"),
        ({"loss.margin": -1}, "recipe demo", r"loss\.margin = -1 \(from recipe demo\)"),
        ({"epoch": 1}, "command line", r"unknown setting 'epoch' \(from command line\); did you mean 'epochs'\?"),
        ({"loss.margn": 1}, "command line", r"did you mean 'loss.margin'\?"),
        ({"margn": 1}, "command line", r"did you mean .*margin'\?"),
    ],
)
def test_a_value_that_cannot_be_and_an_unknown_setting_name_their_origin(
    values: dict[str, Any], origin: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        bound(values, origin)


def test_a_missing_value_says_how_to_give_it() -> None:
    assert bound({"epochs": 3}).epochs == 3
    with pytest.raises(UsageError, match="train aoq: setting 'epochs' has no value; give --set epochs="):
        bind(Example, Resolved({"rate": 1.0, "loss": {}}, {}), "train aoq")


@pytest.mark.parametrize(
    ("conf", "text", "said"),
    [
        ("aoq", "beta=nan", r"loss\.beta = .*from command line"),
        ("aoq", "beta=inf", r"loss\.beta = .*from command line"),
        ("contrastive", 'loss.negatives=["mined", "minde"]', r"loss\.negatives\..* = 'minde' \(from command line\)"),
        ("triplet", "loss=3", "loss"),
        ("triplet", "epochs.x=3", "epochs"),
        ("triplet", "device=tpu", r"device = 'tpu' \(from command line\)"),
        ("triplet", "trian.alpha=3", r"did you mean 'train'\?"),
        ("triplet", "zzz=3", "; `itrpipe show train triplet` lists all"),
        ("aoq", "epochs=1", r"epochs = 1 all fall within the first 1 .*aoq\.loss\.sum_epochs=0"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line(data_root: Path, conf: str, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"^[^\n]*{said}[^\n]*$"):
        configured(data_root, conf, text)


def test_short_keys_reach_settings_whose_default_is_in_the_code(data_root: Path) -> None:
    found = configured(data_root, "aoq", "teacher=vsepp", "region_l2_axis=channels", "epochs=1", "loss.sum_epochs=0")
    assert (found["loss"]["teacher"], found["model"]["region_l2_axis"], found["epochs"]) == ("vsepp", "channels", 1)


def test_a_backbone_may_be_written_as_people_write_it(data_root: Path) -> None:
    found = [configured(data_root, "triplet", f"backbone={name}") for name in ("vsepp", "vse++", "VSE++")]
    assert found[0] == found[1] == found[2]


# Assignments


@given(st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False)))
def test_assigned_numbers_keep_their_type(value: Any) -> None:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    parsed = parse_override(f"a.b={text}")
    assert (parsed.scope, parsed.key, parsed.value) == (None, "a.b", value)
    assert type(parsed.value) is type(value)


def test_assignments_that_are_not_toml_are_strings() -> None:
    assert parse_override("features=precomp") == Override(None, "features", "precomp")
    assert parse_override("selection=r1+r5") == Override(None, "selection", "r1+r5")
    assert parse_override('protocols=["full"]') == Override(None, "protocols", ["full"])
    assert parse_override("title=a=b") == Override(None, "title", "a=b")
    for text in ("epochs", "=3", " = 3"):
        with pytest.raises(UsageError, match="is not of the form key=value"):
            parse_override(text)


def test_short_keys_are_completed_and_ambiguous_ones_refused() -> None:
    known = {"epochs", "loss.margin", "model.dropout", "loss.dropout"}
    assert complete_key("margin", known) == "loss.margin"
    assert complete_key("epochs", known) == "epochs"
    assert complete_key("gin", known) == "gin"
    with pytest.raises(UsageError, match=r"--set dropout: ambiguous, could be loss\.dropout or model\.dropout"):
        complete_key("dropout", known)


def test_a_leading_stage_or_configuration_name_is_a_scope() -> None:
    assert parse_override("train.epochs=2") == Override("train", "epochs", 2)
    assert parse_override("mine-negatives.num_texts=2") == Override("mine_negatives", "num_texts", 2)
    assert parse_override("aoq.loss.alpha=0.5") == Override("aoq", "loss.alpha", 0.5)
    assert parse_override("loss.alpha=0.5") == Override(None, "loss.alpha", 0.5)
    assert scoped_override("aoq.alpha", 1, "recipe x") == Override("aoq", "alpha", 1, "recipe x")


def test_whether_an_override_is_read_is_told_by_what_it_says(data_root: Path) -> None:
    """Wherever it came from, and also where its value is a list."""
    given = [parse_override(text) for text in ("decay_at=[1]", "train.decay_at=[1]", "parse.tagger=lexicon")]
    planner = Planner(data_root, "scenes", given)
    planner.configure(Need("train", "triplet"))
    assert planner.read == {parse_override("decay_at=[1]"), parse_override("train.decay_at=[1]")}


def test_the_keys_of_a_class_are_those_of_its_settings(data_root: Path) -> None:
    for backbone in backbone_names():
        found, _, _ = Planner(data_root, "scenes", [Override(None, "backbone", backbone)]).configure(
            Need("train", "triplet")
        )
        assert {*setting_keys(type(found), found.model_dump())} == {key for key, _ in leaves(found.model_dump())}


# Files


def test_what_is_no_declaration_is_told_with_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "4_train.toml"
    monkeypatch.setattr(config, "declared_stages", lambda: {"train": path})
    for content, said in (
        (b"[defaults]\nepochs = = 3\n", r"4_train\.toml is not valid TOML: .*line 2"),
        (b"a = '\xff'", r"4_train\.toml is not valid TOML"),
        (b"# Trains.\n[default]\nepochs = 3\n[conf.x]\n", r"unknown table \[default\]; known are \[defaults\]"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=said):
            load_declaration.__wrapped__("train")
    with pytest.raises(MissingInputError, match=r"no such file: .*gone\.toml"):
        config.read_toml(tmp_path / "gone.toml")


@pytest.mark.parametrize("stage", declared_stages())
def test_every_configuration_binds_for_every_backbone_and_dataset(stage: str, data_root: Path) -> None:
    """An unknown key would be refused, so this also proves that every declared key is read."""
    confs = load_declaration(stage).confs
    assert confs
    for conf, table in confs.items():
        for dataset in (*DATASET_SELECTORS, OTHER_DATASET):
            for backbone in backbone_names() if conf == "triplet" else {None, *backbone_names()} & {None, *table}:
                overrides = [Override(None, "backbone", backbone)] if backbone else []
                Planner(data_root, dataset, overrides).configure(Need(stage, conf))


@pytest.mark.parametrize("stage", declared_stages())
def test_every_setting_without_a_default_is_declared(stage: str, data_root: Path) -> None:
    for conf in load_declaration(stage).confs:
        settings, execution, resolved = Planner(data_root, OTHER_DATASET).configure(Need(stage, conf))
        required = {name for name, each in type(settings).model_fields.items() if each.is_required()}
        assert required <= {key.partition(".")[0] for key in resolved.values}
        # Where parts are made is the same for every stage, with defaults of its own.
        known, shared = set(type(execution).model_fields), set(SharedExecution.model_fields)
        assert set(load_declaration(stage).execution) == known - shared
        assert known & shared in (set(), set(MapExecution.model_fields), shared)


def test_limits_defaults_and_flags_of_settings_are_those_that_were_recorded() -> None:
    found: dict[str, dict[str, Any]] = {}
    for module in pkgutil.walk_packages(itrpipe.__path__, "itrpipe."):
        names = vars(importlib.import_module(module.name)) if not module.name.endswith("__main__") else {}
        for each in names.values():
            if isinstance(each, type) and issubclass(each, Settings) and each.__module__ == module.name:
                forms = each.model_json_schema(by_alias=False).get("properties", {})
                forms = {name: {key: form[key] for key in form.keys() - PROSE} for name, form in forms.items()}
                found[f"{module.name.removeprefix('itrpipe.')}.{each.__name__}"] = {
                    name: forms.get(name, sorted(value) if isinstance(value, frozenset) else value)
                    for name, value in (dict.fromkeys(each.__annotations__) | vars(each)).items()
                    if name in forms or (name in each.__class_vars__ and isinstance(value, bool | frozenset))
                }
    assert found == json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))


# One word names five things


def test_every_stage_module_is_declared_and_every_declaration_has_a_module_and_a_command() -> None:
    folder = Path(command_line.__file__).parents[1] / "stages"
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    modules -= {"__init__", "base"}
    assert modules == set(declared_stages())
    commands: Any = vars(typer.main.get_command(command_line.app))["commands"]
    made_with_others = {"embeddings", "encode", "judge"}
    assert {stage.replace("_", "-") for stage in declared_stages()} - made_with_others <= set(commands)
    numbers = [int(path.stem.partition("_")[0]) for path in declared_stages().values()]
    assert numbers == sorted(set(numbers)), "in the order of the chain"


@pytest.mark.parametrize(
    ("backbone", "dataset", "expected"),
    [
        ("scan", "coco", {"cross_attention": "t2i", "aggregation": "LogSumExp", "lambda_softmax": 9, "lambda_lse": 6}),
        ("scan-t2i-avg", "flickr30k", {"cross_attention": "t2i", "aggregation": "Mean", "lambda_softmax": 9}),
        ("scan-i2t", "flickr30k", {"cross_attention": "i2t", "aggregation": "LogSumExp", "lambda_lse": 5}),
        ("scan-i2t", "coco", {"cross_attention": "i2t", "lambda_softmax": 4, "lambda_lse": 20}),
        ("scan-i2t-avg", "coco", {"cross_attention": "i2t", "aggregation": "Mean", "lambda_softmax": 4}),
        ("bfan", "coco", {"focal": "equal", "lambda_softmax": 20}),
        ("bfan-prob", "flickr30k", {"focal": "prob", "lambda_softmax": 20}),
        ("vsepp-order", "coco", {"measure": "order", "absolute_values": True}),
    ],
)
def test_variants_of_the_backbones_are_those_published(
    data_root: Path, backbone: str, dataset: str, expected: dict[str, Any]
) -> None:
    found = configured(data_root, "triplet", f"backbone={backbone}", dataset=dataset)
    assert expected.items() <= found["model"].items()


def test_a_run_that_would_start_from_itself_is_refused(defined: Path) -> None:
    overrides = [parse_override("train.start_from=triplet")]
    with pytest.raises(UsageError, match="train triplet would be made from itself; give it another start_from"):
        Planner(defined, "tiny", overrides).plan(Need("train", "aoq-fine-tune"))
