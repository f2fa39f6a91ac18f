"""The recipe of a training: what the control node checks and the hosts read. Standard library only.

The names of a task's fields are those of Hugging Face's example scripts run_glue, run_qa and
run_clm, and of TRL, where they have one. Names, meanings and defaults of `Training` are those of
transformers 5.23; docs/recipes.md says where a default is another one, and why.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

GlueTask = Literal["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"]
Metric = Literal[
    "accuracy", "f1", "f1_macro", "f1_micro", "f1_weighted", "matthews", "pearson", "spearman"
]  # fmt: skip
Strategy = Literal["no", "steps", "epoch"]
SCORE_LOSSES = ("cosent", "angle", "cosine")  # of pairs with a score
DISTILL_LOSSES = ("mse", "cosine_distance")  # of a text and its teacher's embedding
# those of transformers that need nothing but the number of the step
Schedule = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
]


@dataclass(frozen=True)
class Limits:
    """The range of a field's values.

    Attributes:
        above: the exclusive lower bound.
        below: the exclusive upper bound.
        at_most: the largest number; of a list, its maximum length.
    """

    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    at_most: float | None = None


def limited(default: Any = MISSING, **limits: float) -> Any:
    """A field of a dataclass with `Limits`; required where it has no default."""
    return field(default=default, metadata={"limits": Limits(**limits)})


@dataclass(frozen=True)
class TextClassification:
    """Predicts the class of one or two texts, several classes, or with `regression` a number.

    Attributes:
        text_columns: left out, one or two columns that are known for texts.
        label_column: the column with the class, a number or a word, or with a list of classes; with
            regression a number.
        label_columns: columns of 0 and 1, one for each of several classes that a row may have; left
            out, found where no column with the class is known.
        glue_task: a task of GLUE; it sets text_columns, regression, metrics, validation_splits and
            data_config where the recipe does not.
        metrics: what is measured; left out, accuracy and, of two classes, the F1 of the second
            one, of more the mean of their F1; where a row may have several, f1_micro and f1_macro;
            of a regression, the correlations of Pearson and Spearman.
        class_weights: what the loss of a row counts, by its class, as torch's CrossEntropyLoss has
            it: balanced, inversely to the class's rows, or names with numbers (others count 1).
        skip_incomplete: whether rows without a text or a class are left out, which are an error
            otherwise.
        all_probabilities: whether predict writes the probability of each class.
        validation_splits: the sets that are evaluated; with several, metrics carry their names.
        validation_split_percentage: share of the rows of each class that are kept for validation
            where the data have no validation set.
    """

    text_columns: tuple[str, ...] = limited((), at_most=2)
    label_column: str = "label"
    label_columns: tuple[str, ...] = ()
    glue_task: GlueTask | None = None
    regression: bool = False
    metrics: tuple[Metric, ...] | None = None
    class_weights: Literal["balanced"] | Mapping[str, float] | None = None
    skip_incomplete: bool = False
    all_probabilities: bool = False
    validation_splits: tuple[str, ...] = ("validation",)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)
    max_length: int = limited(128, at_least=1)


@dataclass(frozen=True)
class QuestionAnswering:
    """Finds the answer to a question as a span of a context, as in SQuAD.

    Attributes:
        answers_column: the column with `text` and `answer_start`, a list each.
        doc_stride: tokens that neighbouring features of a context share.
        n_best_size: how many starts and ends of a feature are combined.
        version_2_with_negative: whether a question may have no answer, as in SQuAD 2.0; otherwise
            those that have none are left out.
        null_score_diff_threshold: a question has no answer where the score of that is better by
            more than this than the best answer's.
        validation_split_percentage: share of the rows that are kept for validation where the data
            have no validation set.
    """

    question_column: str = "question"
    context_column: str = "context"
    answers_column: str = "answers"
    max_length: int = limited(384, at_least=16)
    doc_stride: int = limited(128, at_least=0)
    max_query_length: int = limited(64, at_least=1)
    n_best_size: int = limited(20, at_least=1)
    max_answer_length: int = limited(30, at_least=1)
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)


@dataclass(frozen=True)
class TokenClassification:
    """Predicts the tag of each word: the entities of a text (NER), or parts of speech.

    A row has words with their tags, or a text with its entities as spans.

    Attributes:
        tokens_column: with a list of words; left out, one that is known for them; likewise
            tags_column, with their tags: names such as B-PER, or numbers.
        text_column: with a text, where no column has words; likewise spans_column, with a list of
            objects with start, end (characters) and label.
        tag_names: of tags that are numbers, where the data do not name them.
        repair_tags: whether tags that are not all of one scheme are read as conlleval does, which
            are an error otherwise.
        label_all_tokens: whether all tokens of a word are learned, not the first alone.
        max_length: tokens of a window; of a longer row there are several.
        doc_stride: tokens that neighbouring windows of a row share.
        validation_split_percentage: share of the rows that are kept for validation where the data
            have no validation set.
    """

    tokens_column: str | None = None
    tags_column: str | None = None
    text_column: str | None = None
    spans_column: str | None = None
    tag_names: tuple[str, ...] = ()
    repair_tags: bool = False
    label_all_tokens: bool = False
    max_length: int = limited(256, at_least=8)
    doc_stride: int = limited(64, at_least=0)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """What tasks have in common that learn texts alone.

    Attributes:
        text_column: the column with the text, where the data are rows.
        validation_split_percentage: share of the samples, from the end, that are kept for
            validation where the data have no validation set.
    """

    text_column: str = "text"
    validation_split_percentage: float = limited(5.0, at_least=0.001, at_most=50)


@dataclass(frozen=True, kw_only=True)
class CausalLm(LanguageModel):
    """Predicts the next token; texts are packed into blocks of one length.

    Attributes:
        vocab_size: with from_scratch and no tokenizer: the tokens of the one that is made from the
            data.
    """

    block_size: int = limited(512, at_least=2)
    vocab_size: int | None = limited(None, at_least=257)


@dataclass(frozen=True, kw_only=True)
class MaskedLm(LanguageModel):
    """Predicts tokens that are masked, to adapt an encoder to texts of a domain.

    Attributes:
        line_by_line: whether each text is a sample, or several if it is longer than max_length;
            left out, texts are packed into blocks of max_length tokens. A text is a row, or a line
            of *.txt.
        paragraphs: whether a text of *.txt ends with a blank line, not with each line.
        mlm_probability: of a token to be predicted. Of these 80 % are replaced by the mask, 10 %
            by random tokens, and others stay.
        whole_word_mask: whether words are drawn, not tokens, and all of their tokens are replaced
            by the mask.
    """

    max_length: int = limited(256, at_least=8)
    line_by_line: bool = False
    paragraphs: bool = False
    mlm_probability: float = limited(0.15, above=0, below=1)
    whole_word_mask: bool = False


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What tasks have in common that can train low-rank adapters (LoRA, Hu et al. 2021).

    Attributes:
        lora_r: the rank of low-rank adapters, which are trained instead of the model's weights;
            left out, all weights are trained.
        lora_alpha: what an adapter adds is multiplied by lora_alpha / lora_r; default: 2 * lora_r.
        lora_dropout: the dropout of the adapters' input.
        lora_target_modules: names of the linear layers that get adapters; left out, all but the
            last one of the model.
        merge_adapters: whether the trained model is saved with the adapters added to its weights,
            instead of the adapters alone.
    """

    lora_r: int | None = limited(None, at_least=1)
    lora_alpha: float | None = limited(None, above=0)
    lora_dropout: float = limited(0.0, at_least=0, below=1)
    lora_target_modules: tuple[str, ...] = ()
    merge_adapters: bool = False

    @property
    def alpha(self) -> float:
        """lora_alpha, or its default."""
        return 2 * (self.lora_r or 0) if self.lora_alpha is None else self.lora_alpha


