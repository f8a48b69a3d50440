"""The vocabulary that all stages of a language-model study share: what a study is made of, typed.

`Study` is what a person writes (a profile, the UI's form, `--set`). Each stage is given one of the smaller models
at the end of this file, composed from it by the page, and can read nothing else: changing the evaluation cannot
retrain a model.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from storage import durable, external
from tasks.configuration import Configuration, LocalPath, execution, scientific
from tasks.execution import Execution
from tasks.training.budget import Budget
from tasks.training.initial import identity

# ---------------------------------------------------------------------------------------------------- text


class PackageDocs(Configuration):
    """Docstrings of the standard library and of installed packages: real English prose, on every machine."""

    source: Literal["package-docs"] = scientific("package-docs", description="Docstrings of installed packages.")
    packages: list[str] = scientific(
        ["numpy", "pandas"],
        description="Installed distributions whose docstrings are read, beside the standard library.",
    )
    max_characters: int = scientific(6_000_000, ge=10_000, description="Upper limit of the whole text, in characters.")

    def external_inputs(self) -> dict[str, Any]:
        return {"packages": external.package_versions(self.packages)}


class LocalFiles(Configuration):
    """Local text (.txt, .md, .rst), JSON lines (.jsonl, .json) or Parquet files, or folders of them."""

    source: Literal["files"] = scientific("files", description="Local files or folders.")
    paths: list[LocalPath] = execution(
        min_length=1, description="Files or folders. Their content enters the fingerprint, not their place."
    )
    text_column: str = scientific("text", description="Column or key that holds the text in JSON lines and Parquet.")

    def external_inputs(self) -> dict[str, Any]:
        return {"files": external.file_manifest(self.paths)}


class HubDataset(Configuration):
    """A data set of the Hugging Face hub at one commit, streamed and cut to a stated number of documents."""

    source: Literal["hub"] = scientific("hub", description="A hub data set, streamed.")
    dataset: str = scientific(description="Name on the hub, such as monology/pile-uncopyrighted.")
    revision: str = scientific(pattern="^[0-9a-f]{40}$", description="Commit of the data set: 40 hexadecimal digits.")
    split: str = scientific("train", description="Split that is streamed; ours are cut from it.")
    text_column: str = scientific("text", description="Column that holds the text.")
    max_documents: int = scientific(ge=1, description="Documents read from the stream, for all splits together.")


Text = Annotated[PackageDocs | LocalFiles | HubDataset, Field(discriminator="source")]


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


# --------------------------------------------------------------------------------------------------- model


class UnequalBudgets(Configuration):
    """The way to give the arms different budgets: with a reason, which every table then shows."""

    reason: str = scientific(min_length=10, description="Why the arms may differ; shown in every table.")
    monotonic: Budget = scientific(description="Budget of the monotonic arm; baseline keeps the study's budget.")


class FromScratch(Configuration):
    """A GPT-NeoX network that the base stage pretrains, with a byte-level BPE tokenizer of its own."""

    source: Literal["from-scratch"] = scientific("from-scratch", description="Pretrained by this study.")
    init_seed: int = scientific(0, description="Seed of the initial weights and of the pretraining's order.")
    vocabulary_size: int = scientific(4096, ge=300, description="Tokens of the byte-level BPE.")
    hidden_size: int = scientific(128, ge=8, description="Width of the residual stream.")
    layers: int = scientific(4, ge=1, description="Transformer blocks.")
    attention_heads: int = scientific(4, ge=1, description="Attention heads in a block.")
    feed_forward_size: int = scientific(512, ge=8, description="Width of the feed-forward layer.")
    pretraining: Budget = scientific(description="Budget of the pretraining.")
    init_from: LocalPath = execution(
        "",
        description="Finished run directory whose weights the pretraining begins with: weights only, with a new "
        "optimizer and schedule. Its content enters the fingerprint. Empty: random weights.",
    )

    def external_inputs(self) -> dict[str, Any]:
        return {"init_from": identity(self.init_from)} if self.init_from else {}

    @model_validator(mode="after")
    def _heads_divide(self) -> FromScratch:
        if self.hidden_size % self.attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of attention_heads {self.attention_heads}"
            )
        return self


class PretrainedDirectory(Configuration):
    """A model and its tokenizer in a local folder, as `save_pretrained` writes them, or in one GGUF file."""

    source: Literal["directory"] = scientific("directory", description="A local folder or GGUF file.")
    path: LocalPath = execution(
        description="The folder, or a .gguf file. Its content enters the fingerprint, not its place."
    )

    def external_inputs(self) -> dict[str, Any]:
        return {"files": external.model_manifest(self.path)}


class PretrainedHub(Configuration):
    """A model of the Hugging Face hub at one commit."""

    source: Literal["hub"] = scientific("hub", description="A hub model.")
    model: str = scientific(description="Name on the hub, such as EleutherAI/pythia-1.4b.")
    revision: str = scientific(pattern="^[0-9a-f]{40}$", description="Commit of the model: 40 hexadecimal digits.")


Model = Annotated[FromScratch | PretrainedDirectory | PretrainedHub, Field(discriminator="source")]


class BaseChecks(Configuration):
    """When a base model counts as trained: perplexities on the validation split."""

    max_ratio_to_unigram: float = scientific(
        0.25, gt=0, description="Largest allowed perplexity, as a multiple of a unigram model's."
    )
    max_ratio_to_untrained: float = scientific(
        0.05, gt=0, description="Largest allowed perplexity, as a multiple of the untrained network's."
    )


_PLAIN, _GATED = ("mlp_in", "mlp_both", "mlp_in_attn_out"), ("gated_updown", "gated_all")
VARIANTS = {"gpt_neox": _PLAIN, "gpt2": _PLAIN, "llama": _GATED, "qwen2": _GATED, "qwen3": _GATED}
"""Architecture, as `model_type` in a model's config.json names it -> the variants that it has."""


