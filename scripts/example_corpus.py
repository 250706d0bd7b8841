"""Text for the example model: sentences, stories, sums and chats from grammars with a seed.

Everything here was written for this purpose; rhymes.txt beside it holds old nursery rhymes and proverbs
in the public domain, fables.txt old fables in our own words, facts.txt questions and answers of our own.
`corpus(seed, count)` gives plain documents (str) and chats (lists of {role, content}); the same seed gives the
same list on every machine.
"""
import random
from pathlib import Path

TEXT = Path(__file__).resolve().parent / "example_text"

ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
        "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

# name, he/she, him/her, his/her
PEOPLE = [(name, "he", "him", "his") for name in ("Tom", "Ben", "Jack", "Sam", "Max", "Paul", "Omar", "Leo", "Finn",
                                                    "Hugo")]
PEOPLE += [(name, "she", "her", "her") for name in ("Anna", "Mia", "Lily", "Rosa", "Emma", "Nina", "Ada", "Ruth",
                                                     "Clara", "Yara")]
ROLES = ["cook", "captain", "sailor", "carpenter", "fisherman", "baker", "farmer", "teacher", "doctor", "painter"]
SHIPS = ["the Swallow", "the Morning Star", "the Blue Whale", "the Grey Gull", "the Old Lady", "the North Wind",
         "the Seven Sisters", "the Lucky Penny"]
KINDS = ["small", "big", "old", "young", "brave", "clever", "quiet", "friendly", "funny", "hungry", "tired", "proud"]
ANIMALS = ["cat", "dog", "mouse", "fox", "bear", "rabbit", "owl", "duck", "horse", "cow", "goat", "hen", "frog",
           "whale", "seal", "gull", "parrot", "monkey", "sheep", "pig", "snail", "crab"]
PLACES = ["in the harbour", "on the deck", "in the galley", "near the lighthouse", "on a small island", "by the river",
          "in the forest", "on the market", "in the village", "on the beach", "under the bridge", "on the hill"]
WEATHER = ["The sun was shining", "It was raining", "The wind was strong", "The sea was calm", "It was a cold morning",
           "It was a warm evening", "There was fog over the water", "Snow was falling", "The sky was clear",
           "The waves were high", "Dark clouds came from the west", "The moon was bright"]
FOODS = ["soup", "bread", "fish", "porridge", "stew", "cheese", "apple pie", "pancakes", "rice", "potatoes", "honey",
         "an omelette", "toast with butter", "beans", "fresh fruit", "hot tea"]
THINGS = ["key", "lamp", "map", "compass", "spoon", "rope", "bucket", "hat", "book", "coin", "ladle", "knife", "boat",
          "letter", "bell", "kettle", "box", "coat", "net", "ball"]
COLOURS = ["red", "blue", "green", "yellow", "white", "black", "brown", "grey", "orange"]
FEELINGS = ["happy", "sad", "glad", "tired", "proud", "angry", "surprised", "hungry", "afraid", "calm"]
VERBS = ["sang a song", "told a story", "went to sleep", "looked at the stars", "had dinner together", "laughed",
         "danced on the deck", "drank hot tea", "went home", "played with the cat", "washed the dishes",
         "looked out over the sea"]

UNITS = [("km", "kilometre", "length"), ("m", "metre", "length"), ("cm", "centimetre", "length"),
         ("mm", "millimetre", "length"), ("kg", "kilogram", "weight"), ("g", "gram", "weight"),
         ("t", "tonne", "weight"), ("l", "litre", "volume"), ("ml", "millilitre", "volume"),
         ("h", "hour", "time"), ("min", "minute", "time"), ("s", "second", "time"), ("d", "day", "time"),
         ("wk", "week", "time"), ("mo", "month", "time"), ("yr", "year", "time"), ("kn", "knot", "speed"),
         ("nm", "nautical mile", "length"), ("ft", "foot", "length"), ("in", "inch", "length"),
         ("lb", "pound", "weight"), ("oz", "ounce", "weight"), ("tsp", "teaspoon", "volume"),
         ("tbsp", "tablespoon", "volume"), ("doz", "dozen", "count"), ("pc", "piece", "count")]
