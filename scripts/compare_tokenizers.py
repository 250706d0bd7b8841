"""Encodes the same texts with galley and with Hugging Face's tokenizers, in turn; see compare_tokenizers."""

import argparse
import array
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

AIM_MB_PER_SECOND = 10.0  # and core, on every kind of text that people write
FLOOR_MB_PER_SECOND = 5.0
HERE = pathlib.Path(__file__).resolve().parent

HELP = """\
Every kind of text goes through both libraries: equal ids are required, then each is timed, in turn, on one thread and
on all cores. MB are 10^6 bytes of text.

kinds of text: prose, code, numbers, chinese, accents, emoji, mixed, chat: what people write; the aims hold for them.
stress kinds: blanks (long runs), unbroken (no blank at all), one-word, one-letter, one-space (a megabyte without a
break), newlines, punctuation, added (added tokens and what only starts like one): equal ids, and a tenth of the floor.

exit codes: 0 all is well; 1 ids differ, or a kind of text is below 5 MB/s per core or below half the peer's speed;
2 cannot compare; 4 an aim is missed: 10 MB/s per core, and faster than the peer, on every kind of text
"""


def prose():
    text = "".join(path.read_text() for path in sorted((HERE / "example_text").glob("*.txt")))
    return [part for part in text.split("\n\n") if part.strip()]


def code():
    return [(HERE / name).read_text() for name in ("compare_tokenizers.py", "example_data.py", "make_example_model.py")]


def words_of(draw, alphabets, low, high):
    alphabet = draw.choice(alphabets)
    return "".join(chr(draw.randint(*alphabet)) for _ in range(draw.randint(low, high)))


