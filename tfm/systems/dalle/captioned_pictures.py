"""The user's own pictures with captions, as examples.

For a batch, see `tfm.systems.dalle.captions`.
"""

import logging

import numpy as np

from tfm.data.batches.generated import EVALUATION, Batch
from tfm.data.images import shuffle_epoch
from tfm.data.picture_files import PictureFiles
from tfm.errors import UserError
from tfm.systems.dalle.caption_text import EncodedCaptions, TokenText
from tfm.systems.dalle.captions import CaptionedPicture, CaptionsConfig
from tfm.systems.dalle.stored_captions import StoredCaptions

CAPTION = 2  # number of a random stream of a seed
log = logging.getLogger(__name__)


class CaptionedPictures:
    """The pictures of a split, see `tfm.data.batches.generated.Generator`.

    In training, each epoch contains each picture once, in a new random order. If a picture has several
    captions, each epoch draws one of them. Validation and test have its first caption.

    Args:
      config: the data section.
      stored: the pictures and captions.
      size: height and width of a picture in a batch. Pictures are cropped in the middle and resized.
      channels: 1 or 3.
      text: encodes the captions. None leaves them out, and keeps pictures without a caption.

    Attributes:
      size: number of pictures.
      fingerprint: identifies the content.

    Raises:
      UserError: if no picture has a caption.
    """

    def __init__(
        self,
        config: CaptionsConfig,
        stored: StoredCaptions,
        *,
        size: int,
        channels: int,
        text: TokenText | None = None,
    ):
        self._config = config
        self._text = text
        self._shape = size, size, channels
        chosen = [index for index, group in enumerate(stored.captions) if group or text is None]
        if not chosen:
            raise UserError(
                f"Expected captions, but none of the {len(stored.paths):,} pictures has a caption."
            )
        self._pictures = PictureFiles([stored.paths[index] for index in chosen], size, channels)
        self.size = len(chosen)
        self.fingerprint = stored.fingerprint
        if text is not None:
            self._captions = EncodedCaptions([stored.captions[index] for index in chosen], text)
            without = len(stored.paths) - len(chosen)
            _warn(without, "pictures without a caption are left out.")
            _warn(stored.empty, "empty captions are left out.")
            _warn(
                self._captions.cut, f"captions are longer than model.text_length ({text.length}) and are cut."
            )

    def make(self, *numbers: int) -> CaptionedPicture:
        """Returns an example: of an index after `EVALUATION`, or of seed, step and row."""
        if numbers[0] == EVALUATION:
            return self._read(numbers[1], 0)
        seed, step, row = numbers
        epoch, place = divmod(step * self._config.batch_size + row, self.size)
        index = int(shuffle_epoch(seed, epoch, self.size)[place])
        if self._text is None or (count := self._captions.count(index)) == 1:
            return self._read(index, 0)
        return self._read(index, int(np.random.default_rng((seed, CAPTION, epoch, index)).integers(count)))

    def assemble(self, examples: list[CaptionedPicture], rows: int) -> Batch:
        """Returns a batch of examples. Padding fills it up to `rows`."""
        batch = {
            "images": np.zeros((rows, *self._shape), np.float32),
            "weights": np.zeros(rows, np.float32),
        }
        if self._text is not None:
            batch["text"] = np.zeros((rows, self._text.length), np.int32)
            batch["text_weights"] = np.zeros((rows, self._text.length), np.float32)
        for row, (image, words) in enumerate(examples):
            batch["images"][row] = image
            batch["weights"][row] = 1
            if self._text is not None:
                batch["text"][row], batch["text_weights"][row] = self._text.pad(words)
        return batch

    def _read(self, index: int, number: int) -> CaptionedPicture:
        """Returns a picture and one of its captions."""
        (pixels,) = self._pictures.take([index])
        words = () if self._text is None else tuple(self._captions.read(index, number).tolist())
        return CaptionedPicture(pixels.astype(np.float32) / 127.5 - 1, words)


def _warn(count: int, what: str) -> None:
    """Logs a warning if something happened at least once."""
    if count:
        log.warning("%s %s", f"{count:,}", what)
