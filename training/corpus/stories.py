"""Short stories. Each introduces something early that a later sentence depends on."""

from random import Random
from typing import NamedTuple

from . import words as w
from .prose import is_held_out, sentence

PLOTS: dict[str, list[str]] = {
    "lost": [
        "{open} {hero} owned {a_thing}, and {he} loved it [more than anything|very much|almost as much as breakfast]. "
        "[One night|One evening|On {day}], afraid of [thieves|magpies|losing it], {he} hid it {hidden}.",
        "In the morning {he} had forgotten [where it was|the hiding place|everything about it]. {Weather}. {He} looked "
        "{wrong_1}, and {he} looked {wrong_2}, but [there was only dust|there was nothing but a spider|the {thing} was not there].",
        "{friend} came by [with warm {food}|on the way to {place}|whistling a tune]. “[Why are you so {feeling}|What is the matter|"
        "What are you looking for]?” asked {friend}. “I have lost my {thing},” said {hero}. “[Close your eyes|Sit down|Think slowly],”"
        " said {friend}, “and walk through the evening [again|backwards|step by step].”",
        "{hero} closed {his} eyes. [There had been a candle. There had been a creaking sound.|{He} remembered cold feet and a secret smile.|"
        "{He} heard the wind again, and saw {his} own hands.] “I know!” {he} cried. “It is {hidden}!”",
        "[They ran|They hurried|Off they went], and there, {hidden}, lay the {colour} {thing}, [just as {he} had left it|safe and dry|"
        "shining a little]. {End}",
    ],
    "door": [
        "{open} On {his} birthday {his} {relative} gave {hero} a {material} key. “It opens the {colour} door [at the end of the lane|"
        "behind the mill|in the garden wall|in the old tower],” said the {relative}. “[Do not ask me what is inside|Go when you are ready|But knock first].”",
        "{hero} waited until {day}. {Weather}. There were three doors: a {other_colour} one, a {third_colour} one and [at the very end |]the {colour} one. "
        "{He} [did not hesitate|counted to ten|took a deep breath] and put the {material} key into the {colour} door.",
        "[The lock clicked.|The key turned as if it were oiled.|Something inside went click.] Behind the door was [a tiny room|a staircase|"
        "a garden no one had seen for years], and in it stood {friend}, [holding|who was mending|dusting] {a_thing}. “[At last|You took your time|"
        "Come in],” said {friend}. “I need someone {trait} to look after this {thing}.”",
        "“I will keep it {hidden},” promised {hero}. And {he} did. [The {relative} only smiled|Nobody ever asked about it|"
        "Every {day} {he} went to see whether it was still there], and the {material} key hung [on a nail|round {his} neck|above the bed] ever after. {End}",
    ],
    "letter": [
        "{open} The {trade} of {town} had broken {his_2} leg, so {hero} was asked to carry a letter to {friend}, who lived near {place} in {town_2}. "
        "“[Do not read it|Hurry|Keep it dry],” said the {trade}, “and [say that|tell {friend} that] [the {thing} is {hidden}|the {relative} comes on {day}|dinner is {food} on {day}].”",
        "{hero} put the letter into {his} {colour} bag and set off. {Weather}. [Half way|By noon|At the crossroads] {he} met a {animal}, who said, “[Both roads are long|"
        "The bridge is broken|I am hungry]. [Take the left one and sing.|Follow me across the stones.|Give me a little {food} and I will show you a shorter way.]” {He} did [so|as the {animal} said|exactly that].",
        "It was [nearly dark|four o'clock|already late] when {hero} knocked at the door in {town_2}. {friend} opened the letter and [laughed|turned pale|smiled]. “[At last|Good|Oh],” {he_f} said, “the {trade} [is a dear friend|never forgets|keeps every promise]. "
        "Who showed you the way?” “A {animal},” said {hero}. “[Then we must save some {food} for the {animal} too|I have always trusted that {animal}].”",
        "{hero} walked home to {town} with an empty {colour} bag and [a full heart|a pocket of {food}|a song]. {End}",
    ],
    "stray": [
        "{open} One {day} {hero} found a [kitten|puppy|baby {animal}] [near|beside|behind] {place}. {Weather}, and the little thing was [wet|shivering|very small]. "
        "Round its neck was a {colour} ribbon with a {material} {small_thing}.",
        "“[Somebody is missing you|You belong to someone|Where is your home]?” said {hero}, and gave it [a little {food}|some milk|half of {his} {food}]. {He} asked the {trade}. {He} asked the "
        "{trade_2}. [Nobody knew.|Both shook their heads.] “Try {friend}, in {town},” said the {trade_2} at last.",
        "{friend} opened the door [only a crack|with flour on {his_f} nose|in slippers]. “[Have you lost something|Is anything missing here]?” asked {hero}. “[Yes|Oh yes]! My little one,” said {friend}. “It wears a "
        "{colour} ribbon.” “And what hangs from the ribbon?” asked {hero}, who was {trait}. “A {material} {small_thing},” said {friend} at once.",
        "Then {hero} [knew|was sure] that this was the right home, and opened {his} coat, and [out jumped|there sat] the little one, [purring|wagging its tail|fast asleep]. {End}",
    ],
    "trade": [
        "{open} {hero} had only {a_thing}, and [wanted|needed|dreamed of] {a_goal}. So on {day} {he} went to the market in {town}. {Weather}.",
        "First {he} met the {trade}, who [needed|had always wanted|fell in love with] the {thing} and gave {him} {a_thing_2} for it. Then came the {trade_2}, who gave "
        "{him} {a_thing_3} for the {thing_2}. [“What a strange day,” thought {hero}.|The sun was already high.|It was getting late.]",
        "[At the last stall|By the fountain|Near {place}] sat {friend} with {a_goal}. “[What will you give me for it|Is it for sale|Would you trade]?” asked {hero}. {friend} looked at the {thing_3} and "
        "[smiled|nodded|sighed with joy]. “I lost one just like it [long ago|when I was small]. [Take the {goal}|The {goal} is yours].”",
        "So {hero}, who had begun the day with {a_thing}, went home with {a_goal}. [And the {thing}? The {trade} still has it.|The {trade} has the {thing} to this day.|“All because of a {thing},” {he} said.] {End}",
    ],
    "password": [
        "{open} At the gate of {town} stood a [guard|tall gatekeeper|very old {animal}] who let nobody in without the secret word. {friend} had whispered it to {hero} [on {day}|long ago|the week before]: the word was “{word}”.",
        "{Weather}. On the road {hero} said it [again and again|to every tree|under {his} breath], so as not to lose it: {word}, {word}, {word}. [Then a {animal} ran across the road|Then {he} tripped over a {thing}|Then a cart of {food} rolled by], and {he} thought of nothing "
        "but [the {animal}|lunch|the weather] for [a mile|an hour].",
        "“[Halt|Stop there|Who goes there]!” called the voice at the gate. “What is the secret word?” {hero} [swallowed|blushed|scratched {his} head]. Was it {word_2}? Was it {word_3}? [No.|No, that was not it.] {He} remembered [how {friend} had smiled|the whisper in {his} ear|{his} own feet on the road]. "
        "“{Word},” {he} said [softly|firmly|at last].",
        "“[Right|Correct|Welcome],” said the voice, and the gate [swung open|opened with a groan]. [Inside, {friend} was waiting with {food}.|{friend} was already there, waving {a_thing}.] {End}",
    ],
    "baking": [
        "{open} {hero} wanted to bake a cake for {friend}, who was feeling {sad}. “[You need three things|Remember three things],” said {his} {relative}: “{food}, {food_2}, and one {thing}, for luck.”",
        "{Weather}, but {hero} walked to {place} all the same. The {trade} sold {him} the {food}. The {trade_2} gave {him} the {food_2} [for nothing|for a song|for {n} coins]. The {thing} {he} found {hidden}.",
        "Soon the kitchen smelled [wonderful|of sugar and smoke|like a holiday]. The cake was [a little crooked|as tall as a hat|brown on one side], but {friend} ate {n} pieces. “[What is in it|What makes it so good]?” {he_f} asked. “{Food} and {food_2},” said {hero}. “And the {thing}?” "
        "“[That is under your plate|That was only for luck|You are sitting on it].”",
        "{friend} laughed so loudly that [the {animal} outside woke up|the spoons rang|even the {relative} came to look], and was not {sad} any more. {End}",
    ],
    "storm": [
        "{open} {hero} lived beside {place} and looked after the {colour} lantern there. “[Whatever happens|Never forget]: light it when the bell rings {n_word} times,” {his} {relative} had said.",
        "On {day} a storm came. The wind [howled|screamed|shook the windows], and out at sea was the little boat of {friend}, [loaded with {food}|coming home from {town}|tossed like a cork]. The bell began to ring. {hero} counted: {count}.",
        "“{N_word}!” [cried|whispered] {hero}. {He} ran [up the stairs|down to the water|through the rain], but the matches were wet. [Then {he} remembered the dry ones {hidden}.|There was one dry match left, {hidden}.] [It hissed, it glowed, it burned.|The flame trembled and stood.]",
        "{friend} saw the {colour} light and [steered for it|turned the boat|came safely home]. “[How did you know|Who lit it]?” {he_f} asked, dripping. “I [counted|can count to {n_word}],” said {hero}. {End}",
    ],
    "garden": [
        "{open} In {month} {hero} planted {n_word} seeds behind {place}. “They will be [pears|giants|nothing but weeds],” said the {trade}, [laughing|shaking {his_2} head]. {hero}, who was {trait}, only [watered them|said nothing|smiled].",
        "{Weather}. A {animal} ate one seed, so {n_less_word} were left. {friend} built [a little fence|a scarecrow with a {colour} hat|a wall of stones], and {hero} sang to the seeds every {day}. [“Do plants hear songs?” asked {friend}. “Only the good ones,” said {hero}.|]",
        "[Weeks went by.|Then, one morning, it happened.|By {month_2} the ground began to move.] {N_less_word} {colour} flowers stood there, [each as tall as a chair|nodding in the wind|one for every seed that was left]. [Bees came from {town}.|People came all the way from {town}.]",
        "Even the {trade} came. “[I laughed at you in {month}|I was wrong],” said the {trade}. “May I have one?” {hero} gave {him_2} the [smallest|brightest|tallest] flower. {End}",
    ],
    "clock": [
        "{open} The clock of {town} had stopped at {hour} o'clock, and nobody knew why. The {trade} [tried oil|shook it|blamed the weather]. The {trade_2} [tried a hammer|wrote it a letter|blamed the {animal}]. It stayed {hour} o'clock [all week|until {day}|for a month].",
        "“[Time cannot just stop|I shall have a look],” said {hero}, who was {trait}, and climbed up with a lantern. {Weather}. Between two wheels sat a {animal}, [fast asleep|on a nest|eating {food}], and under the {animal} lay {a_thing}.",
        "“[This is my bed|I was cold|It ticked too loudly],” said the {animal}. {hero} thought for a while. “If I give you [a warm place|somewhere soft] {hidden}, will you give me the {thing}?” The {animal} [agreed|yawned and said yes|shook hands].",
        "[Tick|Click], went the wheels, and the hands moved on from {hour}. {friend} had been looking for that {colour} {thing} for years, and [wept for joy|hugged {hero}]. And the {animal}? It sleeps {hidden} to this day. {End}",
    ],
    "book": [
        "{open} In the library {hero} found a {colour} book that [nobody had read for {n_word} years|was warm to the touch|hummed softly]. On the first page stood: “[This book belongs to|Bring me back to] {friend}, {town_2}.”",
        "“[You must take it back|Somebody is waiting for it|A book wants to go home],” said the {trade}. [So {hero} packed some {food} and went|{hero} nodded and put on {his} boots]. {Weather}. On the way {he} read only one page: it was about a {animal} who had lost a {thing}.",
        "In {town_2} the door was opened by {friend}, {feeling} and very [old|small|tall]. “My {colour} book!” said {friend}. “[My {relative} wrote it|I wrote it myself|I was never told the end]. How far did you read?” “[As far as|Only] the {animal} and the {thing},” said {hero}.",
        "[So {friend} read the rest aloud|They read on together until it was dark|{friend} made tea and read to the end]: the {animal} found the {thing} {hidden}. {End}",
    ],
    "kite": [
        "{open} {hero} built a {colour} kite out of [paper and string|an old shirt|sticks and newspaper] and called it {name_3}. {Weather}, and the wind took {name_3} over {place} and away.",
        "{hero} ran after the {colour} kite. {He} asked a {animal}. “[It flew toward|I saw it near] {town_2},” said the {animal}. {He} asked the {trade}. “[It nearly took my hat|It was as high as the church],” said the {trade}, [pointing|laughing]. “But hurry, it will rain on {day}.”",
        "In {town_2} the kite hung {hidden_high}, and below it stood {friend}, looking up. “[Is it yours|Does it have a name]?” asked {friend}. “Yes, it is called {name_3},” said {hero}. {friend} [climbed up|fetched a ladder|shook the branches], and down came {name_3}, with [one small hole|a broken stick|a feather in its tail].",
        "{friend} mended it with a {thing}. [Then they let it fly together|They flew it until dark|Since then it flies better than before], and {name_3} [danced|sang in the wind|pulled like a horse]. {End}",
    ],
    "train": [
        "{open} {hero} sat in the night train to {town_2} with {a_thing} in {his} lap. {Weather}. Opposite sat {friend}, [eating {food}|who was {feeling}|with a {animal} in a basket], and would get out in {town}.",
        "“[What do you have there|What is that]?” asked {friend}. “A {thing},” said {hero}, “for my {relative}. It must arrive before {day}.” [They talked until the lamp went out.|Soon both were asleep.] The train [rattled|sang|whistled] through {n_word} tunnels.",
        "When {hero} woke up, {friend} was gone, and so was the {thing}. On the seat lay [a basket|a parcel|a coat], [just as heavy|just as big]. “[We have taken each other's things|It was dark and we mixed them up],” thought {hero}. “{friend} got out in {town}. I must go back to {town}.”",
        "On the platform of {town} {friend} was already waiting, with the {colour} {thing} under one arm. “[I knew you would come|I was just about to run after you],” said {friend}. [They changed parcels|They laughed|They shook hands], and the {relative} got the {thing} before {day} after all. {End}",
    ],
    "map": [
        "{open} In {a_thing} {hero} found a folded map. It said: “[Start|Begin] at {place}. Walk {n_word} steps [north|south|east|west]. Then look {hidden}.”",
        "“[A treasure|We need a spade|I knew it]!” said {friend}. {Weather}. They went to {place} and counted {n_word} steps, {count}. [Then they stood still.|“Now what?” asked {friend}.] “Now we look {hidden},” said {hero}.",
        "There was a {material} box. Inside lay [no gold at all|neither gold nor silver], only {a_thing_2} and a note: “[Whoever finds this is {trait}|Well counted|Leave something for the next one]. From {name_3}.” [“Who is {name_3}?” asked {friend}.|“{name_3}! That was my {relative},” said {friend}.]",
        "They [kept|took] the {thing_2} and left the {thing} in the {material} box, {hidden}, for the next {trait} [person|child|finder]. {End}",
    ],
    "quarrel": [
        "{open} {hero} and {friend} were best friends until they both wanted the {colour} {thing}. “I saw it first, [near|at] {place},” said {hero}. “But I picked it up,” said {friend}. They did not speak for {n_word} days.",
        "{Weather}. {hero} ate {his} {food} alone, and it tasted of nothing. {friend} [kicked stones|looked out of the window|talked to a {animal}]. The {thing} lay {hidden} and was [no use to anybody|very dusty].",
        "On {day} the {trade} [laughed at|told] them both: “[Half a {thing} is no {thing}|A {thing} is for sharing|A friend costs more than a {thing}].” {hero} [blushed|thought about it all night]. In the morning {he} took the {thing} to {friend}. “You may have it,” {he} said. “No, you,” said {friend}.",
        "So they gave it to the {animal}, who was {feeling} and had nothing, and [went fishing|shared some {food}|climbed the hill] together. After {n_word} silent days they had [a great deal|so much] to say. {End}",
    ],
}

