"""Words with tags in columns, the form of the shared tasks of CoNLL.

    -DOCSTART- -X- -X- O

    EU NNP B-NP B-ORG
    rejects VBZ B-VP O
    German JJ B-NP B-MISC

Each line has a word and its tags, and a blank line ends a sentence. Columns are separated by tabs, or by
blanks if the first line with a word has no tab. A line of the word -DOCSTART- begins a document and is left
out. Lines that begin with "#" are comments if they have another number of columns than the first line that
does not begin with "#", as in CoNLL-U and in GermEval 2014. If blanks separate the columns, so are lines that
begin with "#" before the first word or have a tab, as in MultiCoNER. In CoNLL-U, which has ten columns, the
lines of contracted words (3-4) and of words that the text lacks (5.1) are left out as well.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tfm.data.source import Row, Source, hash_text, join
from tfm.data.sources.columns import join_words
from tfm.data.sources.text_files import TextFile, expand_names, find_file
from tfm.errors import UserError

DOCUMENT_START = "-DOCSTART-"
COMMENT = "#"
CONLL_U_COLUMNS = 10
CONLL_U_OTHER_LINES = re.compile(r"\d+[-.]\d+")  # first column of lines that are no words of the sentence
WORD_COLUMN, TAG_COLUMN = "text", "label"  # the default names mean the first and the last column


class Sentence(NamedTuple):
    """A sentence of a file.

    Attributes:
      line: number of the line of its first word, from 1.
      words, tags: the values of the two columns.
    """

    line: int
    words: list[str]
    tags: list[str]


class Form(NamedTuple):
    """The form of the lines of a file.

    Attributes:
      line: number of the line that shows the form, from 1.
      has_tabs: whether tabs separate the columns. Otherwise, blanks do.
      width: number of columns.
    """

    line: int
    has_tabs: bool
    width: int

    def split(self, line: str) -> list[str]:
        """Returns the columns of a line."""
        return line.rstrip("\r").split("\t") if self.has_tabs else line.split()

    def is_comment(self, line: str, number: int) -> bool:
        """Returns whether a line, counted from 1, is a comment. The word "#" has the columns of a word."""
        if not line.startswith(COMMENT):
            return False
        if len(self.split(line)) != self.width:
            return True
        # A text may have as many blanks as a word, so that tabs and the place of the line decide.
        return not self.has_tabs and ("\t" in line or number < self.line)


def open_conll(config: Any, split: str) -> Source:
    """Returns (words, tags) of each sentence of a split, both with blanks between them.

    Args:
      config: a `tfm.systems.bert.labelled_texts.LabelledConfig`.
      split: the files, between commas, or a pattern such as corpus/*.conll.

    Raises:
      UserError: if a file is missing, a column is no number, or the config names a second text. Reading the
        source raises it with the number of a line that lacks a tag or has another number of columns, and if
        there are no words.
    """
    columns = (
        _find_column(config, "text_column", WORD_COLUMN),
        _find_column(config, "label_column", TAG_COLUMN),
    )
    if config.second_column:
        raise UserError(
            f"data.kind={config.kind} has one text for each sentence, but data.second_column is "
            f"{config.second_column!r}. Leave it empty."
        )
    return join([_open_file(find_file(path), columns) for path in expand_names(config.directory, split)])


def _find_column(config: Any, field: str, default: str) -> int:
    """Returns the index of the column that a field of the config names."""
    value = getattr(config, field)
    if value == default:
        return 0 if default == WORD_COLUMN else -1
    if not value.isdecimal() or int(value) < 1:
        raise UserError(
            f"Expected data.{field} to be the number of a column, counted from 1, because the columns of "
            f"data.kind={config.kind} have no names, got {value!r}."
        )
    return int(value) - 1


def _open_file(path: str, columns: tuple[int, int]) -> Source:
    """Returns the sentences of a file."""
    file = TextFile(path, "a word and its tags a line")

    def locate(row: int) -> str:
        sentence = next(itertools.islice(_read_sentences(file, columns), row, None))
        return f"line {sentence.line:,} of {path}"

    return Source(
        lambda: (_make_row(sentence) for sentence in _read_sentences(file, columns)),
        lambda: f"conll-{hash_text(json.dumps([columns, file.content.sha256]))}",
        locate=locate,
    )


def _make_row(sentence: Sentence) -> Row:
    return join_words(sentence.words), join_words(sentence.tags)


def _read_sentences(file: TextFile, columns: tuple[int, int]) -> Iterator[Sentence]:
    """Yields the sentences of a file.

    Raises:
      UserError: with the number of the line that has too few or too many columns, or if there is no word.
    """
    form = _find_form(file, columns)
    sentence = Sentence(0, [], [])
    has_words = False
    for number, line in enumerate(file, 1):
        fields = form.split(line)
        if not line.strip() or fields[0] == DOCUMENT_START:
            if sentence.words:
                yield sentence
            sentence = Sentence(0, [], [])
            continue
        if form.is_comment(line, number):
            continue
        if len(fields) != form.width:
            raise file.error(
                number, f"must have {form.width} columns, as line {form.line:,} has, but it has {len(fields)}"
            )
        if form.width == CONLL_U_COLUMNS and CONLL_U_OTHER_LINES.fullmatch(fields[0]):
            continue
        has_words = True
        word, tag = (fields[column].strip() for column in columns)
        if not tag:
            raise file.error(number, f"has no tag for the word {word!r}")
        if not sentence.words:
            sentence = Sentence(number, [], [])
        sentence.words.append(word)
        sentence.tags.append(tag)
    if sentence.words:
        yield sentence
    if not has_words:
        raise _no_words_error(file)


def _find_form(file: TextFile, columns: tuple[int, int]) -> Form:
    """Returns the form of the first line of a file that is a word, and no comment.

    Raises:
      UserError: if there is no such line, or it lacks a column.
    """
    for number, line in enumerate(file, 1):
        if line.strip() and not line.startswith((COMMENT, DOCUMENT_START)):
            form = Form(number, "\t" in line, 0)
            width = len(form.split(line))
            _check_columns(file, number, columns, width)
            return form._replace(width=width)
    raise _no_words_error(file)


def _no_words_error(file: TextFile) -> UserError:
    """Returns the error of a file without a word."""
    return UserError(f"{file.path} has no words: expected a word and its tags in each line.")


def _check_columns(file: TextFile, number: int, columns: tuple[int, int], width: int) -> None:
    """Raises a UserError if the first line with a word lacks a column, or has a single column."""
    missing = max(columns) + 1
    if width < 2 or missing > width:
        raise file.error(
            number,
            f"has {width} columns, but column {max(missing, 2)} is needed. Expected a word and its tags, "
            "separated by tabs or blanks. Check data.text_column and data.label_column",
        )
