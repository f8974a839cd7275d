"""Definitions of animals and things: the encyclopaedia of the corpus."""

from random import Random

from .prose import expand, question, sentence

WHAT_IS: dict[str, list[str]] = {
    "a lighthouse": ["A lighthouse is a tower by the sea. Its light shows ships the way at night.", "A tall tower with a lamp that warns ships of rocks."],
    "a river": ["A river is water that runs through the land to the sea.", "A river is a long stream of water that ends in a lake or in the sea."],
    "the sea": ["The sea is a very large body of salt water.", "The sea is deep, salty water that covers most of the Earth."],
    "the Moon": ["The Moon is a ball of rock that goes around the Earth once a month.", "The Moon circles the Earth and shines with the light of the Sun."],
    "the moon": ["The Moon is a ball of rock that goes around the Earth once a month.", "The Moon circles the Earth and shines with the light of the Sun."],
    "the Sun": ["The Sun is a star. It gives us light and warmth.", "The Sun is the star in the middle of our planets."],
    "a star": ["A star is a huge ball of hot gas that shines by itself.", "A star is a sun that is very far away."],
    "a planet": ["A planet is a large ball that goes around a star. We live on one.", "A planet goes around a star. The Sun has eight of them."],
    "rain": ["Rain is water that falls from clouds in drops.", "Rain is what clouds let fall: small drops of water."],
    "snow": ["Snow is frozen water that falls from clouds in white flakes.", "Snow is made of small crystals of ice."],
    "wind": ["Wind is air that moves.", "Wind is moving air. You cannot see it, but you can feel it."],
    "a rainbow": ["A rainbow is an arc of colours in the sky, made by sun and rain together.", "When the sun shines through rain, its light is split into colours. That is a rainbow."],
    "a mountain": ["A mountain is a very high part of the land.", "A mountain is a hill that has grown very tall."],
    "an island": ["An island is land with water all around it.", "An island is a piece of land in the middle of water."],
    "a forest": ["A forest is a large place full of trees.", "A forest is where many trees grow together."],
    "a tree": ["A tree is a tall plant with a trunk, branches and leaves.", "A tree is a big plant made of wood."],
    "a flower": ["A flower is the colourful part of a plant. Bees visit it.", "A flower is where a plant makes its seeds."],
    "a seed": ["A seed is a small thing from which a plant can grow.", "A seed is a plant that is still asleep."],
    "a garden": ["A garden is a place where people grow flowers and vegetables.", "A garden is a piece of land that somebody looks after."],
    "a cat": ["A cat is a small animal with soft fur and sharp claws. It says meow.", "A cat is an animal that catches mice and likes to sleep."],
    "a dog": ["A dog is an animal that lives with people and likes to run. It says woof.", "A dog is a friendly animal with four legs."],
    "a bird": ["A bird is an animal with feathers, two wings and a beak.", "A bird is an animal that lays eggs. Most birds can fly."],
    "a fish": ["A fish is an animal that lives in water and breathes through gills.", "A fish swims in water and has fins."],
    "a fox": ["A fox is a clever red animal with a bushy tail.", "A fox is a wild animal that looks like a small red dog."],
    "an owl": ["An owl is a bird that hunts at night and can turn its head very far.", "An owl is a night bird with big eyes."],
    "a bee": ["A bee is a small insect that makes honey.", "A bee is an insect that flies from flower to flower."],
    "honey": ["Honey is the sweet food that bees make from flowers.", "Honey is sweet, golden and made by bees."],
    "bread": ["Bread is a food made of flour, water and a little salt.", "Bread is baked from flour and water."],
    "cheese": ["Cheese is a food made from milk.", "Cheese is milk that has become firm and tasty."],
    "tea": ["Tea is a hot drink made from leaves.", "Tea is made by pouring hot water over leaves."],
    "coffee": ["Coffee is a hot, dark drink made from roasted beans.", "Coffee is a drink that wakes people up."],
    "a book": ["A book is many pages of writing, bound together.", "A book is a thing to read: pages with words between two covers."],
    "a library": ["A library is a house full of books that you may borrow.", "A library is a place where people read and borrow books."],
    "a school": ["A school is a place where children learn.", "A school is where teachers teach and children learn."],
    "a friend": ["A friend is someone you like and can trust.", "A friend is someone who is glad when you are glad."],
    "a clock": ["A clock is a machine that shows the time.", "A clock tells you what time it is."],
    "a compass": ["A compass is a tool with a needle that points north.", "A compass shows where north is."],
    "a map": ["A map is a drawing of a place, seen from above.", "A map shows where things are."],
    "a lantern": ["A lantern is a light that you can carry.", "A lantern is a lamp with glass around the flame."],
    "a key": ["A key is a small thing that opens a lock. In my engine, a key is what a query looks for.", "A key opens a lock."],
    "a bridge": ["A bridge is a way over a river or a road.", "A bridge lets you cross water with dry feet."],
    "a boat": ["A boat is a small ship.", "A boat carries people over water."],
    "a train": ["A train is a row of wagons that runs on rails.", "A train is a long vehicle on rails."],
    "a castle": ["A castle is a large, strong house where kings and queens once lived.", "A castle is an old stone house with towers."],
    "a dragon": ["A dragon is an animal from stories. It can fly and breathe fire.", "A dragon lives only in stories. It has wings and breathes fire."],
    "a robot": ["A robot is a machine that can move and work by itself.", "A robot is a machine that follows a program."],
    "a computer": ["A computer is a machine that follows instructions very fast.", "A computer is a machine that works with numbers. I run on one."],
    "a processor": ["A processor is the part of a computer that calculates.", "A processor is the part that does the sums."],
    "memory": ["Memory is where a computer keeps numbers. My weights and my KV cache live there.", "Memory is the place where data is kept."],
    "music": ["Music is sound that is put together so that it is good to hear.", "Music is made of tones and rhythm."],
    "a song": ["A song is music with words.", "A song is a text that is sung."],
    "a story": ["A story tells what happened to someone, with a beginning, a middle and an end.", "A story is a tale. Shall I tell you one?"],
    "a poem": ["A poem is a short text with rhythm, and often with rhymes.", "A poem says something with few words and much sound."],
    "a dream": ["A dream is what you see while you sleep.", "A dream is a story that happens while you sleep."],
    "time": ["Time is what clocks measure.", "Time is what passes between now and later."],
    "a week": ["A week is seven days.", "A week has seven days, from Monday to Sunday."],
    "a year": ["A year has twelve months, or 365 days.", "A year is the time in which the Earth goes once around the Sun."],
    "winter": ["Winter is the coldest season.", "Winter is the cold season, with short days and snow."],
    "summer": ["Summer is the warmest season.", "Summer is the warm season with long days."],
    "autumn": ["Autumn is the season when leaves turn yellow and fall.", "Autumn comes after summer."],
    "spring": ["Spring is the season when flowers begin to grow.", "Spring comes after winter."],
    "a capital": ["A capital is the city where the government of a country sits. Paris is one.", "The capital is the most important city of a country."],
    "a number": ["A number tells how many there are.", "A number is what we count with."],
    "a letter": ["A letter is a sign for a sound, or a message on paper.", "A letter is a message that you write on paper and send."],
    "the alphabet": ["The alphabet is the row of all letters, from a to z.", "The alphabet has 26 letters, from a to z."],
    "water": ["Water is what rivers, lakes and rain are made of. We drink it.", "Water is a clear liquid that all life needs."],
    "fire": ["Fire is hot and bright. It burns wood.", "Fire gives light and heat, and it must be watched."],
    "ice": ["Ice is frozen water.", "Ice is water that has become hard in the cold."],
    "a cloud": ["A cloud is made of tiny drops of water in the sky.", "A cloud is water floating in the air."],
    "an apple": ["An apple is a round fruit that grows on a tree.", "An apple is a fruit, red, green or yellow."],
    "a market": ["A market is a place where people buy and sell things.", "A market is where people trade."],
    "a baker": ["A baker makes bread and cakes.", "A baker is someone who bakes bread."],
    "a teacher": ["A teacher helps others to learn.", "A teacher is someone who teaches at a school."],
    "a sailor": ["A sailor works on a ship.", "A sailor travels over the sea."],
    "a gardener": ["A gardener looks after plants.", "A gardener works in a garden."],
    "a telescope": ["A telescope makes far things look near.", "A telescope is a tool to look at the stars."],
    "happiness": ["Happiness is a good, warm feeling.", "Happiness is when nothing is missing."],
    "courage": ["Courage is doing what is right although you are afraid.", "Courage means to be brave."],
}
ASK = ["What is {x}?", "What is {x}?", "what is {x}", "[Do you know|Can you tell me] what {x} is?", "Tell me about {x}.", "Explain {x}.", "Explain {x} to a child.", "What do you know about {x}?", "{x}?", "In one sentence, what is {x}?"]


def exchange(rng: Random) -> list[tuple[str, str]]:
    thing, answers = rng.choice(list(WHAT_IS.items()))
    return [("user", sentence(rng, expand(rng, rng.choice(ASK), {"x": thing}))), ("assistant", rng.choice(answers))]


def document(rng: Random, held_out: bool = False) -> str:
    if rng.random() < 0.4:
        return " ".join(rng.choice(answers) for answers in rng.sample(list(WHAT_IS.values()), rng.randint(1, 4)))
    (_, ask), (_, answer) = exchange(rng)
    return question(ask, answer)