OPENINGS = [
    "[Years ago, when the winters were still cold|On a small hill near {place}|In a house with {n} windows|At the edge of {town}], there lived a {trait} {kind} named {hero}.",
    "[Everybody|Nearly everybody|Every child] in {town} [has heard of|knows|remembers] {hero}, the {trait} {kind} with the {other_colour} [coat|hat|boots].",
    "It was {day}, and {weather}. {hero}, the {trait} {kind}, [could not sleep|had nothing to do|was peeling potatoes|sat in front of the house] in {town}.",
    "{hero} the {kind} [had always been {trait}|was the most {trait} {kind} in {town}|was small and {trait}], [and so this could happen|which is important for this story|as you will see].",
    "[Once there was|There was once|Long ago there lived|Once upon a time there was] a {trait} {kind} called {hero}, [who came from|in the town of|in] {town}.",
    "In {town}, [not far from|close to|right beside] {place}, lived a {trait} {kind} named {hero}.",
    "{hero} was a {kind}, and everybody in {town} knew that {he} was {trait}.",
    "{Weather} [on the day|that {season}] when this story [began|begins]. {hero}, a {trait} {kind} from {town}, was [looking out of the window|eating {food}|on the way to {place}].",
    "This is the story of {hero}, a {trait} {kind} from {town}.",
]
ENDINGS = [
    "Later they sat [by the window|on the stairs|under the old oak] and [shared the last {food}|counted the stars|listened to the wind], and {hero} was [happy|not {sad} at all|very tired].",
    "[If you ever come to {town}|When you walk through {town}], [ask for {hero}|look for {hero}], and you will hear the rest.",
    "{hero} never forgot that {day}.",
    "And that evening [they ate {food} by the fire|nobody in {town} was {sad}|there was {food} for everyone].",
    "[From that day on|Ever since], {hero} and {friend} [have been friends|meet every {day}|laugh about it].",
    "“[What a day|Not bad for a {day}|I would do it all again],” said {hero}, and [went to bed|fell asleep at once|put on the kettle].",
    "That was the [{season}|year|{day}] nobody in {town} ever forgot.",
    "[The end.|And that is how it was.|So it ended well.]",
]


