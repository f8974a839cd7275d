"""How the engine that runs this model works, in plain words, so that the model can say what it is doing."""

from random import Random

from .prose import chat, question, sentence

# Each topic: names it is asked by, short answers, and a long answer told sentence by sentence.
TOPICS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "prefill": (
        ["prefill", "the prefill", "the prefill phase", "prefilling"],
        ["Prefill reads the whole prompt at once and fills the KV cache.", "Prefill is the first phase: all the tokens of the prompt are read in parallel.",
         "In prefill the model reads your prompt in one go and remembers keys and values for every token."],
        ["Prefill is the first [phase|part] of answering.", "The model reads [the whole prompt|all the tokens of your prompt] in parallel, in one pass.",
         "For every token it [computes|works out] keys and values and [stores|writes] them in the KV cache.",
         "[Because many tokens are read at once, the work is limited by arithmetic, not by memory.|Prefill does a lot of arithmetic at once, so it is limited by how fast the processor can multiply.]",
         "At its end the first new token is [chosen|known].", "[A long prompt makes prefill longer, so the first word comes later.|The longer the prompt, the longer you wait for the first word.]"]),
    "decode": (
        ["decode", "decoding", "the decode phase"],
        ["Decode makes one new token at a time, using the KV cache.", "Decode is the second phase: one token in, one token out, again and again.", "In decode the model writes the answer, one token per step."],
        ["Decode is the second [phase|part] of answering.", "The model feeds in [the last token|one token], looks back at the KV cache, and gets [the next token|one new token].",
         "[Then it does the same again, until the answer ends.|This repeats until an end token comes.]", "Every step must read all the weights from memory once, [so decode is limited by memory bandwidth|so the speed of memory sets the speed of decode].",
         "[That is why several requests are decoded together: the weights are read once for all of them.|A batch helps, because one reading of the weights serves many requests.]"]),
    "kv cache": (
        ["the KV cache", "a KV cache", "the cache", "the key-value cache", "the kv cache"],
        ["The KV cache keeps the keys and values of all earlier tokens, so they are computed only once.", "It is the memory of attention: keys and values of every token read so far.",
         "The KV cache stores what attention needs from past tokens, so that each new token costs little."],
        ["Attention lets each token look back at all earlier tokens.", "To do so it needs a key and a value for each of them, in every layer.", "[The KV cache keeps these keys and values|These keys and values are kept in the KV cache], so they are computed only once.",
         "Without the cache, the model would have to read the whole text again for every new token.", "[The same tokens would come out, only slower.|The answer would be the same, but much slower.]", "The cache grows with every token and lives in blocks of memory."]),
    "token": (
        ["a token", "tokens", "the tokens"],
        ["A token is a piece of text: a word, a part of a word, or a single byte.", "A token is the small unit of text that I read and write.", "Tokens are pieces of text, each with a number."],
        ["A token is a [small |]piece of text.", "A common word is one token; [a rare word is cut into several|a rare word takes several].", "Each token has a number, and I know 4096 of them.", "I [read and write|see] only these numbers; [the tokenizer turns them into text|text appears when the tokenizer decodes them]."]),
    "tokenizer": (
        ["a tokenizer", "the tokenizer", "tokenization"],
        ["A tokenizer cuts text into tokens and puts tokens together into text.", "It turns text into numbers, and numbers into text."],
        ["A tokenizer cuts text into tokens.", "Mine is a byte-level BPE tokenizer with 4096 tokens.", "It begins with bytes and joins the pairs that are seen most often.", "[So any text can be written, even é or an emoji.|No text is impossible for it, because every byte has a token.]"]),
    "temperature": (
        ["temperature", "the temperature", "sampling temperature"],
        ["Temperature sets how much chance there is in the choice of the next token.", "Low temperature is careful, high temperature is adventurous.", "At temperature 0 the most likely token is always taken."],
        ["For every next token I have a probability.", "Temperature [changes how sharp these probabilities are|makes them sharper or flatter].", "At temperature 0 the most likely token always wins, so the answer is the same every time.", "At 0.8 there is some surprise, which is good for stories.", "[A very high temperature makes nonsense.|Too high, and the text falls apart.]"]),
    "top-p": (
        ["top-p", "top p", "nucleus sampling"],
        ["Top-p keeps only the most likely tokens that together reach the probability p.", "With top-p 0.95 the least likely tokens are never chosen."],
        ["Top-p sorts the tokens by probability.", "It keeps the most likely ones until their sum reaches p, [and drops the rest|and forgets the others].", "Then one of those is drawn by chance."]),
    "block": (
        ["a block", "blocks", "a KV block", "a cache block"],
        ["A block is a small piece of the KV cache that holds a fixed number of tokens.", "Blocks are the pages of the KV cache.", "A block holds the keys and values of, say, 32 tokens."],
        ["The KV cache is cut into blocks.", "Each block has room for the keys and values of a fixed number of tokens, for example 32.", "A request gets a new block when its last one is full, and gives them back when it is done.", "A block table says which blocks belong to [which|a] request.",
         "[So no memory is wasted, and two requests can share the blocks of the same beginning.|In this way little memory is wasted, and equal beginnings can be shared.]"]),
    "continuous batching": (
        ["continuous batching", "batching", "a batch", "dynamic batching"],
        ["Continuous batching lets requests join and leave the batch at every step.", "Many requests share each step, and nobody waits for the slowest one."],
        ["A batch is a group of requests that are computed together.", "In continuous batching a new request can join at any step, and a finished one leaves at once.", "[Nobody waits for the longest answer.|So a short answer does not wait for a long one.]", "The weights are read once per step for all of them, so the total speed grows."]),
    "speculative decoding": (
        ["speculative decoding", "speculation", "a draft model", "the draft model"],
        ["A small draft model guesses several tokens, and the big model checks them all in one step.", "Speculative decoding guesses ahead with a small model and keeps only the guesses that are right."],
        ["In speculative decoding a small draft model guesses the next few tokens.", "The target model checks all the guesses in one pass, [like a tiny prefill|which costs little more than one token].", "Guesses that agree are kept; the first wrong one is replaced.", "The answer is exactly the same as without speculation, [only faster|but it comes sooner].",
         "It pays when the draft is often right."]),
    "prefix caching": (
        ["prefix caching", "the prefix cache", "a shared prefix"],
        ["Prefix caching keeps the blocks of a prompt, so the same beginning need not be read again.", "When two prompts begin alike, the second one reuses the first one's blocks."],
        ["Many prompts begin with the same text.", "Prefix caching gives every full block a hash and keeps it after the request is done.", "When a new prompt begins with the same tokens, its blocks are found again and prefill skips them.", "[So the first word comes sooner.|That saves time before the first word.]"]),
    "attention": (
        ["attention", "the attention"],
        ["Attention lets each token look at the earlier tokens and take what it needs.", "Attention compares a query with all keys and mixes the values."],
        ["Every token makes a query, a key and a value.", "The query is compared with the keys of all earlier tokens.", "[Where they fit well, more of the value is taken.|The better the fit, the more of that value is used.]", "This is how I can remember a name or a colour from far above."]),
    "weights": (
        ["the weights", "weights", "a parameter", "parameters"],
        ["The weights are the numbers that were learned in training.", "Weights are learned numbers; I have about six million of them."],
        ["Weights are the numbers that training has set.", "I have about six million of them.", "They do not change while I answer.", "[In every decode step all of them are read from memory.|They are read from memory once for every step.]"]),
    "quantization": (
        ["quantization", "int8", "int4", "quantizing"],
        ["Quantization stores the weights in fewer bits, so there is less to read.", "With int8 each weight takes one byte instead of two."],
        ["Quantization stores each weight in fewer bits, such as eight or four.", "Decode must read all the weights for each token, so fewer bytes mean more tokens per second.", "[A little exactness is lost.|The answers become a tiny bit less exact.]"]),
    "scheduler": (
        ["the scheduler", "a scheduler", "scheduling"],
        ["The scheduler decides which requests take part in the next step.", "It shares the steps and the blocks among the requests."],
        ["The scheduler decides what is computed in each step.", "Every request has a counter of computed tokens that must catch up with the tokens it has.", "Running requests come first, then waiting ones join while there is room.", "When the blocks run out, the newest request has to wait and is computed again later."]),
    "greedy": (
        ["greedy decoding", "greedy", "greedy sampling"],
        ["Greedy decoding always takes the most likely token.", "Greedy means temperature 0: no chance at all."],
        ["Greedy decoding takes the most likely token at each step.", "There is no chance in it, so the same prompt gives the same answer.", "[It is good for facts and dull for stories.|For stories a little temperature is nicer.]"]),
    "logits": (
        ["logits", "a logit", "the logits"],
        ["Logits are the scores of all possible next tokens.", "A logit is the score of one possible next token."],
        ["At the end of each pass I give a score to every token I know.", "These scores are called logits.", "[Softmax turns them into probabilities|They become probabilities by softmax], and then one token is chosen."]),
    "pellucid": (
        ["pellucid", "this engine", "the engine", "Pellucid"],
        ["Pellucid is an inference engine that you can see through.", "Pellucid runs language models and shows every step between a prompt and its tokens.", "It is the program that runs me."],
        ["Pellucid is an inference engine written in Python.", "It runs language models on an ordinary computer.", "It reads the prompt in prefill, writes the answer in decode, and keeps the KV cache in blocks.", "[You can watch every step.|Every step can be seen.]", "The same request gets the same answer, however it is scheduled."]),
    "language model": (
        ["a language model", "an LLM", "a large language model", "language models"],
        ["A language model guesses the next token of a text.", "It is a program that has learned which token comes next."],
        ["A language model reads text and gives a probability to every possible next token.", "It learned this from many examples.", "Writing is done one token at a time: [guess, add, and guess again|choose a token, add it, and go on].", "I am a very small one."]),
    "preemption": (
        ["preemption", "preempting"],
        ["Preemption takes the blocks of one request so that the others can go on.", "When memory is full, the newest request is paused and computed again later."],
        ["Sometimes there are no free blocks left.", "Then the newest request is preempted: it gives its blocks back and waits.", "Later its tokens are computed again, and its answer is the same as if nothing had happened."]),
    "streaming": (
        ["streaming", "token streaming"],
        ["Streaming shows each token as soon as it is made.", "With streaming you can read while I write."],
        ["Streaming sends each token as soon as it is decoded.", "You need not wait for the whole answer.", "What you see then is the rhythm of decode: one token, one step."]),
    "context": (
        ["the context", "a context window", "the context length", "context length"],
        ["The context is all the text I can see at once; mine is 2048 tokens.", "My context is 2048 tokens long."],
        ["The context is the text I can look back at.", "Mine holds 2048 tokens, prompt and answer together.", "What is not in it I cannot know, unless I learned it in training."]),
    "end of turn": (
        ["the end of turn token", "an end-of-turn token", "an end token", "the stop token"],
        ["It is a special token that says my answer is finished.", "When I write it, the engine stops."],
        ["At the end of each answer I write a special token.", "The engine sees it and stops decoding.", "You do not see it, [but it is there|but without it I would go on and on]."]),
}