class Texts:
    """Documents of each kind, about `size` bytes in all; the same for the same seed."""

    def __init__(self, size, seed):
        self.size, self.draw = size, random.Random(seed)
        self.prose, self.code = prose(), code()
        self.words = " ".join(self.prose).split()

    def fill(self, piece, document_bytes=6000):
        documents, have = [], 0
        while have < self.size:
            parts, length = [], 0
            while length < document_bytes and have + length < self.size:
                parts.append(piece())
                length += len(parts[-1].encode())
            documents.append("".join(parts))
            have += length
        return documents

    def sentence(self):
        """Words in a new order, every twentieth invented: caches of words must not see only what they know."""
        invent = lambda: "".join(self.draw.choices("etaoinshrdlucmfwypvbgk", k=self.draw.randint(3, 11)))
        return " ".join(invent() if self.draw.random() < 0.05 else self.draw.choice(self.words)
                        for _ in range(self.draw.randint(4, 25))).capitalize() + self.draw.choice([". ", "! ", "?\n", ".\n\n"])

    def kinds(self, added):
        draw = self.draw
        emoji = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "🤷🏻‍♀️", "☕", "中", " and "]
        latin = [(0xE0, 0xFF), (0x430, 0x44F), (0x3B1, 0x3C9), (0x61, 0x7A), (0x627, 0x64A), (0x905, 0x939)]
        return {
            "prose": lambda: self.fill(self.sentence),
            "code": lambda: self.fill(lambda: draw.choice(self.code)[draw.randint(0, 2000):]),
            "numbers": lambda: self.fill(lambda: f"{draw.randint(0, 10**draw.randint(1, 12))}, {draw.random():.5f}; "),
            "chinese": lambda: self.fill(lambda: words_of(draw, [(0x4E00, 0x6FFF)], 3, 30) + draw.choice("，。！？\n")),
            "accents": lambda: self.fill(lambda: words_of(draw, latin, 2, 11) + draw.choice([" ", " ", " ", ", ", ".\n"])),
            "emoji": lambda: self.fill(lambda: draw.choice(emoji)),
            "mixed": lambda: self.fill(lambda: draw.choice([
                draw.choice(self.prose), words_of(draw, [(0x4E00, 0x6FFF)], 3, 30), draw.choice(emoji),
                words_of(draw, latin, 2, 11) + " ", f"{draw.randint(0, 10**9)} "])),
            "chat": lambda: self.fill(lambda: draw.choice(self.prose)[:draw.randint(5, 300)], 400),
        }, {
            "blanks": lambda: self.fill(lambda: draw.choice([" ", "\t", "\n", "\r\n"]) * draw.randint(1, 300) + "x"),
            "unbroken": lambda: self.fill(lambda: "".join(
                draw.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/", k=200)), 100_000),
            "one-word": lambda: ["".join(draw.choices("abcdefghij", k=1_000_000))],
            "one-letter": lambda: ["a" * 1_000_000],
            "one-space": lambda: [" " * 1_000_000],
            "newlines": lambda: ["\n" * 500_000 + "x" + " \n" * 250_000],
            "punctuation": lambda: self.fill(lambda: "".join(draw.choices("!-=*#_.~'\"", k=draw.randint(1, 500)))),
            "added": lambda: self.fill(lambda: draw.choice(added + ["<|", "<", "<s", "[", "word "])),
        }


class Galley:
    def __init__(self, program, path):
        self.process = subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.load = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"compare_tokenizers: bench_tokenizer ended with {self.process.wait()}")
        return json.loads(line)

    def encode(self, path, threads, ids=None):
        self.process.stdin.write(f"{path} {threads}{' ' + str(ids) if ids else ''}\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Peer:
    def __init__(self, path):
        import tokenizers
        begin = time.perf_counter()
        self.tokenizer = tokenizers.Tokenizer.from_file(path)
        self.load = time.perf_counter() - begin
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.encode_batch = getattr(self.tokenizer, "encode_batch_fast", self.tokenizer.encode_batch)

    def encode(self, texts, threads):
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        begin, processor = time.perf_counter(), time.process_time()
        encodings = self.encode_batch(texts)
        return {"seconds": time.perf_counter() - begin, "processor_seconds": time.process_time() - processor}, encodings


def first_difference(ours, encodings):
    """Index of the first text whose ids differ, or None."""
    values, at = array.array("i", ours), 0
    for index, encoding in enumerate(encodings):
        end = values.index(-1, at)
        if values[at:end].tolist() != encoding.ids:
            return index
        at = end + 1
    return None if at == len(values) else len(encodings)


def compare_kind(galley, peer, texts, threads, options, folder):
    """Ratios and rates of one kind on some threads; None when ids differ."""
    path, ids = folder / "texts", folder / "ids"
    path.write_bytes(b"".join(text.encode() + b"\0" for text in texts))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    galley.encode(path, threads, ids)  # the first rounds fill caches
    _, encodings = peer.encode(texts, threads)
    difference = first_difference(ids.read_bytes(), encodings)
    if difference is not None:
        print(f"  ids differ in text {difference}: {texts[difference][:80]!r}" if difference < len(texts) else "  texts missing")
        return None
    del encodings
    clock = "processor_seconds" if options.cpu_time else "seconds"
    ours, theirs = [], []
    for _ in range(options.samples):
        ours.append(max(galley.encode(path, threads)[clock], 1e-9))
        theirs.append(max(peer.encode(texts, threads)[0][clock], 1e-9))
    per = 1 if options.cpu_time else threads
    rates = [megabytes / per / statistics.median(times) for times in (ours, theirs)]
    ratio = statistics.median(their / our for our, their in zip(ours, theirs))
    return {"galley": rates[0], "peer": rates[1], "ratio": ratio}


def main():
    parser = argparse.ArgumentParser(
        prog="compare_tokenizers", epilog=HELP, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Ids and speed of galley's tokenizer beside Hugging Face's tokenizers, in one run.")
    parser.add_argument("--program", default=HERE.parent / "build/release/tests/bench/bench_tokenizer", metavar="PATH",
                        help="bench_tokenizer (default: build/release/tests/bench/bench_tokenizer)")
    parser.add_argument("--tokenizer", action="append", default=[], metavar="PATH",
                        help="tokenizer.json, or a folder with one; several times (default: those of GALLEY_SMOLLM2 and "
                             "GALLEY_REFERENCE)")
    parser.add_argument("--kinds", default="", metavar="NAME[,NAME]", help="only these kinds of text")
    parser.add_argument("--megabytes", type=float, default=2.0, metavar="X", help="of each kind (default: 2)")
    parser.add_argument("--samples", type=int, default=3, metavar="N", help="of each side, in turn (default: 3)")
    parser.add_argument("--threads", default=f"1,{len(os.sched_getaffinity(0))}", metavar="N[,N]",
                        help="default: 1 and all cores")
    parser.add_argument("--cpu-time", action="store_true",
                        help="count processor time, for a machine that others load; it hides waiting")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--check-options", action="store_true", help=argparse.SUPPRESS)  # before anything is installed
    options = parser.parse_args()
    wanted = [kind for kind in options.kinds.split(",") if kind]
    written, stress = Texts(1000, options.seed).kinds(["<|a|>"])
    unknown = set(wanted) - set(written) - set(stress)
    if unknown:
        parser.error(f"--kinds: there is no {', '.join(sorted(unknown))}; choose from {', '.join([*written, *stress])}")
    if options.check_options:
        return 0

    paths = [pathlib.Path(path) for path in options.tokenizer]
    if not paths:
        reference = pathlib.Path(os.environ.get("GALLEY_REFERENCE", HERE.parent.parent / "shared/reference"))
        model = pathlib.Path(os.environ.get("GALLEY_SMOLLM2", HERE.parent / ".models/smollm2-135m"))
        paths = [path for path in [model, *sorted((reference / "tokenizers").glob("*"))] if (path / "tokenizer.json").exists()]
    files = [path / "tokenizer.json" if path.is_dir() else path for path in paths]
    if not files or not pathlib.Path(options.program).exists():
        print("compare_tokenizers: " + (f"build {options.program} first: ninja -C build/release bench_tokenizer" if files else
                                        "no tokenizer is here; name one with --tokenizer"), file=sys.stderr)
        return 2
    threads = sorted({int(count) for count in options.threads.split(",")})

    results, differing = [], []
    print(f"{'tokenizer':12} {'text':12} {'threads':>7} {'galley':>10} {'peer':>10}  MB/s per core   galley / peer", flush=True)
    for file in files:
        name = file.parent.name
        galley, peer = Galley(str(options.program), str(file)), Peer(str(file))
        print(f"{name:12} {'(loading)':12} {1:7d} {galley.load['seconds']:9.3f}s {peer.load:9.3f}s {'':16}"
              f"{peer.load / galley.load['seconds']:8.2f}x", flush=True)
        added = [token["content"] for token in json.loads(file.read_text())["added_tokens"]][:50] or ["<|a|>"]
        written, stress = Texts(int(options.megabytes * 1e6), options.seed).kinds(added)
        for kind, make in (written | stress).items():
            if wanted and kind not in wanted:
                continue
            texts = make()
            for count in threads:
                if count > 1 and len(texts) == 1:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    result = compare_kind(galley, peer, texts, count, options, pathlib.Path(folder))
                if result is None:
                    differing.append(f"{name}/{kind}")
                    continue
                results.append({**result, "name": f"{name}/{kind}", "threads": count, "written": kind in written})
                print(f"{name:12} {kind:12} {count:7d} {result['galley']:10.2f} {result['peer']:10.2f} {'':16}"
                      f"{result['ratio']:8.2f}x", flush=True)
        galley.close()
    return verdict(results, differing)


def verdict(results, differing):
    if differing:
        print(f"compare_tokenizers: ids differ: {', '.join(sorted(set(differing)))}")
        return 1
    judged = [result for result in results if result["written"]]
    stressed = [result for result in results if not result["written"]]
    too_slow = [r["name"] for r in judged if r["galley"] < FLOOR_MB_PER_SECOND or r["ratio"] < 0.5]
    too_slow += [r["name"] for r in stressed if r["galley"] < FLOOR_MB_PER_SECOND / 10]
    missed = [r["name"] for r in judged if r["galley"] < AIM_MB_PER_SECOND or r["ratio"] <= 1]
    for label, names in (("below the floor", too_slow), ("an aim is missed", missed)):
        if names:
            print(f"{label}: {', '.join(sorted(set(names)))}")
    shown = judged or stressed
    slowest, closest = min(shown, key=lambda r: r["galley"]), min(shown, key=lambda r: r["ratio"])
    mean = math.exp(statistics.fmean(math.log(r["ratio"]) for r in shown))
    print(f"compare_tokenizers: ids equal; slowest {slowest['galley']:.1f} MB/s per core ({slowest['name']}), "
          f"{mean:.2f}x the peer, at least {closest['ratio']:.2f}x ({closest['name']})")
    return 1 if too_slow else 4 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
