"""Images from texts (Ramesh et al. 2021, section 2.2): a language model over captions and codes of images.

The codes come from a trained autoencoder (`tfm.systems.dalle.image_tokens`). A trained classifier of digits
judges the pictures that were drawn for generated captions. Both are frozen. For the batch see
`tfm.systems.dalle.captions`.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models, tasks
from tfm.config import OnResume, check_fields, field
from tfm.data.batches.generated import EVALUATION, GeneratedData, evaluation_batches
from tfm.data.config import VOCABULARY_FILE
from tfm.data.inspection import Summary
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokenizers.unknown_text import find_unknown_parts
from tfm.decoding.config import GenerationConfig
from tfm.devices.mesh import fetch
from tfm.errors import UserError
from tfm.evaluation.score import Score
from tfm.interpret.observation import Observation
from tfm.layers.observe import read_attention
from tfm.systems.dalle import first_stage
from tfm.systems.dalle.caption_text import CaptionText, DigitText, TokenText
from tfm.systems.dalle.captions import (
    CAPTION_WORDS,
    DIGIT,
    FIRST_WORD_ID,
    NUMBERS,
    SIZE,
    WORDS,
    CaptionsConfig,
)
from tfm.systems.dalle.checker import find_digits, is_satisfied
from tfm.systems.dalle.data import (
    PictureForm,
    Pictures,
    count_evaluated,
    identify_split,
    open_captions,
    open_pictures,
    prepare_caption_tokenizer,
)
from tfm.systems.dalle.drawing import (
    continue_codes,
    describe_drawings,
    make_figures,
    make_inputs,
    observe_drawing,
)
from tfm.systems.dalle.first_stage import FirstStage
from tfm.systems.dalle.inspection import summarize_captions
from tfm.systems.dalle.model import DALLEConfig
from tfm.training.config import TrainingConfig
from tfm.training.frozen import SUFFIX, frozen_field
from tfm.training.image_judge import ImageJudge, JudgedImages
from tfm.training.loss_calls import apply_model, mean_loss_and_metrics, mean_metrics
from tfm.training.map_batches import map_batches
from tfm.training.task import (
    Batch,
    Best,
    Context,
    Evaluation,
    LossOutput,
    Report,
    Samples,
    Task,
    Variables,
    parameters_of,
)

JUDGE = "judge"  # a field of the config
SATISFIED, TEXT, IMAGE = "satisfied captions", "nats of a caption", "nats of a code"
TOKEN = "nats of a token"  # of the user's own captions, which have different lengths


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that learns to draw captions."""

    task: str = tasks.task_field("text_to_image")
    model: Any = models.model_field(DALLEConfig, "Language model of texts and codes.")
    data: CaptionsConfig = field(CaptionsConfig, "Captions, pictures and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    decoding: GenerationConfig = field(
        GenerationConfig, "Sampling of codes. Of several samples, the picture with the best score counts."
    )
    first_stage: str = frozen_field(
        first_stage.FIELD, "Run or export of the task image_tokens. It makes the codes."
    )
    judge: str = frozen_field(
        JUDGE,
        "Run or export of a classifier of scikit-learn's digits (configs/vit.py). It judges pictures of "
        "generated captions.",
    )
    text_weight: float = field(
        1 / 8, "Weight of the loss of the text. The loss of the image has the rest.", minimum=0, maximum=1
    )
    validation_samples: int = field(
        12,
        "Number of drawn captions to show at each evaluation.",
        minimum=0,
        maximum=1000,
        unit="captions",
        resume=OnResume.FREE,
    )
    SCORES: ClassVar[tuple[str, ...]] = (SATISFIED, TEXT, IMAGE, TOKEN)
    output_suffix: ClassVar[str] = "captions"

    def __post_init__(self):
        check_fields(self)

    def without_paths(self) -> "Config":
        """Returns this config without the paths of this machine, for an export."""
        return dataclasses.replace(self, first_stage="", judge="", data=self.data.without_paths())


