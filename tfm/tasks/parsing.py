"""Constituency parsing (section 6.3): translates words into the tokens of their tree.

The linearized trees are those of Vinyals et al. 2015, "Grammar as a Foreign Language". Model, loss, batches
and search come from `tfm.tasks.translation`. This module turns the outputs back into trees and scores them by
labelled bracketing.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from tfm.arguments import check_texts
from tfm.config import OnResume, field
from tfm.data.config import PairsConfig
from tfm.data.sources.opening import fingerprint_texts, read_sides
from tfm.data.trees import (
    Node,
    Restored,
    format_tree,
    linearize,
    list_leaves,
    list_spans,
    read_trees,
    restore_tree,
    split_words,
)
from tfm.decoding.config import DecodingConfig
from tfm.errors import UserError
from tfm.evaluation.bracketing import Parse, bracketing_scores
from tfm.evaluation.score import Score
from tfm.tasks import translation
from tfm.tasks.translation.pipeline import Hypothesis
from tfm.tasks.translation.task import prepare_tokenizer
from tfm.training.task import Best, Report, parameters_of

DATA = PairsConfig(kind="treebank", source_language="words", target_language="trees", vocabulary_size=16_000)
# Section 6.3: beam 21, length penalty 0.3, outputs of at most the input's length + 300.
DECODING = DecodingConfig(beam_size=21, length_penalty=0.3, max_extra_tokens=300)
SCORE_NAMES = {"bracketing F1, all": "f1", "complete match": "complete_match"}  # scores during training
fingerprint, plan = translation.fingerprint, translation.plan


@dataclasses.dataclass(frozen=True)
class Config(translation.Config):
    """The config of a parsing run. The defaults are those of section 6.3 of the paper."""

    task: str = field("parsing", "A module of tfm.tasks.", resume=OnResume.FIXED, warm_start=False)
    data: PairsConfig = field(DATA, "Trees and their batches.")
    decoding: DecodingConfig = field(DECODING, "Search of evaluation and parsing.")
    validation_sentences: int = field(
        500,
        "Number of validation sentences to parse greedily for the F1 that selects the best checkpoint. The "
        "F1 includes error sentences. The validation loss uses all sentences that fit into data.max_length.",
        minimum=0,
        maximum=10**9,
        unit="sentences",
        resume=OnResume.FREE,
    )

    SCORED_BY_BLEU: ClassVar[bool] = False
    SCORES: ClassVar[tuple[str, ...]] = (
        *("bracketing F1", "bracketing precision", "bracketing recall", "complete match"),
        *("error sentences", "bracketing F1, all", "well-formed outputs"),
    )


class ParseHypothesis(NamedTuple):
    """A parse of a sentence, with the score of its `tfm.tasks.translation.pipeline.Hypothesis`."""

    restored: Restored
    score: float


class Parsing(translation.Translation):
    """A task that translates words into trees. For the attributes, see `Translation`."""

    best = Best("validation/f1", "max")

    def parse(
        self, params: Any, sentences: Iterable[str], decoding: DecodingConfig | None = None, **options: Any
    ) -> list[list[ParseHypothesis]]:
        """Returns the best parses of each sentence, as trees over the words of the sentence.

        `restore_tree` repairs outputs that are not such trees.

        Args:
          params: parameters of the model.
          sentences: words separated by blanks, split into words as in the treebank.
          decoding: the search; None uses the search of the config.
          options: see `tfm.tasks.translation.pipeline.translate_texts`. Prefixes are tokens of trees.
        """
        words = [split_words(sentence) for sentence in check_texts("sentences", sentences)]
        outputs = super().hypotheses(params, [" ".join(sentence) for sentence in words], decoding, **options)
        return [
            [ParseHypothesis(restore_tree(output.text.split(), sentence), output.score) for output in best]
            for sentence, best in zip(words, outputs, strict=True)
        ]

    def hypotheses(
        self, params: Any, sentences: Iterable[str], decoding: DecodingConfig | None = None, **options: Any
    ) -> list[list[Hypothesis]]:
        """Returns the results of `parse` as bracketed text. The text of an empty sentence is empty."""
        parses = self.parse(params, sentences, decoding, **options)
        return [[Hypothesis(_format(parse.restored.tree), parse.score) for parse in best] for best in parses]

    def score(self, params: Any, sources: Iterable[str], targets: Iterable[str]) -> list[np.ndarray]:
        """Computes the log-probabilities of the tokens of each tree, given its sentence.

        Args:
          params: parameters of the model.
          sources: sentences.
          targets: the tree of each sentence as bracketed text.

        Returns:
          A float32 array [tokens] for each tree.

        Raises:
          UserError: if the arguments are not lists of texts of the same length, or a text is not one tree.
        """
        tokens = [" ".join(linearize(_read(text))) for text in check_texts("targets", targets)]
        sentences = [" ".join(split_words(sentence)) for sentence in check_texts("sources", sources)]
        return super().score(params, sentences, tokens)

    def align(self, params: Any, sources: Iterable[str], targets: Iterable[str]) -> NoReturn:
        """Raises a UserError, because the brackets of a tree correspond to no words."""
        raise UserError(
            "A parse has no word alignment, because its brackets correspond to no words. Do not ask for an "
            "alignment."
        )

    def score_hypotheses(
        self, hypotheses: list[str], sources: Sequence[str], references: Sequence[str]
    ) -> dict[str, float]:
        """Returns {"f1": per cent, "complete_match": per cent}.

        Args:
          hypotheses: trees as bracketed text.
          sources: the words of each sentence, separated by blanks.
          references: the tokens of each reference tree, without its words.
        """
        golds = map(_gold_tree, references, sources)
        scores = _score_trees(list(map(_read, hypotheses)), list(golds))
        return {SCORE_NAMES[score.name]: score.value for score in scores if score.name in SCORE_NAMES}

    def show_reference(self, source: str, reference: str) -> str:
        """Returns the reference tree of a sentence as bracketed text."""
        return format_tree(_gold_tree(reference, source))

    def target_tokens(self, hypothesis: str) -> str:
        """Returns the tokens of a tree in bracketed text, and "" for an empty text."""
        return " ".join(linearize(_read(hypothesis))) if hypothesis else ""

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields a report with the parses, the bracketing scores and the share of well-formed outputs."""
        params = parameters_of(variables)
        sources, references = read_sides(self.config.data, split)
        began = time.monotonic()
        parses = [best[0].restored for best in self.parse(params, sources)]
        rate = len(sources) / (time.monotonic() - began)
        trees = [restored.tree for restored in parses]
        golds = list(map(_gold_tree, references, sources))
        texts = [sources, *([format_tree(tree) for tree in side] for side in (golds, trees))]
        names = ("sentence", "reference", "parse")
        yield Report(
            texts[-1],
            [*_score_trees(trees, golds), count_well_formed(parses)],
            [dict(zip(names, example, strict=True)) for example in zip(*texts, strict=True)],
            dataclasses.asdict(self.config.decoding),
            rate,
            fingerprint_texts(sources, references),
        )


