"""scripts/compare_builds on pretended builds: small programs that print records and note when they ran."""
import atexit
import json
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/compare_builds"


def record(name, value, unit="tokens/s", **more):
    return {"name": name, "unit": unit, "value": value, "kernels": "avx2", "threads": 2, **more}


class Builds:
    """A folder with two pretended programs and the order in which they ran."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, self.path)
        self.log = self.path / "log"

    def program(self, name, records, code=0, place="galley", body=""):
        """records: one list for all runs, or a list of lists, one for each run in turn."""
        path = self.path / name / place
        path.parent.mkdir(parents=True, exist_ok=True)
        runs = records if records and isinstance(records[0], list) else [records]
        for number, lines in enumerate(runs):
            (path.parent / f"run{number}").write_text("".join(json.dumps(line) + "\n" for line in lines))
        path.write_text(f"#!/bin/sh\nset -eu\ncd {path.parent}\n"
                        f"number=$(grep -c '^{name} ' {self.log} || true)\n"
                        f'echo "{name} $*" >> {self.log}\n{body}\n'
                        f"cat run$((number % {len(runs)}))\necho told >&2\nexit {code}\n")
        path.chmod(0o755)
        return str(self.path / name)

    def compare(self, *arguments):
        self.log.write_text("")
        done = subprocess.run(["python3", SCRIPT, *arguments], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def calls(self):
        return [line.split()[0] for line in self.log.read_text().splitlines()]


def two(a, b, *arguments, **more):
    builds = Builds()
    result = builds.compare(builds.program("a", a), builds.program("b", b, **more), *arguments)
    return builds, result


def jittered(middle, unit="tokens/s", **more):
    return [[record("step", middle * factor, unit, **more)] for factor in (1.0, 1.01, 0.99, 1.005)]


class CompareBuilds(unittest.TestCase):
    def test_runs_take_turns_and_galley_runs_its_bench_command(self):
        builds, (code, out, err) = two([record("step", 100)], [record("step", 100)], "--rounds", "4")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(builds.calls(), list("abbaabba"))
        self.assertEqual(set(builds.log.read_text().splitlines()), {"a bench --json", "b bench --json"})
        self.assertIn("cases 1, rounds 4: B at 1.000", out.splitlines()[-1])

    def test_a_real_difference_is_marked_either_way(self):
        _, (code, out, _) = two(jittered(100), jittered(120))
        self.assertEqual(code, 0)
        self.assertIn("x1.2", out)
        self.assertIn("+ faster", out)
        self.assertIn("1 faster, 0 slower", out.splitlines()[-1])
        _, (_, out, _) = two(jittered(100), jittered(80), "--rounds", "6")
        self.assertIn("- SLOWER", out)
        self.assertIn("0 faster, 1 slower", out.splitlines()[-1])

    def test_less_time_is_faster(self):
        for unit in ("ms", "ms/step"):
            _, (_, out, _) = two(jittered(100, unit), jittered(50, unit))
            self.assertIn("x2.0", out)
            self.assertIn("+ faster", out)

    def test_noise_is_not_marked(self):
        wild = [[record("step", value)] for value in (100, 140, 70, 120)]
        other = [[record("step", value)] for value in (130, 75, 125, 95)]
        _, (code, out, _) = two(wild, other, "--rounds", "8")
        self.assertEqual(code, 0)
        self.assertIn("0 faster, 0 slower", out.splitlines()[-1])
        _, (_, out, _) = two([record("step", 1000)], [record("step", 1010)], "--rounds", "3")  # steady, but below --noise
        self.assertIn("0 faster, 0 slower", out.splitlines()[-1])
        _, (_, out, _) = two([record("step", 1000)], [record("step", 1010)], "--noise", "0.5")
        self.assertIn("1 faster", out.splitlines()[-1])

    def test_few_pairs_prove_nothing(self):
        _, (_, out, _) = two([record("step", 100)], [record("step", 200)], "--rounds", "5")
        self.assertIn("0 faster, 0 slower", out.splitlines()[-1])

    def test_one_pair_on_the_other_side_is_noise_of_six(self):
        b = [[record("step", value)] for value in (120, 130, 125, 95, 120, 121)]
        _, (_, out, _) = two([record("step", 100)], b)
        self.assertIn("0 faster, 0 slower", out.splitlines()[-1])

    def test_json_has_one_line_a_case(self):
        cases = [record("step 1", 100), record("step 2", 200), record("limit fma", 7, "GF/s")]
        _, (code, out, err) = two(cases, cases, "--json", "--rounds", "3")
        self.assertEqual(code, 0)
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([line["name"] for line in lines], ["step 1", "step 2"])  # limits are the machine's
        self.assertEqual((lines[0]["ratio"], lines[0]["verdict"], lines[0]["a"]), (1.0, "same", 100))
        self.assertIn("cases 2", err)

    def test_filter_and_arguments_for_the_programs(self):
        cases = [record("step 1", 100), record("step 2", 200)]
        builds, (code, out, _) = two(cases, cases, "--filter", "step 2", "--rounds", "1", "--", "--steps", "5")
        self.assertEqual(code, 0)
        self.assertNotIn("step 1", out)
        self.assertIn("a bench --json --steps 5", builds.log.read_text())
        _, (code, _, err) = two(cases, cases, "--filter", "nothing")
        self.assertEqual(code, 1)
        self.assertIn("nothing", err)

    def test_programs_of_tests_bench(self):
        builds = Builds()
        for name in ("a", "b"):
            builds.program(name, [record("step", 100)], place="tests/bench/bench_step")
        code, _, err = builds.compare(str(builds.path / "a"), str(builds.path / "b"), "--program", "bench_step",
                                      "--rounds", "1", "--filter", "step")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("a --json --no-aims --filter step", builds.log.read_text())
        direct = str(builds.path / "a/tests/bench/bench_step")
        self.assertEqual(builds.compare(direct, direct, "--rounds", "1")[0], 0)

    def test_a_failed_run_is_1_and_named(self):
        _, (code, _, err) = two([record("step", 1)], [record("step", 1)], code=69)
        self.assertEqual(code, 1)
        self.assertIn("exit 69", err)
        self.assertIn("told", err)
        builds, (code, _, err) = two([record("step", 1)], [record("step", 1)], "--timeout", "0.3", body="exec sleep 5")
        self.assertEqual(code, 1)
        self.assertIn("no end after", err)

    def test_wrong_figures_are_1(self):
        for value in (0, -1, float("nan"), float("inf"), "fast", None):
            _, (code, _, err) = two([record("step", 1)], [record("step", value)])
            self.assertEqual(code, 1, value)
            self.assertTrue(err.startswith("compare_builds: "), err)
        for lines in ([], [{"name": "step"}], [record("step", 1), record("step", 1)]):
            self.assertEqual(two([record("step", 1)], lines)[1][0], 1)

    def test_wrong_results_are_1(self):
        good = record("step", 100, loss=10.8, gradient_norm=0.5)
        for wrong in (record("step", 200, loss=9.0, gradient_norm=0.5), record("step", 200, loss=10.8, gradient_norm=5.0),
                      record("step", 200, loss=10.8), record("step", 200, loss=float("nan"), gradient_norm=0.5)):
            _, (code, _, err) = two([good], [wrong])
            self.assertEqual(code, 1)
            self.assertIn("step: ", err)
        self.assertEqual(two([good], [record("step", 200, loss=10.81, gradient_norm=0.501)], "--rounds", "1")[1][0], 0)

    def test_other_cases_or_units_are_1(self):
        _, (code, _, err) = two([record("step", 1), record("more", 1)], [record("step", 1)])
        self.assertEqual(code, 1)
        self.assertIn('B has no case "more"', err)
        _, (code, _, err) = two([record("step", 1)], [record("step", 1, "ms")])
        self.assertEqual(code, 1)
        self.assertIn("ms", err)

    def test_builds_may_choose_other_kernels(self):
        _, (code, out, _) = two([record("step", 1)], [dict(record("step", 2), kernels="avx512")], "--rounds", "1")
        self.assertEqual(code, 0)
        self.assertIn("avx2 -> avx512", out)
        # Several kernels in one run are cases of their own.
        both = [record("product", 1), dict(record("product", 3), kernels="avx512")]
        _, (code, out, _) = two(both, both, "--json", "--rounds", "1")
        self.assertEqual(code, 0)
        self.assertEqual([json.loads(line)["a"] for line in out.splitlines()], [1, 3])
        self.assertEqual(two(both, both[:1])[1][0], 1)

    def test_wrong_usage(self):
        builds = Builds()
        there = builds.program("a", [record("step", 1)])
        self.assertEqual(builds.compare(there)[0], 2)
        self.assertEqual(builds.compare(there, there, "--rounds", "0")[0], 2)
        self.assertEqual(builds.compare(there, there, "--programm", "bench")[0], 2)
        code, _, err = builds.compare(there, str(builds.path / "none"))
        self.assertEqual(code, 2)
        self.assertIn("there is no program", err)
        code, _, err = builds.compare(there, there, "--program", "bench_step")
        self.assertEqual(code, 2)
        self.assertIn("bench_step", err)


if __name__ == "__main__":
    unittest.main()
