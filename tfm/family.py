"""The table of the systems of tfm, oldest first.

The short names of models and tasks in configs, `tfm systems`, the lineage and the table of docs/family.md are
made from this table.
"""

import dataclasses
import importlib
import importlib.util
import pathlib
from collections.abc import Mapping
from types import ModuleType

LANGUAGE, SEQUENCES, IMAGES = AREAS = ("language models", "sequences to sequences", "images")
ROOT = pathlib.Path(__file__).parent.parent  # of the repository, or the folder in which tfm is installed


@dataclasses.dataclass(frozen=True)
class System:
    """A system of the family.

    Attributes:
      name: folder of tfm/systems, or the name of a model of the core.
      title: full name.
      authors: first authors of its papers.
      year: year of the first paper.
      after: names of the systems that it changes.
      change: what it changes, as a verb phrase of which the system is the subject.
      area: one of `AREAS`.
      models: {short name in configs: module with `Config` and `Model`}.
      tasks: {short name in configs: module with `Config` and `create`}.
      core_page: path of its page in the repository, for a system of the core.
      data: data of its small config.
      config: name of its small config, with a variant after a colon.
      parameters: number of parameters of the published size, if it has a published size.
      score: test score of its small config with seed 0, with its unit.
      seconds: seconds of CPU time that its small config trains for on two cores, if they were measured.
    """

    name: str
    title: str
    authors: str
    year: int
    change: str
    area: str
    data: str
    config: str
    score: str
    after: tuple[str, ...] = ()
    models: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tasks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    core_page: str = ""
    parameters: int | None = None
    seconds: int | None = None

    @property
    def page(self) -> str:
        """The path of its page in the repository."""
        return self.core_page or f"tfm/systems/{self.name}/README.md"

    @property
    def files(self) -> list[pathlib.Path]:
        """The files of its code: its folder, or its models and tasks in the core."""
        if not self.core_page:
            return _list_files(ROOT / "tfm" / "systems" / self.name)
        modules = [*self.models.values(), *self.tasks.values()]
        return [file for module in modules for file in _list_files(ROOT.joinpath(*module.split(".")))]


