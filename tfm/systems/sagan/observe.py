"""The observation of a generator: where the pixels of an image that it draws look."""

import numpy as np

from tfm.interpret.observation import AttentionMap, Observation, Prediction, image_track


def observe_image(
    name: str, image: np.ndarray, weights: np.ndarray, choices: list[tuple[str, float]]
) -> Observation:
    """Describes a generated image.

    Args:
      name: the requested class.
      image: [height, width, C], from -1 to 1.
      weights: attention weights of the pixels [layers, H, L, M].
      choices: classes and their probabilities according to the classifier, best first.
    """
    tracks = {
        track: image_track(image, weights.shape[axis]) for track, axis in (("pixels", -2), ("areas", -1))
    }
    attention = {"generator": AttentionMap("pixels", "areas", weights)}
    prediction = Prediction(choices[0][1], choices)
    return Observation(f"generated image of class {name}", choices[0][0], tracks, attention, [prediction])
