"""scripts/compare_tokenizers: its options, which are checked before anything is installed."""
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class CommandLine(unittest.TestCase):
    def run_script(self, *words):
        return subprocess.run([ROOT / "scripts/compare_tokenizers", *words], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)

    def test_help_installs_nothing(self):
        done = self.run_script("--help")
        self.assertEqual(done.returncode, 0)
        for word in ("--tokenizer", "--kinds", "exit codes"):
            self.assertIn(word, done.stdout)

    def test_wrong_options_are_told_at_once(self):
        for words, said in ((["--bogus"], "--bogus"), (["--kinds", "nope"], "choose from prose"),
                            (["--samples", "many"], "--samples"), (["--python"], "needs a path"),
                            (["--python", "/bin/false"], "cannot import")):
            done = self.run_script(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(said, done.stderr)
            self.assertNotIn("making", done.stderr)


if __name__ == "__main__":
    unittest.main()
