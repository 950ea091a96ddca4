"""Warnings about source texts that training did not prepare the model for, and about empty translations."""

import logging
from collections.abc import Sequence

from tfm.data.config import TAG_WORD
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokenizers.unknown_text import MAX_NAMED_PARTS, UnknownTextWarning

MAX_SHOWN_CHARACTERS = 60
log = logging.getLogger(__name__)


class TextWarnings:
    """Logs warnings about source texts that the model may translate badly. Each problem is logged once.

    Args:
      tags: the tags that a source may begin with. "" among them means that a source needs no tag.
    """

    def __init__(self, tags: Sequence[str]):
        self._tags = [tag for tag in tags if tag]
        self._needs_tag = bool(self._tags) and "" not in tags
        self._unknown_text = UnknownTextWarning("translations", has_normalization=True)
        self._logged_tags: set[str] = set()
        self._has_logged_missing_tags = False

    def check_sources(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        """Logs unknown tags, missing tags and unknown characters of texts that the encoder reads."""
        if self._tags:
            untagged_texts = [text for text in texts if text and _first_word(text) not in self._tags]
            self._warn_of_unknown_tags(untagged_texts)
            self._warn_of_missing_tags(untagged_texts, len(texts))
        self._unknown_text.check(tokenizer, texts)

    def _warn_of_unknown_tags(self, untagged_texts: Sequence[str]) -> None:
        """Logs the words that look like tags, for texts that begin with no tag of the data."""
        words = set(map(_first_word, untagged_texts)) - self._logged_tags
        unknown_tags = sorted(filter(TAG_WORD.fullmatch, words))
        if not unknown_tags:
            return
        self._logged_tags.update(unknown_tags)
        log.warning(
            "%s begins a text, but is no tag of data.tags (%s). Check its spelling",
            ", ".join(unknown_tags[:MAX_NAMED_PARTS]),
            ", ".join(self._tags),
        )

    def _warn_of_missing_tags(self, untagged_texts: Sequence[str], text_count: int) -> None:
        """Logs the number of texts without any tag, if each text needs a tag."""
        if not self._needs_tag or self._has_logged_missing_tags:
            return
        plain_texts = [text for text in untagged_texts if not TAG_WORD.fullmatch(_first_word(text))]
        if not plain_texts:
            return
        self._has_logged_missing_tags = True
        log.warning(
            "%s of %s texts begin with no tag of data.tags (%s), for example %r. The model may translate "
            "them into any of its languages. Begin each text with a tag and a blank",
            f"{len(plain_texts):,}",
            f"{text_count:,}",
            ", ".join(self._tags),
            plain_texts[0][:MAX_SHOWN_CHARACTERS],
        )


def warn_of_empty_translations(sources: Sequence[str], translations: Sequence[str]) -> None:
    """Logs the number of sources that are not empty, but have an empty translation."""
    pairs = zip(sources, translations, strict=True)
    untranslated = [source for source, translation in pairs if source and not translation]
    if untranslated:
        log.warning(
            "%s of %s texts have an empty translation, for example %r",
            f"{len(untranslated):,}",
            f"{len(sources):,}",
            untranslated[0][:MAX_SHOWN_CHARACTERS],
        )


def _first_word(text: str) -> str:
    """Returns the text before the first blank."""
    return text.partition(" ")[0]