@dataclass(frozen=True)
class SentenceSimilarity(Adapters):
    """Gives texts embeddings: those of a query and its text are alike, others are not.

    Losses and their fields are those of sentence-transformers. Each text of the batch, of all
    ranks, is a negative of each query that it does not belong to (loss: ranking); or each pair of
    texts has a score, and the batch's pairs are ordered by it (cosent, angle), or it is the cosine
    itself (cosine). Or each text's embedding is to be that of the recipe's teacher, by the mean
    squared difference (mse) or by 1 - their cosine (cosine_distance).

    Attributes:
        query_column: left out, one that is known for queries; likewise positive_column, with the
            text that belongs to the query.
        label_column: with the score of a pair; left out, one that is known for it.
        loss: auto is cosent where the pairs have other labels than 1, else ranking.
        negative_columns: with texts that do not belong to the query, or lists of them; left out,
            all that are called negative, negatives, negative_1 and so on.
        pooling: how an embedding is made of a text's tokens; auto: as the model's folder says, if
            sentence-transformers has written it, else mean.
        normalize: whether the saved model gives embeddings of length 1; auto: as the model's folder
            says, else true. Trained is the cosine in any case.
        query_prompt: what is written before each query; left out, the model's prompt for queries
            or else its default one, as sentence-transformers' encode_query has it, and in
            `predict` the default one alone, as encode; likewise text_prompt for all other texts.
        scale: what cosines are multiplied by, the inverse of the temperature.
        symmetric: whether also each text has to find its query.
        matryoshka_dims: the loss is the sum of those of the embeddings' first numbers, for so many
            of them each time (Kusupati et al. 2022); one is the whole width.
        matryoshka_weights: what each of these counts; left out, 1.
        hard_negatives: how many negatives of each query are looked for among the texts of all rows,
            by the model as it is before the training; those nearest to the query, but none of its
            own texts.
        relative_margin: of these, none whose cosine is above 1 - this times the cosine of the
            query's own text; null: any. 0.05 is the TopK-PercPos of NV-Retriever.
        absolute_margin: nor above that cosine minus this.
        max_score: nor above this; likewise not below min_score.
        range_min: so many of the nearest of these are left out; range_max: and all behind so many.
        validation_split_percentage: share of the rows that are kept for validation where the data
            have no validation set.
    """

    query_column: str | None = None
    positive_column: str | None = None
    negative_columns: tuple[str, ...] = ()
    label_column: str | None = None
    max_length: int = limited(256, at_least=3)
    pooling: Literal["auto", "mean", "cls"] = "auto"
    normalize: Literal["auto", True, False] = "auto"
    query_prompt: str | None = None
    text_prompt: str | None = None
    loss: Literal["auto", "ranking", "cosent", "angle", "cosine", "mse", "cosine_distance"] = "auto"
    scale: float = limited(20.0, above=0)
    symmetric: bool = False
    matryoshka_dims: tuple[int, ...] = ()
    matryoshka_weights: tuple[float, ...] = ()
    hard_negatives: int = limited(0, at_least=0, at_most=100)
    relative_margin: float | None = limited(0.05, at_least=0)
    absolute_margin: float | None = limited(None, at_least=0)
    max_score: float | None = limited(None, at_least=-1, at_most=1)
    min_score: float | None = limited(None, at_least=-1, at_most=1)
    range_min: int = limited(0, at_least=0)
    range_max: int | None = limited(None, at_least=1)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)

    @property
    def distils(self) -> bool:
        """Whether single texts are learned from a teacher."""
        return self.loss in DISTILL_LOSSES


