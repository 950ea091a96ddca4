"""Tokenizers: word pieces, characters, bytes, and tokenizers that the user brings."""
