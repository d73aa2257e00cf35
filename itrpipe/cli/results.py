"""What looks at trained models: evaluate, advise, explain, report, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from itrpipe.cli.app import app
from itrpipe.cli.options import (
    AnyModelOptions,
    DataOption,
    DatasetOption,
    DecisionsOption,
    DryRunOption,
    GivenOptions,
    ModelOptions,
    PhotosOption,
    SetOption,
    TrustOption,
    overrides_of,
    resolved,
    taking,
    was_given,
    whole_path,
)
from itrpipe.errors import UsageError

PairsOption = Annotated[
    str, typer.Option("--split", help="train: pairs of mined lists; test or val: of an evaluation's rankings.")
]
GuardOption = Annotated[
    str | None, typer.Option("--guard", help="fne: lists that say how likely each candidate is a false negative.")
]


@app.command()
@taking(GivenOptions)
def evaluate(
    given: GivenOptions,
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
    discriminate: Annotated[
        list[str] | None,
        typer.Option(
            "--discriminate",
            metavar="NAME[.METHOD][.sN]",
            help="Count the sentences of phrases, words or vse-c that score below their caption; repeatable.",
        ),
    ] = None,
    language_model: Annotated[
        str | None,
        typer.Option(
            "--language-model",
            metavar="ID|FOLDER",
            help="tags-dc: GPT-2 that measures the perplexity of sentences that it corrects.",
        ),
    ] = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            "--benchmark",
            metavar="NAME=FOLDER",
            help="Count the hard negatives of sugarcrepe, aro, winoground or local that score below their caption; "
            "scenes needs no folder; repeatable.",
        ),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            "--protocol",
            metavar="NAME",
            help="full, coco-1k, coco-5k; repeatable.",
        ),
    ] = None,
    decisions: DecisionsOption = None,
) -> None:
    """Measure a trained model, or the mean of several, on a split.

    A further model is named by its backbone and what else differs: vsrn.s1 is seed 1, aoq.vsrn another method.

    Sentences are named by what writes them, for --discriminate: phrases.s1 by the model of seed 1, phrases.tags by one
    of another training, vse-c by rules. They are made of the captions of the evaluated split.

    --benchmark sugarcrepe=FOLDER reads the published files of a benchmark and the images beside them, local=FOLDER a
    benchmark.csv, .json or .jsonl of your own with file, caption, negative and optionally category. --benchmark scenes
    edits the captions of the embedded dataset, so that every negative is known to be false.

    --decisions FILE also counts what people found to fit as right. --embeddings ranks with vectors that any model has
    made of the split: .npy, Parquet or HDF5. Their ids are those of --dataset; where none is named, these files and
    --owners are all that is needed.

    Example: itrpipe evaluate --method aoq --backbone vsrn
    """
    from itrpipe.commands.stages import run_stage
    from itrpipe.commands.trained import check_split

    given, definition = given.defined(split or "test")
    given.require_model()
    check_split(split)
    model = {"method": given.method, **given.model, "device": given.device, "split": split}
    model |= {"ensemble_with": ensemble_with or None, "rerank": rerank, "language_model": whole_path(language_model)}
    protocols = list(dict.fromkeys(protocol or ()))
    model |= {"eccv": eccv or None, "discriminate": discriminate or None, "protocols": protocols or None}
    parts = (each.partition("=") for each in benchmark or ())
    benchmarks = [f"{name}{equals}{whole_path(folder)}" for name, equals, folder in parts]
    model |= {"benchmark": benchmarks or None, "decisions": resolved(decisions)}
    run_stage(*given.where, "evaluate", given.overrides(**model), definition=definition, **given.how)


@app.command()
@taking(ModelOptions, no_deps=True)
def review(
    given: ModelOptions,
    split: PairsOption = "train",
    order: Annotated[
        str, typer.Option("--order", help="sample, guard (random ones), doubtful or harmful; see below.")
    ] = "sample",
    guard: GuardOption = None,
    merge: Annotated[
        list[Path] | None, typer.Option("--merge", metavar="FILE", help="Add the decisions of others; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell what people decided on the hardest candidates, and what share of them is false negatives.

    \b
    Orders (--order):
      sample    at random: what was judged so far tells the share of false negatives
      guard     at random among those that mining's guard takes for false negatives: its precision
      doubtful  the guard's probability nearest to one half first
      harmful   what scores farthest above its caption's own image first

    Decisions are in decisions.parquet beside the dataset's artifacts, one row for each judgement. Mining, evaluation
    and training read them with --decisions.

    Example: itrpipe review --backbone vsepp --merge from-ada.parquet
    """
    from itrpipe.commands.review import review as review_pairs

    wanted = {"split": split, "order": order, "merge": merge or ()}
    overrides = given.overrides(method=given.method, **given.model, device=given.device, guard=guard)
    review_pairs(*given.where, overrides, **wanted, **given.how, as_json=as_json)