DIGITS = JudgedImages(image_size=DIGIT, channels=1, classes=len(NUMBERS))


class TextToImage(Task):
    """A task that trains a language model of captions and codes.

    Attributes:
      config: `Config`.
      first_stage: the autoencoder.
      text: the relation between captions and ids.
      model, d_model, best, unit, averages_models: see `tfm.training.task.Task`.
    """

    best = Best("validation/satisfied", "max")
    validation_scores: tuple[str, ...] = (
        *("validation/loss", "validation/text_nll", "validation/image_nll"),
        "validation/satisfied",
    )
    validation_loss = "validation/loss"
    unit = "pictures"
    example_help = "Your own caption, such as: red three left of blue seven"
    averages_models = True

    def __init__(self, config: Config, first_stage: FirstStage, judge: ImageJudge | None = None):
        """Creates the task.

        Args:
          config: `Config`.
          first_stage: the autoencoder.
          judge: the classifier of digits. None for captions that nothing judges.
        """
        self.config = config
        self.d_model = config.model.d_model
        self.model = models.find(config.model.name).Model(config.model, config.model.vocabulary)
        self.first_stage = first_stage
        self._judge = judge
        self.text: CaptionText = DigitText()

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        return self.model.init(rng, jnp.zeros((1, 1), int), train=False)

    def constants(self) -> Variables:
        """Returns the variables of the autoencoder."""
        return self.first_stage.variables

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the files of the autoencoder and the classifier."""
        assets = {first_stage.FIELD + SUFFIX: self.first_stage.fingerprint}
        if self._judge is not None:
            assets[JUDGE + SUFFIX] = self._judge.fingerprint
        return assets

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the cross-entropy per token of the text and of the image, and weighs both.

        The terms are "text" and "image". The metrics "text_nll" and "image_nll" are not weighed.
        """
        codes: Any = self.first_stage.module.apply(context.constants, batch["images"], method="encode")
        row = make_inputs(batch["text"], codes.reshape(len(batch["text"]), -1), self.config.model)
        inputs, tokens = row[:, :-1], row[:, 1:]
        logits, state = apply_model(self.model, variables, inputs, context=context)
        log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
        losses = -jnp.take_along_axis(log_probabilities, tokens[..., None], -1)[..., 0]
        losses *= batch["weights"][:, None]
        length, share = self.config.model.text_length, self.config.text_weight
        parts = {"text": (share, losses[:, :length]), "image": (1 - share, losses[:, length:])}
        count = batch["weights"].sum()
        counts = {name: count * x.shape[1] for name, (_, x) in parts.items()}
        if "text_weights" in batch:
            parts["text"] = share, losses[:, :length] * batch["text_weights"]
            counts["text"] = (batch["text_weights"] * batch["weights"][:, None]).sum()
        terms = {name: (weight * x.sum(), counts[name]) for name, (weight, x) in parts.items()}
        metrics = {f"{name}_nll": (x.sum(), counts[name]) for name, (_, x) in parts.items()}
        return LossOutput(terms, metrics, state)

    def open_data(self) -> GeneratedData:
        """Opens training and validation pictures."""
        return open_captions(self.config.data, self.config.training.seed, self._form)

    @property
    def _form(self) -> PictureForm:
        """The size of the pictures, and how the user's own captions are read."""
        autoencoder = self.first_stage.module.config
        return PictureForm(autoencoder.image_size, autoencoder.channels, None)

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes the losses of the validation split, and how many drawn captions are satisfied.

        One figure shows drawn captions. For the other, the model completes the upper halves of pictures.
        """
        pictures = data.validation
        loss, metrics = mean_loss_and_metrics(self, variables, self._batches(pictures))
        scores = {"validation/loss": loss} | {f"validation/{name}": x for name, x in metrics.items()}
        count = min(self.config.validation_samples, count_evaluated(self.config.data, pictures))
        drawn = self._draw_validation(variables, pictures, count)
        scores |= drawn.scores
        if not count:
            return Evaluation(scores)
        (shown,) = evaluation_batches(pictures, count, count)
        halves = self.first_stage.encode(shown["images"])[:, : self.config.model.side**2 // 2]
        completed = self.draw(variables, shown["text"], halves)
        figures = make_figures(drawn.rows, drawn.images, shown["images"], completed)
        return Evaluation(scores, Samples(drawn.rows, figures))

    def _draw_validation(self, variables: Variables, pictures: Pictures, count: int) -> "Drawn":
        """Draws all captions of the validation split, and scores them. Returns the first `count`."""
        texts = self._read_texts(pictures)
        images = self.draw(variables, texts)
        satisfied = self.check(images, texts)
        rows = describe_drawings([self.text.describe(text) for text in texts[:count]], satisfied[:count])
        return Drawn(images[:count], rows, {"validation/satisfied": float(satisfied.mean())})

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields one report, whose outputs are "yes" or "no": whether the picture of a caption is right.

        The scores are the share of satisfied captions and, except for an ensemble, the nats of a caption and
        of a code.

        Raises:
          UserError: if the split cannot be used.
        """
        pictures = open_pictures(self.config.data, split, self._form)
        began = time.monotonic()
        texts = self._read_texts(pictures)
        satisfied = self.check(self.draw(variables, texts), texts)
        rate = len(texts) / (time.monotonic() - began)
        examples = describe_drawings([self.text.describe(text) for text in texts], satisfied)
        signature = f"{len(texts):,} captions"
        scores = [Score(SATISFIED, 100 * float(satisfied.mean()), f"per cent of {signature}")]
        if not isinstance(variables, tuple):
            losses = mean_metrics(self, variables, self._batches(pictures))
            values = {TEXT: self.config.model.text_length * losses["text_nll"], IMAGE: losses["image_nll"]}
            scores += [Score(name, value, signature, digits=3) for name, value in values.items()]
        settings = dataclasses.asdict(self.config.decoding)
        lines = [example["satisfied"] for example in examples]
        yield Report(lines, scores, examples, settings, rate, pictures.fingerprint)

    def draw(self, variables: Any, texts: np.ndarray, first_codes: np.ndarray | None = None) -> np.ndarray:
        """Draws a picture for each caption. For the arguments, see `draw_codes`.

        Returns:
          float32 [N, height, width, C], from -1 to 1.
        """
        return self.first_stage.decode(self.draw_codes(variables, texts, first_codes))

    def draw_codes(
        self, variables: Any, texts: np.ndarray, first_codes: np.ndarray | None = None
    ) -> np.ndarray:
        """Draws the codes of a picture for each caption. If there are several samples, the most probable
        sample is kept.

        Args:
          variables: variables of the model, or a tuple of the variables of several models.
          texts: ids of the captions, int [N, S].
          first_codes: codes of the upper part of each picture, int [N, P]. The model completes the picture.
            None draws the whole picture.

        Returns:
          int [N, side * side], row by row.
        """
        given = np.zeros((len(texts), 0), int) if first_codes is None else first_codes
        return continue_codes(self.model, parameters_of(variables), texts, given, self.config.decoding)

    def default_examples(self) -> list[str]:
        """See `tfm.interpret.observation.Observes`."""
        return ["red three left of blue seven", "green eight above yellow one"]

    def observe(self, variables: Variables, example: str, max_tokens: int) -> Observation:
        """Draws a caption, and records which words and codes the model attends to.

        Args:
          variables: variables of the model.
          example: the caption.
          max_tokens: ignored, because all captions and pictures have the same length.

        Raises:
          UserError: if it is no caption of these pictures.
        """
        del max_tokens
        texts = self.text.parse(example)[None]
        codes = self.draw_codes(variables, texts)
        images = self.first_stage.decode(codes)
        inputs = make_inputs(texts, codes, self.config.model)
        weights = fetch(self._read_attention(variables, inputs))
        is_right = None if self._judge is None else bool(self.check(images, texts)[0])
        caption, words = self.text.describe(texts[0]), self.text.label(texts[0])
        return observe_drawing(caption, words, images[0], weights[:, 0], is_right)

    def find_unknown(self, example: str) -> list[str]:
        """See `tfm.interpret.observation.FindsUnknown`. Generated captions have no other words."""
        del example
        return []

    def check(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """Returns whether images [N, height, width, C] show what generated captions [N, S] say, bool [N]."""
        assert self._judge is not None  # `create` reads it for generated captions
        parts = find_digits(images)
        probabilities, _ = self._judge.judge(parts.shades.reshape(-1, *parts.shades.shape[2:]))
        return is_satisfied(texts - FIRST_WORD_ID, parts, probabilities.argmax(-1).reshape(-1, 2))

    def _batches(self, pictures: Pictures) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches of a validation or test split."""
        data = self.config.data
        return evaluation_batches(pictures, count_evaluated(data, pictures), data.batch_size)

    def _read_texts(self, pictures: Pictures) -> np.ndarray:
        """Returns the ids of the captions of a validation or test split, int [N, S]."""
        return np.concatenate([batch["text"][batch["weights"] > 0] for batch in self._batches(pictures)])

    @functools.partial(jax.jit, static_argnums=0)
    def _read_attention(self, variables: Variables, inputs: jax.Array) -> jax.Array:
        """Returns the attention weights [layers, B, H, L, L] while the model reads inputs [B, L]."""

        def apply():
            return self.model.apply(variables, inputs, train=False)

        return read_attention(self.model.attention_points["decoder"], apply)[1]


class Drawn(NamedTuple):
    """Drawn captions of the validation split.

    Attributes:
      images: the first pictures, float32 [n, height, width, C], from -1 to 1.
      rows: for each of them, the texts of a row of the samples.
      scores: scores of all captions.
    """

    images: np.ndarray
    rows: list[dict[str, str]]
    scores: dict[str, float]


class OwnTextToImage(TextToImage):
    """A task that trains on the user's own captions, whose drawn pictures nothing can judge.

    For the attributes, see `TextToImage`.
    """

    best = Best("validation/loss", "min")
    validation_scores = TextToImage.validation_scores[:3]
    averages_models = False

    def __init__(self, config: Config, first_stage: FirstStage, tokenizer: Tokenizer):
        """Creates the task. The tokenizer splits the captions. See `TextToImage` for the other arguments."""
        super().__init__(config, first_stage)
        self._tokenizer = tokenizer
        self.text = self._token_text = TokenText(tokenizer, config.model.text_length)

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the files of the autoencoder and the tokenizer."""
        if self.config.data.tokenizer == "bytes":
            return super().assets()
        return super().assets() | {VOCABULARY_FILE: self._tokenizer.fingerprint}

    @property
    def _form(self) -> PictureForm:
        return super()._form._replace(text=self._token_text)

    def _draw_validation(self, variables: Variables, pictures: Pictures, count: int) -> Drawn:
        """Draws the first `count` captions of the validation split."""
        if not count:
            return Drawn(np.zeros(0), [], {})
        texts = self._first_texts(pictures, count)
        rows = [{"caption": self.text.describe(text)} for text in texts]
        return Drawn(self.draw(variables, texts), rows, {})

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields how well the model predicts each caption of a split and its picture."""
        yield self._report_likelihoods(variables, open_pictures(self.config.data, split, self._form))

    def _report_likelihoods(self, variables: Variables, pictures: Pictures) -> Report:
        """Returns the negative log-likelihoods of the captions and of the codes of pictures, in nats."""
        began = time.monotonic()
        sums: list[np.ndarray] = []
        examples: list[dict[str, str]] = []
        for batch in self._batches(pictures):
            batch["codes"] = self.first_stage.encode(batch.pop("images"))
            for rows, nats in map_batches(self._measure, variables, [batch]):
                sums.append(np.column_stack([*nats, rows["text_weights"].sum(1)]))
                captions = [self.text.describe(text) for text in rows["text"]]
                texts, images = (np.char.mod("%.2f", x) for x in nats)
                names = ("caption", "nats of the caption", "nats of the picture")
                examples += [
                    dict(zip(names, row, strict=True)) for row in zip(captions, texts, images, strict=True)
                ]
        table = np.concatenate(sums).astype(float)
        text, image, tokens = table.sum(0)
        signature = f"{len(table):,} captions"
        values = {
            TEXT: text / len(table),
            TOKEN: text / tokens,
            IMAGE: image / (len(table) * self.config.model.side**2),
        }
        scores = [Score(name, float(value), signature, digits=3) for name, value in values.items()]
        lines = [f"{row['nats of the caption']}\t{row['nats of the picture']}" for row in examples]
        rate = len(table) / (time.monotonic() - began)
        return Report(lines, scores, examples, {}, rate, pictures.fingerprint)

    @functools.partial(jax.jit, static_argnums=0)
    def _measure(self, variables: Variables, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns the nats of each caption and of the codes of each picture, [B]."""
        row = make_inputs(batch["text"], batch["codes"], self.config.model)
        logits = self.model.apply(variables, row[:, :-1], train=False)
        log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
        losses = -jnp.take_along_axis(log_probabilities, row[:, 1:, None], -1)[..., 0]
        length = self.config.model.text_length
        return (losses[:, :length] * batch["text_weights"]).sum(1), losses[:, length:].sum(1)

    def default_examples(self) -> list[str]:
        """Returns the first two captions of the validation split."""
        pictures = open_pictures(self.config.data, "validation", self._form)
        count = min(2, count_evaluated(self.config.data, pictures))
        return [self.text.describe(text) for text in self._first_texts(pictures, count)]

    def find_unknown(self, example: str) -> list[str]:
        """See `tfm.interpret.observation.FindsUnknown`."""
        return find_unknown_parts(self._tokenizer, example)

    @staticmethod
    def _first_texts(pictures: Pictures, count: int) -> np.ndarray:
        """Returns the ids of the first captions of a split, int [count, S]."""
        return pictures.assemble([pictures.make(EVALUATION, index) for index in range(count)], count)["text"]


def inspect_split(config: Config, split: str) -> Summary:
    """Returns what `tfm data` shows of a split."""
    return summarize_captions(split, config.data, getattr(config.model, "text_length", None))


def fingerprint(config: Config, split: str) -> str:
    """Returns the fingerprint of the content of a split."""
    return identify_split(config.data, split)


def create(config: Config, workdir: str, *, new: bool = True) -> TextToImage:
    """Creates the task of a run. A new run with the user's own captions also writes their tokenizer.

    Args:
      config, workdir, new: see `tfm.training.assets.prepare_tokenizer`.

    Raises:
      UserError: if the model has a different size of captions, the run has no first stage or no classifier,
        they do not fit the model, or the user's own captions cannot be used.
    """
    if config.data.kind != "digits":
        return _create_for_own_captions(config, workdir, new=new)
    sizes = {"text_vocabulary": FIRST_WORD_ID + len(WORDS), "text_length": CAPTION_WORDS}
    for name, expected in sizes.items():
        actual = getattr(config.model, name, None)
        if actual != expected:
            raise UserError(f"Expected model.{name} to be {expected} for these captions, got {actual}.")
    stage = FirstStage(workdir, config.model, {"image_size": SIZE, "channels": 3})
    return TextToImage(config, stage, ImageJudge(workdir, JUDGE, DIGITS))


def _create_for_own_captions(config: Config, workdir: str, *, new: bool) -> TextToImage:
    """Creates the task of a run that learns from the user's own captions."""
    if not isinstance(config.model, DALLEConfig):
        raise UserError(f"Expected model.name to be dalle for text_to_image, got {config.model.name!r}.")
    stage = FirstStage(workdir, config.model)
    sizes = {name: getattr(config.model, name) for name in ("text_vocabulary", "text_length")}
    tokenizer = prepare_caption_tokenizer(config.data, workdir, **sizes, new=new)
    return OwnTextToImage(config, stage, tokenizer)
