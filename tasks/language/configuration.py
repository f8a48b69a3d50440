"""The configuration of a study's text and language model."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from storage import external
from storage.errors import BadInput
from tasks.language import model_files
from tasks.language.hub import require_hub_name
from tasks.stage.configuration import Configuration, LocalPath, execution, scientific
from tasks.training.budget import Budget

Precision = Literal["fp32", "tf32", "bf16"]


class PackageDocs(Configuration):
    """Docstrings of the standard library and of installed packages: real English prose, on every machine."""

    source: Literal["package-docs"] = scientific("package-docs", description="Docstrings of installed packages.")
    packages: list[str] = scientific(
        ["numpy", "pandas"],
        description="Installed distributions whose docstrings are read, beside the standard library.",
    )
    max_characters: int = scientific(6_000_000, ge=10_000, description="Upper limit of the whole text, in characters.")

    def external_inputs(self) -> dict[str, object]:
        return {"packages": _versions(self.packages)}


LOCAL_READING = ["reader of local text==2"]
"""Raised when the same files give other documents than before: a study of them then is another one."""


class LocalFiles(Configuration):
    """Local text (.txt, .md, .rst), JSON lines (.jsonl, .json) or Parquet files, or folders of them.

    All but Parquet may be compressed (.gz, .bz2, .xz, .zst).
    """

    source: Literal["files"] = scientific("files", description="Local files or folders.")
    paths: list[LocalPath] = execution(
        min_length=1, description="Files or folders. Their content enters the fingerprint, not their place."
    )
    text_column: str = scientific("text", description="Column or key that holds the text in JSON lines and Parquet.")
    skip_bad_rows: bool = scientific(
        False,
        added_later=True,
        description="Leave out rows and text files that cannot be read, and count them in the result, in place of "
        "ending at the first.",
    )

    def external_inputs(self) -> dict[str, object]:
        external.require_no_links(self.paths)
        return {"files": external.file_manifest(self.paths), "reader": LOCAL_READING}


class HubStream(Configuration):
    """The beginning of a data set of the Hugging Face hub at one commit: a stated number of documents, streamed."""

    dataset: str = scientific(description="Name on the hub, such as monology/pile-uncopyrighted.")
    revision: str = scientific(pattern="^[0-9a-f]{40}$", description="Commit of the data set: 40 hexadecimal digits.")
    configuration: str | None = scientific(
        None,
        added_later=True,
        description="Configuration of a data set that has several, such as 3.0.0 of abisee/cnn_dailymail.",
    )
    split: str = scientific("train", description="Split that is streamed; ours are cut from it.")
    text_column: str = scientific("text", description="Column that holds the text.")
    max_documents: int = scientific(ge=1, description="Documents read from the stream, for all splits together.")

    def external_inputs(self) -> dict[str, object]:
        require_hub_name(self.dataset)
        return super().external_inputs()


class HubDataset(HubStream):
    """A data set of the hub, and another one to evaluate on where the model has been trained on the first."""

    source: Literal["hub"] = scientific("hub", description="A hub data set, streamed.")
    held_out: HubStream | None = scientific(
        None,
        added_later=True,
        description="Text that the model was not trained on, such as split test of EleutherAI/pile_val_test: each "
        "evaluation split takes evaluation_share of it and nothing else, and the data set above is for train alone.",
    )

    @model_validator(mode="after")
    def _held_out_is_another(self) -> HubDataset:
        parts = [(part.dataset, part.configuration, part.split) for part in (self, self.held_out) if part]
        if parts[1:] and parts[0] == parts[1]:
            raise ValueError(
                f"held_out is split {self.split} of {self.dataset}, which train is read from: name another split or "
                "data set, or leave held_out out"
            )
        return self


Text = Annotated[PackageDocs | LocalFiles | HubDataset, Field(discriminator="source")]


class DocstringPairs(PackageDocs):
    """Pairs of docstrings: the body is the article, the first paragraph, which a person wrote, its summary."""

    source: Literal["package-docs"] = scientific("package-docs", description="Docstrings and their first paragraphs.")


class PairFiles(LocalFiles):
    """Local JSON lines or Parquet with an article and its summary in each row, or folders of them."""

    text_column: str = scientific("document", description="Column or key that holds the article.")
    summary_column: str = scientific("summary", description="Column or key that holds its summary.")


class PairDataset(HubStream):
    """A data set of the Hugging Face hub at one commit with an article and its summary in each row, streamed."""

    source: Literal["hub"] = scientific("hub", description="A hub data set, streamed.")
    text_column: str = scientific("document", description="Column that holds the article.")
    summary_column: str = scientific("summary", description="Column that holds its summary.")
    held_out_split: str | None = scientific(
        None,
        added_later=True,
        description="Split that the evaluation splits alone are cut from, such as test where the model was trained on "
        "train, as T5 was on that of CNN/DailyMail; the other split is then for train alone.",
    )


class Sentences(Configuration):
    """Generated sentences of praise and complaint."""

    source: Literal["sentences"] = scientific("sentences", description="Sentences made by this study.")
    rows: int = scientific(4000, ge=20, description="Sentences, all different.")
    label_noise: float = scientific(0.08, ge=0, lt=0.5, description="Share of the sentences with the wrong label.")


class LabelledFiles(LocalFiles):
    """Local JSON lines or Parquet with a text and its label in each row, or folders of them."""

    label_column: str = scientific(
        "label", description="Column or key that holds its label: text, or a whole number (0.0 is 0)."
    )

    def external_inputs(self) -> dict[str, object]:
        inputs = super().external_inputs()  # rows with labels such as 0.0 were left out before, where any may be
        return inputs | ({"labels": ["reader of labels==2"]} if self.skip_bad_rows else {})


LabelledText = Annotated[Sentences | LabelledFiles, Field(discriminator="source")]


def columns_of(text: LocalFiles | HubStream) -> list[str]:
    """The columns of a row that make its text: one, or two: those of the article and its summary, or of the label."""
    return [getattr(text, key) for key in ("text_column", "summary_column", "label_column") if hasattr(text, key)]


PairText = Annotated[DocstringPairs | PairFiles | PairDataset, Field(discriminator="source")]


class Splits(Configuration):
    """How the text is cut. Membership is a hash of (split_seed, source), so no size moves an evaluation split."""

    split_seed: int = scientific(0, description="Seed of the hash that assigns each source to a split.")
    evaluation_share: float = scientific(
        0.05,
        gt=0,
        le=0.2,
        description="Share of the sources reserved for each of validation, test, attack-search, attack-evaluation.",
    )
    train_documents: int | None = scientific(
        None, ge=1, description="Documents in train; empty means all that are there."
    )
    validation_documents: int = scientific(100, ge=1, description="Documents in validation.")
    test_documents: int = scientific(200, ge=2, description="Documents in test; an interval needs two.")
    attack_search_documents: int = scientific(80, ge=1, description="Documents on which attacks are searched.")
    attack_evaluation_documents: int = scientific(120, ge=1, description="Documents on which attacks are judged.")
    max_shared_shingles: float = scientific(
        0.2,
        ge=0,
        le=1,
        description="A train document with a larger share of its 13-word shingles in an evaluation split is left out.",
    )


class FromScratch(Configuration):
    """A GPT-NeoX network that the base stage pretrains, with a byte-level BPE tokenizer of its own."""

    REMOVED: ClassVar = {"init_from": ("", "give the other run's model/ as {source: directory, path: ...}")}

    source: Literal["from-scratch"] = scientific("from-scratch", description="Pretrained by this study.")
    init_seed: int = scientific(0, description="Seed of the initial weights and of the pretraining's order.")
    vocabulary_size: int = scientific(4096, ge=300, description="Tokens of the byte-level BPE.")
    hidden_size: int = scientific(128, ge=8, description="Width of the residual stream.")
    layers: int = scientific(4, ge=1, description="Transformer blocks.")
    attention_heads: int = scientific(4, ge=1, description="Attention heads in a block.")
    feed_forward_size: int = scientific(512, ge=8, description="Width of the feed-forward layer.")
    activation: Literal["gelu", "relu", "monotone-parts"] = scientific(
        "gelu",
        added_later=True,
        description="Of the feed-forward layer, in all arms. gelu, as Pythia has, falls below about -0.75, so that "
        "non-negative weights make no monotone layer; relu never falls, but allows convex functions only; "
        "monotone-parts never falls either: convex, concave and saturated units (arXiv 2205.11775).",
    )
    pretraining: Budget = scientific(description="Budget of the pretraining.")

    @model_validator(mode="after")
    def _heads_divide(self) -> FromScratch:
        if self.hidden_size % self.attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of attention_heads {self.attention_heads}"
            )
        return self


class EncoderDecoder(FromScratch):
    """A T5 network (v1.0: ReLU, no bias, RMSNorm) that the base stage pretrains on the study's own pairs."""

    source: Literal["from-scratch"] = scientific("from-scratch", description="Pretrained by this study, a T5.")
    layers: int = scientific(2, ge=1, description="Blocks of the encoder, and as many of the decoder.")
    activation: Literal["relu"] = scientific("relu", description="Of the feed-forward layers, as T5 v1.0 has it.")
    start: Literal["copying", "random"] = scientific(
        "copying",
        description="copying: the cross-attention begins by writing what followed the last written token in the "
        "article, set by hand; random: drawn, from which a small network does not learn to read in minutes.",
    )


