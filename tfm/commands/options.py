"""The options of all commands. --help and the tables of the docs are made of them.

The docstring of the options of a command says what the command does, for `tfm --help`. This module imports
nothing slow, so that a wrong flag is reported at once.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from tfm.commands.command import REQUIRED, option, options, output_option, positional, short_for
from tfm.errors import UserError

MAX_SENTENCE_TOKENS = 64
FIGURE_FORMATS = ("png", "svg", "pdf")
MEASURES = ("weights", "norms")
CONFIG_HELP = (
    "Config of the run: a Python file with get_config(), the config.json of another run, or the name of a "
    "config that tfm ships, such as quickstart. FILE:VARIANT or NAME:VARIANT is a variant of a sweep. If the "
    "file has no variants, FILE:TEXT calls get_config(TEXT)."
)
COUNTED_BACK = "counted back from the last, or from --checkpoint=STEP."


@options
class ImportOptions:
    """The option of all commands that read the config of a run."""

    imports: tuple[str, ...] = option(
        (),
        "Module of your own that the config may import, such as my_lab.models. The import runs its code.",
        flag="import",
    )


@options
class ConfigOptions(ImportOptions):
    """A config that --config.field=value changes.

    Attributes:
      config: the config, the dataclass of its task.
      overrides: {path of a field: value} of the fields that the command line or the variant sets.
    """

    config: Any
    overrides: dict[str, Any]

    @classmethod
    def open_config(
        cls, values: dict[str, Any], arguments: Sequence[str]
    ) -> tuple[dict[str, Any], list[str]]:
        """Reads the config, and sets the fields that the arguments set.

        Args:
          values: {field: value} of the flags.
          arguments: the arguments that set fields, and other arguments.

        Returns:
          {"config": the config, "overrides": its fields that the arguments set}, and the other arguments.
        """
        from tfm.commands.overrides import override  # imported here because it imports JAX

        base, variant = cls.read_base(values)
        changed = override(base, [*variant, *arguments])
        return {"config": changed.config, "overrides": changed.fields}, changed.rest

    @classmethod
    def read_base(cls, values: dict[str, Any]) -> tuple[Any, list[str]]:
        """Returns the config before the arguments change it, and the arguments of its variant."""
        raise NotImplementedError


@options
class HostOptions:
    """The options that connect the processes of several hosts, see `tfm.commands.hosts`."""

    distributed: bool = option(
        False, "Join the other processes of the run that SLURM, Kubernetes, Open MPI or the TPU VM reports."
    )
    coordinator: str = option("", "Address HOST:PORT of the first process, to join the processes by hand.")
    processes: int = option(1, "For --coordinator: number of processes.", minimum=1)
    process_id: int = option(0, "For --coordinator: index of this process, counted from 0.", minimum=0)


@options
class NewRun(ConfigOptions):
    """The options of a command that begins a run."""

    config_file: str = option(REQUIRED, CONFIG_HELP, flag="config")
    workdir: str = output_option(
        REQUIRED, "Folder of the run. A new folder is created; a run that exists resumes.", opens=""
    )

    @classmethod
    def read_base(cls, values: dict[str, Any]) -> tuple[Any, list[str]]:
        """Reads the config file."""
        from tfm.commands.config_files import read_config_file

        return read_config_file(values["config_file"])


@options
class FinishedRun(ConfigOptions):
    """The options of a command that opens a run or an export."""

    workdir: str = option(REQUIRED, "Folder of a run or an export.", opens="open_to_read")
    checkpoint: str | None = option(
        None, "Checkpoint to load: best (by validation, the default), last, or a step."
    )
    average: int = option(1, f"Number of checkpoints to average, {COUNTED_BACK}", minimum=1)

    @classmethod
    def read_base(cls, values: dict[str, Any]) -> tuple[Any, list[str]]:
        """Reads the config of the run."""
        from tfm.workdir import runs

        return runs.open_folder(values["workdir"]).config, []

    def load(self) -> Any:
        """Opens the run, a `tfm.workdir.runs.Run`, with the changed config."""
        return self._load(ensemble=1)

    def _load(self, ensemble: int) -> Any:
        """Opens the run or an ensemble of its checkpoints."""
        from tfm.commands.compilation import prepare_device
        from tfm.workdir import runs

        prepare_device()
        return runs.load(
            self.workdir,
            checkpoint=self.checkpoint,
            average=self.average,
            ensemble=ensemble,
            config=self.config,
        )


@options
class RunOrEnsemble(FinishedRun):
    """The options of a command that opens a run, an export, or an ensemble of the checkpoints of a run."""

    ensemble: int = option(
        1, f"Number of checkpoints to decode with as an ensemble, {COUNTED_BACK}", minimum=1
    )

    def load(self) -> Any:
        """Opens the run or the ensemble with the changed config."""
        return self._load(self.ensemble)


@options
class DecodingRun(RunOrEnsemble, HostOptions):
    """The options of a command that decodes with a run."""

    beam_size: int | None = short_for("decoding.beam_size")
    samples: int | None = short_for("decoding.samples")
    temperature: float | None = short_for("decoding.temperature")


@options
class Quickstart:
    """Train on the built-in language, evaluate and draw, in about four minutes."""

    workdir: str = output_option(
        "runs/quickstart", "Folder of the run. A new folder is created; a run that exists resumes.", opens=""
    )


@options
class Data(ConfigOptions):
    """Show statistics of the data of a config: lengths, characters, duplicates, overlap."""

    config_file: str | None = option(
        None,
        "Config whose data to read. With --workdir, the default is the config of the run.",
        flag="config",
    )
    workdir: str | None = option(
        None,
        "Run or export whose tokenizer splits the text. Without it, lengths are in words.",
        opens="open_to_read",
    )
    splits: tuple[str, ...] = option((), "Split to read. The default is all splits.", flag="split")
    format: str = option(
        "text", "Output format: text, or a JSON list with an object for each split.", choices=("text", "json")
    )

    @classmethod
    def read_base(cls, values: dict[str, Any]) -> tuple[Any, list[str]]:
        """Reads the config file, or else the config of the run. Raises a UserError if both are missing."""
        if not values["config_file"] and not values["workdir"]:
            raise UserError(
                "Give the config whose data to show (--config=FILE), or a run or an export (--workdir=DIR)."
            )
        source = NewRun if values["config_file"] else FinishedRun
        return source.read_base(values)


@options
class Split(ConfigOptions):
    """Divide a corpus of sentence pairs into splits that share no sentence."""

    config_file: str = option(REQUIRED, CONFIG_HELP, flag="config")
    output: str = output_option(REQUIRED, "Folder to write. It must be empty or not exist.")
    rows: int = option(1000, "Number of pairs of the validation split and of the test split.", minimum=1)
    seed: int = option(0, "Seed of the random choice.", minimum=0)

    @classmethod
    def read_base(cls, values: dict[str, Any]) -> tuple[Any, list[str]]:
        """Reads the config file."""
        return NewRun.read_base(values)


@options
class Train(NewRun, HostOptions):
    """Train a model from a config, or resume a run."""

    dry_run: bool = option(
        False, "Print the memory, arithmetic and batches of the run, and exit before its first step."
    )
    profile: str = option(
        "", "Steps to profile, FIRST:LAST. Writes a trace and a summary into the folder profile of the run."
    )
    warm_start: str = option(
        "", "Run or export whose parameters a new run begins with.", opens="open_to_read"
    )
    warm_start_map: tuple[str, ...] = option(
        (),
        "For --warm_start: parameters to take, TARGET=SOURCE, such as encoder/*=encoder/*. Without it, all.",
    )
    from_step: int | None = option(
        None, "Resume from the checkpoint of this step, and set all later checkpoints aside.", minimum=0
    )
    allow_change: tuple[str, ...] = option(
        (), "Field that a resumed run may change although its results depend on it, such as training.seed."
    )


@options
class Sweep(NewRun):
    """Train and evaluate all variants of a config, and write their table."""

    FIRST_ARGUMENT: ClassVar[str] = "config"

    seeds: int = option(
        3, "Number of seeds of each variant. They count up from training.seed of the config.", minimum=1
    )
    only: tuple[str, ...] = option(
        (), "Shell pattern of the variants to run, such as 'C-*'. The default is all variants."
    )
    split: str = option("validation", "Split to score. The paper's Table 3 scores the validation split.")
    checkpoint: str = option(
        "last",
        "Checkpoint to score, last or best. The paper's Table 3 scores the last, without averaging.",
        choices=("last", "best"),
    )
    jobs: int = option(1, "Number of runs that train at the same time.", minimum=1)
    scores: tuple[str, ...] = option(
        (),
        "Score to show in the table. The default is the scores that the variants publish, or the first.",
        flag="score",
    )
    dry_run: bool = option(False, "Print the plan and exit before the first run.")


@options
class Evaluate(RunOrEnsemble, HostOptions):
    """Score a run or an export on a split, and write its outputs."""

    split: str = option(
        "test", "Split to score: train, validation, test, or any other split or file stem of the data."
    )
    name: str = option(
        "", "Name of the files to write. The default is the name of the split, without its folder."
    )
    output_dir: str = output_option("", "Folder to write into. The default is the work directory.")
    samples: int = option(4, "Number of examples to print.", minimum=0)


@options
class Compare(ImportOptions):
    """Compare two runs on one test set, with a significance test."""

    first: str = positional("DIR_A", opens="open_to_read")
    second: str = positional("DIR_B", opens="open_to_read")
    split: str = option("test", "Split that was evaluated in both work directories.")
    names: tuple[str, ...] = option(
        (),
        "The --name of the evaluations: once if both have the same name, otherwise for A and then for B.",
        flag="name",
    )
    sentences: int = option(
        5, "Number of sentences to print, beginning with the largest difference in chrF2.", minimum=0
    )


@options
class Translate(DecodingRun):
    """Translate lines of text."""

    input: str = option(
        "", "Text file with a sentence on each line. The default is standard input.", opens="open_input"
    )
    output: str = output_option(
        "", "File to write. It must not exist. The default is standard output.", opens="open_output_file"
    )
    format: str = option(
        "text", "Output format: text, or a JSON object on each line.", choices=("text", "jsonl")
    )
    n_best: int = option(1, "For --format=jsonl: number of translations of each line.", minimum=1)
    alignments: bool = option(False, "For --format=jsonl: also write word alignments in Pharaoh format.")
    phrases: bool = option(
        False, "Read phrases that the translation must contain from each line, after tabs (beam search only)."
    )


@options
class Generate(DecodingRun):
    """Continue texts with a language model."""

    prefixes: tuple[str, ...] | None = option(
        None,
        "Text to continue. An empty text begins a new text. The default is to continue each line of standard "
        "input.",
        flag="prefix",
        allow_empty=True,
    )
    format: str = option(
        "text",
        "Output format: text, or a JSON object on each line for each prefix.",
        choices=("text", "jsonl"),
    )


@options
class Import:
    """Import a model of Hugging Face transformers or fairseq, or word vectors."""

    folder: str = option(
        REQUIRED,
        "Folder with config.json, safetensors and the files of the tokenizer, or with model.pt of fairseq. "
        "For --format=word2vec, a file.",
        flag="from",
        opens="open_input",
    )
    format: str = option(
        "",
        "Format of a file. word2vec: vectors of words in the text or binary form of word2vec, or in the text "
        "form of GloVe. The default is a folder of transformers or fairseq.",
        choices=("", "word2vec"),
    )
    output: str = output_option(REQUIRED, "Folder to write. It must be empty or not exist.")
    source_language: str = option("", "Source language of a model of many languages, such as eng_Latn.")
    target_language: str = option("", "Target language of a model of many languages, such as deu_Latn.")
    source_prefix: str = option("", "Text before each source text, such as the task of T5.")


@options
class Export(FinishedRun):
    """Write a run as one portable folder."""

    format: str = option(
        "tfm",
        "Format of the folder. huggingface: a model of transformers. ctranslate2: a model of CTranslate2. "
        "page: a page that translates in the browser, without Python. word2vec: vectors of words as text and "
        "in binary form. glove: vectors of words as text without a header.",
        choices=("tfm", "huggingface", "ctranslate2", "page", "word2vec", "glove"),
    )
    quantization: str = option(
        "float32",
        "ctranslate2: data type of the parameters.",
        choices=("float32", "int8", "int16", "float16"),
    )
    output: str = output_option(REQUIRED, "Folder to write. It must be empty or not exist.")


@options
class Visualize(FinishedRun):
    """Draw training curves and attention, and make a page to explore them."""

    arguments: tuple[str, ...] = positional("[EXAMPLE ...]")
    sentences: tuple[str, ...] = option(
        (), "Example to draw, like the examples without a flag.", flag="sentence"
    )
    output: str = output_option(
        "", "Folder of the figures. The default is the folder figures in the work directory."
    )
    max_tokens: int = option(MAX_SENTENCE_TOKENS, "Maximum number of tokens of a text.", minimum=1)
    format: str = option("png", "File format of the figures.", choices=FIGURE_FORMATS)
    layer: int | None = option(None, "Layer to draw, counted from 0. The default is all layers.")
    head: str | None = option(
        None,
        "Head to draw: an index counted from 0, mean for all heads together, or rollout, the attention that "
        "is combined over the layers. The default is all heads.",
    )
    words: bool = option(False, "Draw the attention of words instead of word pieces.")
    measure: str = option(
        "weights",
        "Measure to draw: the attention weights, or the norms of the weighted values.",
        choices=MEASURES,
    )
    lines: str | None = option(
        None,
        "Word whose attention in every example is also drawn as lines. Commas separate words of which each "
        "example has one. The default head is the head that differs most between the examples.",
    )


@options
class Explore(FinishedRun):
    """Explore a model in the browser: your own examples, parts turned off by a click."""

    arguments: tuple[str, ...] = positional("[EXAMPLE ...]")
    sentences: tuple[str, ...] = option(
        (), "Example to begin with, like the examples without a flag.", flag="sentence"
    )
    port: int = option(0, "Port of the server on 127.0.0.1. 0 chooses a free port.", minimum=0, maximum=65535)
    no_browser: bool = option(
        False, "Only print the address of the page, and open no browser.", flag="no-browser"
    )
    max_tokens: int = option(MAX_SENTENCE_TOKENS, "Maximum number of tokens of a text.", minimum=1)


@options
class Replay(ImportOptions):
    """Recompute one training step, and show its gradients and updates."""

    workdir: str = option(REQUIRED, "Folder of a run.", opens="open_to_read")
    step: int = option(REQUIRED, "Training step to recompute, counted from 1.", minimum=1)
    output: str = output_option(
        "",
        "File for the arrays of the step, with the ending .npz. The default is to write no file.",
        opens="open_output_file",
    )


@options
class Status(ImportOptions):
    """Show the progress of a run: step, speed, scores and checkpoints."""

    workdir: str = positional("DIR", opens="open_to_view")


@options
class List(ImportOptions):
    """List the runs in folders, with their scores."""

    folders: tuple[str, ...] = positional("[FOLDER ...]", opens="open_to_view")


@options
class Systems:
    """Show the systems of the family, with sizes and scores."""


GROUPS: dict[str, tuple[type, ...]] = {
    "Train": (Quickstart, Data, Split, Train, Sweep),
    "Use a model": (Evaluate, Compare, Translate, Generate, Import, Export),
    "Look inside": (Visualize, Explore, Replay),
    "Look after runs": (Status, List, Systems),
}
OPTIONS = {cls.__name__.lower(): cls for group in GROUPS.values() for cls in group}