@dataclass(frozen=True)
class TextRanking(Adapters):
    """Scores how well a text answers a query, read together (a cross-encoder, or reranker).

    A row has a query with one text and a label, with a list of texts and one of labels, or with
    texts that belong to it and that do not.

    Attributes:
        query_column: left out, one that is known for queries; likewise text_column.
        text_column: with the text or texts; or, where there are negatives, the text that belongs.
        label_column: 1 where the text belongs to the query, 0 where it does not, or between; for
            listnet any numbers, such as the scores of another model.
        loss: binary_cross_entropy of each pair; or listnet, the cross entropy of a row's texts,
            between the softmax of their labels and that of their scores (Cao et al. 2007).
        negative_columns: with texts that do not belong to the query, or lists of them, instead of a
            label; left out, all that are called negative, negatives, negative_1 and so on.
        max_length: tokens of query and text together.
        validation_split_percentage: share of the queries that are kept for validation where the
            data have no validation set.
    """

    query_column: str | None = None
    text_column: str | None = None
    label_column: str = "label"
    negative_columns: tuple[str, ...] = ()
    loss: Literal["binary_cross_entropy", "listnet"] = "binary_cross_entropy"
    max_length: int = limited(256, at_least=8)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)


@dataclass(frozen=True, kw_only=True)
class DecoderTuning(Adapters):
    """What tasks have in common that train a decoder with conversations.

    Attributes:
        prompt_column: left out, one that is known for prompts: texts, or lists of messages.
        chat_template: whether texts are written as the model's chat template says; if not, an
            answer follows its prompt as it is, and the end-of-text token follows it.
        max_length: tokens of a conversation; longer ones are cut at their end.
        validation_split_percentage: share of the rows that are kept for validation where the data
            have no validation set.
        load_in_4bit: whether the linear layers of the model, but the last one, are in NF4 with
            double quantization (QLoRA, Dettmers et al. 2023) while adapters are trained.
    """

    prompt_column: str | None = None
    chat_template: bool = True
    max_length: int = limited(1024, at_least=8)
    validation_split_percentage: float = limited(5.0, at_least=0.001, at_most=50)
    load_in_4bit: bool = False