def create(config: Config, workdir: str, *, new: bool = True) -> Parsing:
    """Creates the task of a run. For `new` and the errors, see `translation.task.prepare_tokenizer`."""
    return Parsing(config, prepare_tokenizer(config, workdir, new=new))


def count_well_formed(parses: Sequence[Restored]) -> Score:
    """Returns the percentage of outputs that needed no repair. The signature counts the repairs by rule."""
    repairs = Counter(rule for restored in parses for rule in restored.repairs)
    listed = ", ".join(f"{rule} {count:,}" for rule, count in sorted(repairs.items())) or "none"
    whole = sum(not restored.repairs for restored in parses)
    return Score("well-formed outputs", 100 * whole / len(parses), f"per cent; repairs: {listed}")


def _score_trees(trees: Sequence[Node], golds: Sequence[Node]) -> list[Score]:
    return bracketing_scores(*([_as_parse(tree) for tree in side] for side in (golds, trees)))


def _as_parse(tree: Node) -> Parse:
    """Returns a tree as the input of `bracketing_scores`."""
    leaves = list_leaves(tree)
    return Parse([leaf.word for leaf in leaves], [leaf.tag for leaf in leaves], list_spans(tree))


def _gold_tree(reference: str, source: str) -> Node:
    """Returns the reference tree from its tokens and the words of the sentence."""
    return restore_tree(reference.split(), source.split()).tree


def _format(tree: Node) -> str:
    """Returns the bracketed text of a tree, and "" for a tree without children."""
    return format_tree(tree) if tree.children else ""


def _read(text: str) -> Node:
    """Reads a tree from bracketed text.

    Raises:
      UserError: if the text is not exactly one tree.
    """
    trees = list(read_trees([text], "a tree"))
    if len(trees) != 1:
        raise UserError(f"Expected one tree in each text, got {len(trees)} in {text!r}.")
    return trees[0]
