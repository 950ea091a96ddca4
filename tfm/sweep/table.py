"""The table of a sweep: scores of each variant with confidence intervals, beside published ones."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy.special import stdtrit

from tfm.sweep.variants import Variant

CONFIDENCE = 0.95
PARAMETERS = "parameters"  # what is published of a variant beside its scores
DIGITS = 2


class Interval(NamedTuple):
    """A mean and half of its 95 % confidence interval; nan for the half where the values have none."""

    mean: float
    half: float

    def format(self, sign: str = "") -> str:
        """Such as 25.80 ± 0.31; with "+" as `sign`, a plus before what is not negative."""
        half = "" if math.isnan(self.half) else f" ± {self.half:.{DIGITS}f}"
        return f"{self.mean:{sign}.{DIGITS}f}{half}"


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values and its interval by Student's t.

    Infinite values and nan, as the perplexity of a run that diverged, have no interval.
    """
    mean, degrees = statistics.fmean(values), len(values) - 1
    if not degrees or not math.isfinite(mean):
        return Interval(mean, math.nan)
    return Interval(mean, _quantile(degrees) * statistics.stdev(values) / math.sqrt(len(values)))


def difference_interval(values: Mapping[int, float], base: Mapping[int, float]) -> Interval | None:
    """The mean of values[seed] - base[seed], and its interval by Student's t on these differences.

    The differences are paired, as runs of one seed share their batches and their initial random numbers: a
    good seed raises both.

    Args:
      values: {seed: score} of a variant.
      base: {seed: score} of the base.

    Returns:
      The interval, None where no seed has both.
    """
    shared = values.keys() & base.keys()
    if not shared:
        return None
    return mean_interval([values[seed] - base[seed] for seed in sorted(shared)])


def judge(difference: Interval, published: float) -> str:
    """Whether a published difference from the base is found here as well.

    Returns:
      "yes": it has the same sign, and 0 is outside the interval.
      "no": it has the other sign, or none was published, and 0 is outside.
      "open": the interval does not tell. It never tells that two variants are equal.
    """
    if not abs(difference.mean) > difference.half:  # nor where the half is nan
        return "open"
    return "yes" if difference.mean * published > 0 else "no"


def make_table(variants: Sequence[Variant], rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Markdown: a line for each variant that has finished runs; the first variant is the base.

    Args:
      variants: of the sweep.
      rows: of its ledger.
      names: of the scores to show.
    """
    scores = {variant.name: _scores_of(rows, variant.name) for variant in variants}
    header = ["variant", "seeds", "parameters (millions)", "FLOP"]
    for name in names:
        header += [name, f"{name}, published", f"{name} - base", "published - base", "found again"]
    lines = [_line(header), _line(["---"] * len(header))]
    for variant in variants:
        if found := [row for row in rows if row["variant"] == variant.name]:
            lines.append(_line(_cells(variant, variants[0], found, scores, names)))
    return "\n".join(lines) + "\n"


def _cells(variant, base, rows, scores, names):
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


def _parameters(row, variant):
    ours = "" if row["parameters"] is None else f"{row['parameters'] / 1e6:,.2f}"
    if PARAMETERS not in variant.published:
        return ours
    return f"{ours} (published: {variant.published[PARAMETERS] / 1e6:,.0f})"


def _scores_of(rows, variant):
    """{name of a score: {seed: its value}}."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["variant"] == variant:
            for score in row["scores"]:
                found.setdefault(score["name"], {})[row["seed"]] = score["value"]
    return found


def _line(cells):
    return "| " + " | ".join(cells) + " |"


def _quantile(degrees):
    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))
