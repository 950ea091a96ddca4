"""Warnings about texts that a model reads but has not learned to translate."""

import logging
from collections.abc import Sequence

from tfm.data.config import TAG_WORD
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokenizers.unknown_text import MAX_NAMED_PARTS, UnknownTextWarning

MAX_SHOWN_CHARACTERS = 60
log = logging.getLogger(__name__)


class TextWarnings:
    """Logs warnings about source texts, each problem once.

    Args:
      tags: the tags with which a source may begin. "" allows sources without a tag.
    """

    def __init__(self, tags: Sequence[str]):
        self._tags = [tag for tag in tags if tag]
        self._needs_tag = bool(self._tags) and "" not in tags
        self._unknown_text = UnknownTextWarning("translations", has_normalization=True)
        self._named_words: set[str] = set()
        self._warned_of_missing_tags = False

    def check_sources(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        """Warns of unknown characters, and of missing and unknown tags, in texts that the encoder reads."""
        self._check_tags(texts)
        self._unknown_text.check(tokenizer, texts)

    def _check_tags(self, texts: Sequence[str]) -> None:
        if not self._tags:
            return
        without = [text for text in texts if text and text.partition(" ")[0] not in self._tags]
        words = {text.partition(" ")[0] for text in without}
        unknown = sorted(word for word in words - self._named_words if TAG_WORD.fullmatch(word))
        if unknown:
            self._named_words.update(unknown)
            log.warning(
                "%s begins a text, but is no tag of data.tags (%s). Check its spelling",
                ", ".join(unknown[:MAX_NAMED_PARTS]),
                ", ".join(self._tags),
            )
        untagged = [text for text in without if not TAG_WORD.fullmatch(text.partition(" ")[0])]
        if untagged and self._needs_tag and not self._warned_of_missing_tags:
            self._warned_of_missing_tags = True
            log.warning(
                "%s of %s texts begin with no tag of data.tags (%s), for example %r. The model may translate "
                "them into any of its languages. Begin each text with a tag and a blank",
                f"{len(untagged):,}",
                f"{len(texts):,}",
                ", ".join(self._tags),
                untagged[0][:MAX_SHOWN_CHARACTERS],
            )


def warn_of_empty_translations(sources: Sequence[str], translations: Sequence[str]) -> None:
    """Warns of texts whose translation is empty although they have text."""
    pairs = zip(sources, translations, strict=True)
    empty = [source for source, translation in pairs if source and not translation]
    if empty:
        log.warning(
            "%s of %s texts have an empty translation, for example %r",
            f"{len(empty):,}",
            f"{len(sources):,}",
            empty[0][:MAX_SHOWN_CHARACTERS],
        )
