"""Train the same LoRA adapter with galley and with PyTorch, Transformers and PEFT in turn: speed and peak memory.

  equal   every row has the same number of tokens (512), loss on all of them, the same micro batch (2 rows)
  real    rows of an instruction file (alpaca), loss on the answers only, 8 rows a step: PEFT pads them to the longest
          of their batch, galley packs them

Both in f32 and in bf16 (PEFT: bf16 autocast). docs/comparison.md says what is done to be fair. Every round trains the
same batches on both sides, galley first; the figure of a case is the median over rounds of seconds by seconds. On a
machine that is busy with other work it is that of CPU seconds where that is less: who waits most is not who is slowest.
Losses of the first round are compared, the first step's within a small allowance: the adapter starts at B = 0.

The last line printed has the figures. Exit codes: 0 all aims reached, 1 wrong (losses or tokens differ, a side fails)
or behind PEFT (slower, or more memory), 2 usage or something is missing, 4 an aim is missed.
"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import compare_peft_order as order
from compare_peft_galley import Failure, Missing, run_round

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EQUAL_TOKENS, EQUAL_ROWS, REAL_ROWS, REAL_SEQUENCE = 512, 2, 8, 2048
SPEED_AIM = {"equal": 1.4, "real": 3.0}
MEMORY_AIM = 0.5
# Of the loss before any update, and of those after it (the two sides draw A from other random numbers).
FIRST_LOSS = {"f32": 1e-3, "bf16": 2e-2}
LATER_LOSS = 0.05
BUSY_SHARE = 0.85  # of its cores that galley gets on a machine of its own, at least
CASES = ["equal-f32", "equal-bf16", "real-f32", "real-bf16"]


def say(text):
    print(text, flush=True)


def parse(argv):
    parser = argparse.ArgumentParser(prog="compare_peft", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--galley", type=Path, default=ROOT / "build/galley",
                        help="the program (default: build/galley)")
    parser.add_argument("--model", type=Path, help="Hugging Face folder of a Llama model (default: SmolLM2-135M in "
                        ".models, fetched when missing)")
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data/datasets/alpaca_en_demo.json",
                        help="JSON array of instruction, input, output (default: alpaca_en_demo.json of ../shared)")
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ",".join(CASES) + " (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a round (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(default: all cores)")
    parser.add_argument("--attention", choices=["auto", "eager", "sdpa"], default="auto",
                        help="of PEFT's side; auto: whichever is faster here")
    parser.add_argument("--weights", choices=["auto", "f32", "bf16"], default="auto",
                        help="of PEFT's side under bf16 autocast; auto: whichever is faster here")
    parser.add_argument("--quick", action="store_true", help="one round of one timed step")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep job files, logs and run directories there")
    parser.add_argument("--check-options", action="store_true", help=argparse.SUPPRESS)  # before anything is installed
    options = parser.parse_args(argv)
    options.cases = [name for name in options.cases.split(",") if name]
    unknown = [name for name in options.cases if name not in CASES]
    if unknown or not options.cases:
        parser.error(f"--cases {','.join(unknown)}: choose from {', '.join(CASES)}")
    if options.quick:
        options.rounds = options.steps = 1
    if min(options.rounds, options.steps, options.threads) < 1:
        parser.error("--rounds, --steps and --threads are at least 1")
    return options


def model_folder(options):
    if options.model:
        if not (options.model / "config.json").is_file():
            raise Missing(f"{options.model} is no model folder (no config.json)")
        return options.model.resolve()
    folder = ROOT / ".models/smollm2-135m"
    done = subprocess.run([ROOT / "scripts/fetch-model", "smollm2-135m", folder], stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Missing("scripts/fetch-model failed; give a model folder with --model")
    return folder


def write_equal_rows(path, count):
    """Rows of English, each longer than the sequence: sentences of the example texts in a seeded order."""
    sentences = [line.strip() for file in sorted((ROOT / "scripts/example_text").glob("*.txt"))
                 for line in file.read_text(encoding="utf-8").splitlines() if len(line.split()) > 3]
    draw, rows = random.Random(1), []
    for _ in range(count):
        words = []
        while len(words) < 2 * EQUAL_TOKENS:
            words += draw.choice(sentences).split()
        rows.append({"text": " ".join(words)})
    path.write_text(json.dumps(rows), encoding="utf-8")


def case_of(name, options, model, folder):
    """What both sides need to know of a case."""
    kind, precision = name.split("-")
    case = {"name": name, "kind": kind, "precision": precision, "model": str(model), "threads": options.threads,
            "rank": 16, "alpha": 32, "targets": TARGETS, "learning_rate": 2e-4, "clip": 1.0,
            "attention": options.attention, "weights": options.weights if precision == "bf16" else "f32"}
    if kind == "equal":
        data = folder / "equal.json"
        write_equal_rows(data, EQUAL_ROWS * (options.steps + 1))
        return case | {"data": str(data), "loss": "all", "sequence": EQUAL_TOKENS, "batch_rows": EQUAL_ROWS,
                       "micro_batch_tokens": EQUAL_TOKENS * EQUAL_ROWS, "tuning_batch": [0]}
    if not options.data.is_file():
        raise FileNotFoundError(f"no file {options.data}; give one with --data")
    return case | {"data": str(options.data.resolve()), "loss": "completion", "sequence": REAL_SEQUENCE,
                   "batch_rows": REAL_ROWS, "tuning_batch": [0, 1]}


class PeftSide:
    """The process of compare_peft_trainer.py. It waits while galley runs."""

    def __init__(self, case, folder):
        self.log = folder / f"{case['name']}-peft.log"
        threads = str(case["threads"])
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1",
                                    "TOKENIZERS_PARALLELISM": "false"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([sys.executable, ROOT / "scripts/compare_peft_trainer.py"], text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment)

    def ask(self, request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer says it
        answer = self.process.stdout.readline()
        if not answer:
            lines = self.log.read_text(errors="replace").splitlines()[-15:]
            raise Failure("PEFT's side ended:\n" + "\n".join(lines))
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def tune(case, folder):
    """PEFT's fastest settings, found in a process of its own: the tries leave their mark in its peak memory."""
    if "auto" not in (case["attention"], case["weights"]):
        return case
    with PeftSide(case, folder) as peft:
        found = peft.ask(case | {"only_tune": True})
    for what, seconds in found["times"].items():
        say(f"  PEFT with {what}: {seconds:.2f} s for a short step")
    return case | {"attention": found["attention"], "weights": found["weights"]}


