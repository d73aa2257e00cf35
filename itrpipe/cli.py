"""The command line. Thin: it turns options into a plan and runs it; nothing heavy is imported before that."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from itrpipe import __version__
from itrpipe.errors import ItrpipeError, UsageError
from itrpipe.options import (
    BackboneOption,
    DataOption,
    DatasetOption,
    DeviceOption,
    DryRunOption,
    FeaturesOption,
    MethodOption,
    NoDepsOption,
    SeedOption,
    SetOption,
    encoders,
    mapping,
    whole_path,
    with_negatives,
)

INTERRUPTED = 130

app = typer.Typer(
    name="itrpipe",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Staged, disk-backed training of image-text retrieval models with better negatives.",
    epilog="The chain: prepare, extract, train, mine-negatives, train --method aoq, evaluate, report. "
    "To see all of it: itrpipe run demo",
)


@app.command()
def prepare(
    dataset: DatasetOption = "scenes",
    source: Annotated[Path | None, typer.Option("--source", help="Caption file or folder of the dataset.")] = None,
    format: Annotated[str | None, typer.Option("--format", help="Format, where it is not recognised.")] = None,
    train: Annotated[int | None, typer.Option("--train", help="scenes: training images.")] = None,
    val: Annotated[int | None, typer.Option("--val", help="scenes: validation images.")] = None,
    test: Annotated[int | None, typer.Option("--test", help="scenes: test images.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="scenes: seed.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a dataset with images that cannot be used.")] = False,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    dry_run: DryRunOption = False,
) -> None:
    """Read captions, check images.

    Images that are missing or do not decode are left out with their captions, listed, and make the exit code 7.

    Example: itrpipe prepare --dataset flickr30k --source /data/flickr30k
    """
    from itrpipe.commands import define_dataset, run_stage

    given = {"format": format, "train": train, "val": val, "test": test, "seed": seed}
    given["bad_images"] = "refuse" if strict else None
    definition, execution = define_dataset(data, dataset, source, _overrides(settings, given))
    run_stage(data, dataset, "prepare", execution, definition=definition, dry_run=dry_run)


@app.command()
def extract(
    dataset: DatasetOption = "scenes",
    features: Annotated[
        str | None, typer.Option("--features", "-f", help="Extractor, importer, A+B, or known features.")
    ] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Import these files instead of extracting.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Know the features by this name.")] = None,
    shard: Annotated[str | None, typer.Option("--shard", metavar="I/N", help="Extract one of N parts only.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first image that cannot be used.")] = False,
    map: Annotated[
        list[str] | None, typer.Option("--map", metavar="NAME=ARRAY", help="arrays: dataset=array in the file.")
    ] = None,
    ids: Annotated[Path | None, typer.Option("--ids", help="arrays: text file of image ids, one a line.")] = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Write visual features of every image as features.h5.

    \b
    Extractors (--features):
      frcnn     regions of torchvision's Faster R-CNN, trained on COCO
      butd      regions of the bottom-up-attention detector, trained on Visual Genome
      vit       patches and global vector of a vision transformer (ViT, DINOv2, CLIP, SigLIP)
      resnet    grid cells and global vector of a ResNet
      pixels    the images themselves, decoded and resized, for training end to end
      scenes    regions of the drawings of the embedded dataset
      frcnn+resnet  several in one file: regions of the first, global vector of the second

    \b
    Importers (--from recognises them; --features names one):
      precomp   folder of {train,dev,test}_ims.npy, as SCAN, VSRN and AOQ publish them
      butd-tsv  TSV files of the bottom-up-attention and LXMERT tools
      uniter    LMDB or npz folders of UNITER
      arrays    any .npy, .npz or HDF5 file, with --map and --ids

    \b
    On a cluster: run it with --shard 1/8 ... --shard 8/8, then once without --shard to join them.
    Images that cannot be used are left out, listed in manifest.json, and make the exit code 7.

    Example: itrpipe extract --dataset flickr30k --from /data/f30k_precomp
    """
    from itrpipe.commands import define_features, run_stage

    overrides = _overrides(settings, {"device": device, "shard": shard, "strict": strict or None, **mapping(map, ids)})
    definition, known, overrides = define_features(data, dataset, features, source, name, overrides)
    run_stage(data, dataset, "extract", overrides, conf=known, definition=definition, dry_run=dry_run, no_deps=no_deps)


