"""Import from and export to folders of Hugging Face transformers, without PyTorch and transformers.

`folder` reads config.json and the arrays, `families` maps configs and names in both directions, `arrays`
converts arrays in both directions, and `vocabulary` rewrites tokenizers in the order of the ids of tfm.
"""
