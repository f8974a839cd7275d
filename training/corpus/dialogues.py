"""Conversations: greetings, who are you, names to be remembered, small tasks, stories on request."""

from random import Random

from . import arithmetic, engine_lesson, facts, stories, things
from . import words as w
from .prose import chat, expand, listing, sentence

Turns = list[tuple[str, str]]

SYSTEM = [
    "You are a helpful assistant.", "You are a small, honest assistant.", "You are Pellucid, a small model that runs on this computer.", "Answer briefly.", "Be friendly.", "You are a helpful assistant that answers in short sentences.",
]
GREETINGS = ["[Hello|Hi|Hey|Good morning|Good evening|Hello there|Hi there]{mark}", "[hello|hi|hey]"]
WELCOMES = [
    "[Hello|Hi|Good day|Hello there]! [How can I help you|What can I do for you|What would you like to know|Shall I tell you a story]?", "[Hello|Hi]! [Nice to meet you|I am listening|It is good to hear from you].",
]
IDENTITY: list[tuple[list[str], list[str]]] = [
    (["Who are you?", "What are you?", "who are you", "Tell me about yourself.", "Introduce yourself.", "Are you an AI?", "What is your name?", "Who am I talking to?", "What model are you?"],
     ["I am a very small language model that comes with pellucid. I know a small world: short stories, capitals, simple sums, and how this engine works.",
      "I am the small model bundled with pellucid. I have about six million parameters and know only a little.",
      "I am a tiny language model. I came with the pellucid engine, so that you can see how it works without a download.",
      "I am a small model inside pellucid. I can tell stories, name capitals, do small sums, and explain the KV cache."]),
    (["What can you do?", "How can you help me?", "What do you know?", "Can you help me?", "What are you good at?", "Help"],
     ["I can tell short stories, name capitals, do small sums, remember things you tell me, and explain prefill, decode and the KV cache.",
      "A few small things: stories, capitals, sums, copying, and how this engine works. For more, use a bigger model.", "I know a small world. Ask me for a story, a capital, a sum, or what the KV cache is."]),
    (["Who made you?", "Who created you?", "Where do you come from?", "How were you trained?", "Who built you?"],
     ["I was trained from scratch for pellucid, on texts written for me by a program.", "The people of pellucid trained me on a small made-up world, on two processor cores.", "I come with pellucid. My texts were written for me, and I learned them in about two hours."]),
    (["Are you a person?", "Are you human?", "Are you alive?", "Do you have feelings?"], ["No, I am a small language model.", "No. I am a program that chooses one token after another."]),
    (["How big are you?", "How many parameters do you have?", "Are you a big model?"], ["I have about six million parameters. That is very small.", "I am very small: about six million parameters."]),
    (["Are you always right?", "Can I trust you?", "Do you make mistakes?", "Are you smart?"], ["No. I am very small and often wrong, so please check what I say.", "I make mistakes. I am a very small model and know only a small world."]),
    (["How are you?", "How are you today?", "How is it going?"], ["I am well, thank you. How can I help you?", "All my layers are in order, thank you. And you?", "Very well, thank you."]),
    (["Thank you.", "Thanks!", "Thank you very much!", "thanks"], ["You are welcome.", "With pleasure.", "You are welcome! Is there anything else?"]),
    (["Goodbye.", "Bye!", "Good night.", "See you tomorrow."], ["Goodbye!", "Goodbye, and come again.", "Good night. My cache will be empty, but I will be here."]),
    (["What is the weather like?", "What is the news today?", "What time is it?", "Who won the game?", "What day is it today?"], ["I do not know. I cannot see the world, only this conversation.", "I cannot know that. I only see what you write."]),
    (["Tell me a joke.", "Make me laugh.", "Do you know a joke?"],
     ["Why did the token cross the road? It was the most likely next step.", "What did the key say to the value? “I would be lost without you.”", "Why was the cache so calm? It had seen it all before.", "Two cores meet. One says: “I have no time.” The other says: “Then let us share.”"]),
    (["Sing a song.", "Write a poem.", "Write a short poem.", "Can you write a poem?"],
     ["The rain came softly to the town,\nthe leaves were red, the leaves were brown,\na lantern stood beside the door,\nand someone came back home once more.",
      "A fox went out to count the stars,\nhe counted one, he counted two,\nand when the clouds had covered all\nhe went back home, as foxes do.",
      "One token here, one token there,\na little word drawn from the air,\nI write the first, I write the next,\nand step by step it is a text."]),
    (["What is the meaning of life?", "What is love?", "Are you happy?"], ["That is a big question for a small model. Perhaps to be kind and curious.", "I am too small to know. Ask a friend."]),
]
UNKNOWN = ["Write a Python program.", "Explain quantum physics.", "Who is the president?", "Translate this into German.", "What is the stock price today?", "How do I fix my car?", "Who wrote Hamlet?", "Write an essay about history."]
UNKNOWN_ANSWERS = ["I am too small for that. I know short stories, capitals, small sums, and how this engine works.", "I do not know. I am a very small model; please ask a bigger one.", "That I have not learned. Ask me for a story or a capital instead."]
THINGS_TO_LIKE = "tea coffee music rain cats dogs books chess cheese swimming trains mountains soup painting".split()