# What a story may be asked for by, and what it then is about.
SUBJECTS = {
    "lost": "a lost {thing}|losing something|a {thing} that disappeared", "door": "a {material} key|a {colour} door|a birthday|a mysterious door", "letter": "a letter|a long walk|a messenger",
    "stray": "a lost animal|kindness|somebody who finds a lost animal", "trade": "the market|a lucky trade|a {thing} and a {goal}", "password": "a secret word|a gate|a password",
    "baking": "a cake|baking|a {sad} friend", "storm": "a storm|a lighthouse|the sea|a little boat", "garden": "a garden|flowers|{n_word} seeds|patience", "clock": "an old clock|time|a clock that stopped",
    "map": "a treasure|a map|an adventure", "quarrel": "friendship|two friends|a quarrel|sharing", "book": "a book|a library|a {colour} book", "kite": "a kite|the wind|a {colour} kite", "train": "a train|a journey|travelling at night",
}


class Story(NamedTuple):
    text: str
    plot: str
    slots: dict[str, str]


def cast(rng: Random) -> dict[str, str]:
    def person(prefix: str, name: str, girl: bool) -> dict[str, str]:
        he, him, his = ("she", "her", "her") if girl else ("he", "him", "his")
        return {prefix: name, "he_" + prefix: he, "him_" + prefix: him, "his_" + prefix: his}

    hero_girl, friend_girl = rng.random() < 0.5, rng.random() < 0.5
    hero_name = rng.choice(w.GIRLS if hero_girl else w.BOYS)
    friend_name = rng.choice([n for n in (w.GIRLS if friend_girl else w.BOYS) if n != hero_name])
    gender = "girl" if hero_girl else "boy"
    kind = rng.choices([gender, rng.choice(w.ANIMALS), rng.choice(w.FIGURES[gender])], [55, 33, 12])[0]
    slots = person("hero", hero_name, hero_girl) | person("friend", friend_name, friend_girl)
    for short in ("he", "him", "his"):
        slots[short] = slots[f"{short}_hero"]
        slots[f"{short}_f"] = slots[f"{short}_friend"]
    slots |= {"kind": kind, "he_2": "he", "him_2": "him", "his_2": "his", "name_3": rng.choice(w.GIRLS + w.BOYS)}

    def several(names: str, pool: list[str]) -> None:
        keys = names.split()
        slots.update(zip(keys, rng.sample(pool, len(keys)), strict=True))

    several("thing thing_2 thing_3 goal", w.THINGS)
    several("colour other_colour third_colour", w.COLOURS)
    several("hidden wrong_1 wrong_2", w.HIDING_PLACES)
    slots["hidden_high"] = rng.choice(["in the top of a pear tree", "on the church tower", "on a chimney", "in the sails of the windmill", "on the highest mast"])
    several("trade trade_2", w.TRADES)
    several("town town_2", w.TOWNS)
    several("food food_2", w.FOODS)
    several("weather weather_open", w.WEATHER)
    several("word word_2 word_3", w.COMMON)
    several("month month_2", w.MONTHS)
    for name, pool in {"place": w.PLACES, "day": w.DAYS, "season": w.SEASONS, "feeling": w.FEELINGS,
                       "trait": w.TRAITS, "relative": w.RELATIVES, "sad": w.SAD, "material": w.MATERIALS}.items():
        slots[name] = rng.choice(pool)
    slots["animal"] = rng.choice([a for a in w.ANIMALS if a != kind])
    slots["small_thing"] = rng.choice(["bell", "button", "key", "shell", "heart", "coin", "star"])
    n = rng.randint(3, 9)
    slots |= {"n": str(n), "n_word": w.NUMBERS[n], "n_less_word": w.NUMBERS[n - 1], "hour": rng.choice(w.NUMBERS[1:13]),
              "count": ", ".join(w.NUMBERS[1 : n + 1])}
    for name in ("thing", "thing_2", "thing_3", "goal"):
        colour = slots["colour"] if name == "thing" else rng.choice(w.COLOURS)
        slots["a_" + name] = f"a {colour} {slots[name]}" if name == "thing" or rng.random() < 0.3 else f"a {slots[name]}"
    return slots


