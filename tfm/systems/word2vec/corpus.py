"""The sentences of a user's corpus: lines of words between white space, as word2vec.c reads them.

Memory holds a block of text at a time, and a count for each different word. The numbers of the words are
cached on disk like the tokens of language models, and are memory-mapped.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tfm.data.source import Row, Source, hash_text
from tfm.data.sources.opening import open_documents
from tfm.data.sources.splits import find_name
from tfm.data.sources.text_files import (
    BLOCK_BYTES,
    SAMPLE_BYTES,
    TextFile,
    expand_names,
    find_file,
    find_problem,
)
from tfm.data.token_cache import TokenCache
from tfm.errors import UserError
from tfm.systems.word2vec.skip_grams import Sentences, SkipGramsConfig, count_words

MAX_SENTENCE_WORDS = 1000  # as in word2vec.c; longer lines are cut
# word2vec.c separates words by these characters. Other white space, such as U+00A0, is part of a word.
WORD = re.compile(r"[^ \t\r\n]+")
WHITE_SPACE = (b" ", b"\t", b"\r")


def split_words(text: str, lower_case: bool = False) -> list[str]:
    """Returns the words of a text. White space separates them."""
    return WORD.findall(text.lower() if lower_case else text)


def open_lines(config: SkipGramsConfig, split: str) -> Source:
    """Returns the sentences of a split of a user's corpus, as rows of one text of at most 1,000 words.

    Args:
      config: the data section.
      split: "train", "validation" or "test". Any other text is itself the name.

    Raises:
      UserError: if the corpus is missing or damaged. Some damage shows when the rows are read.
    """
    if config.kind != "text":
        documents = open_documents(config.documents, split)
        return Source(
            lambda: _cut_lines(line for (text,) in documents for line in text.split("\n")),
            lambda: f"lines-{hash_text(documents.fingerprint)}",
        )
    name = find_name(config, split)
    files = [TextFile(find_file(path), "text") for path in expand_names(config.directory, name)]

    def compute_fingerprint() -> str:
        return f"lines-{hash_text(' '.join(file.content.sha256 for file in files))}"

    return Source(
        lambda: _cut_lines(line for file in files for line in read_lines(file)), compute_fingerprint
    )


def read_lines(file: TextFile) -> Iterator[str]:
    """Yields the lines of a file of any size. Lines of more than a block of text come in several parts.

    Raises:
      UserError: if the file is not UTF-8 text, or a word is longer than a block.
    """
    rest, number = b"", 1
    with file.open() as content:
        while block := content.read(BLOCK_BYTES):
            if number == 1 and not rest:
                if problem := find_problem(block[:SAMPLE_BYTES]):
                    raise UserError(f"{file.path} {problem}.")
                block = block.removeprefix(b"\xef\xbb\xbf")
            block = rest + block
            cut = block.rfind(b"\n") + 1 or max(map(block.rfind, WHITE_SPACE)) + 1
            if not cut and len(block) > BLOCK_BYTES:
                raise file.error(number, f"has a word of more than {BLOCK_BYTES:,} bytes: is it text?")
            yield from _decode(file, block[:cut], number).split("\n")
            number += block.count(b"\n", 0, cut)
            rest = block[cut:]
    yield from _decode(file, rest, number).split("\n")


def _decode(file: TextFile, content: bytes, number: int) -> str:
    """Returns the text of some lines. `number` is the number of the first line."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = number + content.count(b"\n", 0, error.start)
        raise file.error(line, f"is not UTF-8 ({error.reason}): convert the file") from None


def _cut_lines(lines: Iterable[str]) -> Iterator[Row]:
    """Yields the lines with text. Longer lines than `MAX_SENTENCE_WORDS` words become several rows."""
    for line in lines:
        if len(line) < 2 * MAX_SENTENCE_WORDS:  # the line cannot have more than MAX_SENTENCE_WORDS words
            if line.strip():
                yield (line,)
            continue
        words = split_words(line)
        for first in range(0, len(words), MAX_SENTENCE_WORDS):
            yield (" ".join(words[first : first + MAX_SENTENCE_WORDS]),)


class WordNumbers:
    """Encodes a text as the numbers of its words. Words outside of the vocabulary are left out.

    Args:
      words: the vocabulary. The number of a word is its index.
      lower_case: whether the words of texts are lower-cased first.
    """

    def __init__(self, words: Sequence[str], lower_case: bool):
        self._numbers = {word: number for number, word in enumerate(words)}
        self._lower_case = lower_case
        content = json.dumps([list(words), lower_case])
        self.fingerprint = f"words-{hashlib.sha256(content.encode()).hexdigest()}"

    def __len__(self) -> int:
        return len(self._numbers)

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns the numbers of the words of each text."""
        numbers = self._numbers
        return [
            [numbers[word] for word in split_words(text, self._lower_case) if word in numbers]
            for text in texts
        ]


def count_corpus(config: SkipGramsConfig) -> dict[str, int]:
    """Returns {word: count} of the words of the training split, the most frequent first.

    Raises:
      UserError: if the corpus is unusable, or has fewer than two words that are frequent enough.
    """
    lines = open_lines(config, "train")
    counts = count_words((split_words(text, config.lower_case) for (text,) in lines), config.minimum_count)
    if len(counts) < 2:
        raise UserError(
            f"Expected at least two words that occur {config.minimum_count:,} times in the training lines, "
            f"got {len(counts)}. Decrease data.minimum_count, or add text."
        )
    return counts


def open_sentences(config: SkipGramsConfig, split: str, counts: Mapping[str, int]) -> Sentences:
    """Returns the sentences of a split from the cache.

    Without a cache, reads the text and writes the cache first. Words that `counts` lacks are left out.

    Raises:
      UserError: if the corpus is unusable, or no line has two words of the vocabulary.
    """
    lines = open_lines(config, split)
    cache = TokenCache.open(lines, WordNumbers(list(counts), config.lower_case), config.documents.cache)
    if not len(cache) or cache.lengths.max() < 3:  # two words and the end
        raise UserError(
            f"Expected the split '{find_name(config, split)}' to have a line with two words of the "
            "vocabulary, but it has none. Check the data, or decrease data.minimum_count."
        )
    return Sentences(*cache.stream(), gap=1)