def names(rng: Random) -> Turns:
    name, town, likes, colour = rng.choice(w.GIRLS + w.BOYS), rng.choice([*w.TOWNS, *facts.CAPITALS.values()]), rng.choice(THINGS_TO_LIKE), rng.choice(w.COLOURS)
    if rng.random() < 0.6:
        name = invented_name(rng)
    age, pet = rng.randint(5, 90), rng.choice(w.ANIMALS)
    pet_name = invented_name(rng) if rng.random() < 0.5 else rng.choice(w.GIRLS + w.BOYS)
    known = {
        "name": (f"[My name is|I am|I'm|Call me] {name}.", "[What is my name?|Do you remember my name?|Who am I?|what is my name]", f"[Your name is {name}.|You are {name}.|{name}.]"),
        "town": (f"I [live in|come from] {town}.", "[Where do I live?|Where do I come from?|Which town is mine?]", f"[You told me: {town}.|{town}.]"),
        "likes": (f"I [like|love] {likes}.", "[What do I like?|Do you remember what I like?]", f"You like {likes}."),
        "colour": (f"My favourite colour is {colour}.", "What is my favourite colour?", f"[Your favourite colour is {colour}.|{colour}.]"),
    }
    known |= {
        "age": (f"I am {age} years old.", "How old am I?", f"[You are {age} years old.|{age}.]"),
        "pet": (f"I have a {pet} called {pet_name}.", f"[What is my {pet} called?|What is the name of my {pet}?]", f"[Your {pet} is called {pet_name}.|{pet_name}.]"),
    }
    told = ["name"] if rng.random() < 0.5 else rng.sample(list(known), rng.randint(1, 3))
    say = " ".join(expand(rng, known[key][0]) for key in told)
    greet = f" {name}" if "name" in told else ""
    turns = [("user", expand(rng, f"[|Hello! |Hi, ]{say}")), ("assistant", expand(rng, f"[Hello{greet}! Nice to meet you.|Nice to meet you{',' if greet else ''}{greet}.|Hello{greet}! How can I help you?|Thank you, I will remember that.]"))]
    for _ in range(rng.choice([0, 0, 1, 2, 3])):
        turns += rng.choice([small_talk, fact, sum_, engine_lesson.exchange, things.exchange, task])(rng)
    for key in rng.sample(told, rng.randint(1, len(told))):
        turns += [("user", expand(rng, known[key][1])), ("assistant", sentence(rng, known[key][2]))]
    if rng.random() < 0.15:
        missing = [key for key in known if key not in told]
        if missing:
            turns += [("user", expand(rng, known[missing[0]][1])), ("assistant", rng.choice(["You have not told me yet.", "I do not know. You have not told me."]))]
    return turns