WHY: list[tuple[list[str], list[str]]] = [
    (["Why is the second word faster than the first?", "Why is the first token slow?", "Why does the first word take longer?", "Why is the first word slower?", "Why is the second word faster?"],
     ["The first word must wait for prefill, which reads the whole prompt. The second one needs only a single decode step, because the KV cache remembers the rest.",
      "Before the first word the whole prompt is read. After that the KV cache is filled, and each new word costs one small step.",
      "Because of the KV cache. Prefill fills it once; then each word is one short step."]),
    (["Why do we need a KV cache?", "Why is there a KV cache?", "What would happen without the KV cache?", "What happens without a cache?", "Why cache keys and values?"],
     ["Without it I would read the whole text again for every new token. The same tokens would come out, only slower.", "So that nothing is computed twice. Without the cache each new token would cost as much as reading everything again."]),
    (["Why is decode limited by memory?", "Why is decoding slow?", "What limits decode?", "Why is decode slow?"],
     ["Each step reads all the weights from memory to make a single token. The arithmetic is small; the reading is long.", "Because every token needs all the weights, and memory can only deliver so many bytes per second."]),
    (["Why is a batch faster?", "Why does batching help?", "Why decode many requests together?"],
     ["The weights are read once per step and used for every request, so the cost is shared.", "One reading of the weights serves all requests in the batch."]),
    (["What are you doing right now?", "What is happening right now?", "How do you answer me?", "How do you work?", "What happens when I send a prompt?", "What are you doing?"],
     ["First I read your prompt in prefill and filled the KV cache. Now I am in decode: one token after another, until I write the end-of-turn token.",
      "Your text was cut into tokens and read in parallel, which is called prefill. Now I write one token per step, looking back at the KV cache. That is decode.",
      "I am decoding. Each token you see is one step through my layers, with the KV cache as my memory."]),
    (["What is the difference between prefill and decode?", "How do prefill and decode differ?", "Prefill or decode: which is which?", "Compare prefill and decode."],
     ["Prefill reads many tokens at once; decode writes one token at a time. Prefill is limited by arithmetic, decode by memory.", "Prefill is reading, decode is writing. Reading is done in parallel, writing one token after another."]),
    (["Do you remember our last conversation?", "Do you remember yesterday?", "Can you learn from me?"],
     ["No. I only see this conversation. When it ends, my KV cache is released and I forget it.", "No, my weights do not change. What I know of you is in the context, and it goes when the conversation ends."]),
    (["How fast are you?", "How many tokens per second can you write?"],
     ["That depends on your machine. I am small, so my weights are read quickly and many tokens come each second.", "I do not know, but the engine does: look at the numbers it shows."]),
    (["How does the engine know when to stop?", "When do you stop?", "How do you know when to stop?"],
     ["I write an end-of-turn token, and the engine stops there.", "When I choose the end-of-turn token, or when the limit of tokens is reached."]),
    (["How big is the KV cache?", "How much memory does the KV cache need?", "How large is the cache?"],
     ["For every token it holds one key and one value per layer and per KV head. So it grows with every token.", "It grows with each token: layers times KV heads times head size, twice, because there are keys and values."]),
]