class PretrainedDirectory(Configuration):
    """A model and its tokenizer in a local folder, as `save_pretrained` writes them."""

    source: Literal["directory"] = scientific("directory", description="A local folder.")
    path: LocalPath = execution(description="The folder. Its content enters the fingerprint, not its place.")

    def external_inputs(self) -> dict[str, object]:
        return {"files": model_files.model_manifest(self.path)}


class PretrainedHub(Configuration):
    """A model of the Hugging Face hub at one commit."""

    source: Literal["hub"] = scientific("hub", description="A hub model.")
    model: str = scientific(description="Name on the hub, such as EleutherAI/pythia-1.4b.")
    revision: str = scientific(pattern="^[0-9a-f]{40}$", description="Commit of the model: 40 hexadecimal digits.")


Model = Annotated[FromScratch | PretrainedDirectory | PretrainedHub, Field(discriminator="source")]
PairModel = Annotated[EncoderDecoder | PretrainedDirectory | PretrainedHub, Field(discriminator="source")]


class BagOfWords(Configuration):
    """A small classifier: the mean of word embeddings, and two hidden layers; it knows no order of words."""

    source: Literal["bag"] = scientific("bag", description="A bag of words.")
    embedding: int = scientific(32, ge=1, description="Width of a word's embedding.")
    hidden: int = scientific(64, ge=1, description="Width of both hidden layers.")