@dataclass(frozen=True, kw_only=True)
class InstructionTuning(DecoderTuning):
    """Trains a decoder to answer: the loss is of the answers' tokens only.

    A row has a conversation, or a prompt and its completion.

    Attributes:
        messages_column: with a list of messages, each with a role and content; left out, one that
            is known for them. Each message of the assistant is learned.
        completion_column: as prompt_column; both are texts, or lists of messages.
        packing: whether samples are made of several conversations, up to max_length together. None
            of them sees another one, in a sample or in a batch.
    """

    messages_column: str | None = None
    completion_column: str | None = None
    packing: bool = False


@dataclass(frozen=True, kw_only=True)
class PreferenceTuning(DecoderTuning):
    """Trains a decoder to prefer one of two answers (DPO, Rafailov et al. 2023).

    A row has a prompt and two answers, or two conversations that begin alike.

    Attributes:
        chosen_column: the answer that is preferred: a text, or a list of messages.
        rejected_column: the other answer.
        beta: how strongly the model is held at the one that the training begins with.
        disable_dropout: whether the model is trained without dropout, as it is compared with what
            it computed without; as in TRL, also of adapters.
    """

    chosen_column: str = "chosen"
    rejected_column: str = "rejected"
    beta: float = limited(0.1, above=0)
    disable_dropout: bool = True


@dataclass(frozen=True)
class Seq2SeqLm:
    """An encoder reads a text and a decoder writes another one: a summary, a translation.

    The names are those of transformers' examples run_summarization and run_translation.

    Attributes:
        source_column: with the texts that are read; left out, one that is known; likewise
            target_column, with those to write. With languages, one column may have both.
        source_lang: the key of the source where a cell has texts by their language, as in WMT's
            {"translation": {"en": ..., "de": ...}}, or the name of its column; likewise
            target_lang.
        source_prefix: what is written before each source, as T5 was trained with.
        max_source_length: tokens of a source; longer ones are cut. Likewise max_target_length.
        predict_with_generate: whether evaluations also write texts, and compare them with the
            targets.
        num_beams: how many texts a prediction goes on with at once; 1 is greedy; left out, as the
            model's generation_config.json says.
        max_new_tokens: of a text that is written, at most; left out, max_target_length.
        validation_split_percentage: share of the rows that are kept for validation where the data
            have no validation set.
    """

    source_column: str | None = None
    target_column: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    source_prefix: str = ""
    max_source_length: int = limited(512, at_least=2)
    max_target_length: int = limited(128, at_least=2)
    predict_with_generate: bool = True
    num_beams: int | None = limited(None, at_least=1, at_most=64)
    max_new_tokens: int | None = limited(None, at_least=1)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)

    @property
    def max_length(self) -> int:
        """Tokens of the text that is read."""
        return self.max_source_length


