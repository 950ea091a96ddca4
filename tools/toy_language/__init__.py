"""The grammar that generated `tfm.datasets.toy_language`, which is not part of the installed package.

A sentence is drawn once, as a tree of meaning, and said twice, in English and in German. So every English
sentence has one German translation and a true word alignment. `python -m tools.toy_language FOLDER` writes
the files again. A test compares them with the files of the package.
"""
