"""Constituency trees: bracketed text of the Penn Treebank, and trees as the tokens of a sequence.

A tree is a `Node` with the label TOP. Its sequence (Vinyals et al. 2015, "Grammar as a Foreign Language")
has a token for each opening bracket, a token for the tag of each word, and a token for each closing bracket:

    (TOP (S (NP (NNP John)) (VP (VBZ sleeps)) (. .)))        the tree
    (S (NP NNP )NP (VP VBZ )VP . )S                          the sequence

The sequence omits the words because the parser already has them as input.
"""

import re
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
    """The label of a constituent and the range of its words, from `start` up to and without `end`.

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


class _OpenBracket:
    """A bracket that is not closed yet, and the number of the line where it opens."""

    def __init__(self, line: int):
        self.line, self.label, self.word = line, "", ""
        self.children: list[Node | Leaf] = []


def read_trees(lines: Iterable[str], shown_as: str) -> Iterator[Node]:
    """Yields the trees of bracketed text without cleaning them. A tree may span several lines.

    Args:
      lines: lines of the text.
      shown_as: name of the text in error messages.

    Raises:
      UserError: if brackets do not match, are nested too deeply, or contain neither a tag with a word nor a
        label with brackets. The message has the number of the line.
    """
    stack: list[_OpenBracket] = []
    for number, line in enumerate(lines, 1):
        where = f"Line {number:,} of {shown_as}"
        for token in TOKEN.findall(line):
            if token == "(":
                _check_opening(stack, where)
                stack.append(_OpenBracket(number))
            elif token == ")":
                closed = _close(stack, where)
                if not stack:
                    yield _as_tree(closed)
                else:
                    stack[-1].children.append(closed)
            else:
                _add_text(stack, token, where)
    if stack:
        raise UserError(
            f"{shown_as} ends inside of the tree that begins on line {stack[0].line:,}. Add the "
            f"{len(stack):,} missing closing bracket(s), or copy the file again if it was cut short."
        )


def clean_tree(tree: Node) -> Node | None:
    """Removes empty elements, constituents that contain nothing else, and function tags.

    For example, NP-SBJ-1 becomes NP, and PRT|ADVP becomes PRT. Returns None if no word remains.
    """
    cleaned = _clean(tree)
    return cleaned if isinstance(cleaned, Node) else None


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


def list_spans(tree: Node) -> list[Span]:
    """Returns the spans of all constituents, including TOP. A constituent precedes its parts."""
    return _list_spans(tree, 0)


def linearize(tree: Node) -> list[str]:
    """Returns the tokens of the sequence, without brackets for TOP."""
    return [token for child in tree.children for token in _linearize(child)]


def split_words(sentence: str) -> list[str]:
    """Splits a sentence at white space. Parentheses become -LRB- and -RRB-, as in the Penn Treebank."""
    return [word.translate(ESCAPES) for word in sentence.split()]


def restore_tree(tokens: Iterable[str], words: Sequence[str]) -> Restored:
    """Builds the tree of a sequence over the words of its sentence.

    The tree always contains all words, because these repairs turn any sequence into a tree:

        unopened       ignores a closing bracket if no open bracket has its label
        unclosed       a closing bracket first closes the open brackets inside of it; the end closes all
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
            _add_leaf(stack, token.translate(ESCAPES), left, repairs)
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


def _check_opening(stack: list[_OpenBracket], where: str) -> None:
    """
    Raises:
      UserError: if no bracket can open inside of the innermost open bracket.
    """
    if len(stack) == MAX_DEPTH:
        raise UserError(
            f"{where} nests more than {MAX_DEPTH} brackets, which no parse of a sentence does. Check the "
            "brackets."
        )
    if stack and stack[-1].word:
        raise UserError(f"{where} has a bracket after the word {stack[-1].word!r}. Write (TAG word).")
    if len(stack) > 1 and not stack[-1].label:
        raise UserError(
            f"{where} has a bracket without a label inside of the tree that begins on line "
            f"{stack[0].line:,}. Expected (LABEL ...). A closing bracket may be missing before it."
        )


def _close(stack: list[_OpenBracket], where: str) -> Node | Leaf:
    """Removes the innermost bracket from the stack and returns it as a node or a leaf."""
    if not stack:
        raise UserError(f"{where} has a closing bracket without an opening bracket. Check the brackets.")
    bracket = stack.pop()
    if bracket.word:
        return Leaf(bracket.label, bracket.word)
    if bracket.children:
        return Node(bracket.label, tuple(bracket.children))
    raise UserError(f"{where} closes ({bracket.label}), a bracket without a word. Write (TAG word).")


def _add_text(stack: list[_OpenBracket], token: str, where: str) -> None:
    """Stores a text as the label of the innermost bracket, or as its word if it has a label."""
    if not stack:
        raise UserError(f"{where} has the text {token!r} outside of brackets. Expected trees, (S ...).")
    bracket = stack[-1]
    if not bracket.label and not bracket.children:
        bracket.label = token
    elif bracket.word or bracket.children:
        raise UserError(
            f"{where} has the text {token!r} in the bracket ({bracket.label} where only brackets can follow. "
            "Write (TAG word). If the word is a parenthesis, write -LRB- or -RRB-."
        )
    else:
        bracket.word = token


def _as_tree(bracket: Node | Leaf) -> Node:
    """Returns an outermost bracket as a tree with the label TOP."""
    if isinstance(bracket, Node) and bracket.label in ROOTS:
        return Node(TOP, bracket.children)
    return Node(TOP, (bracket,))


def _clean(tree: Node | Leaf) -> Node | Leaf | None:
    """Returns a cleaned part of a tree, see `clean_tree`, or None if no word remains."""
    if isinstance(tree, Leaf):
        return None if tree.tag == EMPTY else Leaf(FUNCTION.sub(r"\1", tree.tag), tree.word)
    children = tuple(child for child in map(_clean, tree.children) if child is not None)
    return Node(FUNCTION.sub(r"\1", tree.label), children) if children else None


def _list_spans(tree: Node, start: int) -> list[Span]:
    """Returns the spans of a constituent whose first word has the number `start`, and of its parts."""
    end = start + len(list_leaves(tree))
    spans = [Span(tree.label, start, end)]
    for child in tree.children:
        if isinstance(child, Node):
            spans += _list_spans(child, start)
        start += len(list_leaves(child))
    return spans


def _linearize(tree: Node | Leaf) -> list[str]:
    """Returns the tokens of a part of a tree, including its brackets."""
    if isinstance(tree, Leaf):
        return [tree.tag]
    return [f"({tree.label}", *linearize(tree), f"){tree.label}"]


def _add_leaf(stack: list[tuple[str, list]], tag: str, left: list[str], repairs: set[str]) -> None:
    """Adds the next word with a tag to the innermost constituent. `left` has the next words in reverse."""
    if left:
        stack[-1][1].append(Leaf(tag, left.pop()))
    else:
        repairs.add("too many tags")


def _close_label(stack: list[tuple[str, list]], label: str, repairs: set[str]) -> None:
    """Closes the innermost constituent with a label, and all constituents inside of it."""
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
