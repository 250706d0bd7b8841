"""scripts/compare_peft: what needs neither PyTorch nor a model. Standard library only."""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import compare_peft  # noqa: E402
import compare_peft_galley as galley_side  # noqa: E402
import compare_peft_order as order  # noqa: E402
import compare_peft_trainer as peft_side  # noqa: E402

SCRIPT = ROOT / "scripts/compare_peft"


def a_case(**changed):
    return {"name": "equal-f32", "kind": "equal", "precision": "f32", "model": "models/a \"b\"", "data": "rows.json",
            "loss": "all", "sequence": 512, "batch_rows": 2, "rank": 16, "alpha": 32, "targets": compare_peft.TARGETS,
            "learning_rate": 2e-4, "clip": 1.0, "threads": 2, "attention": "sdpa", "weights": "f32"} | changed


def a_round(seconds, peak, targets=(10, 10)):
    return {"seconds": seconds, "cpu_seconds": 2 * seconds, "own_seconds": seconds, "peak_bytes": peak,
            "planned_bytes": peak, "others_bytes": 7, "losses": [2.0, 1.9], "tokens": [12, 12],
            "targets": list(targets), "positions": [24, 24]}


def found_for(kind="equal", galley_seconds=1.0, peft_seconds=2.0, galley_peak=100, peft_peak=400):
    case = a_case(kind=kind, name=kind + "-f32")
    start = {"import_bytes": 1, "versions": {}}
    rounds = [{"galley": a_round(galley_seconds * f, galley_peak), "peft": a_round(peft_seconds, peft_peak)}
              for f in (0.5, 1, 2)]
    return compare_peft.figures(case, start, rounds, steps=1)


class Order(unittest.TestCase):
    def test_philox_has_the_published_values(self):
        """Random123's known answers for philox4x32 with ten rounds."""
        ones = 0xFFFFFFFF
        self.assertEqual(order.philox((0, 0, 0, 0), (0, 0)), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8))
        self.assertEqual(order.philox((ones,) * 4, (ones,) * 2), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD))

    def test_order_is_galleys(self):
        """Row numbers of a run of galley (seed 1, 999 rows): its steps had these tokens and targets in metrics.csv."""
        self.assertEqual(order.batches(1, 999, 8, 1), [[734, 143, 951, 708, 905, 661, 25, 215]])

    def test_hash_takes_short_inputs_only(self):
        for size in (3, 17):
            with self.assertRaises(ValueError):
                order.hash64(b"x" * size)

    def test_each_epoch_has_every_row_once_in_another_order(self):
        steps = order.batches(5, 10, 4, 6)
        self.assertEqual([len(batch) for batch in steps], [4, 4, 2, 4, 4, 2])
        first, second = sum(steps[:3], []), sum(steps[3:], [])
        self.assertEqual(sorted(first), list(range(10)))
        self.assertEqual(sorted(second), list(range(10)))
        self.assertNotEqual(first, second)
        self.assertNotEqual(order.batches(6, 10, 4, 3), steps[:3])


