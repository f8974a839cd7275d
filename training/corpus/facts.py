"""Facts of the corpus: small ones, said in many ways."""

from random import Random

from . import words as w
from .prose import listing, question, sentence

CAPITALS = dict(pair.split(":") for pair in """France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon
Austria:Vienna Switzerland:Bern Belgium:Brussels Poland:Warsaw Hungary:Budapest Greece:Athens Turkey:Ankara Russia:Moscow
Ukraine:Kyiv Sweden:Stockholm Norway:Oslo Denmark:Copenhagen Finland:Helsinki Iceland:Reykjavik Ireland:Dublin England:London
Scotland:Edinburgh Wales:Cardiff Croatia:Zagreb Serbia:Belgrade Slovenia:Ljubljana Slovakia:Bratislava Romania:Bucharest Bulgaria:Sofia
Albania:Tirana Estonia:Tallinn Latvia:Riga Lithuania:Vilnius Malta:Valletta Cyprus:Nicosia Georgia:Tbilisi Armenia:Yerevan
Japan:Tokyo China:Beijing India:Delhi Nepal:Kathmandu Thailand:Bangkok Vietnam:Hanoi Indonesia:Jakarta Mongolia:Ulaanbaatar
Iran:Tehran Iraq:Baghdad Jordan:Amman Lebanon:Beirut Syria:Damascus Pakistan:Islamabad Bangladesh:Dhaka Bhutan:Thimphu
Cambodia:Phnom_Penh Laos:Vientiane Malaysia:Kuala_Lumpur Philippines:Manila Australia:Canberra New_Zealand:Wellington Fiji:Suva
Canada:Ottawa Mexico:Mexico_City Cuba:Havana Jamaica:Kingston Haiti:Port-au-Prince Guatemala:Guatemala_City Honduras:Tegucigalpa Nicaragua:Managua Costa_Rica:San_José
Panama:Panama_City Colombia:Bogotá Venezuela:Caracas Ecuador:Quito Peru:Lima Bolivia:Sucre Chile:Santiago Argentina:Buenos_Aires
Uruguay:Montevideo Paraguay:Asunción Brazil:Brasília Egypt:Cairo Morocco:Rabat Algeria:Algiers Tunisia:Tunis Libya:Tripoli
Sudan:Khartoum Ethiopia:Addis_Ababa Kenya:Nairobi Uganda:Kampala Tanzania:Dodoma Rwanda:Kigali Ghana:Accra Nigeria:Abuja
Senegal:Dakar Mali:Bamako Cameroon:Yaoundé Angola:Luanda Zambia:Lusaka Zimbabwe:Harare Botswana:Gaborone Namibia:Windhoek
Mozambique:Maputo Madagascar:Antananarivo Somalia:Mogadishu Qatar:Doha Oman:Muscat Kuwait:Kuwait_City""".replace("\n", " ").split())
CAPITALS = {country.replace("_", " "): city.replace("_", " ") for country, city in CAPITALS.items()}

COLOUR_OF = dict(pair.split(":") for pair in """snow:white grass:green blood:red coal:black milk:white chocolate:brown gold:yellow
mud:brown spinach:green ketchup:red charcoal:black chalk:white moss:green""".split())
YOUNG = dict(pair.split(":") for pair in """cat:kitten dog:puppy cow:calf horse:foal sheep:lamb goat:kid pig:piglet hen:chick duck:duckling
goose:gosling swan:cygnet bear:cub lion:cub fox:cub wolf:cub deer:fawn frog:tadpole owl:owlet eagle:eaglet kangaroo:joey hare:leveret""".split())
SOUNDS = dict(pair.split(":") for pair in "cat:meow dog:woof cow:moo sheep:baa duck:quack owl:hoot frog:croak bee:buzz horse:neigh lion:roar mouse:squeak".split())
HOMES = dict(pair.split(":") for pair in "bee:hive bird:nest spider:web dog:kennel horse:stable bear:den rabbit:burrow fox:den beaver:lodge ant:anthill pig:sty".split())
OPPOSITES = dict(pair.split(":") for pair in """hot:cold big:small tall:short up:down left:right day:night black:white open:closed full:empty
fast:slow early:late happy:sad young:old hard:soft wet:dry light:dark loud:quiet rich:poor strong:weak heavy:light inside:outside
first:last good:bad clean:dirty high:low long:short true:false yes:no near:far north:south east:west awake:asleep""".split())
LEGS = {"spider": 8, "dog": 4, "cat": 4, "bird": 2, "ant": 6, "bee": 6, "horse": 4, "snake": 0, "cow": 4, "octopus": 8, "chair": 4}
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()