PLURALS = {"foot": "feet", "inch": "inches", "dozen": "dozen"}
MEASURED = {"length": ["The rope is {} long.", "The ship sailed {} that day.", "The harbour is {} away.",
                       "The board is {} wide."],
            "weight": ["The bag of flour weighs {}.", "The fish weighed {}.", "The cook bought {} of potatoes.",
                       "The box weighs {}."],
            "volume": ["The pot holds {}.", "Add {} of milk.", "The jug has {} of water in it.",
                       "Pour in {} of oil."],
            "time": ["The voyage took {}.", "The job ran for {}.", "We must wait for {}.", "The cook slept for {}."],
            "speed": ["The ship makes {}.", "The wind blew at {}.", "We sailed at {}."],
            "count": ["The cook needs {} of eggs.", "There were {} of bread on the table.", "She bought {} of fruit."]}

ANIMAL_FACTS = {
    "cat": ("fish and mice", "in a house", "meow"), "dog": ("meat and bones", "in a kennel", "woof"),
    "cow": ("grass", "on a farm", "moo"), "duck": ("plants and worms", "on a pond", "quack"),
    "sheep": ("grass", "on a green hill", "baa"), "horse": ("hay and oats", "in a stable", "neigh"),
    "pig": ("roots and corn", "on a farm", "oink"), "hen": ("grain and worms", "in a coop", "cluck"),
    "owl": ("mice", "in an old tree", "hoo"), "frog": ("flies", "by the pond", "croak"),
    "mouse": ("grain and cheese", "in a hole", "squeak"), "lion": ("meat", "on the wide plain", "roar"),
    "bear": ("berries and fish", "in the forest", "growl"), "seal": ("fish", "on the cold coast", "bark"),
    "gull": ("fish and bread", "by the sea", "a loud cry"), "bee": ("nectar", "in a hive", "buzz")}

SYSTEMS = ["You are a helpful assistant.", "You answer shortly.", "You are friendly and clear.",
           "Answer in one sentence.", "You are a small model that knows about ships and food."]
ASKS = ["{}", "{}", "{}", "{}", "Please tell me: {}", "I have a question. {}", "Can you help me? {}", "Hello! {}",
        "My child asks: {}", "{} Please answer shortly."]
THANKS = [("Thank you!", "You are welcome."), ("Thanks a lot.", "You are welcome. Ask me again any time."),
          ("That is all, good bye.", "Good bye, and have a good day."), ("Good, thank you.", "I am glad to help.")]
GREETINGS = [("Hello!", "Hello! How can I help you?"), ("Good morning!", "Good morning! How can I help you?"),
             ("Hi there.", "Hi! What would you like to know?"), ("Good evening.", "Good evening! What can I do for you?")]