@dataclass(frozen=True)
class TextDistillation:
    """A classifier learns from a larger one, the recipe's teacher (Hinton et al. 2015).

    Attributes:
        text_columns: left out, one or two columns that are known for texts.
        label_column: the column with the class, one of the teacher's; rows without one, or data
            without the column, are learned from the teacher alone.
        temperature: what the logits of both are divided by.
        alpha: the share of the loss that compares with the teacher; that of the labels' cross
            entropy is 1 - alpha.
        validation_split_percentage: share of the rows that are kept for validation where the data
            have no validation set.
    """

    text_columns: tuple[str, ...] = limited((), at_most=2)
    label_column: str = "label"
    temperature: float = limited(2.0, above=0)
    alpha: float = limited(0.5, at_least=0, at_most=1)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)
    max_length: int = limited(128, at_least=1)


Options = (
    TextClassification
    | TokenClassification
    | QuestionAnswering
    | CausalLm
    | MaskedLm
    | SentenceSimilarity
    | TextRanking
    | InstructionTuning
    | PreferenceTuning
    | Seq2SeqLm
    | TextDistillation
)
TASKS: dict[str, type[Options]] = {
    "text-classification": TextClassification,
    "question-answering": QuestionAnswering,
    "causal-lm": CausalLm,
    "sentence-similarity": SentenceSimilarity,
    "text-ranking": TextRanking,
    "instruction-tuning": InstructionTuning,
    "preference-tuning": PreferenceTuning,
    "seq2seq-lm": Seq2SeqLm,
    "token-classification": TokenClassification,
    "masked-lm": MaskedLm,
    "text-distillation": TextDistillation,
}


@dataclass(frozen=True)
class Training:
    """How the model is trained; the names are those of transformers' TrainingArguments.

    docs/recipes.md has what each field means. Numbers of steps are optimizer steps.
    """

    learning_rate: float = limited(5e-5, above=0)
    lr_scheduler_type: Schedule = "linear"
    lr_scheduler_kwargs: Mapping[str, Any] = field(default_factory=dict)
    warmup_ratio: float = limited(0.0, at_least=0, at_most=1)
    warmup_steps: float = limited(0.0, at_least=0)
    num_train_epochs: float = limited(3.0, above=0)
    max_steps: int = -1
    per_device_train_batch_size: int | None = limited(None, at_least=1)
    per_device_eval_batch_size: int | None = limited(None, at_least=1)
    gradient_accumulation_steps: int = limited(1, at_least=1)
    optim: Literal["adamw_torch_fused", "adamw_torch"] = "adamw_torch_fused"
    weight_decay: float = limited(0.0, at_least=0)
    adam_beta1: float = limited(0.9, at_least=0, below=1)
    adam_beta2: float = limited(0.999, at_least=0, below=1)
    adam_epsilon: float = limited(1e-8, at_least=0)
    max_grad_norm: float = limited(1.0, at_least=0)
    label_smoothing_factor: float = limited(0.0, at_least=0, at_most=1)
    logging_strategy: Strategy = "steps"
    logging_steps: float = limited(10.0, above=0)
    logging_first_step: bool = False
    eval_strategy: Strategy = "epoch"
    eval_steps: float | None = limited(None, above=0)
    eval_on_start: bool = False
    save_strategy: Literal["no", "steps", "epoch", "best"] = "no"
    save_steps: float = limited(500.0, above=0)
    save_total_limit: int | None = limited(5, at_least=1)
    # True, which transformers takes, is refused
    resume_from_checkpoint: str | Literal[True] | None = None
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    early_stopping_patience: int | None = limited(None, at_least=1)
    early_stopping_threshold: float = limited(0.0, at_least=0)
    seed: int = limited(42, at_least=0, below=1 << 32)  # numpy takes no larger one
    data_seed: int | None = limited(None, at_least=0)
    full_determinism: bool = False
    group_by_length: bool = True
    dataloader_drop_last: bool = False
    gradient_checkpointing: bool = False
    report_to: (
        Literal["none", "tensorboard", "trackio", "mlflow", "wandb"]
        | tuple[Literal["tensorboard", "trackio", "mlflow", "wandb"], ...]
    ) = "none"
    run_name: str | None = None
    use_ipex: Literal["auto", True, False] = "auto"
    ddp_backend: Literal["auto", "impi", "gloo", "ccl"] = "auto"
    ddp_bucket_cap_mb: int | None = limited(None, at_least=1)
    # ftcluster's own
    shard_optimizer: Literal["auto", True, False] = "auto"
    gradient_dtype: Literal["auto", "fp32", "bf16"] = "auto"
    sync: Literal["step", "local"] = "step"
    sync_steps: int = limited(32, at_least=2)
    sync_dtype: Literal["bf16", "int8"] = "bf16"
    outer_learning_rate: float = limited(0.7, above=0)
    outer_momentum: float = limited(0.5, at_least=0, below=1)


