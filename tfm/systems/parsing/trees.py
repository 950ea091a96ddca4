"""Constituency trees: bracketed text of the Penn Treebank, and trees as the tokens of a sequence.

A tree is a `Node` with the label TOP. Its sequence (Vinyals et al. 2015, "Grammar as a Foreign Language")
has a token for each opening bracket, a token for the tag of each word, and a token for each closing bracket:

    (TOP (S (NP (NNP John)) (VP (VBZ sleeps)) (. .)))        the tree
    (S (NP NNP )NP (VP VBZ )VP . )S                          the sequence

The sequence omits the words because the parser already has them as input.
"""

import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tfm.errors import UserError

TOP = "TOP"
ROOTS = ("", TOP, "ROOT", "S1")  # labels of an outermost bracket that become TOP
EMPTY = "-NONE-"  # tag of an element without a word, such as a trace
UNKNOWN_TAG = "XX"  # of words without a tag in the sequence
MAX_DEPTH = 200  # nested brackets; the deepest tree of the Wall Street Journal has fewer than 50
TOKEN = re.compile(r"[()]|[^\s()]+")
FUNCTION = re.compile(r"^([^-=|].*?)[-=|].*")  # NP-SBJ-1, NP=2, PRT|ADVP; not -LRB-
ESCAPES = str.maketrans({"(": "-LRB-", ")": "-RRB-"})


class Leaf(NamedTuple):
    """A word and its tag."""

    tag: str
    word: str


class Node(NamedTuple):
    """A constituent: its label, and its constituents and words in order."""

    label: str
    children: tuple["Node | Leaf", ...]


class Span(NamedTuple):
    """The label of a constituent and the range of its words, from `start` (inclusive) to `end` (exclusive).

    Words are counted from 0.
    """

    label: str
    start: int
    end: int


class Restored(NamedTuple):
    """A restored tree, and the sorted names of the repairs that `restore_tree` applied.

    A well-formed sequence needs no repairs.
    """

    tree: Node
    repairs: tuple[str, ...]


def read_trees(lines: Iterable[str], shown_as: str) -> Iterator[Node]:
    """Yields the trees of bracketed text without cleaning them. A tree may span several lines.

    Args:
      lines: lines of the text.
      shown_as: name of the text in error messages.

    Raises:
      UserError: if brackets do not match, are nested too deeply, or contain neither a tag with a word nor a
        label with brackets. The message has the number of the line.
    """
    stack: list[list[Node | Leaf | str]] = []  # the content of each open bracket
    first_line = 0  # of the tree
    for number, line in enumerate(lines, 1):
        where = f"Line {number:,} of {shown_as}"
        for token in TOKEN.findall(line):
            if token == "(":
                if len(stack) == MAX_DEPTH:
                    raise UserError(
                        f"{where} nests more than {MAX_DEPTH} brackets, which no parse of a sentence does. "
                        "Check the brackets."
                    )
                first_line = first_line if stack else number
                stack.append([])
            elif not stack:
                raise UserError(f"{where} has {token!r} outside a tree. Expected trees, (S ...).")
            elif token == ")":
                content = stack.pop()
                closed = _close(content, is_outermost=not stack)
                if closed is None:
                    raise UserError(
                        f"{where} closes the bracket {_show(content)} in the tree of line {first_line:,}. "
                        "Expected (TAG word) or (LABEL (...) ...), and -LRB- or -RRB- for a parenthesis. A "
                        "closing bracket may be missing before it."
                    )
                if stack:
                    stack[-1].append(closed)
                else:
                    yield closed if isinstance(closed, Node) and closed.label == TOP else Node(TOP, (closed,))
            else:
                stack[-1].append(token)
    if stack:
        raise UserError(
            f"{shown_as} ends inside the tree that begins on line {first_line:,}. Add the "
            f"{len(stack):,} missing closing bracket(s), or copy the file again if it was cut short."
        )


def clean_tree(tree: Node) -> Node | None:
    """Removes empty elements, constituents that contain nothing else, and function tags.

    For example, NP-SBJ-1 becomes NP, and PRT|ADVP becomes PRT. Returns None if no word remains.
    """
    children: list[Node | Leaf] = []
    for child in tree.children:
        if isinstance(child, Node):
            children += filter(None, [clean_tree(child)])
        elif child.tag != EMPTY:
            children.append(Leaf(FUNCTION.sub(r"\1", child.tag), child.word))
    return Node(FUNCTION.sub(r"\1", tree.label), tuple(children)) if children else None


def format_tree(tree: Node | Leaf) -> str:
    """Returns the tree as bracketed text in a single line."""
    if isinstance(tree, Leaf):
        return f"({tree.tag} {tree.word})"
    return f"({tree.label} {' '.join(map(format_tree, tree.children))})"


