"""Images from texts (Ramesh et al. 2021, section 2.2): a language model over captions and codes of images.

The codes come from a trained autoencoder (`tfm.tasks.image_tokens`), and a trained classifier of digits
judges the drawn pictures. Both are frozen. For the batch see `tfm.data.captions`.
"""

import dataclasses
import functools
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm import models
from tfm.config import OnResume, check_fields, field, from_mapping
from tfm.data.batches.generated import GeneratedData, Generator, evaluation_batches
from tfm.data.captions import (
    CAPTION_WORDS,
    DIGIT,
    FIRST_WORD_ID,
    NUMBERS,
    SIZE,
    WORDS,
    CaptionedDigits,
    CaptionsConfig,
    describe_text,
    open_captions,
)
from tfm.data.tokenizers.protocol import BOS_ID
from tfm.decoding.config import GenerationConfig
from tfm.decoding.generate import generate_ids
from tfm.devices.mesh import fetch
from tfm.errors import UserError
from tfm.evaluation.caption_metrics import find_digits, is_satisfied
from tfm.evaluation.score import Score
from tfm.models.dalle import DALLEConfig
from tfm.training.config import TrainingConfig
from tfm.training.frozen import SUFFIX, FrozenModel, check_frozen, frozen_field, read_frozen
from tfm.training.image_judge import ImageJudge, JudgedImages
from tfm.training.loss_calls import apply_model, mean_metrics
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
from tfm.visualize.pictures import draw_images

