"""Nouns for places, and which preposition says "at" or "to" each of them. Lines as in `nouns`."""

PLACE_TABLE = {
    "road way": """
        street | die Straße Straßen
        bridge | die Brücke Brücken
        path | der Weg Wege
        crossing | die Kreuzung Kreuzungen
        motorway | die Autobahn Autobahnen
        alley | die Gasse Gassen
        footbridge | der Steg Stege
        track | das Gleis Gleise""",
    "road": """
        square | der Platz Plätze
        yard | der Hof Höfe
        meadow | die Wiese Wiesen
        field | das Feld Felder
        valley | das Tal Täler
        terrain | das Gelände Gelände
        playground | der Spielplatz Spielplätze""",
    "waters": """
        river | der Fluss Flüsse
        lake | der See Seen
        stream | der Bach Bäche
        canal | der Kanal Kanäle
        pond | der Teich Teiche
        bay | die Bucht Buchten
        lagoon | die Lagune Lagunen
        sea | das Meer Meere""",
    "building site far": """
        museum | das Museum Museen
        library | die Bibliothek Bibliotheken
        school | die Schule Schulen
        church | die Kirche Kirchen
        hospital | das Krankenhaus Krankenhäuser
        restaurant | das Restaurant Restaurants
        hotel | das Hotel Hotels
        theatre | das Theater Theater
        castle | das Schloss Schlösser
        factory | die Fabrik Fabriken
        palace | der Palast Paläste""",
    "building site": """
        house | das Haus Häuser
        barn | die Scheune Scheunen
        stable | der Stall Ställe
        garage | die Garage Garagen
        tower | der Turm Türme
        shop | der Laden Läden
        hut | die Hütte Hütten
        tent | das Zelt Zelte
        cave | die Höhle Höhlen""",
    "building room": """
        kitchen | die Küche Küchen
        cellar | der Keller Keller
        room | das Zimmer Zimmer
        hall | die Halle Hallen
        office | das Büro Büros
        bathroom | das Badezimmer Badezimmer
        attic | der Dachboden Dachböden""",
    "place": """
        garden | der Garten Gärten
        park | der Park Parks
        forest | der Wald Wälder""",
    "place far": """
        city | die Stadt Städte
        village | das Dorf Dörfer
        market | der Markt Märkte
        station | der Bahnhof Bahnhöfe
        airport | der Flughafen Flughäfen
        beach | der Strand Strände
        farm | der Bauernhof Bauernhöfe
        zoo | der Zoo Zoos""",
    "openable": """
        door | die Tür Türen
        window | das Fenster Fenster
        gate | das Tor Tore""",
}

# noun: English "at", German "at" (+ dative), German "to" (with its case).
_PREPOSITIONS = {
    "bridge": ("on", "auf", "zu", "dat"),
    "street": ("on", "auf", "auf", "acc"),
    "square": ("on", "auf", "auf", "acc"),
    "playground": ("on", "auf", "auf", "acc"),
    "river": ("at", "an", "zu", "dat"),
    "lake": ("at", "an", "zu", "dat"),
    "sea": ("at", "an", "an", "acc"),
    "market": ("at", "auf", "auf", "acc"),
    "station": ("at", "an", "zu", "dat"),
    "airport": ("at", "an", "zu", "dat"),
    "beach": ("on", "an", "an", "acc"),
    "farm": ("on", "auf", "zu", "dat"),
    "meadow": ("in", "auf", "auf", "acc"),
    "tower": ("in", "in", "zu", "dat"),
    "school": ("at", "in", "zu", "dat"),
    "church": ("in", "in", "zu", "dat"),
    "castle": ("in", "in", "zu", "dat"),
    "palace": ("in", "in", "zu", "dat"),
}
_INSIDE = ("in", "in", "in", "acc")

SIDES = (("in front of", "vor"), ("behind", "hinter"), ("next to", "neben"))


def location(noun: str) -> tuple[str, str, str]:
    """English preposition, German preposition and its case, for being there."""
    en, de, _, _ = _PREPOSITIONS.get(noun, _INSIDE)
    return en, de, "dat"


def goal(noun: str) -> tuple[str, str, str]:
    """English preposition, German preposition and its case, for going there."""
    _, _, de, case = _PREPOSITIONS.get(noun, _INSIDE)
    return "to", de, case
