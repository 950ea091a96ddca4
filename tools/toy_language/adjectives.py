"""The adjectives: English, German [stem that takes the endings] | classes | traits [| absolute].

The classes (or single nouns) are what it may describe. The traits are the classes (or nouns) of which
"it was too ..." makes sense; they decide what "it" means. Of "tired", only animals and persons are capable,
so in "The animal didn't cross the street because it was too tired" it is the animal. A trait both nouns may
have, like that of "old" (all), decides nothing and is not used with them. An absolute one has no "very".
"""

from tools.toy_language.meaning_tree import Adjective, Noun

_TABLE = """
    big groß | animal building vehicle vessel machine furniture device place road waters dish | all
    small klein | animal building vehicle vessel machine furniture thing device place road waters food | all
    old alt | person building vehicle vessel machine furniture thing device clothing place road | all
    new neu | building vehicle vessel machine furniture thing device clothing openable |
    beautiful schön | building vehicle vessel furniture thing clothing place animal meadow bay | all
    ugly hässlich | building furniture vehicle thing clothing animal | all
    strange seltsam | person animal building machine thing vehicle clothing food drink place |
    famous berühmt | person site city picture book poem |
    expensive teuer teur | goods food drink site | all
    cheap billig | goods food drink | all
    heavy schwer | goods machine gate | goods animal food
    light leicht | furniture thing clothing | thing clothing
    dirty schmutzig | clothing furniture vehicle dish building animal openable | all
    clean sauber | clothing furniture vehicle dish room |
    broken kaputt | vehicle machine device furniture openable | | absolute
    wooden hölzern | table chair bench bed cupboard chest spoon bowl ladder gate door raft box | | absolute
    modern modern | building vehicle machine device furniture | all
    round rund | table dish carpet clock mirror window | | absolute
    rusty rostig | vehicle machine gate knife key | vehicle vessel machine bench bed bridge footbridge track
    red rot | clothing vehicle furniture dish ball bag suitcase apple | | absolute
    blue blau | clothing vehicle furniture dish ball bag suitcase door | | absolute
    green grün | clothing vehicle furniture dish ball bag apple | | absolute
    yellow gelb | clothing vehicle furniture dish ball lemon | | absolute
    black schwarz | clothing vehicle furniture animal bag suitcase umbrella | | absolute
    white weiß | clothing vehicle furniture animal dish house | | absolute
    brown braun | clothing furniture animal bag suitcase | | absolute
    grey grau | clothing furniture animal house donkey | | absolute
    wet nass | clothing furniture animal road | all
    long lang | road canal river rope clothing bench table ladder letter novel | all
    short kurz | street path skirt dress coat scarf rope letter poem | skirt dress coat scarf rope
    high hoch hoh | bridge tower shelf ladder | all
    low niedrig | bridge shelf table bench chair room | all
    dark dunkel dunkl | building place alley coat | building
    quiet ruhig | place room person road |
    busy belebt | street square market station motorway crossing |
    loud laut | machine vehicle person device |
    noble edel edl | wine person furniture ring |
    young jung | person animal | animal person
    happy glücklich | person | person
    sad traurig | person animal | animal person
    tired müde müd | person animal | animal person
    hungry hungrig | person animal | person
    thirsty durstig | person animal | person
    angry wütend | person animal | person
    friendly freundlich | person animal |
    rich reich | person |
    poor arm | person |
    clever klug | person animal |
    stupid dumm | person animal |
    brave mutig | person animal |
    strong stark | person animal |
    weak schwach | person animal | animal person machine
    lazy faul | person animal | animal person
    polite höflich | person |
    sick krank | person animal | animal person
    healthy gesund | person animal |
    nervous nervös | person animal | animal person
    shy schüchtern | person animal | animal person
    proud stolz | person animal | animal person
    curious neugierig | person animal |
    honest ehrlich | person |
    lonely einsam | person animal | person
    sleepy schläfrig | person animal | animal person
    stubborn stur | person animal | animal person
    anxious ängstlich | person animal | animal person
    cautious vorsichtig | person animal | animal person
    impatient ungeduldig | person animal | person animal
    wide breit | road waters | road waters vehicle vessel
    narrow schmal | road canal stream | road vehicle
    steep steil | path alley street meadow | path alley street meadow
    slippery rutschig | road | road
    muddy schlammig | path yard meadow field pond | road waters
    bumpy holprig | street path alley field terrain | road
    icy vereist | road waters | road waters
    dusty staubig | road room furniture | road building furniture machine
    deep tief | waters cave valley | waters
    shallow seicht | waters | waters
    murky trüb | waters | waters
    stormy stürmisch | sea bay |
    sweet süß | food juice tea wine | food drink
    salty salzig | soup cheese nut sausage meat | food
    bitter bitter | coffee tea beer nut | food drink
    sour sauer saur | lemon cherry apple wine pear | food drink
    spicy scharf | soup sausage meat rice pizza | food
    greasy fettig | sausage meat cheese pancake | food
    sticky klebrig | honey jam cake table | food furniture
    dry trocken | pastry wine | food
    hard hart | bread nut pillow mattress bed bench | food seat
    soft weich | pillow mattress bed sofa blanket | seat
    fresh frisch | food milk juice |
    delicious lecker | food drink |
    hot heiß | soup milk water coffee tea | drink
    warm warm | soup pastry milk water clothing room |
    cold kalt | soup drink waters room | drink
    full voll | dish bag suitcase box bottle bus tram | vehicle vessel street square bridge crossing
    empty leer | dish bag suitcase box bottle room place | building
    overloaded überladen | vehicle vessel | vehicle vessel
    slow langsam | vehicle vessel machine | vehicle vessel machine animal
    unreliable unzuverlässig | vehicle machine device | vehicle vessel machine
    rickety klapprig | vehicle chair bench bed | vessel vehicle bridge footbridge chair bench bed table shelf
    fragile zerbrechlich | dish raft canoe | vessel furniture dish
    imprecise ungenau | machine clock | machine
    primitive primitiv | machine hut | machine
    complicated kompliziert | machine device | machine
    wobbly wackelig | table chair shelf ladder | chair bench bed table shelf cupboard
    uncomfortable unbequem | chair sofa bed bench shoe | seat
    luxurious luxuriös | hotel palace limousine yacht | building furniture vehicle vessel
    gloomy düster | room cave forest tower | building
    stuffy stickig | room tent | building
    bright hell | kitchen room hall office bathroom | building
    draughty zugig | room barn | building
    boring langweilig | readable person |
    exciting spannend | readable |
"""


def _parse(line: str) -> Adjective:
    words, classes, traits, *absolute = (part.split() for part in line.split("|"))
    en, de, *stem = words
    return Adjective(en, de, stem[0] if stem else de, tuple(classes), tuple(traits), bool(absolute))


ADJECTIVES = tuple(_parse(line) for line in _TABLE.strip().splitlines())


def describes(adjective: Adjective, noun: Noun) -> bool:
    """Whether the adjective may stand before the noun."""
    return bool({*noun.classes, noun.en} & set(adjective.classes))


def trait_of(adjective: Adjective, noun: Noun) -> bool:
    """Whether "it was too ..." may be said of the noun."""
    return bool({*noun.classes, noun.en, "all"} & set(adjective.traits))