PLAIN_CAPITAL = [
    "The capital of {country} is {city}.", "The capital of {country} is {city}.", "The capital of {country} is {city}.", "{city} is the capital of {country}.",
    "The capital city of {country} is {city}.", "{country}'s capital is {city}.", "[Travellers to|The government of|If you go to] {country} [meet|sits|start] in {city}, the capital.",
    "In {country}, the capital is {city}.", "Q: What is the capital of {country}? A: {city}.", "Question: What is the capital of {country}?\nAnswer: {city}.", "{country}: {city}.",
]
ASK_CAPITAL = [
    "[What is|What's|Tell me|Name|Do you know] the capital of {country}?", "[what is|what's] the capital of {country}", "Which city is the capital of {country}?", "{country}'s capital?",
    "What is the capital city of {country}?", "I am going to {country}. What is its capital?",
]
SAY_CAPITAL = ["The capital of {country} is {city}.", "The capital of {country} is {city}.", "{city} is the capital of {country}.", "It is {city}.", "{city}.", "That is {city}."]


def small_fact(rng: Random) -> tuple[str, str, str, str]:
    """A statement, a question, an answer, and the answer in one word."""
    def entry(table: dict) -> tuple:
        return rng.choice(list(table.items()))

    kind = rng.randrange(14)
    if kind == 0:
        thing, colour = entry(COLOUR_OF)
        return f"{thing} is {colour}.", f"What colour is {thing}?", f"{thing} is {colour}.", colour
    if kind == 1:
        animal, young = entry(YOUNG)
        return f"a young {animal} is called a {young}.", f"What is a young {animal} called?", f"A young {animal} is called a {young}.", young
    if kind == 2:
        animal, sound = entry(SOUNDS)
        return f"the {animal} says {sound}.", f"What does a {animal} say?", f"A {animal} says {sound}.", sound
    if kind == 3:
        animal, home = entry(HOMES)
        return f"a {animal} lives in a {home}.", f"Where does a {animal} live?", f"A {animal} lives in a {home}.", home
    if kind in (4, 5):
        one, other = entry(OPPOSITES)
        return f"the opposite of {one} is {other}.", f"What is the opposite of {one}?", f"The opposite of {one} is {other}.", other
    if kind == 6:
        animal, legs = entry(LEGS)
        return f"a {animal} has {w.NUMBERS[legs]} legs.", f"How many legs does a {animal} have?", f"A {animal} has {w.NUMBERS[legs]} legs.", w.NUMBERS[legs]
    if kind in (7, 8, 9):
        table, noun = rng.choice([(w.DAYS, "day"), (w.MONTHS, "month"), (w.SEASONS, "season")])
        i = rng.randrange(len(table))
        after, before = table[(i + 1) % len(table)], table[i - 1]
        if rng.random() < 0.6:
            return f"{table[i]} is followed by {after}.", f"Which {noun} comes after {table[i]}?", f"{after} comes after {table[i]}.", after
        return f"before {table[i]} comes {before}.", f"Which {noun} comes before {table[i]}?", f"{before} comes before {table[i]}.", before
    if kind == 10:
        i = rng.randrange(8)
        place = "first second third fourth fifth sixth seventh eighth".split()[i]
        return f"{PLANETS[i]} is the {place} planet from the Sun.", f"Which is the {place} planet from the Sun?", f"The {place} planet from the Sun is {PLANETS[i]}.", PLANETS[i]
    if kind == 11:
        n = rng.randrange(1, 100)
        return f"after {n} comes {n + 1}.", f"What number comes after {n}?", f"After {n} comes {n + 1}.", str(n + 1)
    if kind == 12:
        what, n = rng.choice([("days in a week", 7), ("months in a year", 12), ("hours in a day", 24), ("minutes in an hour", 60), ("seconds in a minute", 60),
                              ("seasons in a year", 4), ("letters in the alphabet", 26), ("planets around the Sun", 8), ("fingers on one hand", 5), ("days in a leap year", 366)])
        return f"there are {n} {what}.", f"How many {what.split(' ')[0]} are there {what.split(' ', 1)[1]}?", f"There are {n} {what}.", str(n)
    statement, ask, answer = rng.choice([
        ("water freezes at zero degrees.", "At what temperature does water freeze?", "zero degrees"), ("the Moon goes around the Earth.", "What goes around the Earth?", "the Moon"),
        ("the Earth goes around the Sun.", "What does the Earth go around?", "the Sun"), ("ice is frozen water.", "What is ice made of?", "water"), ("the Sun is a star.", "Is the Sun a star or a planet?", "a star"),
        ("bees make honey.", "Who makes honey?", "bees"), ("the Eiffel Tower stands in Paris.", "Where is the Eiffel Tower?", "Paris"), ("bread is made of flour.", "What is bread made of?", "flour"),
        ("the largest planet is Jupiter.", "What is the largest planet?", "Jupiter"), ("the longest day is in June.", "In which month is the longest day?", "June"),
        ("a triangle has three sides.", "How many sides does a triangle have?", "three"), ("rain falls from clouds.", "Where does rain come from?", "clouds"),
        ("the largest ocean is the Pacific.", "What is the largest ocean?", "the Pacific"), ("the sky is blue on a clear day.", "What colour is the sky on a clear day?", "blue")])
    return statement, ask, statement, answer


