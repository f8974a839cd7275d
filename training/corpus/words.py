"""The names, animals, things and places of the corpus."""


def phrases(text: str) -> list[str]:
    return [" ".join(phrase.split()) for phrase in text.split("|")]


GIRLS = """Mira Anna Lena Nora Ida Clara Ruth Sofia Zoë Maya Ella Greta Olga Priya Yuki Amara Lucía Freya Rosa Ingrid Tilda
Hana Leila Wanda Alma Vera Iris Nadia Chloé Beatrix Dora Esme Fatima Gwen Josefa Kiri Lotte Marit Noor Petra Salma Thea
Una Willa Xenia Yara Zora Agnes Bridget Cora""".split()
BOYS = """Tom Otto Emil Felix Jonas Hugo Oskar Theo Ravi Kenji Omar Pablo Sven Jürgen Mateo Bruno Anton Finn Idris Luca
Milo Noah Pavel Rafael Samir Tariq Ulrich Viktor Walter Yusuf Zeno André Björn Casper David Elias Farid Gustav Henrik
Ivan Jakob Karim Leo Magnus Nils Oliver Peter Quentin Rufus Stefan""".split()
ANIMALS = """fox hare badger hedgehog otter owl crow mouse bear squirrel heron goose toad beaver cat dog mole robin
magpie tortoise goat donkey""".split()

FIGURES = {"girl": "witch princess queen mermaid pirate robot".split(), "boy": "wizard prince king knight giant dragon robot".split()}

COLOURS = """red blue green yellow white black brown grey orange purple pink silver golden""".split()
MATERIALS = "brass wooden iron glass copper stone woollen paper leather clay".split()
THINGS = """key lantern compass whistle button ribbon marble feather bell spoon coin map letter kite umbrella scarf
notebook pencil teapot basket candle hat drum violin acorn shell ring clock mirror ladder blanket rope hammer
mitten""".split() + phrases("""music box|pocket watch|paper boat|tin soldier|magnifying glass|jar of honey|bag of seeds|
snow globe|toy train|loaf of bread|pair of boots|ball of string|glass eye|silver thimble""")
HIDING_PLACES = phrases("""under the stairs|in the hollow oak|behind the clock|in the blue teapot|under the loose floorboard|in the
boat shed|on the highest shelf|inside the piano|under the third step|in the flour jar|behind the waterfall|in the bell tower|beneath the stone
bridge|in the old well bucket|under a red flowerpot|in the attic trunk|between two books|in the scarecrow's pocket|in the pocket of a
winter coat|behind the mill wheel|inside a hollow log|under the doormat|in the rabbit hutch|at the bottom of the
garden|in the drawer of the kitchen table""")
TOWNS = phrases("""Willowby|Fennick|Saltmarsh|Larkhill|Oldbridge|Pebble Bay|Stonefield|Brindle Cross|Mossgate|Appledore|
Tarn|Kestrel Point|Juniper Hill|Nether Wick|Snowdrop Lane|Amberley|Thistledown|Little Fjord|Marrow Lake|Quill Island|
Émeraude|Zinnia Square|Duskwater|Hollow Elm|Copperton""")
PLACES = phrases("""the harbour|the mill|the old library|the market square|the orchard|the lighthouse|the school|the bakery|the
railway station|the forest path|the river bank|the castle ruin|the post office|the greenhouse|the village pond|the
clock tower|the ferry|the stone bridge|the café on the corner|the meadow behind the church|the windmill|the snowy pass""")
WEATHER = phrases("""the rain drummed on the roofs|the sun was warm and the wind was still|thick fog lay over the fields|snow fell without a
sound|the wind pulled at every hat|the sky was as clear as a bell|a soft drizzle hung in the air|frost drew ferns on the
windows|thunder grumbled behind the hills|the evening was golden and quiet|clouds like sheep drifted over the hill|the
morning smelled of wet grass|the first leaves were turning yellow|the stars came out one by one""")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEASONS = "spring summer autumn winter".split()
FEELINGS = """happy sad proud tired curious nervous brave lonely cheerful grumpy surprised hopeful shy calm worried
excited""".split()
SAD = "sad lonely grumpy worried tired nervous".split()
TRAITS = """curious careful cheerful stubborn quiet clever kind forgetful brave patient shy dreamy clumsy honest""".split()
TRADES = phrases("""baker|clockmaker|fisherman|postman|gardener|teacher|sailor|miller|carpenter|librarian|painter|shepherd|tailor|beekeeper|lamplighter|
ferryman|doctor|blacksmith|cook|weaver|piano tuner|mapmaker""")
RELATIVES = "grandmother grandfather aunt uncle neighbour cousin".split()
FOODS = """soup bread pancakes dumplings cheese porridge plums cherries pears walnuts noodles rice pudding honey
jam tomatoes olives croissants potatoes butter""".split()
FRUITS = "apples pears plums cherries oranges lemons figs grapes melons peaches bananas apricots".split()
COUNTABLES = FRUITS + "books coins marbles buttons shells stamps pencils candles eggs kites acorns cups".split()
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty""".split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()

COMMON = """river stone cloud table window garden candle bridge mountain paper silver music apple winter summer bread
island forest ladder mirror pocket button carpet basket feather hammer needle orange pepper rabbit saddle thunder
velvet walnut yellow zebra anchor butter castle dragon engine falcon guitar harbor insect jacket kettle lemon magnet
napkin oyster pencil quartz ribbon spider tunnel umbrella violin whistle blanket copper diamond ember flute glacier
honey ivory jungle kitten lantern meadow nectar olive parrot quiver rocket sailor tiger uncle valley wagon yogurt
acorn beacon cactus dolphin echo fabric ginger hollow igloo jasmine kayak locket maple nutmeg orchid pebble quilt
raven saffron timber urchin vessel willow yarn zephyr""".split()
EMOJI = "🙂 🎉 🌍 🍎 🚀 ⭐ ❤️ 🐱 ☕ 🌧️".split()


def spell_number(n: int) -> str:
    if n <= 20:
        return NUMBERS[n]
    if n < 100:
        return TENS[n // 10] + (f"-{NUMBERS[n % 10]}" if n % 10 else "")
    rest = f" and {spell_number(n % 100)}" if n % 100 else ""
    return (f"{NUMBERS[n // 100]} hundred{rest}") if n < 1000 else str(n)