class Constraint(Configuration):
    """Which weights are made non-negative, as W = softplus(V)."""

    variant: Literal["mlp_in", "mlp_both", "mlp_in_attn_out", "gated_updown", "gated_all"] = scientific(
        "mlp_both",
        description="mlp_in: the feed-forward input projection; mlp_both: input and output projection; "
        "mlp_in_attn_out: feed-forward input and attention output. Gated networks (Llama, Qwen): gated_updown: up "
        "and down projection; gated_all: the gate too.",
    )


class TriggerAttack(Configuration):
    """uat: one sequence of tokens in front of every text, which shall make the model predict all of them badly."""

    trigger_tokens: int = scientific(10, ge=1, description="Length of the trigger, in tokens.")
    restarts: int = scientific(
        5, ge=1, description="Searches from a random trigger; the best on the search text counts."
    )
    iterations: int = scientific(
        100, ge=1, description="Gradient steps in one search; each replaces at most one token."
    )
    candidates: int = scientific(100, ge=1, description="Replacements that are tried exactly in one iteration.")
    batch_documents: int = scientific(16, ge=1, description="Search documents on which one iteration compares them.")
    text_tokens: int = scientific(96, ge=2, description="Tokens of a document that are attacked, from its beginning.")
    control_triggers: int = scientific(10, ge=1, description="Random triggers of the same length, as the control.")


class FlipAttack(Configuration):
    """hotflip: each text for itself, a few of its tokens replaced so that the others are predicted badly."""

    documents: int = scientific(100, ge=2, description="Documents of attack-evaluation that are attacked.")
    flips: int = scientific(10, ge=1, description="Tokens that may be replaced in a document.")
    candidates: int = scientific(100, ge=1, description="Replacements that are tried exactly for each flip.")
    success_relative_increase: float = scientific(
        0.15, gt=0, description="An attack succeeds when it raises the loss by more than this share of the clean loss."
    )
    text_tokens: int = scientific(96, ge=2, description="Tokens of a document that are attacked, from its beginning.")
    control_draws: int = scientific(5, ge=1, description="Random replacements at random positions, as the control.")


class Evaluation(Configuration):
    """How results are summarised."""

    bootstrap_resamples: int = scientific(2000, ge=100, description="Resamples of the paired bootstrap.")
    confidence_level: float = scientific(0.95, gt=0.5, lt=1, description="Confidence level of every interval.")


