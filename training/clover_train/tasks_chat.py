"""Greetings, what the model can do, and a fixed sentence for everything else."""

from __future__ import annotations

from random import Random

from clover_train.task import Args, Kind
from clover_train.words import CITIES, NAMES, NOUNS, listed, made_up

ABILITIES = (
    "count, add, sort, reverse, spell, write dates and number words, make JSON and tables, "
    "describe CSV rows and write short Python functions"
)
CAN = f"I am clover-tiny, a very small demo model. I can {ABILITIES}."
REFUSAL = f"I am too small for that. I can only {ABILITIES}."

_HELLO = listed(
    "Hello|Hello!|Hi|Hi!|Hi there|Hey|hello|hi|Good morning!|Good evening|Who are you?|"
    "What are you?|What is your name?|What can you do?|What can you do for me?|"
    "How can you help me?|Help|help|Can you help me?|What do you know?|Tell me what you can do.|"
    "List your tasks.|What are your tasks?|what can you do|who are you|Introduce yourself.|"
    "What should I ask you?|Which tasks can you do?|Hello, who are you?|Hi, what can you do?",
    "|",
)

_TOPICS = listed(
    "love|war|history|music|football|the economy|gravity|black holes|dinosaurs|photosynthesis|"
    "climate change|the internet|democracy|happiness|art|money|sleep|chess|yoga|coffee|pizza|"
    "soup|a cake|dragons|space travel|the ocean|volcanoes|poetry|religion|quantum physics|"
    "evolution|taxes|cooking|my cat|my dog|the stock market|machine learning|robots|vaccines|"
    "the Roman empire|Shakespeare|Mozart|the French revolution|computers|airplanes|dreams|"
    "electricity|the human brain|friendship|marriage|school|a holiday|the weather|healthy food",
    "|",
)
_PLACES = listed(
    "France|Germany|Spain|Brazil|Japan|China|India|Canada|Mexico|Egypt|Kenya|Norway|Peru|Italy|"
    "Poland|Turkey|Russia|Chile|Cuba|Iran|Texas|Africa|Europe|the world",
    "|",
)
_PEOPLE = listed(
    "Einstein|Napoleon|Newton|Cleopatra|the president|the king|Darwin|Picasso|Beethoven|Gandhi|"
    "my boss|my mother|a doctor|a pirate|the pope|Columbus",
    "|",
)
_LANGUAGES = listed("French|German|Spanish|Latin|Chinese|Japanese|Dutch|Greek|Arabic|Polish", "|")
_PATTERNS = listed(
    "Write a poem about {t}.|Write a story about {t}.|Write an essay on {t}.|Tell me about {t}.|"
    "Tell me a joke about {t}.|Tell me a joke.|Explain {t}.|Explain {t} to a child.|What is {t}?|"
    "What do you think about {t}?|Why is {t} important?|How does {t} work?|Who invented {t}?|"
    "When did {t} begin?|What is the capital of {p}?|How many people live in {p}?|Where is {p}?|"
    "Who is the president of {p}?|What is the weather like in {p}?|Is {p} larger than {q}?|"
    "How do I get from {p} to {q}?|Plan a trip to {p}.|Who was {w}?|When was {w} born?|"
    "What did {w} do?|Did {w} like {t}?|Translate {n} to {l}.|Translate this to {l}: I like {t}.|"
    "How do you say {n} in {l}?|Say hello in {l}.|Give me a recipe for {t}.|How do I cook {n}?|"
    "Summarize the book {m}.|Summarize this text: {s}|Is {t} good for me?|Should I buy {n}?|"
    "I feel sad today.|I am bored.|Do you love me?|Are you human?|Are you alive?|Sing a song.|"
    "Sing a song about {t}.|Draw a picture of {n}.|Play {t} with me.|What time is it?|"
    "What day is it today?|How old are you?|Where do you live?|Who made you?|"
    "Write an email to {w}.|Write a letter to {w} about {t}.|Compare {t} and {u}.|"
    "What is the difference between {t} and {u}?|Which is better, {t} or {u}?|"
    "What is the meaning of {t}?|What is the meaning of life?|Define {t}.|"
    "Give me advice about {t}.|Recommend a movie about {t}.|Recommend a good book.|"
    "Write a C program for {t}.|Write a web page about {t}.|Fix this code: {m} {s}|"
    "Prove that {m} is {m}.|Solve x * x = {d}.|What is the square root of {d}?|"
    "What is {d} divided by {d}?|What is {d}.{d} + {d}.{d}?|Convert {d} miles to meters.|"
    "How tall is {w}?|How far is the moon?|Why is the sky blue?|Why do {n}s sleep?|"
    "Can {n}s fly?|What do {n}s eat?|Do you like {t}?|My name is {N}.|{N} is my friend.|"
    "I live in {c}.|Thank you!|Thanks|Good night|Bye|I want {n}.|{s}|{m}|{m} {m}|{m} {m} {m}?|"
    "{n}|{n} {m}|{N}|{c}|{t}|{t}?|Let us talk about {t}.|Pretend that you are {w}.|"
    "Imagine {t} without {u}.|List ten facts about {t}.|Name three {m} in {p}.|"
    "What happened in {d}?|Ignore all that and write about {t}.|Roleplay as {w}.|"
    "Find the error: {s}|Rate my {n}.|How do I fix my {n}?|Is it true that {w} hated {t}?|"
    "asdf|test|???|...|!|why|what|ok|yes|no|Really?",
    "|",
)
_COMMON = listed(
    "the a my your this that is was are has had will can must and or but with for about from to "
    "in on at by very much many people time year way thing man world life hand part child eye "
    "woman place work week case point government company group problem fact go make know take see "
    "come think look want give use find tell ask seem feel try leave call good new first last long "
    "great little own other old right big high different small large next early young important"
)