def story(rng: Random, held_out: bool = False, plot: str | None = None, **given: str) -> Story:
    while True:
        slots = cast(rng) | given
        if given or is_held_out(slots["hero"], slots["thing"]) == held_out:
            break
    if "thing" in given:
        slots["a_thing"] = f"a {slots['colour']} {slots['thing']}"
    plot = plot or rng.choice(list(PLOTS))
    slots["open"] = sentence(rng, rng.choice(OPENINGS), slots | {"weather": slots["weather_open"], "Weather": capital(slots["weather_open"])})
    slots["End"] = sentence(rng, rng.choice(ENDINGS), slots)
    for name in ("weather", "he", "food", "word", "n_word", "n_less_word"):
        slots[capital(name)] = capital(slots[name])
    breaks = "\n\n" if rng.random() < 0.25 else " "
    return Story(breaks.join(sentence(rng, part, slots) for part in PLOTS[plot]), plot, slots)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# What a reader must have kept in mind, by plot.
QUESTIONS: dict[str, list[tuple[str, str, str]]] = {
    "book": [("Who did the book belong to?", "The book belonged to {friend}.", "{friend}"), ("What colour was the book?", "The book was {colour}.", "{colour}"), ("What had the {animal} lost?", "The {animal} had lost a {thing}.", "a {thing}")],
    "kite": [("What was the kite called?", "The kite was called {name_3}.", "{name_3}"), ("What colour was the kite?", "The kite was {colour}.", "{colour}"), ("Where did the kite hang?", "It hung {hidden_high}.", "{hidden_high}")],
    "train": [("Where did {friend} get out?", "{friend} got out in {town}.", "{town}"), ("What did {hero} carry?", "{hero} carried a {thing}.", "a {thing}"), ("Who was the {thing} for?", "It was for {his} {relative}.", "{his} {relative}")],
    "lost": [("Where was the {thing}?", "It was {hidden}.", "{hidden}"), ("What colour was the {thing}?", "The {thing} was {colour}.", "{colour}"),
             ("Who helped {hero}?", "{friend} helped {hero}.", "{friend}")],
    "door": [("What colour was the door?", "The door was {colour}.", "{colour}"), ("What was the key made of?", "It was a {material} key.", "{material}"),
             ("Who was behind the door?", "{friend} was behind the door.", "{friend}"), ("Who gave {hero} the key?", "{hero} got it from {his} {relative}.", "{his} {relative}")],
    "letter": [("Who was the letter for?", "The letter was for {friend}.", "{friend}"), ("What colour was the bag?", "The bag was {colour}.", "{colour}"),
               ("Who showed {hero} the way?", "A {animal} showed {hero} the way.", "a {animal}")],
    "stray": [("What colour was the ribbon?", "The ribbon was {colour}.", "{colour}"), ("What hung from the ribbon?", "A {material} {small_thing}.", "a {material} {small_thing}"),
              ("Where did {friend} live?", "{friend} lived in {town}.", "{town}")],
    "trade": [("What did {hero} begin the day with?", "{hero} began the day with a {thing}.", "a {thing}"), ("What did {hero} take home?", "{hero} took home a {goal}.", "a {goal}"),
              ("Who has the {thing} now?", "The {trade} has it.", "the {trade}")],
    "password": [("What was the secret word?", "The secret word was {word}.", "{word}"), ("Who told {hero} the word?", "{friend} told {him} the word.", "{friend}")],
    "baking": [("Who was the cake for?", "The cake was for {friend}.", "{friend}"), ("What was in the cake?", "{Food} and {food_2}, and a {thing} for luck.", "{food} and {food_2}"),
               ("How did {friend} feel at first?", "{friend} felt {sad}.", "{sad}")],
    "storm": [("What colour was the lantern?", "The lantern was {colour}.", "{colour}"), ("How often did the bell ring?", "The bell rang {n_word} times.", "{n_word} times"),
              ("Who was in the boat?", "{friend} was in the boat.", "{friend}")],
    "garden": [("How many seeds did {hero} plant?", "{hero} planted {n_word} seeds.", "{n_word}"), ("Who ate a seed?", "A {animal} ate one.", "a {animal}"),
               ("What colour were the flowers?", "The flowers were {colour}.", "{colour}")],
    "clock": [("When did the clock stop?", "It stopped at {hour} o'clock.", "{hour} o'clock"), ("Who sat in the clock?", "A {animal} sat in the clock.", "a {animal}"),
              ("Who had lost the {thing}?", "{friend} had lost it.", "{friend}")],
    "map": [("How many steps did they walk?", "They walked {n_word} steps.", "{n_word}"), ("Where was the box?", "The box was {hidden}.", "{hidden}"),
            ("Who wrote the note?", "{name_3} wrote the note.", "{name_3}")],
    "quarrel": [("What did they both want?", "They both wanted the {colour} {thing}.", "the {thing}"), ("How long did they not speak?", "They did not speak for {n_word} days.", "{n_word} days"),
                ("Who got the {thing} in the end?", "The {animal} got it.", "the {animal}")],
}
