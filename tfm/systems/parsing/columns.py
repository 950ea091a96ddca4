"""Trees in columns: the files of CoNLL-2012 (OntoNotes) and of CoNLL-2005.

Each line has a word, its tag and its part of the tree, in which * stands for the word: "(TOP(S(NP*" or "*))".
A blank line ends a sentence.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tfm.errors import UserError
from tfm.systems.parsing.trees import ESCAPES

COMMENT = "#"  # "#begin document" and "#end document", unless it is the word "#" with its columns
PLACEHOLDER = "[WORD]"  # in the files that come without the words of OntoNotes
LEAF = "*"


class Columns(NamedTuple):
    """The places of word, tag and part of the tree in a line, from 0."""

    word: int
    tag: int
    part: int


CONLL_2012 = Columns(3, 4, 5)
CONLL_2005 = Columns(0, 1, 2)


def has_columns(line: str) -> bool:
    """Returns whether the first line of a file that is not blank belongs to a file with columns."""
    if line.lstrip().startswith("("):  # also where the * of a trace looks like a part of a tree
        return False
    return line.startswith(COMMENT) or _find_columns(line.split()) is not None


def convert_columns(lines: Iterable[str], shown_as: str) -> Iterator[str]:
    """Yields a line of bracketed text for each line with columns, so that the numbers of lines stay.

    For example, the word "The" with the tag DT and the part "(TOP(S(NP*" becomes "(TOP(S(NP(DT The)". Blank
    lines and comments become empty lines.

    Args:
      lines: lines of the file.
      shown_as: name of the file in error messages.

    Raises:
      UserError: with the number of the line if a part of the tree or a word is missing, a word is outside the
        brackets of a tree, or a sentence ends inside brackets.
    """
    depth = number = 0
    for number, line in enumerate(lines, 1):
        fields = line.split()
        where = f"Line {number:,} of {shown_as}"
        columns = _find_columns(fields)
        if not fields or (columns is None and line.startswith(COMMENT)):
            if depth:
                raise UserError(
                    f"{where} ends a sentence whose tree lacks {depth:,} closing bracket(s). Correct the "
                    "column of the tree."
                )
            yield ""
            continue
        if columns is None:
            raise UserError(
                f"{where} has no part of a tree with one *. Expected the columns of CoNLL-2012 (the word, "
                "its tag and its part in the columns 4 to 6), or word, tag and part in the columns 1 to 3."
            )
        word, tag, part = (fields[column] for column in columns)
        if word == PLACEHOLDER:
            raise UserError(
                f"{where} has {PLACEHOLDER} in place of a word. Insert the words of OntoNotes with the "
                "script skeleton2conll.sh of CoNLL-2012."
            )
        before, _, after = part.partition(LEAF)
        depth += part.count("(") - part.count(")")
        if depth < 0 or (not depth and not part.startswith("(") and ")" not in part):
            raise UserError(
                f"{where} is outside the brackets of a tree: {part!r}. Expected parts such as (S(NP*."
            )
        yield f"{before}({tag.translate(ESCAPES)} {word.translate(ESCAPES)}){after}"
    if depth:
        raise UserError(
            f"{shown_as} ends inside a tree that lacks {depth:,} closing bracket(s). Copy the file again if "
            "it was cut short."
        )


def _find_columns(fields: list[str]) -> Columns | None:
    """Returns the columns of a line, or None if no known column has a part of a tree."""
    # The sixth column of CoNLL-2005 may be an argument of a verb, such as (A0*, which looks like a part of a
    # tree. The third column of CoNLL-2012 is the number of the word, which does not.
    for columns in (CONLL_2005, CONLL_2012):
        if len(fields) > columns.part and _is_part(fields[columns.part]):
            return columns
    return None


def _is_part(text: str) -> bool:
    """Returns whether a text has brackets around one *."""
    return text.count(LEAF) == 1 and text.rstrip(")").endswith(LEAF)