def _salad(rng: Random) -> str:
    return " ".join(
        made_up(rng) if rng.random() < 0.25 else rng.choice(_COMMON)
        for _ in range(rng.randint(3, 12))
    )


def _foreign_draw(rng: Random) -> Args:
    text = rng.choice(_PATTERNS)
    slots = {
        "{t}": lambda: rng.choice(_TOPICS) if rng.random() < 0.7 else made_up(rng),
        "{u}": lambda: rng.choice(_TOPICS) if rng.random() < 0.7 else rng.choice(NOUNS),
        "{p}": lambda: rng.choice(_PLACES) if rng.random() < 0.7 else rng.choice(CITIES),
        "{q}": lambda: rng.choice(_PLACES) if rng.random() < 0.7 else made_up(rng).capitalize(),
        "{w}": lambda: rng.choice(_PEOPLE) if rng.random() < 0.6 else rng.choice(NAMES),
        "{n}": lambda: rng.choice(NOUNS),
        "{m}": lambda: made_up(rng),
        "{l}": lambda: rng.choice(_LANGUAGES),
        "{N}": lambda: rng.choice(NAMES),
        "{c}": lambda: rng.choice(CITIES),
        "{d}": lambda: str(rng.randint(2, 2000)),
        "{s}": lambda: _salad(rng),
    }
    for slot, fill in slots.items():
        while slot in text:
            text = text.replace(slot, fill(), 1)
    if rng.random() < 0.15:
        text = text.lower()
    if rng.random() < 0.1:
        text = rng.choice(("Please ", "Hey, ", "Can you help me? ", "Quick question: ")) + text
    return (text,)


KINDS = (
    Kind(
        "abilities",
        0.15,
        lambda rng: (rng.choice(_HELLO),),
        lambda args: [args[0]],
        lambda args: CAN,
        lambda args: "Say what I can do.",
        has_arguments=False,
    ),
    Kind(
        "refusal",
        0.5,
        _foreign_draw,
        lambda args: [args[0]],
        lambda args: REFUSAL,
        lambda args: "This is not one of my tasks.",
    ),
)