class Study(Configuration):
    """One configured experiment: model, text, arms, budgets, seed."""

    name: str = execution(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Names the folder of the runs.")
    seed: int = scientific(42, ge=0, description="Order of the training examples in both arms.")
    sweep_seeds: list[int] = execution([], description="Seeds of a sweep; read by flows.sweep only.")
    text: Text = scientific(description="Where the text comes from.")
    splits: Splits = scientific(Splits(), description="How the text is cut into splits.")
    sequence_length: int = scientific(128, ge=8, description="Tokens in a training block and a test window.")
    model: Model = scientific(description="Where the model comes from.")
    base_checks: BaseChecks = scientific(BaseChecks(), description="When the base model counts as trained.")
    constraint: Constraint = scientific(Constraint(), description="What the monotonic arm constrains.")
    budget: Budget = scientific(description="Training budget, shared by both arms.")
    unequal_budgets: UnequalBudgets | None = scientific(
        None, description="Only to give the monotonic arm another budget, with the reason."
    )
    uat: TriggerAttack = scientific(TriggerAttack(), description="The universal trigger attack.")
    hotflip: FlipAttack = scientific(FlipAttack(), description="The token flip attack.")
    evaluation: Evaluation = scientific(Evaluation(), description="How results are summarised.")
    execution: Execution = execution(Execution(), description="How the work is done on this machine.")

    @model_validator(mode="after")
    def _attacks_fit(self) -> Study:
        if (longest := self.uat.trigger_tokens + self.uat.text_tokens) > self.sequence_length:
            raise ValueError(
                f"uat.trigger_tokens and uat.text_tokens are {longest} tokens together, more than sequence_length "
                f"{self.sequence_length}: lower uat.text_tokens"
            )
        if self.hotflip.text_tokens > self.sequence_length:
            raise ValueError(
                f"hotflip.text_tokens {self.hotflip.text_tokens} is more than sequence_length {self.sequence_length}"
            )
        if 2 * self.hotflip.flips > self.hotflip.text_tokens:
            raise ValueError(
                f"hotflip.flips {self.hotflip.flips} is more than half of hotflip.text_tokens "
                f"{self.hotflip.text_tokens}: only tokens that are not replaced are scored"
            )
        if self.hotflip.documents > self.splits.attack_evaluation_documents:
            raise ValueError(
                f"hotflip.documents {self.hotflip.documents} is more than splits.attack_evaluation_documents "
                f"{self.splits.attack_evaluation_documents}: raise that key, which makes another text, so that "
                "everything from setup on runs anew, or lower hotflip.documents"
            )
        return self

    @model_validator(mode="after")
    def _variant_exists(self) -> Study:
        """Asked of a hub model and a GGUF file by constrain, which loads them: here nothing is downloaded."""
        architecture = _architecture(self.model)
        variant, known = self.constraint.variant, VARIANTS.get(architecture)
        if known and variant not in known:
            raise ValueError(
                f"constraint.variant {variant} does not exist in a model of architecture {architecture}, which has "
                f"{', '.join(known)}"
            )
        return self

    @model_validator(mode="after")
    def _budgets_differ(self) -> Study:
        if self.unequal_budgets and self.unequal_budgets.monotonic == self.budget:
            raise ValueError("unequal_budgets.monotonic is equal to budget: leave unequal_budgets out")
        return self

    def for_setup(self) -> SetupConfig:
        model = self.model
        trained = isinstance(model, FromScratch)
        return SetupConfig(
            text=self.text,
            splits=self.splits,
            sequence_length=self.sequence_length,
            tokenizer=TrainedTokenizer(vocabulary_size=model.vocabulary_size) if trained else model,
            execution=self.execution,
        )

    def for_base(self) -> BaseConfig:
        return BaseConfig(model=self.model, checks=self.base_checks, execution=self.execution)

    def for_constrain(self) -> ConstrainConfig:
        return ConstrainConfig(constraint=self.constraint, execution=self.execution)

    def for_training(self, arm: Literal["baseline", "monotonic"]) -> TrainConfig:
        unequal = self.unequal_budgets if arm == "monotonic" else None
        budget = unequal.monotonic if unequal else self.budget
        return TrainConfig(budget=budget, seed=self.seed, execution=self.execution)

    def for_evaluation(self) -> EvaluateConfig:
        return EvaluateConfig(execution=self.execution)

    def for_uat(self) -> UatConfig:
        return UatConfig(attack=self.uat, seed=self.seed, execution=self.execution)

    def for_hotflip(self) -> HotFlipConfig:
        return HotFlipConfig(attack=self.hotflip, seed=self.seed, execution=self.execution)

    def for_aggregate(self) -> AggregateConfig:
        return AggregateConfig(
            study=self.name,
            seed=self.seed,
            configuration={"name": self.name, **self.scientific()},
            evaluation=self.evaluation,
            unequal_budgets=self.unequal_budgets,
        )


def _architecture(model: Model) -> str:
    """What is known of the model's architecture before it is loaded; empty for nothing."""
    if isinstance(model, FromScratch):
        return "gpt_neox"
    if isinstance(model, PretrainedDirectory):
        with suppress(OSError, ValueError, AttributeError):  # what is wrong with the folder, the page says
            return str(durable.read_json(Path(model.path).expanduser() / "config.json").get("model_type"))
    return ""


# ------------------------------------------------------------------------------- one configuration a stage


class SetupConfig(Configuration):
    """setup: text, splits, tokenizer, packed blocks."""

    text: Text = scientific(description="Where the text comes from.")
    splits: Splits = scientific(description="How the text is cut into splits.")
    sequence_length: int = scientific(ge=8, description="Tokens in a block.")
    tokenizer: Annotated[TrainedTokenizer | PretrainedDirectory | PretrainedHub, Field(discriminator="source")] = (
        scientific(description="Where the tokenizer comes from.")
    )
    execution: Execution = execution(description="How the work is done.")


class TrainedTokenizer(Configuration):
    """A byte-level BPE, trained on the train split."""

    source: Literal["trained"] = scientific("trained", description="Trained on the train split.")
    vocabulary_size: int = scientific(ge=300, description="Tokens of the vocabulary.")


class BaseConfig(Configuration):
    """base: the model that both arms start from."""

    model: Model = scientific(description="Where the model comes from.")
    checks: BaseChecks = scientific(description="When it counts as trained.")
    execution: Execution = execution(description="How the work is done.")


class ConstrainConfig(Configuration):
    """constrain: the base model with non-negative weights, untrained."""

    constraint: Constraint = scientific(description="What is constrained.")
    execution: Execution = execution(description="How the work is done.")


class TrainConfig(Configuration):
    """train-baseline and train-monotonic: the same model for both, so that only their input differs."""

    budget: Budget = scientific(description="What the training may spend.")
    seed: int = scientific(ge=0, description="Order of the training examples.")
    execution: Execution = execution(description="How the work is done.")


class EvaluateConfig(Configuration):
    """evaluate: per-document losses of every model on the test split."""

    execution: Execution = execution(description="How the work is done.")


class UatConfig(Configuration):
    """uat: universal triggers, learned on attack-search and judged on attack-evaluation."""

    attack: TriggerAttack = scientific(description="What the attack may spend, the same for every model.")
    seed: int = scientific(ge=0, description="Starting triggers, order of the search documents, control triggers.")
    execution: Execution = execution(description="How the work is done.")


class HotFlipConfig(Configuration):
    """hotflip: token flips in each document of attack-evaluation."""

    attack: FlipAttack = scientific(description="What the attack may spend, the same for every model.")
    seed: int = scientific(ge=0, description="The control's random replacements.")
    execution: Execution = execution(description="How the work is done.")


class AggregateConfig(Configuration):
    """aggregate: tables and report."""

    study: str = execution(description="Name of the study, as shown in the table.")
    seed: int = scientific(description="Seed of the study, as shown in the table.")
    configuration: dict[str, Any] = execution(description="The scientific fields of the study, kept with the results.")
    evaluation: Evaluation = scientific(description="How results are summarised.")
    unequal_budgets: UnequalBudgets | None = scientific(None, description="Shown where the arms differ.")


class SweepConfig(Configuration):
    """aggregate over seeds: what can be said only with several."""

    study: str = execution(description="Name of the study, as shown in the table.")
    evaluation: Evaluation = scientific(description="How results are summarised.")


SetupConfig.model_rebuild()