@app.command()
@taking(AnyModelOptions, no_deps=True)
def serve(
    given: AnyModelOptions,
    photos: PhotosOption = None,
    split: PairsOption = "train",
    guard: GuardOption = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8765,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address alone.")] = False,
) -> None:
    """Open local pages to search and to judge the hardest candidates.

    Search finds images for a sentence or a photograph. Review shows candidates that may be false negatives: y fits, n
    does not, s unsure, u undo; every answer is written to decisions.parquet at once, see itrpipe review, and the page
    goes on where its reviewer stopped.

    --photos FOLDER searches photographs without captions, as itrpipe search does. The pages answer on this machine
    only; `ssh -L 8765:127.0.0.1:8765 MACHINE` shows those of another one. This takes `pip install 'itrpipe[serve]'`.

    Example: itrpipe serve --backbone vsepp --guard fne
    """
    from itrpipe.commands.review import serve as serve_pages
    from itrpipe.commands.review import serve_photographs

    how, device = {"port": port, "browser": not no_browser, **given.how}, given.device or "auto"
    if photos is not None:
        for option in (name for name, value in {"--split": split != "train", "--guard": guard}.items() if value):
            raise UsageError(f"{option} is for a dataset; leave it out with --photos")
        serve_photographs(given.data, photos, given.asked, device, **how)
        return
    if given.named is not None and given.known is None:
        raise UsageError(f"--model {given.named} is no named model; add --photos FOLDER to search photographs with it")
    overrides = given.overrides(method=given.method, **given.model, device=given.device, guard=guard)
    serve_pages(*given.where, split, overrides, device, **how)


@app.command()
@taking(ModelOptions, no_deps=True)
def advise(
    given: ModelOptions,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print every figure, of batches of other sizes, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every figure.")] = False,
) -> None:
    """Tell whether a second training is worth it, from the first training alone.

    It says what to do next and prints the command: train longer, mine, or mend the training first. Below stands how
    often the hardest negative of a batch, and of the whole training set, scores above the pair, and how many of these
    are correct matches. The test split is not looked at.

    Example: itrpipe advise --dataset scenes --backbone vsepp
    """
    from itrpipe.commands.advise import advise as advise_on

    given.require_model()
    overrides = given.overrides(of_training=True, **given.model, device=given.device)
    advise_on(*given.where, given.method, overrides, **given.how, verbose=verbose, as_json=as_json)


@app.command()
@taking(ModelOptions, method="tags-dc", no_deps=True)
def explain(
    given: ModelOptions,
    image: Annotated[str, typer.Option("--image", metavar="ID|FILE", help="Image of the dataset, or a photograph.")],
    caption: Annotated[str, typer.Option("--caption", help="Any sentence.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every word.")] = False,
) -> None:
    """Show which words of a caption do not belong to an image, and what should stand there.

    Words are coloured by the probability that they do not match the image; those above one half carry their number and
    are replaced in the corrected sentence. The match is the probability that the whole sentence belongs to the image.
    This takes a model that learned to discriminate and correct words: tags-dc. An image is named by its id or file; a
    photograph that is no part of the dataset is read by the extractor of the dataset's features.

    Example: itrpipe explain --image test-000000 --caption "a cat on a red roof"
    """
    from itrpipe.commands.explain import explain as explain_caption

    overrides = given.overrides(of_training=True, **given.model, device=given.device)
    explain_caption(*given.where, image, caption, given.method, overrides, **given.how, as_json=as_json)