def list_leaves(tree: Node | Leaf) -> list[Leaf]:
    """Returns the leaves (words with their tags) in order."""
    if isinstance(tree, Leaf):
        return [tree]
    return [leaf for child in tree.children for leaf in list_leaves(child)]


def list_spans(tree: Node, start: int = 0) -> list[Span]:
    """Returns the spans of all constituents, including TOP. A constituent precedes its parts.

    Args:
      tree: a tree, or a constituent.
      start: number of its first word.
    """
    spans = [Span(tree.label, start, start + len(list_leaves(tree)))]
    for child in tree.children:
        if isinstance(child, Node):
            spans += list_spans(child, start)
        start += len(list_leaves(child))
    return spans


def linearize(tree: Node) -> list[str]:
    """Returns the tokens of the sequence without brackets for TOP, such as ["(S", "NNP", "VBZ", ")S"]."""
    tokens: list[str] = []
    for child in tree.children:
        if isinstance(child, Leaf):
            tokens.append(child.tag)
        else:
            tokens += [f"({child.label}", *linearize(child), f"){child.label}"]
    return tokens


def split_words(sentence: str) -> list[str]:
    """Splits a sentence at white space. Parentheses become -LRB- and -RRB-, as in the Penn Treebank."""
    return [word.translate(ESCAPES) for word in sentence.split()]


def restore_tree(tokens: Iterable[str], words: Sequence[str]) -> Restored:
    """Builds the tree of a sequence over the words of its sentence, and names the repairs that it needed.

    The tree always contains all words, because these repairs turn any sequence into a tree:

        unopened       ignores a closing bracket if no open bracket has its label
        unclosed       a closing bracket first closes the open brackets inside it; the end closes all
        empty          omits a constituent without words
        too many tags  ignores tags after the last word
        missing tags   adds words without a tag at the end of the sequence, with the tag XX
        too deep       ignores an opening bracket that would nest the tree deeper than `MAX_DEPTH`
        no label       ignores a bracket without a label

    Args:
      tokens: tokens of the sequence. They are not empty texts.
      words: words of the sentence.
    """
    stack: list[tuple[str, list[Node | Leaf]]] = [(TOP, [])]
    repairs: set[str] = set()
    left = list(reversed(words))
    for token in tokens:
        label = token[1:].translate({ord("("): None, ord(")"): None})
        if token[0] not in "()":
            if left:
                stack[-1][1].append(Leaf(token.translate(ESCAPES), left.pop()))
            else:
                repairs.add("too many tags")
        elif not label:
            repairs.add("no label")
        elif token[0] == ")":
            _close_label(stack, label, repairs)
        elif len(stack) >= MAX_DEPTH - 1:  # TOP and the bracket of a word count too
            repairs.add("too deep")
        else:
            stack.append((label, []))
    if left:
        repairs.add("missing tags")
        stack[-1][1].extend(Leaf(UNKNOWN_TAG, word) for word in reversed(left))
    if len(stack) > 1:
        repairs.add("unclosed")
    while len(stack) > 1:
        _close_innermost(stack, repairs)
    return Restored(Node(TOP, tuple(stack[0][1])), tuple(sorted(repairs)))


def _close(content: Sequence[Node | Leaf | str], is_outermost: bool) -> Node | Leaf | None:
    """Returns the node or leaf of the content of a bracket, or None if it is neither."""
    texts = [part for part in content if isinstance(part, str)]
    parts = tuple(part for part in content if not isinstance(part, str))
    if len(content) == len(texts) == 2:
        return Leaf(*texts)
    label = content[0] if content and isinstance(content[0], str) else ""
    if not parts or len(texts) > bool(label) or not (label or is_outermost):
        return None
    return Node(TOP if is_outermost and label in ROOTS else label, parts)


def _show(content: Sequence[Node | Leaf | str]) -> str:
    """Returns the content of a bracket for an error message."""
    return reprlib.repr(f"({' '.join(part if isinstance(part, str) else '(...)' for part in content)})")


def _close_label(stack: list[tuple[str, list]], label: str, repairs: set[str]) -> None:
    """Closes the innermost constituent with a label, and all constituents inside it."""
    if label not in [name for name, _ in stack[1:]]:
        repairs.add("unopened")
        return
    while stack[-1][0] != label:
        repairs.add("unclosed")
        _close_innermost(stack, repairs)
    _close_innermost(stack, repairs)


def _close_innermost(stack: list[tuple[str, list]], repairs: set[str]) -> None:
    """Moves the innermost constituent from the stack to its parent. Omits it if it is empty."""
    label, children = stack.pop()
    if children:
        stack[-1][1].append(Node(label, tuple(children)))
    else:
        repairs.add("empty")