SYSTEMS = (
    System(
        name="feed_forward_lm",
        title="Feed-forward language model",
        authors="Bengio",
        year=2003,
        change="learns vectors of words together with a network that predicts the next word",
        area=LANGUAGE,
        models={"feed_forward_lm": "tfm.systems.feed_forward_lm.model"},
        data="Python's reference texts",
        config="lm_pydoc:feed_forward",
        parameters=2_158_273,
        score="2.06 bits per character",
        seconds=139,
    ),
    System(
        name="word2vec",
        title="word2vec",
        authors="Mikolov",
        year=2013,
        after=("feed_forward_lm",),
        change="keeps only the vectors and predicts neighbours",
        area=LANGUAGE,
        models={"word2vec": "tfm.systems.word2vec.model"},
        tasks={"word_vectors": "tfm.systems.word2vec.task"},
        data="built-in language",
        config="word2vec",
        parameters=415_200_000,
        score="87.7 % of neighbours",
        seconds=28,
    ),
    System(
        name="lstm_lm",
        title="LSTM language model",
        authors="Zaremba",
        year=2014,
        after=("feed_forward_lm",),
        change="reads all earlier words through memory cells",
        area=LANGUAGE,
        models={"lstm_lm": "tfm.systems.lstm_lm.model"},
        data="Python's reference texts",
        config="lm_pydoc:lstm",
        parameters=66_022_000,
        score="1.85 bits per character",
        seconds=715,
    ),
    System(
        name="rnn_seq2seq",
        title="Recurrent translation with attention",
        authors="Bahdanau, Luong",
        year=2014,
        after=("lstm_lm",),
        change="decodes with attention over all states of an encoder",
        area=SEQUENCES,
        models={"rnn_seq2seq": "tfm.systems.rnn_seq2seq.model", "rnn_luong": "tfm.systems.rnn_seq2seq.luong"},
        data="built-in language",
        config="quickstart_rnn",
        parameters=80_412_000,
        score="97.81 BLEU",
    ),
    System(
        name="memory_network",
        title="Memory network",
        authors="Sukhbaatar",
        year=2015,
        after=("rnn_seq2seq",),
        change="attends several times to stored sentences",
        area=SEQUENCES,
        models={"memory_network": "tfm.systems.memory_network.model"},
        tasks={"question_answering": "tfm.systems.memory_network.task"},
        data="generated stories",
        config="memory_network",
        parameters=18_160,
        score="99.8 % of two-fact answers",
        seconds=56,
    ),
    System(
        name="conv_s2s",
        title="ConvS2S",
        authors="Gehring",
        year=2017,
        after=("rnn_seq2seq",),
        change="replaces recurrence by convolutions",
        area=SEQUENCES,
        models={"conv_s2s": "tfm.systems.conv_s2s.model"},
        data="built-in language",
        config="quickstart_conv",
        parameters=137_144_448,
        score="96.91 BLEU",
        seconds=417,
    ),
    System(
        name="transformer",
        title="Transformer",
        authors="Vaswani",
        year=2017,
        after=(
            "rnn_seq2seq",
            "conv_s2s",
        ),
        change="replaces recurrence and convolutions by attention",
        area=SEQUENCES,
        models={"transformer": "tfm.models.transformer"},
        tasks={"translation": "tfm.tasks.translation"},
        core_page="docs/paper.md",
        data="built-in language",
        config="quickstart",
        parameters=63_045_632,
        score="98.34 BLEU",
        seconds=358,
    ),
    System(
        name="parsing",
        title="Transformer as a parser",
        authors="Vaswani",
        year=2017,
        after=("transformer",),
        change="writes trees in place of translations",
        area=SEQUENCES,
        tasks={"parsing": "tfm.systems.parsing.task"},
        data="built-in language",
        config="parsing_toy",
        score="91.71 F1",
        seconds=237,
    ),
    System(
        name="t_dmca",
        title="T-DMCA",
        authors="Liu",
        year=2018,
        after=("transformer",),
        change="compresses keys and values, for long documents",
        area=LANGUAGE,
        models={"t_dmca": "tfm.systems.t_dmca.model"},
        tasks={"summarization": "tfm.systems.t_dmca.task"},
        data="generated reports",
        config="reports",
        parameters=35_294_720,
        score="85.4 ROUGE-1",
        seconds=777,
    ),
    System(
        name="decoder_lm",
        title="Decoder-only Transformer",
        authors="Liu, Radford",
        year=2018,
        after=("t_dmca",),
        change="drops the encoder",
        area=LANGUAGE,
        models={"decoder_lm": "tfm.models.decoder_lm"},
        tasks={"language_modeling": "tfm.tasks.language_modeling"},
        core_page="docs/language_modeling.md",
        data="Python's reference texts",
        config="lm_pydoc",
        parameters=124_439_808,
        score="1.77 bits per character",
        seconds=662,
    ),
    System(
        name="bert",
        title="BERT",
        authors="Devlin",
        year=2018,
        after=("transformer",),
        change="drops the decoder and restores hidden words",
        area=LANGUAGE,
        models={"bert": "tfm.systems.bert.model"},
        tasks={
            "masked_language_modeling": "tfm.systems.bert.pretraining",
            "text_classification": "tfm.systems.bert.classification",
        },
        data="built-in language",
        config="bert_toy",
        parameters=109_482_240,
        score="29.8 % of hidden tokens",
        seconds=517,
    ),
    System(
        name="universal",
        title="Universal Transformer",
        authors="Dehghani",
        year=2018,
        after=("transformer",),
        change="applies one layer as often as a token needs",
        area=SEQUENCES,
        models={"universal": "tfm.systems.universal.model"},
        data="generated strings",
        config="algorithms:copy",
        parameters=26_294_272,
        score="93 % at 20 symbols",
        seconds=198,
    ),
    System(
        name="sagan",
        title="Self-Attention GAN",
        authors="Zhang",
        year=2018,
        after=("transformer",),
        change="attends to pixels, with two players",
        area=IMAGES,
        models={"sagan": "tfm.systems.sagan.model"},
        tasks={"image_generation": "tfm.systems.sagan.task"},
        data="digits",
        config="sagan",
        parameters=81_542_470,
        score="97.77 % as requested",
        seconds=139,
    ),
    System(
        name="vit",
        title="Vision Transformer",
        authors="Dosovitskiy",
        year=2020,
        after=("bert",),
        change="reads patches of images as words",
        area=IMAGES,
        models={"vit": "tfm.systems.vit.model"},
        tasks={"image_classification": "tfm.tasks.image_classification"},
        data="digits",
        config="vit",
        parameters=86_567_656,
        score="96.66 % accuracy",
        seconds=31,
    ),
    System(
        name="detr",
        title="DETR",
        authors="Carion",
        year=2020,
        after=("transformer",),
        change="decodes a set of boxes",
        area=IMAGES,
        models={"detr": "tfm.systems.detr.model", "resnet": "tfm.systems.detr.resnet"},
        tasks={"detection": "tfm.systems.detr.task"},
        data="generated scenes",
        config="detr",
        parameters=41_524_768,
        score="95.29 AP50",
        seconds=394,
    ),
    System(
        name="dalle",
        title="DALL-E",
        authors="Ramesh",
        year=2021,
        after=("decoder_lm",),
        change="continues captions with codes of images",
        area=IMAGES,
        models={"dalle": "tfm.systems.dalle.model", "dvae": "tfm.systems.dalle.dvae"},
        tasks={
            "image_tokens": "tfm.systems.dalle.image_tokens",
            "text_to_image": "tfm.systems.dalle.text_to_image",
        },
        data="generated captions",
        config="dalle",
        parameters=12_389_412_614,
        score="97.00 % of captions",
        seconds=1_797,
    ),
)
MODELS = dict(sorted((name, module) for system in SYSTEMS for name, module in system.models.items()))
TASKS = dict(sorted((name, module) for system in SYSTEMS for name, module in system.tasks.items()))


def find_system(name: str) -> System:
    """Returns the system with this name. Raises a KeyError if there is none."""
    return {system.name: system for system in SYSTEMS}[name]


def find_parts(name: str) -> list[ModuleType]:
    """Returns the modules with this name of all systems that have it: tfm.systems.bert.huggingface."""
    parts = [f"tfm.systems.{system.name}.{name}" for system in SYSTEMS if not system.core_page]
    return [importlib.import_module(part) for part in parts if importlib.util.find_spec(part)]


def _list_files(module: pathlib.Path) -> list[pathlib.Path]:
    """Returns the Python files of a package, or the file of a module."""
    return sorted(module.glob("*.py")) if module.is_dir() else [module.with_suffix(".py")]