@app.command()
@taking(AnyModelOptions, no_deps=True)
def search(
    given: AnyModelOptions,
    caption: Annotated[str | None, typer.Argument(metavar="[SENTENCE]", help="What to find images for.")] = None,
    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            metavar="ID|FILE",
            help="Find captions for this image or photograph; of --photos those like it.",
        ),
    ] = None,
    photos: PhotosOption = None,
    split: Annotated[str, typer.Option("--split", help="Where to search: test, val or train.")] = "test",
    top: Annotated[int, typer.Option("--top", metavar="K", min=1, help="How many answers.")] = 10,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with the photographs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the images of a split for a sentence, or its captions for an image.

    Models with embeddings search those that training wrote; all others score the query with every image or caption. An
    image is named by its id or file; a photograph that is no part of the
    dataset is read by the extractor of the dataset's features. Right answers are marked where the query is an image of
    the split, or a caption of it word for word.

    --photos FOLDER searches photographs without captions, of which no dataset is made, by their index, see itrpipe
    index. --model may be left out where one model has indexed the folder.

    Example: itrpipe search "two dogs on a beach" --backbone vsrn
    """
    from itrpipe.commands.search import Question, search_photographs
    from itrpipe.commands.search import search as search_split

    question = Question(caption, image, top, html, as_json)
    if photos is not None:
        if split != "test":
            raise UsageError("--split is for a dataset; leave it out with --photos")
        search_photographs(given.data, photos, question, given.asked, device=given.device or "auto", **given.how)
        return
    if given.named is not None and given.known is None:
        raise UsageError(f"--model {given.named} is no named model; add --photos FOLDER to search photographs with it")
    given.require_model()
    overrides = given.overrides(of_training=True, **given.model, device=given.device)
    search_split(*given.where, question, given.method, overrides, split=split, **given.how)


@app.command()
def report(
    context: typer.Context,
    dataset: DatasetOption = "scenes",
    backbone: Annotated[
        str | None, typer.Option("--backbone", "-b", help="Compare models of this backbone only.")
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", metavar="A B", help="Only B against A: names of models, or METHOD.BACKBONE[.sN]."),
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="FILE", help="Renew the table of results in this Markdown file.")
    ] = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    trust: TrustOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Write one HTML page over all evaluated runs of a dataset, those of one backbone, or two models.

    --compare shows which queries one of the two models answers better, and in which settings they differ.

    --into puts the table of results between the lines <!-- itrpipe report DATASET --> and
    <!-- end of itrpipe report -->; with --backbone, the first is <!-- itrpipe report DATASET BACKBONE -->.

    Example: itrpipe report --dataset scenes
    """
    from itrpipe.commands.named import refuse_unnamed
    from itrpipe.commands.report import report_dataset, report_of_two

    overrides = overrides_of(settings, {})
    if compare is None and not was_given(context, "dataset"):
        refuse_unnamed(data, dataset=True)
    if compare is not None:
        if backbone is not None or into is not None:
            raise UsageError("--compare has two models; leave out --backbone and --into")
        report_of_two(data, dataset, overrides, compare, dry_run=dry_run)
    else:
        report_dataset(data, dataset, overrides, backbone=backbone, into=into, dry_run=dry_run)


