"""The closed classes: determiners, pronouns, modals, adverbs and conjunctions."""

from tools.toy_language.meaning_tree import Adverb, Determiner, Link, Modal, Pronoun

THE = Determiner("the", "the", "d", "der")
A = Determiner("a", "", "ein", "ein")
NO = Determiner("no", "no", "kein", "ein")
BARE = Determiner("", "", "", "none")
THIS = Determiner("this", "these", "dies", "dies")
EVERY = Determiner("every", "", "jed", "dies")
SOME = Determiner("", "some", "einig", "viel")
MANY = Determiner("", "many", "viel", "viel")
POSSESSIVES = tuple(
    Determiner(en, en, de, "ein")
    for en, de in (("my", "mein"), ("his", "sein"), ("her", "ihr"), ("our", "unser"), ("their", "ihr"))
)

I = Pronoun("I", "me", "ich", "mich", "mir", "1s")  # noqa: E741 - the word itself
HE = Pronoun("he", "him", "er", "ihn", "ihm", "3s")
SHE = Pronoun("she", "her", "sie", "sie", "ihr", "3s")
WE = Pronoun("we", "us", "wir", "uns", "uns", "1p")
THEY = Pronoun("they", "them", "sie", "sie", "ihnen", "3p")
PERSONAL = (I, HE, SHE, WE, THEY)
IT = {
    "m": Pronoun("it", "it", "er", "ihn", "ihm", "3s"),
    "f": Pronoun("it", "it", "sie", "sie", "ihr", "3s"),
    "n": Pronoun("it", "it", "es", "es", "ihm", "3s"),
}

# "must not" is "darf nicht" in German, not "muss nicht", so "must" stays affirmative. So does "had to".
MODALS = (
    Modal("can", "kann", "können", "present"),
    Modal("want", "will", "wollen", "present"),
    Modal("should", "sollte", "sollten", "present"),
    Modal("must", "muss", "müssen", "present", negatable=False),
    Modal("could", "konnte", "konnten", "past"),
    Modal("want", "wollte", "wollten", "past"),
    Modal("had to", "musste", "mussten", "past", negatable=False),
)

VERY = Adverb("very", "sehr")
TOO = Adverb("too", "zu")
QUITE = Adverb("quite", "ziemlich")

_DAYS = tuple(
    Adverb(f"on {en}", f"am {de}")
    for en, de in (
        ("Monday", "Montag"),
        ("Tuesday", "Dienstag"),
        ("Wednesday", "Mittwoch"),
        ("Thursday", "Donnerstag"),
        ("Friday", "Freitag"),
        ("Saturday", "Samstag"),
        ("Sunday", "Sonntag"),
    )
)
_OFTEN = (Adverb("often", "oft", middle=True), Adverb("sometimes", "manchmal", middle=True))
EVERY_DAY = Adverb("every day", "jeden Tag")
TIMES = {
    "past": (
        Adverb("yesterday", "gestern"),
        Adverb("last week", "letzte Woche"),
        Adverb("last year", "letztes Jahr"),
        Adverb("last night", "gestern Abend"),
        Adverb("this morning", "heute Morgen"),
        *_DAYS,
        *_OFTEN,
    ),
    "present": (
        Adverb("today", "heute"),
        Adverb("now", "jetzt"),
        EVERY_DAY,
        Adverb("in the evening", "am Abend"),
        Adverb("in the morning", "am Morgen"),
        *_OFTEN,
    ),
    "perfect": (
        Adverb("today", "heute"),
        Adverb("already", "schon", middle=True),
        Adverb("never", "nie", middle=True),
        *_OFTEN,
    ),
    "future": (
        Adverb("tomorrow", "morgen"),
        Adverb("soon", "bald"),
        Adverb("next week", "nächste Woche"),
        Adverb("tonight", "heute Abend"),
        *_DAYS,
    ),
}

MANNERS = (
    Adverb("alone", "allein"),
    Adverb("quietly", "leise"),
    Adverb("for a long time", "lange"),
    Adverb("all day", "den ganzen Tag"),
)
PACES = (Adverb("quickly", "schnell"), Adverb("slowly", "langsam"), Adverb("alone", "allein"))

BECAUSE = Link("because", "weil", subordinate=True)
ALTHOUGH = Link("although", "obwohl", subordinate=True)
WHILE = Link("while", "während", subordinate=True)
BEFORE = Link("before", "bevor", subordinate=True)
THAT = Link("that", "dass", subordinate=True)
AND = Link("and", "und", subordinate=False, en_comma=True)
BUT = Link("but", "aber", subordinate=False, en_comma=True)
