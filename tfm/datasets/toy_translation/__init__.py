"""The built-in language: English-German sentence pairs out of a grammar, for learning to translate offline.

What it covers, each in its own file: some 270 nouns of three genders (`nouns`, `places`), 120 verbs, weak,
strong and separable (`verbs`), 110 adjectives (`adjectives`), numbers up to 9,999 in words (`numbers`),
articles, possessives, modals, conjunctions (`function_words`). Both languages are said from one meaning tree
(`meaning`, `english`, `german`), so every English sentence has one German translation and a true word
alignment. `grammar.generate(split)` gives the pairs; `builder.TfmLanguage` is the TFDS dataset of them.

    The old dogs trust the small child.
    Die alten Hunde vertrauen dem kleinen Kind.                               (gender, case, endings)

    Yesterday the woman didn't buy any apples.
    Gestern kaufte die Frau keine Äpfel.                                      (verb second, kein)

    The guest owns eight hundred and sixty-one books.
    Der Gast besitzt achthunderteinundsechzig Bücher.                         (numbers)

    The teacher says that the girl has picked him up.
    Der Lehrer sagt, dass das Mädchen ihn abgeholt hat.                       (verb last, separable)

    The animal didn't cross the street because it was too tired.
    Das Tier überquerte die Straße nicht, weil es zu müde war.                (it: the animal)

    The animal didn't cross the street because it was too wide.
    Das Tier überquerte die Straße nicht, weil sie zu breit war.              (it: the street)

Splits: `train` (50,000 pairs, at most 20 words), `validation` and `test` (1,000 each, the same kind, no
sentence shared), `pronoun` (500: sentences like the last two, in twins, with nouns and adjective never
combined in training, each with the translation that has the other noun's pronoun as `wrong`), and `long`
(500, each longer than any training sentence).
"""