TaskName = Literal[
    "text-classification",
    "token-classification",
    "question-answering",
    "causal-lm",
    "masked-lm",
    "sentence-similarity",
    "text-ranking",
    "instruction-tuning",
    "preference-tuning",
    "seq2seq-lm",
    "text-distillation",
]
DEFAULT_TASK: TaskName = "text-classification"
GENERATED = "generated:"  # begins the data of a recipe: train=N,validation=N,seed=N follow
BY_TYPE = "config:"  # begins a model without weights: a type of model follows


def split_revision(name: str) -> tuple[str, str | None]:
    """A name of the Hub without its revision, and that: a branch, a tag or a commit.

    >>> split_revision("google-bert/bert-base-uncased@86b5e09"), split_revision("gpt2")
    (('google-bert/bert-base-uncased', '86b5e09'), ('gpt2', None))
    """
    plain, at, revision = name.partition("@")
    return plain, revision if at else None


@dataclass(frozen=True)
class Recipe:
    """One training job, independent of the cluster it runs on; see also docs/recipes.md.

    Attributes:
        name: the recipe's file name without its ending.
        task: what kind of model is trained.
        model: a folder, or a name of the Hub; likewise tokenizer. Behind a name of the Hub, also
            of data, may be @ and a branch, tag or commit, see `split_revision`.
        data: a file or a folder (see docs/recipes.md), `generated:train=N,validation=N,seed=N`, or
            a name for `datasets.load_dataset`.
        precision: auto takes bf16 where the CPUs have instructions for it. The model then computes
            with weights in bf16; the master weights and what is saved are fp32.
        teacher: the classifier or embedder that a distillation learns from, as `model`.
        communication_cores: cores of each rank that no thread computes on; None: the plan decides.
        allocator: auto takes tcmalloc where a host has it.
        license: of the trained model, such as apache-2.0, for its card, which has none otherwise.
        card_host_names: whether the card has the names of the hosts.
        options: the fields of the task, which a recipe has at its top level.
    """

    name: str
    model: str
    data: str
    options: Options
    task: TaskName = DEFAULT_TASK
    from_scratch: bool = False
    config_overrides: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    teacher: str | None = None
    data_config: str | None = None
    batch_size: int = limited(32, at_least=1)
    ranks_per_host: int | None = limited(None, at_least=1)
    communication_cores: int | None = limited(None, at_least=0)
    allocator: Literal["auto", "tcmalloc", "libc"] = "auto"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    attention_dropout: bool = True
    license: str | None = None
    card_host_names: bool = False
    training: Training = field(default_factory=Training)

    @property
    def max_length(self) -> int:
        """The maximum length of a text in tokens, or of a sample, where that is one text."""
        options = self.options
        return options.block_size if isinstance(options, CausalLm) else options.max_length

    @property
    def adapters(self) -> Adapters | None:
        """How low-rank adapters are trained, if they are."""
        options = self.options
        return options if isinstance(options, Adapters) and options.lora_r is not None else None

    @property
    def lora_r(self) -> int | None:
        """The rank of low-rank adapters, if those are trained."""
        return self.adapters.lora_r if self.adapters else None

    @property
    def load_in_4bit(self) -> bool:
        """Whether weights that are not trained are in NF4."""
        return isinstance(self.options, DecoderTuning) and self.options.load_in_4bit

    @property
    def texts_of_a_sample(self) -> int:
        """How many texts the model computes one by one, without those of columns found later."""
        options = self.options
        if isinstance(options, SentenceSimilarity) and not options.distils:
            return 2 + len(options.negative_columns) + options.hard_negatives
        return 2 if isinstance(options, PreferenceTuning) else 1