def yes_no_fact(rng: Random) -> tuple[str, bool, str]:
    """A question, its answer, and the sentence that explains it."""
    truth = rng.random() < 0.5
    kind = rng.randrange(6)
    if kind == 0:
        country, city = rng.choice(list(CAPITALS.items()))
        said = city if truth else rng.choice([c for c in CAPITALS.values() if c != city])
        return f"Is {said} the capital of {country}?", truth, f"The capital of {country} is {city}."
    if kind == 1:
        thing, colour = rng.choice(list(COLOUR_OF.items()))
        said = colour if truth else rng.choice([c for c in w.COLOURS if c != colour])
        return f"Is {thing} {said}?", truth, f"{thing.capitalize()} is {colour}."
    if kind == 2:
        a, b = rng.sample(range(1, 100), 2)
        return f"Is {a} [greater|larger|more] than {b}?", a > b, f"{a} is {'more' if a > b else 'less'} than {b}."
    if kind == 3:
        i = rng.randrange(7)
        after = w.DAYS[(i + 1) % 7]
        said = after if truth else w.DAYS[(i + rng.randint(2, 6)) % 7]
        return f"Does {said} come after {w.DAYS[i]}?", truth, f"After {w.DAYS[i]} comes {after}."
    if kind == 4:
        animal, young = rng.choice(list(YOUNG.items()))
        said = young if truth else rng.choice([y for y in YOUNG.values() if y != young])
        return f"Is a young {animal} called a {said}?", truth, f"A young {animal} is called a {young}."
    return rng.choice([("Can fish fly?", False, "Fish swim."), ("Is fire hot?", True, "Fire is hot."), ("Is ice warm?", False, "Ice is cold."), ("Do birds have wings?", True, "Birds have two wings."),
                       ("Is the Sun a star?", True, "The Sun is a star."), ("Do cats bark?", False, "Cats meow."), ("Is water wet?", True, "Water is wet."), ("Is the Moon made of cheese?", False, "The Moon is made of rock."),
                       ("Is Paris in France?", True, "Paris is the capital of France."), ("Do trees have leaves?", True, "Most trees have leaves."), ("Are you a person?", False, "I am a small language model."),
                       ("Can you see the internet?", False, "I only know what I learned in training.")])


def document(rng: Random, held_out: bool = False) -> str:
    kind = rng.random()
    if kind < 0.35:
        pairs = rng.sample(list(CAPITALS.items()), rng.choice([1, 1, 2, 3, 5]))
        template = rng.choice(PLAIN_CAPITAL)
        one_style = rng.random() < 0.5
        lines = [sentence(rng, template if one_style else rng.choice(PLAIN_CAPITAL), {"country": c, "city": t}) for c, t in pairs]
        return rng.choice([" ", "\n"]).join(lines)
    if kind < 0.55:
        facts = [sentence(rng, small_fact(rng)[0]) for _ in range(rng.randint(1, 6))]
        return rng.choice([" ", "\n"]).join(facts)
    if kind < 0.75:
        country, city = rng.choice(list(CAPITALS.items()))
        slots = {"country": country, "city": city}
        if rng.random() < 0.25:
            return question(sentence(rng, f"[In one word|Answer in one word|One word, please]: {rng.choice(ASK_CAPITAL)}", slots), city)
        return question(expand_question(rng, slots), sentence(rng, rng.choice(SAY_CAPITAL), slots))
    if kind < 0.9:
        _, ask, answer, word = small_fact(rng)
        if rng.random() < 0.3:
            return question(f"{rng.choice(['In one word', 'Answer in one word', 'Short answer'])}: {ask}", sentence(rng, word))
        return question(ask, sentence(rng, rng.choice([answer, answer, word + "."])))
    if kind < 0.97:
        return yes_no(rng)
    name, items = rng.choice([("days of the week", w.DAYS), ("months of the year", w.MONTHS), ("planets", PLANETS), ("seasons", w.SEASONS), ("numbers from one to ten", w.NUMBERS[1:11])])
    return question(sentence(rng, f"[list|name|what are|tell me] the {name}."), sentence(rng, f"the {name} are {listing(items)}."))


def expand_question(rng: Random, slots: dict[str, str]) -> str:
    return sentence(rng, rng.choice(ASK_CAPITAL), slots) if rng.random() < 0.8 else "what is the capital of {country}".format_map(slots)


def yes_no(rng: Random) -> str:
    ask, truth, reason = yes_no_fact(rng)
    ask, word = sentence(rng, ask), "Yes" if truth else "No"
    if rng.random() < 0.4:
        return question(sentence(rng, f"[Say only yes or no|Answer yes or no|Only yes or no|Yes or no]: {ask}"), word + rng.choice(["", "."]))
    return question(ask, f"{word}. {reason}" if rng.random() < 0.7 else f"{word}, {reason[0].lower() + reason[1:] if reason.startswith(('The ', 'A ', 'After')) else reason}")
