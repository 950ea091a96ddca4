"""DALL-E (Ramesh et al. 2021): images from texts. See README.md in this folder."""
