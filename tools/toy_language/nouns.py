"""The nouns, by what they can be. `classes` of a block decide which verbs and adjectives may meet its nouns.

A line reads: English [irregular plural] | article German plural. A "-" instead of a plural marks a mass noun.
Left out on purpose: German weak nouns (der Junge, der Löwe: -n in every case but one), and English nouns
without a plural form of their own (sheep, fish), whose sentences would have two translations.
"""

from functools import cache

from tools.toy_language.meaning_tree import Noun
from tools.toy_language.places import PLACE_TABLE

_TABLE = {
    "person kin": """
        mother | die Mutter Mütter
        father | der Vater Väter
        sister | die Schwester Schwestern
        brother | der Bruder Brüder
        daughter | die Tochter Töchter
        son | der Sohn Söhne
        grandmother | die Großmutter Großmütter
        grandfather | der Großvater Großväter
        aunt | die Tante Tanten
        uncle | der Onkel Onkel
        friend | der Freund Freunde""",
    "person": """
        woman women | die Frau Frauen
        man men | der Mann Männer
        child children | das Kind Kinder
        girl | das Mädchen Mädchen
        teacher | der Lehrer Lehrer
        doctor | der Arzt Ärzte
        nurse | die Krankenschwester Krankenschwestern
        baker | der Bäcker Bäcker
        cook | der Koch Köche
        gardener | der Gärtner Gärtner
        painter | der Maler Maler
        singer | die Sängerin Sängerinnen
        dancer | die Tänzerin Tänzerinnen
        actress | die Schauspielerin Schauspielerinnen
        waitress | die Kellnerin Kellnerinnen
        queen | die Königin Königinnen
        king | der König Könige
        princess | die Prinzessin Prinzessinnen
        driver | der Fahrer Fahrer
        pupil | der Schüler Schüler
        guest | der Gast Gäste
        engineer | der Ingenieur Ingenieure
        writer | der Schriftsteller Schriftsteller
        hunter | der Jäger Jäger
        judge | der Richter Richter
        thief thieves | der Dieb Diebe""",
    "animal": """
        animal | das Tier Tiere
        dog | der Hund Hunde
        cat | die Katze Katzen
        horse | das Pferd Pferde
        cow | die Kuh Kühe
        bird | der Vogel Vögel
        fox | der Fuchs Füchse
        wolf wolves | der Wolf Wölfe
        mouse mice | die Maus Mäuse
        pig | das Schwein Schweine
        goat | die Ziege Ziegen
        donkey | der Esel Esel
        frog | der Frosch Frösche
        duck | die Ente Enten
        goose geese | die Gans Gänse
        hen | das Huhn Hühner
        rabbit | das Kaninchen Kaninchen
        hedgehog | der Igel Igel
        snake | die Schlange Schlangen
        tiger | der Tiger Tiger
        camel | das Kamel Kamele
        turtle | die Schildkröte Schildkröten
        squirrel | das Eichhörnchen Eichhörnchen
        lamb | das Lamm Lämmer
        calf calves | das Kalb Kälber
        pony | das Pony Ponys
        crocodile | das Krokodil Krokodile
        rat | die Ratte Ratten
        giraffe | die Giraffe Giraffen
        hamster | der Hamster Hamster""",
    "food": """
        apple | der Apfel Äpfel
        pear | die Birne Birnen
        lemon | die Zitrone Zitronen
        cherry | die Kirsche Kirschen
        orange | die Orange Orangen
        strawberry | die Erdbeere Erdbeeren
        peach | der Pfirsich Pfirsiche
        nut | die Nuss Nüsse
        cheese - | der Käse -
        sausage | die Wurst Würste
        salad | der Salat Salate
        steak | das Steak Steaks
        tomato tomatoes | die Tomate Tomaten
        onion | die Zwiebel Zwiebeln
        radish | das Radieschen Radieschen
        honey - | der Honig -
        jam - | die Marmelade -""",
    "food cooked": """
        soup | die Suppe Suppen
        potato potatoes | die Kartoffel Kartoffeln
        egg | das Ei Eier
        rice - | der Reis -
        meat - | das Fleisch -
        carrot | die Karotte Karotten
        mushroom | der Pilz Pilze
        pumpkin | der Kürbis Kürbisse
        schnitzel | das Schnitzel Schnitzel""",
    "food pastry": """
        cake | der Kuchen Kuchen
        tart | die Torte Torten
        bread - | das Brot -
        biscuit | der Keks Kekse
        roll | das Brötchen Brötchen
        croissant | das Croissant Croissants
        pizza | die Pizza Pizzen
        pancake | der Pfannkuchen Pfannkuchen""",
    "drink": """
        milk - | die Milch -
        water - | das Wasser -
        coffee - | der Kaffee -
        tea - | der Tee -
        juice - | der Saft -
        beer - | das Bier -
        wine - | der Wein -""",
    "vehicle goods": """
        car | das Auto Autos
        bus | der Bus Busse
        lorry | der Lastwagen Lastwagen
        tram | die Straßenbahn Straßenbahnen
        bicycle | das Fahrrad Fahrräder
        motorcycle | das Motorrad Motorräder
        taxi | das Taxi Taxis
        tractor | der Traktor Traktoren
        carriage | die Kutsche Kutschen
        limousine | die Limousine Limousinen
        van | der Lieferwagen Lieferwagen
        scooter | der Roller Roller
        sledge | der Schlitten Schlitten""",
    "vessel goods": """
        ship | das Schiff Schiffe
        boat | das Boot Boote
        ferry | die Fähre Fähren
        raft | das Floß Flöße
        yacht | die Jacht Jachten
        canoe | das Kanu Kanus
        steamer | der Dampfer Dampfer""",
    "machine": """
        robot | der Roboter Roboter
        machine | die Maschine Maschinen
        crane | der Kran Kräne
        device | das Gerät Geräte
        drone | die Drohne Drohnen
        excavator | der Bagger Bagger
        winch | die Winde Winden""",
    "device goods": """
        computer | der Computer Computer
        radio | das Radio Radios
        television | der Fernseher Fernseher
        oven | der Ofen Öfen""",
    "furniture seat goods": """
        chair | der Stuhl Stühle
        bed | das Bett Betten
        sofa | das Sofa Sofas
        armchair | der Sessel Sessel
        carpet | der Teppich Teppiche
        bench | die Bank Bänke
        pillow | das Kissen Kissen
        blanket | die Decke Decken
        mattress | die Matratze Matratzen""",
    "furniture goods": """
        table | der Tisch Tische
        cupboard | der Schrank Schränke
        shelf shelves | das Regal Regale
        chest | die Truhe Truhen
        piano | das Klavier Klaviere""",
    "thing goods readable": """
        book | das Buch Bücher
        newspaper | die Zeitung Zeitungen
        letter | der Brief Briefe
        magazine | die Zeitschrift Zeitschriften
        novel | der Roman Romane
        poem | das Gedicht Gedichte""",
    "thing goods openable": """
        bag | die Tasche Taschen
        suitcase | der Koffer Koffer
        box | die Kiste Kisten
        bottle | die Flasche Flaschen
        umbrella | der Regenschirm Regenschirme""",
    "thing goods dish": """
        cup | die Tasse Tassen
        glass | das Glas Gläser
        plate | der Teller Teller
        bowl | die Schüssel Schüsseln
        vase | die Vase Vasen
        mirror | der Spiegel Spiegel""",
    "thing goods": """
        key | der Schlüssel Schlüssel
        knife knives | das Messer Messer
        fork | die Gabel Gabeln
        spoon | der Löffel Löffel
        pan | die Pfanne Pfannen
        ball | der Ball Bälle
        doll | die Puppe Puppen
        present | das Geschenk Geschenke
        ring | der Ring Ringe
        camera | die Kamera Kameras
        clock | die Uhr Uhren
        lamp | die Lampe Lampen
        picture | das Bild Bilder
        photo | das Foto Fotos
        hammer | der Hammer Hämmer
        ladder | die Leiter Leitern
        rope | das Seil Seile
        bell | die Glocke Glocken""",
    "clothing goods": """
        coat | der Mantel Mäntel
        dress | das Kleid Kleider
        shirt | das Hemd Hemden
        hat | der Hut Hüte
        skirt | der Rock Röcke
        jacket | die Jacke Jacken
        scarf scarves | der Schal Schals
        shoe | der Schuh Schuhe
        glove | der Handschuh Handschuhe
        cap | die Mütze Mützen
        sock | die Socke Socken
        pullover | der Pullover Pullover
        tie | die Krawatte Krawatten
        blouse | die Bluse Blusen
        belt | der Gürtel Gürtel""",
}


def _english_plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def _parse(line: str, classes: tuple[str, ...]) -> Noun:
    english, german = (part.split() for part in line.split("|"))
    singular, *plural = english
    article, de, de_plural = german
    en_plural = plural[0] if plural else _english_plural(singular)
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    return Noun(singular, en_plural.strip("-"), de, de_plural.strip("-"), gender, classes)


NOUNS = tuple(
    _parse(line, tuple(classes.split()))
    for classes, block in (_TABLE | PLACE_TABLE).items()
    for line in block.strip().splitlines()
)


@cache
def nouns_of(*classes: str) -> tuple[Noun, ...]:
    """Nouns that are in any of the classes, or are named themselves, in the order of the table."""
    return tuple(noun for noun in NOUNS if {*noun.classes, noun.en} & set(classes))
