"""The table of a sweep: scores of each variant with confidence intervals, next to published scores."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scipy.special import stdtrit

from tfm.sweep.variants import PARAMETERS, Variant

CONFIDENCE = 0.95
DIGITS = 2  # decimals of scores in the table


class Interval(NamedTuple):
    """A mean and half of its 95 % confidence interval. The half is nan if there is no interval."""

    mean: float
    half: float

    def format(self, sign: str = "") -> str:
        """Returns a text such as "25.80 ± 0.31". With "+" as `sign`, positive numbers have a plus."""
        half = "" if math.isnan(self.half) else f" ± {self.half:.{DIGITS}f}"
        return f"{self.mean:{sign}.{DIGITS}f}{half}"


def mean_interval(values: Sequence[float]) -> Interval:
    """Returns the mean of independent values with its interval by Student's t.

    There is no interval for a single value, or if a value is infinite or nan, as the perplexity of a run that
    diverged.
    """
    mean, degrees = statistics.fmean(values), len(values) - 1
    if not degrees or not math.isfinite(mean):
        return Interval(mean, math.nan)
    return Interval(mean, _quantile(degrees) * statistics.stdev(values) / math.sqrt(len(values)))


def difference_interval(values: Mapping[int, float], base: Mapping[int, float]) -> Interval | None:
    """Returns the mean of values[seed] - base[seed], with its interval by Student's t on these differences.

    The differences are paired because runs with the same seed share their batches and initial random numbers,
    so a good seed raises both scores.

    Args:
      values: {seed: score} of a variant.
      base: {seed: score} of the base.

    Returns:
      The interval, or None if no seed has both scores.
    """
    shared = values.keys() & base.keys()
    if not shared:
        return None
    return mean_interval([values[seed] - base[seed] for seed in sorted(shared)])


def judge(difference: Interval, published: float) -> str:
    """Decides whether our difference from the base confirms the published difference.

    Args:
      difference: our difference from the base, with its interval.
      published: the published difference from the base.

    Returns:
      "yes": our difference has the same sign, and its interval excludes 0.
      "no": our interval excludes 0, but the published difference has the other sign or is 0.
      "open": our interval contains 0, or there is no interval. This does not show that variants are equal.
    """
    if not abs(difference.mean) > difference.half:  # also true if the half is nan
        return "open"
    return "yes" if difference.mean * published > 0 else "no"


def make_table(variants: Sequence[Variant], rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Returns a Markdown table with a line for each variant that has finished runs.

    Args:
      variants: the variants of the sweep. The first variant is the base.
      rows: the finished runs, as `tfm.sweep.results.Result.describe` returns them.
      names: names of the scores to show.
    """
    scores = {variant.name: _scores_of(rows, variant.name) for variant in variants}
    header = ["variant", "seeds", "parameters (millions)", "FLOP"]
    for name in names:
        header += [name, f"{name}, published", f"{name} - base", "published - base", "reproduced"]
    lines = [_line(header), _line(["---"] * len(header))]
    for variant in variants:
        if found := [row for row in rows if row["variant"] == variant.name]:
            lines.append(_line(_cells(variant, variants[0], found, scores, names)))
    return "\n".join(lines) + "\n"


def _cells(
    variant: Variant,
    base: Variant,
    rows: Sequence[Mapping[str, Any]],
    scores: Mapping[str, Mapping[str, Mapping[int, float]]],
    names: Sequence[str],
) -> Iterator[str]:
    """Yields the cells of a variant.

    Args:
      variant: the variant.
      base: the variant to compare with.
      rows: the finished runs of the variant.
      scores: {name of a variant: {name of a score: {seed: value}}}.
      names: names of the scores to show.
    """
    yield from (variant.name, str(len(rows)), _parameters(rows[-1], variant))
    flops = rows[-1]["flops"]
    yield "" if flops is None else f"{flops:.1e}"
    for name in names:
        values, of_base = scores[variant.name].get(name, {}), scores[base.name].get(name, {})
        published, published_base = variant.published.get(name), base.published.get(name)
        yield mean_interval(list(values.values())).format() if values else ""
        yield "" if published is None else f"{published:.{DIGITS}f}"
        difference = None if variant is base else difference_interval(values, of_base)
        if difference is None:
            yield from ("", "", "")
            continue
        yield difference.format("+")
        if published is None or published_base is None:
            yield from ("", "")
            continue
        yield f"{published - published_base:+.{DIGITS}f}"
        yield judge(difference, round(published - published_base, DIGITS))


def _parameters(row: Mapping[str, Any], variant: Variant) -> str:
    """Returns the number of parameters in millions, with the published number if there is one."""
    ours = "" if row["parameters"] is None else f"{row['parameters'] / 1e6:,.2f}"
    if PARAMETERS not in variant.published:
        return ours
    return f"{ours} (published: {variant.published[PARAMETERS] / 1e6:,.0f})"


def _scores_of(rows: Sequence[Mapping[str, Any]], variant: str) -> dict[str, dict[int, float]]:
    """Returns {name of a score: {seed: value}} of a variant."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["variant"] == variant:
            for score in row["scores"]:
                found.setdefault(score["name"], {})[row["seed"]] = score["value"]
    return found


def _line(cells: Iterable[str]) -> str:
    """Returns a line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def _quantile(degrees: int) -> float:
    """Returns the two-sided quantile of Student's t for `CONFIDENCE`."""
    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))
