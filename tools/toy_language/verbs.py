"""The verbs. A line has up to five parts:

    English [past participle] [+particle | ~preposition] | German forms | subjects | complement | flags

The German forms are infinitive, er-form of the present, of the preterite, and participle; "ist" marks the
verbs with sein; "auf/wachen" is separable. A complement is "acc classes", "dat classes" (both may come,
divided by a comma) or "to classes", a place gone to. Flags: `state` takes no time or place, `for` goes
with "for somebody", `many` with large numbers, `plural` with plurals only, `with` with company, `how` and
`pace` with manner, `where` with a place, `it` with a reason about its object. Verbs that report ("says that
...") have a table of their own.
"""

from tools.toy_language.meaning_tree import Verb

_TABLE = """
    buy bought bought | kaufen kauft kaufte gekauft | person | acc goods food animal | for many where it
    sell sold sold | verkaufen verkauft verkaufte verkauft | person | acc goods food animal | many where it
    see saw seen | sehen sieht sah gesehen | person animal | acc person animal vehicle | many where
    find found found | finden findet fand gefunden | person | acc thing clothing animal | for many where
    look ~for | suchen sucht suchte gesucht | person | acc person animal thing clothing | where
    carry | tragen trägt trug getragen | person | acc thing furniture | for it
    hold held held | halten hält hielt gehalten | person | acc thing
    eat ate eaten | essen isst aß gegessen | person | acc food | where it
    eat ate eaten | fressen frisst fraß gefressen | animal | acc food | where
    taste | probieren probiert probierte probiert | person animal | acc food | it
    drink drank drunk | trinken trinkt trank getrunken | person | acc drink | where it
    read read read | lesen liest las gelesen | person | acc readable | many where
    write wrote written | schreiben schreibt schrieb geschrieben | person | acc letter book poem | for many
    open | öffnen öffnet öffnete geöffnet | person | acc openable | it
    close | schließen schließt schloss geschlossen | person | acc openable
    love | lieben liebt liebte geliebt | person | acc person animal | state
    hate | hassen hasst hasste gehasst | person animal | acc person animal | state
    know knew known | kennen kennt kannte gekannt | person | acc person site far | state
    own | besitzen besitzt besaß besessen | person | acc goods building animal | state many
    need | brauchen braucht brauchte gebraucht | person | acc goods | state many
    visit | besuchen besucht besuchte besucht | person | acc person museum church castle city zoo
    meet met met | treffen trifft traf getroffen | person | acc person | where
    ask | fragen fragt fragte gefragt | person | acc person
    greet | begrüßen begrüßt begrüßte begrüßt | person | acc person | where
    hear heard heard | hören hört hörte gehört | person animal | acc person animal vehicle bell
    watch | beobachten beobachtet beobachtete beobachtet | person animal | acc person animal | where
    wash | waschen wäscht wusch gewaschen | person | acc clothing vehicle animal | for it
    clean | reinigen reinigt reinigte gereinigt | person robot | acc room furniture clothing dish
    repair | reparieren repariert reparierte repariert | person | acc vehicle vessel device | for many it
    draw drew drawn | zeichnen zeichnet zeichnete gezeichnet | person | acc animal site person | for many
    build built built | bauen baut baute gebaut | person | acc house hut ship boat robot | for many
    cook | kochen kocht kochte gekocht | person | acc cooked | for where
    bake | backen backt backte gebacken | person | acc pastry | for many where
    cut cut cut | schneiden schneidet schnitt geschnitten | person | acc pastry cheese meat tomato onion lemon
    break broke broken | zerbrechen zerbricht zerbrach zerbrochen | person | acc dish
    lose lost lost | verlieren verliert verlor verloren | person | acc thing clothing | where
    forget forgot forgotten | vergessen vergisst vergaß vergessen | person | acc thing clothing | where
    steal stole stolen | stehlen stiehlt stahl gestohlen | person | acc thing clothing vehicle | many
    hide hid hidden | verstecken versteckt versteckte versteckt | person | acc thing | where
    use | benutzen benutzt benutzte benutzt | person | acc machine device dish hammer ladder rope camera
    touch | berühren berührt berührte berührt | person animal | acc thing furniture
    count | zählen zählt zählte gezählt | person | acc animal food thing | plural many where
    push | schieben schiebt schob geschoben | person | acc vehicle furniture | it
    pull | ziehen zieht zog gezogen | person animal | acc carriage sledge chest
    lift | heben hebt hob gehoben | person machine | acc furniture chest box | it
    move | bewegen bewegt bewegte bewegt | person machine | acc furniture
    cross | überqueren überquert überquerte überquert | person animal vehicle | acc road river lake | it
    reach | erreichen erreicht erreichte erreicht | person animal vehicle | acc far
    leave left left | verlassen verlässt verließ verlassen | person animal | acc building place
    enter | betreten betritt betrat betreten | person animal | acc building | it
    explore | erkunden erkundet erkundete erkundet | person animal | acc cave forest city attic castle
    show showed shown | zeigen zeigt zeigte gezeigt | person | dat person, acc goods animal
    give gave given | geben gibt gab gegeben | person | dat person, acc thing clothing food
    send sent sent | schicken schickt schickte geschickt | person | dat person, acc readable photo
    lend lent lent | leihen leiht lieh geliehen | person | dat person, acc thing vehicle clothing
    bring brought brought | bringen bringt brachte gebracht | person | dat person, acc thing food drink
    promise | versprechen verspricht versprach versprochen | person | dat person, acc thing clothing animal
    offer | an/bieten bietet bot angeboten | person | dat person, acc food drink chair
    help | helfen hilft half geholfen | person | dat person animal | where
    thank | danken dankt dankte gedankt | person | dat person
    answer | antworten antwortet antwortete geantwortet | person | dat person
    congratulate | gratulieren gratuliert gratulierte gratuliert | person | dat person
    trust | vertrauen vertraut vertraute vertraut | person animal | dat person animal | state
    follow | folgen folgt folgte gefolgt ist | person animal | dat person animal vehicle
    forgive forgave forgiven | verzeihen verzeiht verzieh verziehen | person | dat person
    resemble | ähneln ähnelt ähnelte geähnelt | kin | dat person | state
    belong ~to | gehören gehört gehörte gehört | goods | dat person | state
    listen ~to | zu/hören hört hörte zugehört | person | dat person | where
    call | an/rufen ruft rief angerufen | person | acc person
    invite | ein/laden lädt lud eingeladen | person | acc person
    pick +up | ab/holen holt holte abgeholt | person | acc person
    wake woke woken +up | auf/wecken weckt weckte aufgeweckt | person animal | acc person
    switch +on | ein/schalten schaltet schaltete eingeschaltet | person | acc device machine lamp
    switch +off | aus/schalten schaltet schaltete ausgeschaltet | person | acc device machine lamp
    put put put +on | an/ziehen zieht zog angezogen | person | acc clothing
    take took taken +off | aus/ziehen zieht zog ausgezogen | person | acc clothing
    try +on | an/probieren probiert probierte anprobiert | person | acc clothing | where it
    throw threw thrown +away | weg/werfen wirft warf weggeworfen | person | acc thing clothing food | it
    tidy +up | auf/räumen räumt räumte aufgeräumt | person | acc room | for
    pack +up | ein/packen packt packte eingepackt | person | acc thing clothing food | it
    borrow | aus/leihen leiht lieh ausgeliehen | person | acc readable ladder umbrella bicycle | for
    prepare | vor/bereiten bereitet bereitete vorbereitet | person | acc cooked salad pizza | for where it
    take took taken +along | mit/nehmen nimmt nahm mitgenommen | person | acc thing clothing animal | it
    hang hung hung +up | auf/hängen hängt hängte aufgehängt | person | acc picture mirror clothing | where
    lock | ab/schließen schließt schloss abgeschlossen | person | acc door gate suitcase house garage
    sleep slept slept | schlafen schläft schlief geschlafen | person animal | | where how
    work | arbeiten arbeitet arbeitete gearbeitet | person | | with where how
    laugh | lachen lacht lachte gelacht | person | | with where how
    cry | weinen weint weinte geweint | person | | where how
    dance | tanzen tanzt tanzte getanzt | person | | with where how
    sing sang sung | singen singt sang gesungen | person bird | | with where how
    play | spielen spielt spielte gespielt | child girl dog cat | | with where how
    swim swam swum | schwimmen schwimmt schwamm geschwommen ist | person animal | | how
    wait | warten wartet wartete gewartet | person animal | | with where how
    smile | lächeln lächelt lächelte gelächelt | person | | how
    dream | träumen träumt träumte geträumt | person animal | | where
    cough | husten hustet hustete gehustet | person | | where how
    bark | bellen bellt bellte gebellt | dog | | where how
    fall fell fallen +asleep | ein/schlafen schläft schlief eingeschlafen ist | person animal | | where
    wake woke woken +up | auf/wachen wacht wachte aufgewacht ist | person animal | | where
    get got got +up | auf/stehen steht stand aufgestanden ist | person
    arrive | an/kommen kommt kam angekommen ist | person vehicle
    sit sat sat | sitzen sitzt saß gesessen | person animal | | with where how
    stand stood stood | stehen steht stand gestanden | person animal | | where how
    stay | bleiben bleibt blieb geblieben ist | person animal | | where
    escape | fliehen flieht floh geflohen ist | person animal
    go went gone | gehen geht ging gegangen ist | person | to building place bridge lake river | with pace
    come came come | kommen kommt kam gekommen ist | person | to building place bridge lake river | with
    run ran run | laufen läuft lief gelaufen ist | person animal | to building place bridge lake river | pace
    hurry | eilen eilt eilte geeilt ist | person | to site far
    drive drove driven | fahren fährt fuhr gefahren ist | person | to far sea lake | with pace
    fly flew flown | fliegen fliegt flog geflogen ist | bird duck goose | to forest lake sea meadow | pace
    travel travelled travelled | reisen reist reiste gereist ist | person | to city village sea | with
    return | zurück/kehren kehrt kehrte zurückgekehrt ist | person animal | to building place | with
"""