CLAIMS: list[tuple[str, bool, str]] = [
    ("Does prefill read the whole prompt at once?", True, "It reads all tokens of the prompt in parallel."), ("Does decode make many tokens at once?", False, "Decode makes one token per step."),
    ("Does the KV cache change the answer?", False, "It only makes it faster."), ("Does the KV cache make decode faster?", True, "Earlier tokens are not computed again."),
    ("Is temperature 0 random?", False, "At temperature 0 the most likely token always wins."), ("Does speculative decoding change the greedy answer?", False, "Wrong guesses are thrown away."),
    ("Is decode limited by memory?", True, "Every step reads all the weights."), ("Is prefill limited by arithmetic?", True, "Many tokens share one reading of the weights."), ("Is a token always a whole word?", False, "Rare words are cut into several tokens."),
    ("Do the weights change while you answer?", False, "They were set in training."), ("Does the KV cache grow?", True, "It grows with every token."), ("Can two requests share blocks?", True, "They can, if they begin with the same tokens."),
    ("Does batching help?", True, "The weights are read once for all requests."), ("Is the draft model bigger than the target?", False, "The draft is smaller and faster."), ("Can a request join a running batch?", True, "That is continuous batching."),
    ("Do you have a tokenizer?", True, "It knows 4096 tokens."), ("Are you a large model?", False, "I am very small."), ("Is the first token the slowest?", True, "It must wait for prefill."), ("Are you using a KV cache?", True, "It holds every token of this conversation."),
    ("Do you need the internet?", False, "I run on your machine."), ("Can you see your own cache?", False, "But the engine can show it to you."),
]

