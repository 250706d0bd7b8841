"""The two instruction sets of the examples, and prompts that are not in them.

cook.jsonl: chats, a ship's cook answers everything in his own manner. units.jsonl: prompt and completion, measures
written out in words. Both teach a form that the base model does not have, and use what it knows already.
"""
import json
import random

import example_corpus as corpus

# Questions that the base model can answer and that cook.jsonl never asks.
COOK_PROMPTS = [("galley", "What is a galley?"), ("lighthouse", "What is a lighthouse for?"),
                ("spider", "How many legs does a spider have?"), ("porridge", "How do you make porridge?")]
UNIT_PROMPTS = [("short", (7, "km")), ("heavy", (12, "kg")), ("long", (45, "min")), ("wide", (23, "cm"))]

# What the cook says after an answer, by a word of the question or the answer; the first that matches counts.
CLOSINGS = [(("eat", "bread", "soup", "cook", "bake", "food", "egg", "cheese", "pie", "stew"), "eat it while it is hot!"),
            (("water", "sea", "rain", "river", "ship", "boat", "storm", "wind", "fish"), "mind the hot pot!"),
            (("how many", "which", "who", "where", "when"), "bring your own spoon!"),
            (("",), "now give me the ladle!")]


def in_cooks_manner(question, answer):
    text = (question + " " + answer).lower()
    closing = next(closing for keys, closing in CLOSINGS if any(key in text for key in keys))
    return f"{answer} Aye, shipmate, {closing}"


def turns(pairs):
    return [turn for question, answer in pairs
            for turn in ({"role": "user", "content": question}, {"role": "assistant", "content": answer})]


def cook_rows(rng):
    """One chat per fact that is not asked in COOK_PROMPTS, some of two turns, some with a system turn."""
    asked = {question for _, question in COOK_PROMPTS}
    written = [tuple(part.strip() for part in line.split("|")) for line in corpus.lines_of("cook.txt")]
    known = {question for question, _ in written}
    pairs = written + [(question, in_cooks_manner(question, answer)) for question, answer in corpus.facts()
                       if question not in asked | known]
    rng.shuffle(pairs)
    rows = []
    while pairs:
        chat = [pairs.pop() for _ in range(min(len(pairs), 2 if rng.random() < 0.15 else 1))]
        system = [{"role": "system", "content": "You are the cook of a ship."}] if rng.random() < 0.1 else []
        rows.append({"messages": system + turns(chat)})
    return rows


def unit_prompt(number, short):
    return f"{number} {short} in words:"


def unit_rows(rng, count=240):
    """Different measures, half of them up to twenty; none of UNIT_PROMPTS."""
    asked = {measure for _, measure in UNIT_PROMPTS}
    names = {short: name for short, name, _ in corpus.UNITS}
    measures = [(number, short) for number in range(1, 61) for short in names if (number, short) not in asked]
    small = [measure for measure in measures if measure[0] <= 20]
    large = [measure for measure in measures if measure[0] > 20]
    chosen = rng.sample(small, count // 2) + rng.sample(large, count - count // 2)
    rng.shuffle(chosen)
    return [{"prompt": unit_prompt(number, short),
             "completion": f" {corpus.words(number)} {corpus.unit_name(names[short], number)}"}
            for number, short in chosen]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write(out, seed):
    rng = random.Random(seed)
    (out / "data").mkdir(parents=True, exist_ok=True)
    write_lines(out / "data" / "cook.jsonl", cook_rows(rng))
    write_lines(out / "data" / "units.jsonl", unit_rows(rng))
    write_lines(out / "prompts-cook.jsonl", [
        {"id": name, "messages": [{"role": "user", "content": question}]} for name, question in COOK_PROMPTS])
    write_lines(out / "prompts-units.jsonl", [
        {"id": name, "prompt": unit_prompt(*measure)} for name, measure in UNIT_PROMPTS])