LabelModel = Annotated[BagOfWords | PretrainedDirectory | PretrainedHub, Field(discriminator="source")]


class TrainedTokenizer(Configuration):
    """A byte-level BPE, trained on the train split."""

    source: Literal["trained"] = scientific("trained", description="Trained on the train split.")
    vocabulary_size: int = scientific(ge=300, description="Tokens of the vocabulary.")


class BaseChecks(Configuration):
    """When a base model counts as trained: perplexities on the validation split."""

    max_ratio_to_unigram: float = scientific(
        0.25, gt=0, description="Largest allowed perplexity, as a multiple of a unigram model's."
    )
    max_ratio_to_untrained: float = scientific(
        0.05, gt=0, description="Largest allowed perplexity, as a multiple of the untrained network's."
    )


class PairChecks(BaseChecks):
    """When a base model counts as one that reads its article, too."""

    max_ratio_to_another_summary: float = scientific(
        0.9,
        gt=0,
        description="Largest allowed perplexity of a summary behind its own article, as a multiple of that of another "
        "article's summary: 1 where the article is not read.",
    )


def _versions(names: list[str]) -> list[str]:
    """The sorted `name==version` of Python itself and of the named distributions; BadInput for a missing one."""
    versions = [f"python=={platform.python_version()}"]
    for name in names:
        try:
            versions.append(f"{name.lower()}=={importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            raise BadInput(
                f"text.packages names {name!r}, which is not installed here: install it or take it off the list"
            ) from None
    return sorted(versions)
