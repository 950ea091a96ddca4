"""Decoding of a trained model: translation, generation, scoring and minimum Bayes risk."""
