"""The scores of generated images: whether they show the requested classes, and the Frechet distance."""

import numpy as np

from tfm.evaluation.score import Score
from tfm.systems.sagan.config import ACCURACY, DISTANCE
from tfm.systems.sagan.frechet import frechet_distance
from tfm.training.image_judge import ImageJudge


def score_images(
    judge: ImageJudge, images: np.ndarray, labels: np.ndarray, real: np.ndarray
) -> tuple[np.ndarray, list[Score]]:
    """Judges generated images.

    Args:
      judge: the classifier.
      images: generated images [N, height, width, C], from -1 to 1.
      labels: the requested classes, int [N].
      real: real images of the same classes, like `images`.

    Returns:
      The judged classes, int [N], and the scores.
    """
    probabilities, features = judge.judge(images)
    judged = probabilities.argmax(-1)
    signature = f"{len(labels):,} generated images"
    distance = frechet_distance(features, judge.judge(real)[1])
    return judged, [
        Score(ACCURACY, 100 * float((judged == labels).mean()), f"per cent of {signature}"),
        Score(DISTANCE, distance, f"{signature} and as many real images"),
    ]
