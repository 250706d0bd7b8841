"""The examples are what their scripts make, and hold what they promise. Standard library only:
python3 -m unittest discover -s tests/scripts -p '*_test.py'
"""
import json
import struct
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MODEL = EXAMPLES / "tiny-llama"


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Data(unittest.TestCase):
    def test_files_are_what_the_script_makes(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, ROOT / "scripts/make_example_model.py", "--only", "data", "--out", folder],
                           check=True)
            for name in ("data/cook.jsonl", "data/units.jsonl", "prompts-cook.jsonl", "prompts-units.jsonl"):
                self.assertEqual((Path(folder) / name).read_bytes(), (EXAMPLES / name).read_bytes(), name)

    def test_prompts_are_not_in_the_data(self):
        asked = {turn["content"] for row in lines(EXAMPLES / "data/cook.jsonl") for turn in row["messages"]}
        for prompt in lines(EXAMPLES / "prompts-cook.jsonl"):
            self.assertNotIn(prompt["messages"][-1]["content"], asked)
        given = {row["prompt"] for row in lines(EXAMPLES / "data/units.jsonl")}
        for prompt in lines(EXAMPLES / "prompts-units.jsonl"):
            self.assertNotIn(prompt["prompt"], given)

    def test_rows_are_well_formed_and_different(self):
        cook, units = lines(EXAMPLES / "data/cook.jsonl"), lines(EXAMPLES / "data/units.jsonl")
        self.assertEqual(len(cook), len({json.dumps(row) for row in cook}))
        self.assertEqual(len(units), len({row["prompt"] for row in units}))
        for row in cook:
            roles = [turn["role"] for turn in row["messages"] if turn["role"] != "system"]
            self.assertEqual(roles, ["user", "assistant"] * (len(roles) // 2))
        for row in units:
            self.assertTrue(row["completion"].startswith(" "), row)


class Jobs(unittest.TestCase):
    def test_paths_exist_and_no_gpu_is_named(self):
        for name in ("demo.toml", "demo-smollm2.toml"):
            jobs = tomllib.loads((EXAMPLES / name).read_text())["train"]
            self.assertEqual([job["name"] for job in jobs], ["cook", "units"])
            for job in jobs:
                self.assertTrue((EXAMPLES / job["data"]).is_file())
                self.assertNotIn("plan", job)
                if name == "demo.toml":
                    self.assertTrue((EXAMPLES / job["model"] / "config.json").is_file())

    def test_cluster_has_two_types(self):
        cluster = tomllib.loads((EXAMPLES / "cluster.toml").read_text())
        self.assertTrue(cluster["cluster"]["emulate"])
        self.assertEqual(len({gpu["type"] for node in cluster["node"] for gpu in node["gpus"]}), 2)


class Model(unittest.TestCase):
    def test_weights_have_the_tensors_of_the_config(self):
        config = json.loads((MODEL / "config.json").read_text())
        raw = (MODEL / "model.safetensors").read_bytes()
        self.assertLess(len(raw), 5 << 20)
        (size,) = struct.unpack_from("<Q", raw)
        header = json.loads(raw[8:8 + size])
        header.pop("__metadata__")
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        width = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
        want = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
        for layer in range(config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            want |= {at + f"self_attn.{name}_proj.weight": [heads * config["head_dim"], hidden]
                     for name, heads in width.items()}
            want |= {at + "self_attn.o_proj.weight": [hidden, hidden], at + "mlp.gate_proj.weight": [inner, hidden],
                     at + "mlp.up_proj.weight": [inner, hidden], at + "mlp.down_proj.weight": [hidden, inner],
                     at + "input_layernorm.weight": [hidden], at + "post_attention_layernorm.weight": [hidden]}
        self.assertEqual({name: entry["shape"] for name, entry in header.items()}, want)
        self.assertEqual({entry["dtype"] for entry in header.values()}, {"BF16"})
        self.assertEqual(max(entry["data_offsets"][1] for entry in header.values()), len(raw) - 8 - size)

    def test_every_byte_has_a_token_and_the_template_has_marks(self):
        vocabulary = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
        self.assertEqual(sorted(vocabulary.values()), list(range(2048)))
        self.assertEqual(sum(len(token) == 1 for token in vocabulary), 256)
        template = json.loads((MODEL / "tokenizer_config.json").read_text())["chat_template"]
        self.assertIn("{% generation %}", template)


class Tools(unittest.TestCase):
    def run_tool(self, *words):
        return subprocess.run([ROOT / "scripts" / words[0], *words[1:]], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)

    def test_fetch_model_says_usage(self):
        self.assertEqual(self.run_tool("fetch-model").returncode, 2)
        self.assertEqual(self.run_tool("fetch-model", "no-such-model", "x").returncode, 2)

    def test_check_adapter_refuses_an_interpreter_without_packages(self):
        done = self.run_tool("check_adapter_peft", "--model", "x", "--python", "/bin/false")
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot import", done.stderr)
        self.assertEqual(self.run_tool("check_adapter_peft", "--python").returncode, 2)


if __name__ == "__main__":
    unittest.main()