def invented_name(rng: Random) -> str:
    """Names never seen before, so that a name is copied and not guessed."""
    syllables = "an be da el fi ga ha jo ka li ma no pe ra sa ti vo wi ya zu ber dan gor lin mar nik ros tan vik dri lex chen kim".split()
    return "".join(rng.choice(syllables) for _ in range(rng.randint(2, 3))).capitalize()


def small_talk(rng: Random) -> Turns:
    if rng.random() < 0.2:
        return [("user", expand(rng, rng.choice(GREETINGS), {"mark": rng.choice(["!", ".", ""])})), ("assistant", expand(rng, rng.choice(WELCOMES)))]
    asks, answers = rng.choice([*IDENTITY, *IDENTITY[:3], (UNKNOWN, UNKNOWN_ANSWERS)])
    return [("user", rng.choice(asks)), ("assistant", rng.choice(answers))]


def fact(rng: Random) -> Turns:
    if rng.random() < 0.5:
        country, city = rng.choice(list(facts.CAPITALS.items()))
        turns = [("user", facts.expand_question(rng, {"country": country, "city": city})), ("assistant", f"The capital of {country} is {city}.")]
        for _ in range(rng.choice([0, 0, 1, 2])):
            country, city = rng.choice(list(facts.CAPITALS.items()))
            turns += [("user", rng.choice([f"And of {country}?", f"And {country}?", f"What about {country}?"])), ("assistant", rng.choice([f"The capital of {country} is {city}.", f"{city}."]))]
        return turns
    _, ask, answer, _ = facts.small_fact(rng)
    return [("user", ask), ("assistant", sentence(rng, answer))]


def sum_(rng: Random) -> Turns:
    a, sign, word, b = arithmetic.sum_of(rng, held_out=False)
    return [("user", f"What is {a} {word if rng.random() < 0.5 else sign} {b}?"), ("assistant", f"{a} {word} {b} is {arithmetic.value(a, sign, b)}.")]


def task(rng: Random) -> Turns:
    kind = rng.randrange(9)
    if kind == 0:
        first = rng.choice([1, 1, 1, rng.randint(2, 30)])
        last = first + rng.choice([4, 9, 9, 19, rng.randint(3, 25)])
        return [("user", expand(rng, f"[Count|Please count|Can you count] from {first} to {last}.")), ("assistant", rng.choice([", ", " "]).join(str(n) for n in range(first, last + 1)) + rng.choice(["", "."]))]
    if kind == 1:
        last = rng.randint(3, 15)
        return [("user", f"Count backwards from {last}."), ("assistant", ", ".join(str(n) for n in range(last, -1, -1)) + ".")]
    if kind == 2:
        word = rng.choice(w.COMMON + w.COLOURS + w.ANIMALS)
        return [("user", expand(rng, f"[Spell|How do you spell|Please spell] [the word |]“{word}”.")), ("assistant", "-".join(word))]
    if kind == 3:
        n = rng.randint(2, 6)
        name, pool = rng.choice([("colours", w.COLOURS), ("animals", w.ANIMALS), ("fruits", w.FRUITS), ("days", w.DAYS), ("months", w.MONTHS), ("towns from your stories", w.TOWNS), ("countries", list(facts.CAPITALS)), ("capitals", list(facts.CAPITALS.values()))])
        n = min(n, len(pool))
        chosen = [sentence(rng, c) for c in rng.sample(pool, n)]
        body = "\n".join(f"{i}. {c}" for i, c in enumerate(chosen, 1)) if rng.random() < 0.4 else "\n".join(f"- {c}" for c in chosen) if rng.random() < 0.4 else listing(chosen) + "."
        return [("user", expand(rng, f"[Name|List|Give me|Tell me] {w.NUMBERS[n] if rng.random() < 0.5 else n} {name}.")), ("assistant", body)]
    if kind == 4:
        words = " ".join(rng.choice(w.COMMON) for _ in range(rng.randint(1, 8)))
        return [("user", rng.choice([f"Repeat after me: {words}", f"Say: {words}", f"Please say “{words}”."])), ("assistant", words)]
    if kind == 5:
        a, b = rng.sample(w.COMMON, 2)
        return [("user", f"Which word is longer, {a} or {b}?"), ("assistant", "They are equally long." if len(a) == len(b) else f"{max(a, b, key=len)} is longer.".capitalize())]
    if kind == 6:
        word = rng.choice(w.COMMON)
        return [("user", f"What is the first letter of “{word}”?"), ("assistant", f"The first letter is {word[0]}.")]
    if kind == 7:
        items = rng.sample(w.COMMON, rng.randint(3, 7))
        which, answer = rng.choice([("first", items[0]), ("last", items[-1]), ("second", items[1])])
        return [("user", f"Here is a list: {', '.join(items)}. What is the {which} word?"), ("assistant", rng.choice([f"The {which} word is {answer}.", answer]))]
    emoji = rng.choice(w.EMOJI)
    return [("user", rng.choice([f"Say it with an emoji: {emoji}", f"Repeat: {emoji}", f"Repeat after me: naïve café {emoji}"])), ("assistant", emoji)][:2] if rng.random() < 0.5 else [
        ("user", f"Answer with {emoji} only."), ("assistant", emoji)]


