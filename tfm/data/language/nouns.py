"""The nouns, by what they can be. `classes` of a block decide which verbs and adjectives may meet its nouns.

A line reads: English [irregular plural] | article German plural. A "-" instead of a plural marks a mass noun.
Left out on purpose: German weak nouns (der Junge, der Löwe: -n in every case but one), and English nouns
without a plural form of their own (sheep, fish), whose sentences would have two translations.
"""

from tfm.data.language.meaning import Noun

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
        baby | das Baby Babys
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
    "road": """
        street | die Straße Straßen
        bridge | die Brücke Brücken
        path | der Weg Wege
        square | der Platz Plätze
        yard | der Hof Höfe
        crossing | die Kreuzung Kreuzungen
        motorway | die Autobahn Autobahnen
        alley | die Gasse Gassen
        meadow | die Wiese Wiesen
        field | das Feld Felder
        valley | das Tal Täler
        terrain | das Gelände Gelände
        footbridge | der Steg Stege
        playground | der Spielplatz Spielplätze""",
    "water": """
        river | der Fluss Flüsse
        lake | der See Seen
        stream | der Bach Bäche
        canal | der Kanal Kanäle
        pond | der Teich Teiche
        bay | die Bucht Buchten
        lagoon | die Lagune Lagunen
        sea | das Meer Meere""",
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
        pump | die Pumpe Pumpen""",
    "device goods": """
        computer | der Computer Computer
        radio | das Radio Radios
        television | der Fernseher Fernseher
        oven | der Ofen Öfen""",
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
    "furniture goods": """
        table | der Tisch Tische
        chair | der Stuhl Stühle
        bed | das Bett Betten
        sofa | das Sofa Sofas
        armchair | der Sessel Sessel
        cupboard | der Schrank Schränke
        shelf shelves | das Regal Regale
        carpet | der Teppich Teppiche
        bench | die Bank Bänke
        pillow | das Kissen Kissen
        blanket | die Decke Decken
        mattress | die Matratze Matratzen
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
    "openable": """
        door | die Tür Türen
        window | das Fenster Fenster
        gate | das Tor Tore""",
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