@app.command()
@taking(ModelOptions, no_deps=True)
def export(
    given: ModelOptions,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="To be made; must not exist or be empty.")],
    split: Annotated[str | None, typer.Option("--split", help="Evaluated and exported: test, val or train.")] = None,
    embeddings: Annotated[
        str, typer.Option("--embeddings", metavar="FORM", help="Also embeddings of the split: parquet, npy or none.")
    ] = "none",
    index: Annotated[bool, typer.Option("--index", help="Also indexes of faiss over these embeddings.")] = False,
    trec: Annotated[bool, typer.Option("--trec", help="Also rankings and right answers as TREC files.")] = False,
    license_name: Annotated[
        str | None, typer.Option("--license", metavar="NAME", help="For the card, such as apache-2.0.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    open_clip: Annotated[bool, typer.Option("--open-clip", help="Of a CLIP also the files of open_clip.")] = False,
) -> None:
    """Write a trained model and its card to a folder that the Hugging Face hub accepts.

    The folder holds model.safetensors, config.json, the vocabulary or tokenizer, README.md with the measured scores,
    and export.json with the digest of every file. `hf upload USER/NAME FOLDER` publishes it, and
    itrpipe.training.saved.load_model opens it. A CLIP or SigLIP is written so that transformers and
    sentence-transformers open it, too.

    Example: itrpipe export --method aoq --backbone vsrn --to vsrn-aoq --trec
    """
    from itrpipe.commands.export import Wanted
    from itrpipe.commands.export import export as export_model
    from itrpipe.commands.trained import check_split

    check_split(split)
    wanted = Wanted(to, embeddings, index, trec, license_name, force, open_clip)
    overrides = given.overrides(method=given.method, **given.model, split=split, device=given.device)
    export_model(*given.where, wanted, overrides, **given.how)


@app.command("export-negatives")
@taking(ModelOptions, no_deps=True)
def export_negatives(
    given: ModelOptions,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="To be made; must not exist or be empty.")],
    form: Annotated[
        str,
        typer.Option("--format", metavar="NAME", help="sentence-transformers, negclip, jsonl, tevatron or webdataset."),
    ] = "sentence-transformers",
    negatives: Annotated[int, typer.Option("--negatives", metavar="N", min=1, help="Mined ones of a row.")] = 8,
    direction: Annotated[
        str, typer.Option("--direction", help="t2i (images for captions), i2t (captions for images) or both.")
    ] = "both",
    guard: Annotated[
        str | None, typer.Option("--guard", help="fne: also how likely each negative is a false one.")
    ] = None,
    synthetic: Annotated[
        str | None, typer.Option("--synthetic", metavar="BY", help="Also sentences by phrases, words or vse-c.")
    ] = None,
    sentences: Annotated[
        int, typer.Option("--sentences", metavar="M", min=1, help="--synthetic: of a caption, at most.")
    ] = 1,
    image_root: Annotated[
        str,
        typer.Option("--image-root", metavar="FOLDER", help="Before every path; default: relative to the images."),
    ] = "",
    with_scores: Annotated[
        bool, typer.Option("--with-scores", help="sentence-transformers: also columns of ids, ranks and scores.")
    ] = False,
    shard_rows: Annotated[
        int, typer.Option("--shard-rows", metavar="ROWS", min=0, help="Rows of a file; 0: what suits the format.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
) -> None:
    """Write mined negatives as files that other trainers read.

    \b
    Formats (--format):
      sentence-transformers  Parquet: anchor, positive, negative_1 …, images as datasets.Image
      negclip                one table: filepath, title, neg_caption, neg_image; open_clip reads it, too
      jsonl                  query, positive_passages, negative_passages
      tevatron               queries with the ids of documents, and the documents
      webdataset             tar shards with the images themselves

    The lists are those of mine-negatives with the same settings (--set); --make mines those that are missing.
    Candidates that say what the positive says are left out. The folder is there when it is whole.

    Example: itrpipe export-negatives --backbone vsrn --to negatives
    """
    from itrpipe.commands.export_negatives import Wanted
    from itrpipe.commands.export_negatives import export_negatives as write_negatives

    wanted = Wanted(to, form, negatives, direction, synthetic, sentences, image_root, with_scores, shard_rows, force)
    model = {"method": given.method, **given.model, "device": given.device, "guard": guard}
    overrides = given.overrides(**model)
    write_negatives(*given.where, wanted, overrides, **given.how)