def check_round(case, rows, batches, galley, peft, first_step):
    """Faults of one round, as text: other tokens or targets than PEFT's, other losses."""
    faults = []
    for what, column in (("tokens", 0), ("targets", 1)):
        wanted = [sum(rows[row][column] for row in batch) for batch in batches]
        if galley[what] != wanted:
            faults.append(f"galley trained {galley[what]} {what}, PEFT's side has {wanted}")
        if peft[what] != wanted[-len(peft[what]):]:
            faults.append(f"PEFT trained {peft[what]} {what} of {wanted}")
    if not first_step:
        return faults
    for step, (ours, theirs) in enumerate(zip(galley["losses"], peft["losses"]), 1):
        allowed = FIRST_LOSS[case["precision"]] if step == 1 else LATER_LOSS
        if not abs(ours - theirs) <= allowed:
            faults.append(f"step {step}: loss {ours:.5f}, PEFT's {theirs:.5f}, more than {allowed:g} apart")
    return faults


def run_case(case, options, folder):
    """All rounds of a case; raises Failure where the sides do not do the same."""
    rounds = []
    with PeftSide(case, folder) as side:
        start = side.ask(case)
        say(f"  PEFT: {case['attention']} attention, {case['weights']} weights, "
            + ", ".join(f"{name} {version}" for name, version in start["versions"].items()))
        for seed in range(1, options.rounds + 1):
            batches = order.batches(seed, len(start["rows"]), case["batch_rows"], options.steps + 1)
            galley = run_round(options.galley, case, folder, seed, 1, options.steps)
            first = seed == 1  # PEFT's process stays: only its first round has a first step
            peft = side.ask({"batches": batches if first else batches[1:], "untimed": 1 if first else 0,
                             "restart": True})
            faults = check_round(case, start["rows"], batches, galley, peft, first)
            if faults:
                raise Failure(f"{case['name']}: " + "; ".join(faults))
            rounds.append({"galley": galley, "peft": peft})
            say(f"  round {seed}: galley {galley['seconds']:.2f} s, PEFT {peft['seconds']:.2f} s for "
                f"{sum(galley['targets'][1:])} targets "
                f"(CPU {galley['cpu_seconds']:.1f} s, {peft['cpu_seconds']:.1f} s)")
    return figures(case, start, rounds, options.steps)