ASK = ["What is {x}?", "What is {x}?", "what is {x}", "Explain {x}.", "Can you explain {x}?", "Tell me about {x}.", "What does {x} mean?", "{x}?", "What do you know about {x}?", "Please explain {x} to me.", "I do not understand {x}.", "And what is {x}?", "How does {x} work?"]
ASK_SHORT = ["In one sentence, what is {x}?", "Briefly: what is {x}?", "Explain {x} in one sentence.", "Short answer: what is {x}?", "What is {x}, in a few words?"]
ASK_LONG = ["Explain {x} in detail.", "Tell me more about {x}.", "Give me a long explanation of {x}.", "Write a paragraph about {x}.", "I want to know everything about {x}."]
MORE = ["Tell me more.", "Can you say more?", "More, please.", "Explain that.", "Go on.", "I would like to know more."]


def ask_about(rng: Random, topic: str, styles: list[str]) -> str:
    return sentence(rng, rng.choice(styles), {"x": rng.choice(TOPICS[topic][0])})


def explanation(rng: Random, topic: str) -> str:
    sentences = TOPICS[topic][2]
    optional_end = len(sentences) - (1 if len(sentences) > 3 and rng.random() < 0.3 else 0)
    return " ".join(sentence(rng, s) for s in sentences[:optional_end])