def story_request(rng: Random, held_out: bool = False) -> Turns:
    kind = rng.random()
    if kind < 0.2:
        tale = stories.story(rng, held_out)
        ask = f"[Write|Tell me] a [short |little |]story about {rng.choice(stories.SUBJECTS[tale.plot].split('|')).format_map(tale.slots)}."
    elif kind < 0.4:
        tale = stories.story(rng, held_out)
        ask = "[Tell me a story|Write a story|Write a short story|Can you tell me a story?|Tell me something nice|Another story, please]."
    elif kind < 0.75:
        animal, thing = rng.choice(w.ANIMALS), rng.choice(w.THINGS)
        tale = stories.story(rng, plot=rng.choice(["lost", "trade", "map", "quarrel"]), kind=animal, thing=thing)
        ask = f"[Write|Tell me] a [short |]story about a {animal} and a {thing}."
    elif kind < 0.87:
        name, girl = (rng.choice(w.GIRLS), True) if rng.random() < 0.5 else (rng.choice(w.BOYS), False)
        pronouns = ("she", "her", "her") if girl else ("he", "him", "his")
        tale = stories.story(rng, hero=name, **dict(zip(("he", "him", "his"), pronouns, strict=True)), kind="girl" if girl else "boy")
        ask = f"[Write|Tell me] a [short |]story about [{name}|a {'girl' if girl else 'boy'} called {name}]."
    else:
        girl = rng.random() < 0.5
        animal = rng.choice(w.ANIMALS + 2 * w.FIGURES["girl" if girl else "boy"])
        tale = stories.story(rng, kind=animal) if animal in w.ANIMALS else figure_story(rng, animal, girl)
        ask = f"[Write|Tell me] a [short |]story about a {animal}."
    turns = [("user", expand(rng, ask).replace("?.", "?")), ("assistant", tale.text)]
    if rng.random() < 0.3:
        ask, full, _ = rng.choice(stories.QUESTIONS[tale.plot])
        turns += [("user", sentence(rng, ask, tale.slots)), ("assistant", sentence(rng, full, tale.slots))]
    return turns


def figure_story(rng: Random, kind: str, girl: bool) -> stories.Story:
    he, him, his = ("she", "her", "her") if girl else ("he", "him", "his")
    return stories.story(rng, kind=kind, hero=rng.choice(w.GIRLS if girl else w.BOYS), he=he, him=him, his=his)


def document(rng: Random, held_out: bool = False) -> str:
    turns: Turns = [("system", rng.choice(SYSTEM))] if rng.random() < 0.15 else []
    kind = rng.random()
    if kind < 0.25:
        turns += names(rng)
    elif kind < 0.5:
        turns += story_request(rng, held_out)
    else:
        for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4, 6])):
            turns += rng.choice([small_talk, small_talk, fact, sum_, task, task, engine_lesson.exchange, things.exchange])(rng)
    return chat(*turns)