def figures(case, start, rounds, steps):
    """Medians, ratios and spreads of a case."""
    timed = slice(-steps, None)

    def rate(side, what):
        return statistics.median(sum(one[side][what][timed]) / one[side]["seconds"] for one in rounds)

    ratios = [one["peft"]["seconds"] / one["galley"]["seconds"] for one in rounds]
    cpu_ratios = [one["peft"]["cpu_seconds"] / max(one["galley"]["cpu_seconds"], 1e-3) for one in rounds]
    speed, cpu_speed = statistics.median(ratios), statistics.median(cpu_ratios)
    cores = statistics.median(one["galley"]["cpu_seconds"] / one["galley"]["seconds"] for one in rounds)
    busy = cores < BUSY_SHARE * case["threads"]
    peak = {side: max(one[side]["peak_bytes"] for one in rounds) for side in ("galley", "peft")}
    positions = sum(sum(one["peft"]["positions"][timed]) for one in rounds)
    tokens = sum(sum(one["peft"]["tokens"][timed]) for one in rounds)
    first = rounds[0]
    return {
        "case": case["name"], "kind": case["kind"], "speed": min(speed, cpu_speed) if busy else speed,
        "busy": busy, "core_share": cores / case["threads"], "wall_speed": speed, "ratios": ratios,
        "cpu_speed": cpu_speed, "cpu_ratios": cpu_ratios,
        "rates": {side: {what: rate(side, what) for what in ("targets", "tokens")} for side in ("galley", "peft")},
        "padding": 1 - tokens / positions, "peak_bytes": peak, "memory": peak["galley"] / peak["peft"],
        "peft_settings": {key: case[key] for key in ("attention", "weights")},
        "peft_import_bytes": start["import_bytes"],
        "planned_bytes": first["galley"]["planned_bytes"],
        "others_bytes": max(one["galley"]["others_bytes"] for one in rounds),
        "between_steps": max(1 - one["galley"]["own_seconds"] / one["galley"]["seconds"] for one in rounds),
        "loss": [first["galley"]["losses"][0], first["peft"]["losses"][0]], "versions": start["versions"]}


def report(found):
    rates, peak = found["rates"], found["peak_bytes"]
    say(f"  target tokens/s   galley {rates['galley']['targets']:.0f}, PEFT {rates['peft']['targets']:.0f}: "
        f"{found['wall_speed']:.2f}x ({min(found['ratios']):.2f} to {max(found['ratios']):.2f}), by CPU time "
        f"{found['cpu_speed']:.2f}x ({min(found['cpu_ratios']):.2f} to {max(found['cpu_ratios']):.2f})")
    if found["busy"]:
        say(f"  other work was running here, galley had {found['core_share']:.0%} of its cores: the lesser ratio "
            "counts")
    say(f"  tokens/s          galley {rates['galley']['tokens']:.0f}, PEFT {rates['peft']['tokens']:.0f}; "
        f"{found['padding']:.0%} of PEFT's positions are padding")
    say(f"  peak memory       galley {peak['galley'] / 1e6:.0f} MB (planned {found['planned_bytes'] / 1e6:.0f}; "
        f"{found['others_bytes'] / 1e6:.0f} more in launch, mpirun and ranks), PEFT {peak['peft'] / 1e6:.0f} MB "
        f"({found['peft_import_bytes'] / 1e6:.0f} before the model): {found['memory']:.2f}")
    say(f"  first loss        galley {found['loss'][0]:.5f}, PEFT {found['loss'][1]:.5f}")


def verdict(results):
    """(exit code, last line)."""
    code, parts = 0, []
    for found in results:
        aim = SPEED_AIM[found["kind"]]
        parts.append(f"{found['case']} {found['speed']:.2f}x (aim {aim:g}) "
                     f"memory {found['memory']:.2f} (aim {MEMORY_AIM:g})")
        if found["speed"] < 1 or found["memory"] > 1:
            code = 1
        elif code == 0 and (found["speed"] < aim or found["memory"] > MEMORY_AIM):
            code = 4
    return code, "compare_peft: " + "; ".join(parts)


def compare(options, folder):
    model, results, refused = model_folder(options), [], []
    tuned = {}  # precision -> PEFT's settings; what is fastest for one form of rows is so for the other
    for name in options.cases:
        try:
            case = case_of(name, options, model, folder)
        except FileNotFoundError as why:
            refused.append(f"{name} refused: {why}")
            say(refused[-1])
            continue
        say(f"{name}: {options.rounds} rounds of {options.steps} steps of {case['batch_rows']} rows, "
            f"{options.threads} threads")
        if case["precision"] not in tuned:
            found = tune(case, folder)
            tuned[case["precision"]] = {key: found[key] for key in ("attention", "weights")}
        results.append(run_case(case | tuned[case["precision"]], options, folder))
        report(results[-1])
    if not results:
        raise Missing("no case is left")
    code, line = verdict(results)
    if options.json:
        options.json.write_text(json.dumps({"code": code, "threads": options.threads, "refused": refused,
                                            "cases": results}, indent=2) + "\n", encoding="utf-8")
    say(line + "".join(f"; {text.split(':')[0]}" for text in refused))
    return code


def main(argv):
    options = parse(argv)
    if options.check_options:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that both sides are ended and the folder is removed
    if not os.access(options.galley, os.X_OK) or not options.galley.is_file():
        print(f"compare_peft: no program {options.galley}; build it with make, or give --galley PATH", file=sys.stderr)
        return 2
    try:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            return compare(options, options.keep.resolve())
        with tempfile.TemporaryDirectory(prefix="galley-compare-") as folder:
            return compare(options, Path(folder))
    except Failure as why:
        print(f"compare_peft: {why}", file=sys.stderr)
        return 1
    except (Missing, OSError) as why:
        print(f"compare_peft: {why}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