class Galley(unittest.TestCase):
    def test_job_file_says_what_the_case_says(self):
        text = galley_side.job_text(a_case(micro_batch_tokens=1024), seed=3, steps=4)
        (job,) = tomllib.loads(text)["train"]
        self.assertEqual(job["model"], 'models/a "b"')
        self.assertEqual(job["adapter"], {"rank": 16, "alpha": 32, "targets": compare_peft.TARGETS})
        self.assertEqual(job["optimizer"], {"learning_rate": 2e-4, "clip_norm": 1.0})
        self.assertEqual((job["seed"], job["length"], job["precision"]), (3, {"steps": 4}, "f32"))
        self.assertEqual(job["plan"], {"threads": 2, "micro_batch_tokens": 1024})
        (free,) = tomllib.loads(galley_side.job_text(a_case(), seed=1, steps=1))["train"]
        self.assertEqual(free["plan"], {"threads": 2})

    def test_half_a_line_of_metrics_is_not_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "metrics.csv"
            self.assertEqual(galley_side.read_metrics(path), [])
            path.write_text("step,loss\n1,2.5\n2,2.")
            self.assertEqual(galley_side.read_metrics(path), [{"step": "1", "loss": "2.5"}])

    def test_memory_of_worker_and_others(self):
        with tempfile.TemporaryDirectory() as folder:
            proc = Path(folder)

            def put(pid, command, mark, children=""):
                (proc / str(pid) / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
                (proc / str(pid) / "status").write_text(f"Name: x\nVmHWM:\t  {mark} kB\n")
                (proc / str(pid) / "cmdline").write_bytes(b"\0".join(command))
                (proc / str(pid) / "task" / str(pid) / "children").write_text(children)
                (proc / str(pid) / "stat").write_text(f"{pid} (a b) S " + " ".join(["1"] * 10) + " 150 50 0\n")

            put(1, [b"galley", b"launch"], 10, "2 ")
            put(2, [b"galley", b"run"], 20, "3 4")
            put(3, [b"galley", b"run"], 20)  # forked, not yet a worker
            watch = galley_side.MemoryWatch(1, folder)
            watch.look()  # 4 has ended already
            self.assertEqual(watch.worker_bytes(), 0)
            put(3, [b"galley", b"worker", b"--parent"], 500)
            watch.look()
            put(3, [b"galley", b"worker", b"--parent"], 400)
            watch.look()
            self.assertEqual(watch.worker_bytes(), 500 * 1024)
            self.assertEqual(watch.others_bytes(), 30 * 1024)
            self.assertAlmostEqual(watch.worker_cpu_seconds(), 200 / os.sysconf("SC_CLK_TCK"))

    def test_a_run_that_fails_is_a_failure_with_its_log(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "galley"
            program.write_text("#!/bin/sh\necho the model is broken >&2\nexit 65\n")
            program.chmod(0o755)
            with self.assertRaisesRegex(galley_side.Failure, "65 after 0 of 2 steps(.|\n)*the model is broken"):
                galley_side.run_round(program, a_case(), Path(folder), 1, 1, 1)


class Checks(unittest.TestCase):
    ROWS = [[5, 4], [7, 6], [3, 2], [9, 8]]
    BATCHES = [[0, 1], [2, 3]]

    def faults(self, first_step=True, precision="f32", **changed):
        galley = {"tokens": [12, 12], "targets": [10, 10], "losses": [2.0, 1.9]}
        peft = {"tokens": [12, 12], "targets": [10, 10], "losses": [2.0005, 1.92]}
        for name, value in changed.items():
            side, what = name.split("_")
            (galley if side == "galley" else peft)[what] = value
        return compare_peft.check_round(a_case(precision=precision), self.ROWS, self.BATCHES, galley, peft, first_step)

    def test_equal_work_has_no_fault(self):
        self.assertEqual(self.faults(), [])
        self.assertEqual(self.faults(first_step=False, peft_tokens=[12], peft_targets=[10], peft_losses=[9.0]), [])

    def test_other_tokens_targets_and_losses_are_faults(self):
        self.assertIn("12, 11", self.faults(galley_tokens=[12, 11])[0])
        self.assertIn("targets", self.faults(galley_targets=[10, 11])[0])
        self.assertIn("PEFT trained", self.faults(peft_targets=[10, 9])[0])
        self.assertIn("step 1: loss 2.00200", self.faults(galley_losses=[2.002, 1.9])[0])
        self.assertIn("step 2", self.faults(galley_losses=[2.0, 1.8])[0])
        self.assertTrue(self.faults(galley_losses=[float("nan"), 1.9]))

    def test_bf16_is_allowed_more(self):
        self.assertEqual(self.faults(precision="bf16", galley_losses=[2.01, 1.9]), [])
        self.assertTrue(self.faults(precision="bf16", galley_losses=[2.03, 1.9]))


class Verdict(unittest.TestCase):
    def test_figures_are_medians_and_ratios(self):
        found = found_for()
        self.assertEqual((found["speed"], sorted(found["ratios"])), (2.0, [1.0, 2.0, 4.0]))
        self.assertEqual(found["memory"], 0.25)
        self.assertEqual(found["rates"]["peft"], {"targets": 5.0, "tokens": 6.0})
        self.assertEqual(found["padding"], 0.5)

    def test_on_a_busy_machine_cpu_time_decides_where_it_says_less(self):
        def found(galley_cpu, peft_cpu):
            one = {"galley": a_round(1.0, 1) | {"cpu_seconds": galley_cpu},
                   "peft": a_round(4.0, 1) | {"cpu_seconds": peft_cpu}}
            return compare_peft.figures(a_case(threads=2), {"import_bytes": 1, "versions": {}}, [one], steps=1)

        self.assertEqual((found(2.0, 3.0)["busy"], found(2.0, 3.0)["speed"]), (False, 4.0))
        self.assertEqual((found(1.0, 1.5)["busy"], found(1.0, 1.5)["speed"]), (True, 1.5))
        self.assertEqual((found(1.0, 5.0)["busy"], found(1.0, 5.0)["speed"]), (True, 4.0))

    def test_codes(self):
        codes = [compare_peft.verdict([found])[0] for found in (
            found_for(), found_for(peft_seconds=1.3), found_for(kind="real"), found_for(kind="real", peft_seconds=3.1),
            found_for(galley_peak=201), found_for(peft_seconds=0.9), found_for(galley_peak=401))]
        self.assertEqual(codes, [0, 4, 4, 0, 4, 1, 1])

    def test_the_worst_case_decides_and_the_line_has_all(self):
        code, line = compare_peft.verdict([found_for(peft_seconds=0.9), found_for(kind="real")])
        self.assertEqual(code, 1)
        self.assertEqual(compare_peft.verdict([found_for(kind="real"), found_for()])[0], 4)
        self.assertIn("equal-f32 0.90x (aim 1.4) memory 0.25 (aim 0.5); real-f32 2.00x (aim 3)", line)


class PeftSide(unittest.TestCase):
    class Tokenizer:
        """One token for each word."""

        def apply_chat_template(self, messages, add_generation_prompt=False, return_dict=True):
            words = sum(([turn["role"]] + turn["content"].split() for turn in messages), [])
            return words + (["assistant"] if add_generation_prompt else [])

        def __call__(self, text):
            return {"input_ids": text.split()}

    def test_only_the_answer_is_learnt(self):
        ids, labels = peft_side.chat_row(self.Tokenizer(), {"instruction": "say", "input": "a b", "output": "c d"})
        self.assertEqual(ids, ["user", "say", "a", "b", "assistant", "c", "d"])
        self.assertEqual(labels, [peft_side.IGNORED] * 5 + ["c", "d"])

    def test_rows_are_cut(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.json"
            path.write_text(json.dumps([{"text": "a b c d"}]))
            rows = peft_side.read_rows(a_case(data=path, sequence=3), self.Tokenizer())
            self.assertEqual(rows, [(["a", "b", "c"], ["a", "b", "c"])])

    def test_settings_that_are_given_are_not_tried(self):
        self.assertEqual(peft_side.tuned(a_case(), []), ("sdpa", "f32", {}))

    def test_the_fastest_settings_are_kept(self):
        seconds = {("sdpa", "f32"): 3, ("eager", "f32"): 2, ("eager", "bf16"): 1}
        kept = peft_side.best_seconds
        peft_side.best_seconds = lambda case, rows, *choice: seconds[choice]
        try:
            found = peft_side.tuned(a_case(precision="bf16", attention="auto", weights="auto"), [])
        finally:
            peft_side.best_seconds = kept
        self.assertEqual(found[:2], ("eager", "bf16"))
        self.assertEqual(len(found[2]), 3)


class CommandLine(unittest.TestCase):
    def run_script(self, *words):
        return subprocess.run([SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run_main(self, *words):
        errors, output = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
            code = compare_peft.main(list(words))
        return code, output.getvalue() + errors.getvalue()

    def test_help_installs_nothing(self):
        done = self.run_script("--help")
        self.assertEqual(done.returncode, 0)
        for word in ("--python", "--cases", "--rounds", "Exit codes"):
            self.assertIn(word, done.stdout)

    def test_wrong_options_install_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            for words in (["--bogus"], ["--cases", "nope"], ["--rounds", "0"]):
                done = self.run_script("--env", folder + "/env", *words)
                self.assertEqual(done.returncode, 2, words)
                self.assertNotIn("making", done.stderr)
            self.assertFalse(os.path.exists(folder + "/env"))

    def test_usage(self):
        self.assertEqual(self.run_script("--python").returncode, 2)
        done = self.run_script("--python", "/bin/false")
        self.assertEqual((done.returncode, "cannot import" in done.stderr), (2, True))
        for words in (["--cases", "equal-f64"], ["--cases", ""], ["--rounds", "0"]):
            with self.assertRaises(SystemExit) as left, contextlib.redirect_stderr(io.StringIO()):
                compare_peft.parse(words)
            self.assertEqual(left.exception.code, 2)

    def test_quick_is_one_step(self):
        options = compare_peft.parse(["--quick", "--rounds", "9"])
        self.assertEqual((options.rounds, options.steps, options.cases), (1, 1, compare_peft.CASES))

    def test_what_is_missing_is_named(self):
        self.assertEqual(self.run_main("--galley", "no/galley")[0], 2)
        code, said = self.run_main("--galley", sys.executable, "--model", "no/model")
        self.assertEqual((code, "no/model is no model folder" in said), (2, True))

    def test_a_missing_data_file_refuses_its_cases_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text("{}")
            code, said = self.run_main("--galley", sys.executable, "--model", folder, "--data", "no/rows.json",
                                       "--cases", "real-f32,real-bf16")
        self.assertEqual(code, 2)
        self.assertIn("real-f32 refused: no file no/rows.json", said)
        self.assertIn("real-bf16 refused", said)

    def test_equal_rows_are_long_enough_and_the_same_each_time(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = Path(folder) / "a.json", Path(folder) / "b.json"
            compare_peft.write_equal_rows(first, 3)
            compare_peft.write_equal_rows(second, 3)
            self.assertEqual(first.read_bytes(), second.read_bytes())
            for row in json.loads(first.read_text()):
                self.assertGreaterEqual(len(row["text"].split()), 2 * compare_peft.EQUAL_TOKENS)


if __name__ == "__main__":
    unittest.main()