_REPORTING = """
    say said said | sagen sagt sagte gesagt | person
    know knew known | wissen weiß wusste gewusst | person
    believe | glauben glaubt glaubte geglaubt | person
    think thought thought | denken denkt dachte gedacht | person
    hope | hoffen hofft hoffte gehofft | person
    notice | bemerken bemerkt bemerkte bemerkt | person
    claim | behaupten behauptet behauptete behauptet | person
    fear | befürchten befürchtet befürchtete befürchtet | person
    see saw seen | sehen sieht sah gesehen | person
    hear heard heard | hören hört hörte gehört | person
    write wrote written | schreiben schreibt schrieb geschrieben | person
"""

BE = Verb("be", "was", "been", "", False, "sein", "", "ist", "war", "gewesen", "sein", (), (), (), ())


def english_past(verb: str) -> str:
    """Of a regular verb."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + "ed"


def _complement(text: str) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], tuple[str, ...]]:
    """Objects as (case, classes) pairs, and the classes of goals."""
    parts = [part.split() for part in text.split(",") if part.strip()]
    objects = tuple((case, tuple(classes)) for case, *classes in parts if case != "to")
    goals = tuple(name for case, *classes in parts if case == "to" for name in classes)
    return objects, goals


def _parse(line: str) -> Verb:
    english, german, subjects, complement, flags = [*map(str.strip, line.split("|")), "", ""][:5]
    forms = english.split()
    tail = forms.pop() if forms[-1][0] in "+~" else ""
    en, past, participle = forms if len(forms) == 3 else (forms[0], *[english_past(forms[0])] * 2)
    infinitive, third, de_past, de_participle, *auxiliary = german.split()
    prefix, _, base = infinitive.rpartition("/")
    objects, goals = _complement(complement)
    english_part = (en, past, participle, tail[1:], tail.startswith("+"))
    german_part = (base, prefix, third, de_past, de_participle, "sein" if auxiliary else "haben")
    return Verb(*english_part, *german_part, tuple(subjects.split()), objects, goals, tuple(flags.split()))


VERBS = tuple(_parse(line) for line in _TABLE.strip().splitlines())
REPORTING = tuple(_parse(line) for line in _REPORTING.strip().splitlines())