def lines_of(name):
    text = (TEXT / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def blocks_of(name):
    return [block.strip() for block in (TEXT / name).read_text(encoding="utf-8").split("\n\n") if block.strip()]


def facts():
    """All (question, answer) pairs of facts.txt."""
    return [tuple(part.strip() for part in line.split("|")) for line in lines_of("facts.txt")]


def words(number):
    """0 to 999 in English words."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + ("-" + ONES[number % 10] if number % 10 else "")
    rest = number % 100
    return ONES[number // 100] + " hundred" + (" and " + words(rest) if rest else "")


def unit_name(name, number):
    if number == 1:
        return name
    return PLURALS.get(name, name + "s")


def an(phrase):
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def sentence(text):
    return text[0].upper() + text[1:]


class Grammar:
    """Writes one document at a time; all choices come from the given random.Random."""

    def __init__(self, rng):
        self.rng = rng
        self.facts = facts()
        self.rhymes, self.fables = blocks_of("rhymes.txt"), blocks_of("fables.txt")

    def pick(self, items):
        return items[self.rng.randrange(len(items))]

    # ------------------------------------------------------------ plain documents

    def story(self):
        name, he, him, his = self.pick(PEOPLE)
        role, kind, place, thing = self.pick(ROLES), self.pick(KINDS), self.pick(PLACES), self.pick(THINGS)
        colour, animal, food = self.pick(COLOURS), self.pick(ANIMALS), self.pick(FOODS)
        friend = self.pick([person for person in PEOPLE if person[0] != name])
        opening = self.pick([
            f"Once upon a time there was {an(kind)} {role} called {name}. {name} lived {place}.",
            f"{name} was {an(kind)} {role}. Every day {he} worked {place}.",
            f"{self.pick(WEATHER)}, and {name} the {role} sat {place}.",
            f"One day {name} the {role} went for a walk. {self.pick(WEATHER)}."])
        middle = self.pick([
            f"One morning {name} lost {his} {colour} {thing}. {sentence(he)} looked {place} and {self.pick(PLACES)}, but it was "
            f"not there. Then {an(animal)} came and had the {thing}. \"Thank you,\" said {name}, and gave the {animal} "
            f"some {self.plain_food()}.",
            f"{sentence(he)} found {an(colour)} {thing} {self.pick(PLACES)}. \"Whose {thing} is this?\" asked {name}. \"It is "
            f"mine,\" said {friend[0]}. \"I lost it yesterday.\" {name} gave it back, and {friend[0]} was very "
            f"{self.pick(['happy', 'glad', 'surprised'])}.",
            f"{sentence(he)} saw {an(self.pick(KINDS))} {animal}. The {animal} was {self.pick(['hungry', 'cold', 'afraid', 'tired'])}. "
            f"{name} gave it some {self.plain_food()}, and from that day on the {animal} followed {him} everywhere.",
            f"{sentence(he)} wanted to cook {food} for {friend[0]}, but there was no salt. \"I have some salt,\" said the "
            f"{self.pick(ROLES)}. So they cooked {food} together, and it tasted very good.",
            f"In the night there was a storm. The waves were high, and {name} was {self.pick(['afraid', 'awake', 'cold'])}. \"Hold the "
            f"rope!\" called {friend[0]}. {name} held the rope with both hands. In the morning the sea was calm again.",
            f"{friend[0]} came to visit. \"What do you have there?\" asked {friend[0]}. \"It is {an(colour)} {thing},\" said "
            f"{name}. \"I made it for you.\" {friend[0]} was so {self.pick(['happy', 'surprised', 'glad'])} that {friend[1]} "
            f"{self.pick(['laughed', 'sang a song', 'danced'])}."])
        ending = self.pick([
            f"In the evening they {self.pick(VERBS)}.", f"After that {name} {self.pick(VERBS)}.",
            f"{name} was {self.pick(['happy', 'tired', 'glad', 'proud'])} and {self.pick(VERBS)}.",
            f"And so they became good friends.", f"That was a good day for {name}."])
        return " ".join([opening, middle, ending])

    def plain_food(self):
        return self.pick(["soup", "bread", "fish", "porridge", "cheese", "rice", "fruit", "milk", "water"])

    def voyage(self):
        ship, captain = self.pick(SHIPS), self.pick(PEOPLE)
        days = self.rng.randint(2, 19)
        cargo = self.pick(["apples", "salt", "wool", "tea", "flour", "wood", "oranges", "letters", "coal", "sugar"])
        towns = self.rng.sample(["London", "Lisbon", "Hamburg", "Bergen", "Naples", "Dublin", "Boston", "Tunis"], 2)
        parts = [f"{sentence(ship)} sailed from {towns[0]} to {towns[1]} with a cargo of {cargo}.",
                 f"The captain was {captain[0]}, and the crew had {words(self.rng.randint(5, 30))} sailors.",
                 f"{self.pick(WEATHER)} when the ship left the harbour.",
                 self.pick([f"On day {words(self.rng.randint(1, days))} the crew saw {an(self.pick(['whale', 'island', 'seal', 'storm', 'small boat']))}.",
                            f"The cook made {self.pick(FOODS)} for the whole crew.",
                            "At night the sailors looked at the stars to find the way.",
                            f"{captain[0]} wrote every day into the log book."]),
                 f"After {words(days)} days the ship reached {towns[1]}.",
                 self.pick(["The crew was tired but happy.", "The people in the harbour waved.",
                            "Then the cargo was carried to the market.", "The anchor went down, and all was quiet."])]
        return " ".join(parts)

    def recipe(self):
        dish, steps = self.pick([
            ("vegetable soup", ["Wash and cut the carrots, onions and potatoes.", "Put them in a big pot with water and salt.",
                                "Cook them slowly for thirty minutes.", "Serve the soup hot with a ladle."]),
            ("bread", ["Mix the flour, water, salt and yeast.", "Let the dough rise for one hour.",
                       "Bake it in a hot oven until it is brown.", "Let the bread cool before you cut it."]),
            ("pancakes", ["Mix two eggs, some milk and some flour.", "Heat a little butter in the pan.",
                          "Pour in the batter and wait until it is gold.", "Turn the pancake over and serve it with honey."]),
            ("porridge", ["Pour milk into a pot and heat it.", "Add one cup of oats and a little salt.",
                          "Stir until the porridge is thick.", "Eat it with honey or fruit."]),
            ("fish stew", ["Clean the fish and cut it into pieces.", "Fry the onions until they are soft.",
                           "Add water, potatoes and the fish.", "Cook it for twenty minutes and add salt."]),
            ("apple pie", ["Make a crust of flour, butter and sugar.", "Cut the apples into thin slices.",
                           "Fill the crust with the apples.", "Bake the pie until it is gold."]),
            ("tea", ["Boil fresh water in the kettle.", "Put the tea leaves in the pot.", "Pour the hot water over them.",
                     "Wait for five minutes and add a little milk."])])
        order = ["First", "Then", "After that", "At last"]
        if self.rng.random() < 0.5:
            return f"How to make {dish}. " + " ".join(steps)
        return f"To make {dish}, follow these steps. " + " ".join(
            f"{word}, {step[0].lower()}{step[1:]}" for word, step in zip(order, steps))

    def cluster(self):
        nodes, jobs = self.rng.randint(2, 12), self.rng.randint(3, 20)
        name = self.pick(PEOPLE)[0]
        return " ".join([
            f"A cluster has {words(nodes)} nodes and {words(jobs)} jobs.",
            self.pick(["Each job waits in the queue until there are free nodes.", "A big job needs many nodes, a small job needs one.",
                       "When a job ends, the next one starts at once."]),
            self.pick([f"{name} sends a job in the morning and reads the result in the evening.",
                       f"{name} looks at the log to see how far the job is.",
                       f"One node stops, but the job goes on from its last checkpoint, and {name} is glad.",
                       f"{name} asks why the job waits. The queue is full, and the job must be patient."]),
            self.pick(["A GPU works on many numbers at the same time.", "The memory of a GPU is small, so the model must fit into it.",
                       "No node should be empty while jobs wait.", "A saved state is worth more than a fast start."])])

    def weather(self):
        day = self.pick(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "Today", "Tomorrow"])
        wind = self.pick(["from the north", "from the south", "from the east", "from the west"])
        return " ".join([
            f"Weather for {day}:",
            self.pick(["In the morning there is fog.", "The day starts sunny.", "The morning is cold and clear.",
                       "It rains in the morning.", "Clouds cover the sky."]),
            f"The wind comes {wind} with {words(self.rng.randint(4, 30))} knots.",
            f"It will be {words(self.rng.randint(1, 30))} degrees.",
            self.pick(["Small boats should stay in the harbour.", "It is a good day to sail.", "Take a warm coat with you.",
                       "The sea is calm.", "In the evening a storm may come."])])

    def animal(self):
        name, (eats, lives, sound) = self.pick(sorted(ANIMAL_FACTS.items()))
        parts = [f"{sentence(an(name))} lives {lives}.", f"It eats {eats}.", f"The sound it makes is {sound}." if "cry" in sound
                 else f"{sentence(an(name))} says {sound}."]
        self.rng.shuffle(parts)
        return " ".join(part if not (index == 0 and part.startswith("It")) else f"{sentence(an(name))} eats {eats}."
                        for index, part in enumerate(parts))

    def sums(self):
        return " ".join(self.sum_line() for _ in range(self.rng.randint(2, 5)))

    def sum_line(self):
        a, b = self.rng.randint(0, 10), self.rng.randint(0, 10)
        kind = self.rng.randrange(4)
        if kind == 0:
            return f"{a} + {b} = {a + b}."
        if kind == 1:
            return f"{sentence(words(a))} and {words(b)} make {words(a + b)}."
        if kind == 2:
            return f"{a + b} - {b} = {a}."
        thing = self.pick(["apples", "fish", "ropes", "eggs", "spoons", "coins"])
        name, he, _, _ = self.pick(PEOPLE)
        a, b = a + 2, b + 2
        return f"{name} has {words(a)} {thing} and gets {words(b)} more. Now {he} has {words(a + b)} {thing}."

    def counting(self):
        start = self.rng.randint(0, 90)
        numbers = list(range(start, start + self.rng.randint(4, 10)))
        if self.rng.random() < 0.5:
            return "Count: " + ", ".join(words(number) for number in numbers) + "."
        return " ".join(f"{number} is {words(number)}." for number in numbers)

    def measure(self):
        short, name, kind = self.pick(UNITS)
        number = self.rng.randint(1, 60)
        phrase = f"{words(number)} {unit_name(name, number)}"
        parts = [self.pick(MEASURED[kind]).format(phrase)]
        parts.insert(self.rng.randrange(2), self.pick([
            f"The short form of {name} is {short}.", f"{short} is short for {name}.", f"We write {short} for {name}.",
            f"The unit {short} means {name}."]))
        if self.rng.random() < 0.6:
            parts.append(self.pick([f"We write {number} {short} and we say {phrase}.", f"{number} {short} means {phrase}.",
                                    f"The number {number} is read {words(number)}."]))
        return " ".join(parts)

    def fact_text(self):
        chosen = self.rng.sample(self.facts, self.rng.randint(2, 4))
        if self.rng.random() < 0.5:
            return " ".join(answer for _, answer in chosen)
        return "\n".join(f"Question: {question}\nAnswer: {answer}" for question, answer in chosen)

    def talk(self):
        (one, _, _, _), (two, _, _, _) = self.rng.sample(PEOPLE, 2)
        food, place = self.pick(FOODS), self.pick(PLACES)
        return self.pick([
            f"\"Where are you going?\" asked {one}. \"I am going to the harbour,\" said {two}. \"May I come with you?\" asked "
            f"{one}. \"Yes, of course,\" said {two}.",
            f"\"Are you hungry?\" asked {one}. \"Yes, I am very hungry,\" said {two}. \"Then let us eat {food},\" said {one}.",
            f"\"Look, there is {an(self.pick(ANIMALS))} {place}!\" cried {one}. \"I can see it,\" said {two}. \"It is very "
            f"{self.pick(['big', 'small', 'quiet', 'funny'])}.\"",
            f"\"What is the weather like?\" asked {one}. \"{self.pick(['It is sunny', 'It is raining', 'There is a storm', 'It is cold'])},\" said {two}. "
            f"\"Then we {self.pick(['stay here', 'can sail', 'drink hot tea', 'take our coats'])},\" said {one}.",
            f"\"Can you help me with this {self.pick(THINGS)}?\" asked {one}. \"I would love to help,\" said {two}. They worked until "
            f"the evening, and then they {self.pick(VERBS)}."])

    # ------------------------------------------------------------ chats

    def turn(self):
        """One (question, answer)."""
        kind = self.rng.random()
        if kind < 0.58:
            question, answer = self.pick(self.facts)
            return self.pick(ASKS).format(question), answer
        if kind < 0.65:
            a, b = self.rng.randint(0, 10), self.rng.randint(0, 10)
            return self.pick([(f"What is {a} + {b}?", f"{a} + {b} = {a + b}."),
                              (f"How much is {words(a)} and {words(b)}?", f"{sentence(words(a))} and {words(b)} make {words(a + b)}."),
                              (f"What is {a + b} - {b}?", f"{a + b} - {b} = {a}.")])
        if kind < 0.72:
            name, (eats, lives, sound) = self.pick(sorted(ANIMAL_FACTS.items()))
            return self.pick([(f"Where does {an(name)} live?", f"{sentence(an(name))} lives {lives}."),
                              (f"What does {an(name)} eat?", f"{sentence(an(name))} eats {eats}."),
                              (f"What is {an(name)}?", f"{sentence(an(name))} is an animal that lives {lives}."),
                              (f"Tell me about {an(name)}.", f"{sentence(an(name))} lives {lives} and eats {eats}.")])
        if kind < 0.83:
            number = self.rng.randint(0, 60)
            short, name, _ = self.pick(UNITS)
            phrase = f"{words(number)} {unit_name(name, number)}"
            return self.pick([(f"What does {number} {short} mean?", f"{number} {short} means {phrase}."),
                              (f"How do you say {number} {short}?", f"We say {phrase}."),
                              (f"How do you read the number {number}?", f"The number {number} is read {words(number)}."),
                              (f"What is {short} short for?", f"{short} is short for {name}."),
                              (f"What is the short form of {name}?", f"The short form of {name} is {short}.")])
        if kind < 0.88:
            return self.pick([("Tell me a story.", self.story()), ("Tell me about a voyage.", self.voyage()),
                              ("Tell me a fable.", self.pick(self.fables)), ("Tell me a rhyme.", self.pick(self.rhymes)),
                              ("What is the weather like?", self.weather())])
        if kind < 0.90:
            name = self.pick(PEOPLE)[0]
            return self.pick([(f"My name is {name}.", f"Hello {name}! How can I help you?"),
                              (f"My name is {name}. What is my name?", f"Your name is {name}.")])
        if kind < 0.95:
            food = self.pick(FOODS)
            other = self.pick([dish for dish in FOODS if dish != food])
            return self.pick([(f"Do you like {food}?", f"Yes, I like {food} very much."),
                              (f"Can I have some {self.plain_food()}?", "Yes, of course. Please take some."),
                              (f"Do you want {food} or {other}?", f"I would like {self.pick([food, other])}, please."),
                              (f"I am {self.pick(FEELINGS)}.", self.pick(["Tell me more about it.", "I see. What happened?"]))])
        return self.pick(GREETINGS)

    def chat(self):
        messages = []
        if self.rng.random() < 0.25:
            messages.append({"role": "system", "content": self.pick(SYSTEMS)})
        for _ in range(self.pick([1, 1, 1, 2, 2, 3])):
            question, answer = self.turn()
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        if self.rng.random() < 0.1:
            question, answer = self.pick(THANKS)
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return messages

    def document(self):
        kind = self.rng.random()
        if kind < 0.45:
            return self.chat()
        plain = [(0.59, self.story), (0.64, self.voyage), (0.67, self.recipe), (0.70, self.cluster), (0.73, self.weather),
                 (0.76, self.animal), (0.79, self.sums), (0.82, self.counting), (0.90, self.measure), (0.95, self.fact_text),
                 (0.98, self.talk), (0.99, lambda: self.pick(self.fables)), (1.0, lambda: self.pick(self.rhymes))]
        return next(write for limit, write in plain if kind < limit)()


def corpus(seed, count):
    """`count` documents: str (plain text) or list of messages (a chat)."""
    grammar = Grammar(random.Random(seed))
    return [grammar.document() for _ in range(count)]