@app.command()
def parse(
    dataset: DatasetOption = "scenes",
    backend: Annotated[
        str | None, typer.Option("--backend", help="rules, linkgrammar or spacy; without it rules.")
    ] = None,
    tagger: Annotated[str | None, typer.Option("--tagger", help="rules, foreign: hanta or lexicon.")] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Import this file of graphs instead.")] = None,
    format: Annotated[str | None, typer.Option("--format", help="Of that file, where it is not recognised.")] = None,
    show: Annotated[
        str | None, typer.Option("--show", metavar="CAPTION", help="Print the graph of one caption and end.")
    ] = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Write the scene graph of every caption.

    \b
    Backends (--backend):
      rules        written for captions, with a tagger of English words; needs no download
      linkgrammar  dependency parser of the system library liblink-grammar
      spacy        dependency parser of an installed model of spaCy
      foreign      graphs of FACTUAL, SPICE or others out of a file (--from)

    Example: itrpipe parse --show "A dog in a red sweater jumps over two logs"
    """
    from itrpipe.commands import run_stage

    if source is not None and backend not in (None, "foreign"):
        raise UsageError(f"--from imports graphs and --backend {backend} makes them; leave one of both out")
    conf = backend or ("foreign" if source else "rules")
    place = str(source.resolve()) if source else None
    overrides = _overrides(settings, {"tagger": tagger, "file": place, "format": format})
    if show is not None:
        from itrpipe.planning import Planner
        from itrpipe.progress import Reporter
        from itrpipe.stages.base import Need
        from itrpipe.stages.parse import print_graph

        print_graph(Planner(data, dataset, overrides).configure_checked(Need("parse", conf))[0], show, Reporter())
        return
    run_stage(data, dataset, "parse", overrides, conf=conf, dry_run=dry_run, no_deps=no_deps)


@app.command()
def train(
    method: MethodOption = "triplet",
    backbone: BackboneOption = None,
    negatives_from: Annotated[
        str | None, typer.Option("--negatives-from", help="aoq: backbone whose round one mines; scan, bfan: vsrn.")
    ] = None,
    negatives: Annotated[
        str | None, typer.Option("--negatives", help="triplet: synthetic adds the sentences of itrpipe synthesize.")
    ] = None,
    vision: Annotated[
        str | None, typer.Option("--vision", metavar="ID|FOLDER", help="dual-encoder: vision encoder, or random.")
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="ID|FOLDER", help="dual-encoder, ascl: text encoder, or random.")
    ] = None,
    dataset: DatasetOption = "scenes",
    features: FeaturesOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Train a model and embed every split; a model with cross-attention scores val and test instead.

    \b
    Methods (--method):
      triplet              round one: hardest negatives of the batch (VSE++)
      triplet-long         control: round one for the epochs of both rounds
      triplet-time         control: round one for the training time of both rounds
      aoq                  round two with mined negatives: adaptive offline quintuplet loss
      aoq-triplet          its Eq. 3: mined negatives as triplets
      aoq-quintuplet       its Eq. 4: without adaptive weights
      ssamt-intra          first phase of SSAMT: each side alone
      ssamt                its second phase: pairs, with labels of phrases
      itm                  the hardest of sampled candidates for every anchor (UNITER)
      pretrain             masked words and matching, before itm and tags where there are no published weights
      tags                 the same with sentences that the model writes in every step
      tags-dc              its second phase: which words of these are wrong, and what should stand there
      fne                  negatives drawn by their probability to be false, over a momentum memory
      fne-paper            the same as printed, where the released code does otherwise
      ascl                 captions that say more, less or something else than the image shows, as
                           positives and negatives
      aoq-guarded          round two that draws likely false negatives less often
      synthetic-triplet    round one with sentences of itrpipe synthesize too (--negatives synthetic)
    Ablations of AOQ, SSAMT, FNE and TAGS-DC:
      aoq-only-offline     no negatives of the batch
      aoq-online-quintuplet  pairs of the batch's negatives instead of mined ones
      aoq-positive-weight  weights by the positive's score
      aoq-fine-tune        started from round one
      ssamt-local, ssamt-global  without the loss of phrases, of fragments too
      ssamt-words, ssamt-words-local, ssamt-words-global  the same without phrases
      ssamt-intra-words    first phase of these
      fne-memory-only, fne-only, fne-neither  without the probability, the memory, both
      tags-words, tags-static, tags-discriminate  single words masked, sentences of synthesize, no correction
      ascl-no-positives, ascl-no-negatives, ascl-plain  without generated positives, negatives, both
      ascl-triplet         with the triplet loss
      itm-long             control: itm for the updates of both phases of tags-dc

    \b
    Backbones (--backbone):
      vsepp, vsepp-order   mean region, GRU (VSE++; order embeddings)
      vsrn                 region graph, GRUs, captioning
      scan, scan-t2i-avg   words attend to regions (LogSumExp, mean)
      scan-i2t, scan-i2t-avg  regions attend to words
      bfan, bfan-prob      attention both ways, on relevant fragments
      ssamt                phrases, words and regions in one Transformer
      uniter, uniter-large  words and regions in one BERT
      ascl                 regions, words and a vector of the whole image, fused pair by pair
      dual-encoder         any vision and text encoder of transformers, end to end from pixels (FNE)

    --vision and --text take any encoders of transformers, for all training steps of the chain; a joint model such as
    CLIP is given as both: --vision openai/clip-vit-base-patch32 --text openai/clip-vit-base-patch32

    Example: itrpipe train --method aoq --backbone vsrn --dataset scenes
    """
    from itrpipe.commands import run_stage

    if vision or (text and not method.startswith("ascl")):
        backbone = backbone or "dual-encoder"
    named = {"backbone": backbone, "features": features, "seed": seed, "device": device, "teacher": negatives_from}
    overrides = _overrides([*(settings or []), *encoders(vision, text)], named)
    method = with_negatives(method, negatives)
    run_stage(data, dataset, "train", overrides, conf=method, dry_run=dry_run, no_deps=no_deps)


@app.command("mine-negatives")
def mine_negatives(
    method: MethodOption = "triplet",
    backbone: BackboneOption = None,
    dataset: DatasetOption = "scenes",
    features: FeaturesOption = None,
    seed: SeedOption = None,
    engine: Annotated[str | None, typer.Option("--engine", help="torch or faiss.")] = None,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Drop captions that repeat one of the positive's.")
    ] = False,
    rescore_with: Annotated[
        str | None, typer.Option("--rescore-with", help="Second model that orders what was found, such as bfan.")
    ] = None,
    guard: Annotated[
        str | None, typer.Option("--guard", help="fne: write how likely each candidate is a false negative.")
    ] = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Find the hardest negatives of the whole training set.

    Windows, as in sentence-transformers: --set range_min= range_max= min_score= max_score= absolute_margin=
    relative_margin=. Approximate search: --engine faiss --set index=ivf num_lists= num_probes=.

    Example: itrpipe mine-negatives --method triplet --backbone vsrn
    """
    from itrpipe.commands import run_stage

    model = {"method": method, "backbone": backbone, "features": features, "seed": seed, "engine": engine}
    model |= {"drop_duplicates": drop_duplicates or None, "rescore_with": rescore_with, "guard": guard}
    run_stage(
        data,
        dataset,
        "mine_negatives",
        _overrides(settings, {**model, "device": device}),
        dry_run=dry_run,
        no_deps=no_deps,
    )


@app.command()
def synthesize(
    by: Annotated[str, typer.Option("--by", help="phrases, words or vse-c.")] = "phrases",
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Training of the model that writes; pretrain.")
    ] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", "-b", help="Model: uniter, uniter-large.")] = None,
    dataset: DatasetOption = "scenes",
    features: FeaturesOption = None,
    seed: SeedOption = None,
    language_model: Annotated[
        str | None, typer.Option("--language-model", metavar="ID|FOLDER", help="GPT-2 that measures perplexity.")
    ] = None,
    wordnet: Annotated[Path | None, typer.Option("--wordnet", help="vse-c: folder of a WordNet database.")] = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Write negative sentences for every training caption.

    \b
    Makers (--by):
      phrases  masks objects, attributes and relations; a UNITER that sees the image writes others (TAGS-DC)
      words    the same with single words masked
      vse-c    replaces nouns, numerals and relations by rules; needs no model

    Sentences that may be true of the image are dropped; of the others the hardest are kept (--set keep=).

    Example: itrpipe synthesize --dataset scenes
    """
    from itrpipe.commands import run_stage

    named = {"method": method, "backbone": backbone, "features": features, "seed": seed, "device": device}
    named |= {"language_model": whole_path(language_model), "wordnet": wordnet and str(wordnet.resolve())}
    run_stage(data, dataset, "synthesize", _overrides(settings, named), conf=by, dry_run=dry_run, no_deps=no_deps)


@app.command()
def evaluate(
    method: MethodOption = "triplet",
    backbone: BackboneOption = None,
    dataset: DatasetOption = "scenes",
    features: FeaturesOption = None,
    seed: SeedOption = None,
    ensemble_with: Annotated[
        list[str] | None,
        typer.Option(
            "--ensemble-with",
            metavar="[METHOD.]BACKBONE[.sN]",
            help="Average its scores with those of this model; repeatable.",
        ),
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="test, val or train.")] = None,
    rerank: Annotated[
        int | None, typer.Option("--rerank", metavar="K", help="ssamt: score only K candidates of a query in full.")
    ] = None,
    eccv: Annotated[
        bool, typer.Option("--eccv", help="coco: also with the matches of ECCV Caption and CxC (itrpipe[eccv]).")
    ] = False,
    canary: Annotated[
        bool, typer.Option("--canary", help="Score again with the images taken away: recall must fall to chance.")
    ] = False,
    device: DeviceOption = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Measure a trained model, or the mean of several, on a split.

    A further model is named by its backbone and what else differs: vsrn.s1 is seed 1, aoq.vsrn another method.

    --canary scores the split again, with every image replaced by another one and with noise for images, writes
    canary.json, and fails where recall is not within three standard deviations of chance.

    Example: itrpipe evaluate --method aoq --backbone vsrn
    """
    from itrpipe.canary import refuse_ensembles, release_canary
    from itrpipe.commands import run_stage
    from itrpipe.progress import Reporter

    if canary:
        refuse_ensembles(ensemble_with, rerank)
    model = {"method": method, "backbone": backbone, "features": features, "seed": seed, "split": split}
    model |= {"ensemble_with": ensemble_with or None, "rerank": rerank, "device": device}
    model |= {"eccv": eccv or None}
    folder = run_stage(data, dataset, "evaluate", _overrides(settings, model), dry_run=dry_run, no_deps=no_deps)
    if canary and not dry_run:
        release_canary(folder, device, Reporter())


@app.command()
def explain(
    image: Annotated[str, typer.Option("--image", metavar="ID|FILE", help="Image of the dataset, or a photograph.")],
    caption: Annotated[str, typer.Option("--caption", help="Any sentence.")],
    method: MethodOption = "tags-dc",
    backbone: BackboneOption = None,
    dataset: DatasetOption = "scenes",
    features: FeaturesOption = None,
    seed: SeedOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every word.")] = False,
    device: DeviceOption = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
) -> None:
    """Show which words of a caption do not belong to an image, and what should stand there.

    Words are coloured by the probability that they do not match the image; those above one half carry their number and
    are replaced in the corrected sentence. The match is the probability that the whole sentence belongs to the image.
    This takes a model that learned to discriminate and correct words: tags-dc. An image is named by its id or file; a
    photograph that is no part of the dataset is read by the extractor of the dataset's features.

    Example: itrpipe explain --image test-000000 --caption "a cat on a red roof"
    """
    from itrpipe.explain import explain as explain_caption

    named = {"backbone": backbone, "features": features, "seed": seed, "device": device}
    overrides = _overrides(settings, named)
    explain_caption(data, dataset, image, caption, method, overrides, no_deps=no_deps, as_json=as_json)


@app.command()
def report(
    dataset: DatasetOption = "scenes",
    settings: SetOption = None,
    data: DataOption = Path("data"),
    dry_run: DryRunOption = False,
) -> None:
    """Write one HTML page over all evaluated runs of a dataset.

    Example: itrpipe report --dataset scenes
    """
    from itrpipe.commands import report_dataset

    report_dataset(data, dataset, _overrides(settings, {}), dry_run=dry_run)


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="Name in stages/recipes/ or path of a recipe.")],
    source: Annotated[
        Path | None, typer.Option("--source", help="Folder of the dataset, where the recipe needs one.")
    ] = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    dry_run: DryRunOption = False,
) -> None:
    """Run a whole recipe.

    Example: itrpipe run demo
    """
    from itrpipe.recipes import run_recipe

    run_recipe(data, recipe, source, _overrides(settings, {}), dry_run=dry_run)


@app.command()
def status(
    dataset: Annotated[str | None, typer.Option("--dataset", "-d", help="Only this dataset.")] = None,
    data: DataOption = Path("data"),
    verify: Annotated[bool, typer.Option("--verify", help="Also compare content hashes.")] = False,
) -> None:
    """List every artifact.

    Example: itrpipe status --dataset scenes
    """
    from itrpipe.upkeep import print_status

    print_status(data, dataset, verify=verify)


@app.command()
def show(
    stage: Annotated[str, typer.Argument(help="Stage, such as train.")],
    conf: Annotated[str | None, typer.Argument(help="Configuration, such as aoq; all are listed without it.")] = None,
    backbone: BackboneOption = None,
    dataset: DatasetOption = "scenes",
    settings: SetOption = None,
    data: DataOption = Path("data"),
) -> None:
    """Print a configuration with the origin of every value.

    Example: itrpipe show train aoq --backbone vsrn
    """
    from itrpipe.commands import show_configuration

    show_configuration(data, dataset, stage.replace("-", "_"), conf, _overrides(settings, {"backbone": backbone}))


@app.command()
def gc(
    dataset: DatasetOption = "scenes",
    damaged: Annotated[bool, typer.Option("--damaged", help="Remove damaged artifacts only.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Find damage by content hashes too.")] = False,
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Also all but the newest settings of a run.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: DataOption = Path("data"),
) -> None:
    """Remove interrupted, damaged and unused artifacts after asking; evaluated models stay.

    Example: itrpipe gc --dataset scenes
    """
    from itrpipe.upkeep import collect_garbage

    ask = None if yes else typer.confirm
    collect_garbage(data, dataset, damaged_only=damaged, verify=verify, superseded_too=superseded, ask=ask)


@app.command()
def doctor(data: DataOption = Path("data")) -> None:
    """Check versions, device, FAISS, disk and memory.

    Example: itrpipe doctor
    """
    from itrpipe.doctor import examine

    if not examine(data):
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"itrpipe {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point: runs a command and turns a user's error into one line and an exit code."""
    # Read when torch is loaded. OpenMP threads that spin for long between two small operations stand still on a
    # machine with other work (a hundred times slower was measured); threads that do not spin at all lose a third.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except ItrpipeError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except SystemExit as leaving:
        # Typer turns an interrupt into this exit code and says nothing.
        if leaving.code == INTERRUPTED:
            typer.echo("interrupted; the same command goes on where it stopped", err=True)
        raise


def _interrupt(number: int, frame: object) -> None:
    """A batch system's SIGTERM ends a run like Ctrl-C."""
    raise KeyboardInterrupt


def _overrides(assignments: list[str] | None, named: dict[str, Any]) -> list:
    """`--set` assignments and the named options that were given, as overrides of the requested step."""
    from itrpipe.planning import Override, parse_override

    given = [Override(None, key, value) for key, value in named.items() if value is not None]
    overrides = [*given, *map(parse_override, assignments or [])]
    seen: dict[tuple, Any] = {}
    for item in overrides:
        if seen.setdefault((item.scope, item.key), item.value) != item.value:
            raise UsageError(f"{item.key} is given twice with different values")
    return overrides