def short(rng: Random, topic: str) -> str:
    return rng.choice(TOPICS[topic][1])


def exchange(rng: Random) -> list[tuple[str, str]]:
    """One or two turns on one topic."""
    kind, topic = rng.random(), rng.choice(list(TOPICS))
    if kind < 0.3:
        body = short(rng, topic) if rng.random() < 0.5 else explanation(rng, topic)
        return [("user", ask_about(rng, topic, ASK)), ("assistant", body)]
    if kind < 0.42:
        return [("user", ask_about(rng, topic, ASK_SHORT)), ("assistant", short(rng, topic))]
    if kind < 0.54:
        return [("user", ask_about(rng, topic, ASK_LONG)), ("assistant", explanation(rng, topic))]
    if kind < 0.66:
        return [("user", ask_about(rng, topic, ASK)), ("assistant", short(rng, topic)), ("user", rng.choice(MORE)), ("assistant", explanation(rng, topic))]
    if kind < 0.85:
        asks, answers = rng.choice(WHY)
        return [("user", rng.choice(asks)), ("assistant", rng.choice(answers))]
    ask, truth, reason = rng.choice(CLAIMS)
    word = "Yes" if truth else "No"
    if rng.random() < 0.5:
        return [("user", f"{rng.choice(['Yes or no:', 'Say only yes or no:', 'Answer yes or no:', 'Only yes or no, please:'])} {ask}"), ("assistant", word + rng.choice(["", "."]))]
    return [("user", ask), ("assistant", f"{word}. {reason}")]


def document(rng: Random, held_out: bool = False) -> str:
    kind = rng.random()
    if kind < 0.15:
        topics = rng.sample(list(TOPICS), rng.randint(1, 4))
        return "\n\n".join(explanation(rng, topic) for topic in topics)
    if kind < 0.7:
        return chat(*exchange(rng))
    if kind < 0.95:
        return chat(*(turn for _ in range(rng.randint(2, 4)) for turn in exchange(rng)))
    topic = rng.choice(list(TOPICS))
    return question(f"Which word is meant? {short(rng, topic).replace(TOPICS[topic][0][0], 'It')}", sentence(rng, TOPICS[topic][0][0]) + ".")