FIRST_STAGE, JUDGE = "first_stage", "judge"
TITLE_WIDTH = 20  # characters above a drawn picture
SATISFIED, TEXT, IMAGE = "satisfied captions", "nats of a caption", "nats of a code"
DIGITS = JudgedImages(image_size=DIGIT, channels=1, classes=len(NUMBERS))


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that learns to draw captions."""

    task: str = field("text_to_image", "A module of tfm.tasks.", resume=OnResume.FIXED, warm_start=False)
    model: Any = models.model_field(DALLEConfig, "Language model of texts and codes.")
    data: CaptionsConfig = field(CaptionsConfig, "Captions, pictures and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    decoding: GenerationConfig = field(
        GenerationConfig, "Sampling of codes. Of several samples, the picture with the best score counts."
    )
    first_stage: str = frozen_field(
        FIRST_STAGE, "Run or export of the task image_tokens. It makes the codes."
    )
    judge: str = frozen_field(
        JUDGE, "Run or export of a classifier of scikit-learn's digits (configs/vit.py). It judges pictures."
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
    SCORES: ClassVar[tuple[str, ...]] = (SATISFIED, TEXT, IMAGE)
    output_suffix: ClassVar[str] = "captions"

    def __post_init__(self):
        check_fields(self)

    def without_paths(self) -> "Config":
        """Returns this config without the paths of the frozen models."""
        return dataclasses.replace(self, first_stage="", judge="")


class TextToImage(Task):
    """A task that trains a language model of captions and codes.

    Attributes:
      config: `Config`.
      autoencoder: the Linen module of the first stage.
      model, d_model, best, unit: see `tfm.training.task.Task`.
    """

    best = Best("validation/satisfied", "max")
    unit = "pictures"

    def __init__(self, config: Config, first_stage: FrozenModel, judge: ImageJudge):
        self.config, self.d_model = config, config.model.d_model
        self.model = models.find(config.model.name).Model(config.model, config.model.vocabulary)
        self.autoencoder = make_autoencoder(first_stage, config.model)
        self._first_stage = first_stage
        self._judge = judge

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        return self.model.init(rng, jnp.zeros((1, 1), int), train=False)

    def constants(self) -> Variables:
        """Returns the variables of the autoencoder."""
        return self._first_stage.variables

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the files of the autoencoder and of the classifier."""
        return {
            FIRST_STAGE + SUFFIX: self._first_stage.fingerprint,
            JUDGE + SUFFIX: self._judge.fingerprint,
        }

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the cross-entropy per token of the text and of the image, and weighs both."""
        codes: Any = self.autoencoder.apply(context.constants, batch["images"], method="encode")
        codes = codes.reshape(len(batch["text"]), -1)
        tokens = jnp.concatenate([batch["text"], self.config.model.text_vocabulary + codes], axis=1)
        inputs = jnp.pad(tokens, ((0, 0), (1, 0)), constant_values=BOS_ID)[:, :-1]
        logits, state = apply_model(self.model, variables, inputs, context=context)
        log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
        losses = -jnp.take_along_axis(log_probabilities, tokens[..., None], -1)[..., 0]
        losses *= batch["weights"][:, None]
        length, share = self.config.model.text_length, self.config.text_weight
        parts = {"text": (share, losses[:, :length]), "image": (1 - share, losses[:, length:])}
        count = batch["weights"].sum()
        terms = {name: (weight * x.sum(), count * x.shape[1]) for name, (weight, x) in parts.items()}
        metrics = {f"{name}_nll": (x.sum(), count * x.shape[1]) for name, (_, x) in parts.items()}
        return LossOutput(terms, metrics, state)

    def open_data(self) -> GeneratedData:
        """Opens training and validation pictures."""
        hosts = {"host_index": jax.process_index(), "host_count": jax.process_count()}
        return open_captions(self.config, hosts)

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes the losses of the validation split, and how many drawn captions are satisfied."""
        batches = list(self._batches(data.validation))
        scores = {f"validation/{name}": x for name, x in mean_metrics(self, variables, batches).items()}
        texts = _texts(batches)
        images = self.draw(variables, texts)
        satisfied = self.check(images, texts)
        scores["validation/satisfied"] = float(satisfied.mean())
        count = min(self.config.validation_samples, len(texts))
        if not count:
            return Evaluation(scores)
        captions = list(map(describe_text, texts[:count]))
        rows = [
            {"caption": caption, "satisfied": "yes" if is_right else "no"}
            for caption, is_right in zip(captions, satisfied, strict=False)
        ]
        titles = ["\n".join(textwrap.wrap(caption, TITLE_WIDTH)) for caption in captions]
        draw = functools.partial(draw_images, images[:count], titles, columns=4, panel=1.4)
        return Evaluation(scores, Samples(rows, {"drawn": draw}))

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields whether the drawn picture of each caption of a split is right."""
        generator = CaptionedDigits(split)
        began = time.monotonic()
        batches = list(self._batches(generator))
        texts = _texts(batches)
        satisfied = self.check(self.draw(variables, texts), texts)
        rate = len(texts) / (time.monotonic() - began)
        outputs = ["yes" if is_right else "no" for is_right in satisfied]
        captions = list(map(describe_text, texts))
        examples = [
            {"caption": caption, "satisfied": output}
            for caption, output in zip(captions, outputs, strict=True)
        ]
        signature = f"{len(texts):,} captions"
        scores = [Score(SATISFIED, 100 * float(satisfied.mean()), f"per cent of {signature}")]
        if not isinstance(variables, tuple):
            losses = mean_metrics(self, variables, batches)
            scores.append(
                Score(TEXT, self.config.model.text_length * losses["text_nll"], signature, digits=3)
            )
            scores.append(Score(IMAGE, losses["image_nll"], signature, digits=3))
        settings = dataclasses.asdict(self.config.decoding)
        yield Report(outputs, scores, examples, settings, rate, generator.fingerprint)

    def draw(self, variables: Any, texts: np.ndarray, first_codes: np.ndarray | None = None) -> np.ndarray:
        """Draws a picture for each caption. Of several samples, the most probable picture is kept.

        Args:
          variables: variables of the model, or a tuple of the variables of several models.
          texts: ids of the captions, int [N, T].
          first_codes: codes of the upper part of each picture, int [N, P]. The model completes the picture.
            None draws the whole picture.

        Returns:
          float32 [N, height, width, C], from -1 to 1.
        """
        model = self.config.model
        given = np.zeros((len(texts), 0), int) if first_codes is None else first_codes
        prefixes = np.concatenate([texts, model.text_vocabulary + given], axis=1).tolist()
        decoding = dataclasses.replace(self.config.decoding, max_tokens=model.side**2 - given.shape[1])
        found = generate_ids(self.model, parameters_of(variables), prefixes, decoding)
        best = [max(samples, key=lambda sample: sample.score).ids for samples in found]
        codes = np.concatenate([given, _codes(best, model)], axis=1).reshape(-1, model.side, model.side)
        return fetch(self._decode(self._first_stage.variables, codes))

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Returns the codes of images [N, height, width, C], row by row, int [N, side * side]."""
        return fetch(self._encode(self._first_stage.variables, images)).reshape(len(images), -1)

    def check(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """Returns whether images [N, height, width, C] show what captions [N, T] say, bool [N]."""
        parts = find_digits(images)
        probabilities, _ = self._judge.judge(parts.shades.reshape(-1, *parts.shades.shape[2:]))
        return is_satisfied(texts - FIRST_WORD_ID, parts, probabilities.argmax(-1).reshape(-1, 2))

    def _batches(self, generator: Generator) -> Iterator[Batch]:
        data = self.config.data
        return evaluation_batches(generator, data.evaluated, data.batch_size)

    @functools.partial(jax.jit, static_argnums=0)
    def _decode(self, constants: Variables, codes: jax.Array) -> jax.Array:
        """Returns the images of codes [N, side, side]."""
        images: Any = self.autoencoder.apply(constants, codes, method="decode")
        return images

    @functools.partial(jax.jit, static_argnums=0)
    def _encode(self, constants: Variables, images: jax.Array) -> jax.Array:
        """Returns the codes [N, side, side] of images."""
        codes: Any = self.autoencoder.apply(constants, images, method="encode")
        return codes


def create(config: Config, workdir: str, *, new: bool = True) -> TextToImage:
    """Creates the task of a run.

    Raises:
      UserError: if the model has another size of captions, the run has no first stage or no classifier, or
        they do not fit the model.
    """
    del new
    sizes = {"text_vocabulary": FIRST_WORD_ID + len(WORDS), "text_length": CAPTION_WORDS}
    for name, expected in sizes.items():
        found = getattr(config.model, name)
        if found != expected:
            raise UserError(f"Expected model.{name} to be {expected} for these captions, got {found}.")
    return TextToImage(config, read_frozen(workdir, FIRST_STAGE), ImageJudge(workdir, JUDGE, DIGITS))


def make_autoencoder(frozen: FrozenModel, model: DALLEConfig) -> nn.Module:
    """Returns the module of the first stage.

    Raises:
      UserError: if its codes are not those of the language model.
    """
    module = models.find(str(frozen.model.get("name", "")))
    autoencoder = module.Model(from_mapping(module.Config, frozen.model, "config.model"))
    wanted = {"codes": model.codes, "side": model.side, "image_size": SIZE, "channels": 3}
    for name, expected in wanted.items():
        found = getattr(autoencoder.config, name, None)
        if found != expected:
            raise UserError(
                f"Expected the autoencoder in config.{FIRST_STAGE} to have {name} {expected}, got {found}. "
                f"Change config.model, or train another autoencoder (task image_tokens)."
            )
    config = autoencoder.config
    image = np.zeros((1, config.image_size, config.image_size, config.channels), np.float32)
    shapes = jax.eval_shape(lambda: autoencoder.init(jax.random.key(0), image, train=False))
    check_frozen(frozen, shapes, FIRST_STAGE)
    return autoencoder


def _texts(batches: Sequence[Batch]) -> np.ndarray:
    """Returns the captions of all rows that are not padding, int [N, T]."""
    return np.concatenate([batch["text"][batch["weights"] > 0] for batch in batches])


def _codes(samples: Sequence[Sequence[int]], model: DALLEConfig) -> np.ndarray:
    """Returns the codes of samples of ids that end in EOS, int [N, P]."""
    return np.array([ids[:-1] for ids in samples]) - model.text_vocabulary
