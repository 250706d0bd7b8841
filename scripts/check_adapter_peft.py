"""Compare an adapter that galley wrote with what Hugging Face Transformers and PEFT make of it.

Loads the base model (widened to f32) and the adapter, runs every prompt of --prompts, and compares the logits at the
prompt's last position with those of --expect: one f32 tensor `ID.logits` (or `ID`) [vocab] per prompt, as
`galley generate --logits FILE.safetensors` writes them. With --galley PATH that command is run first.

Prompts are JSON Lines: {id, prompt}, {id, prompt_ids} or {id, messages}; the last are rendered with the chat
template of the model's folder. Without an id, a prompt has the number of its line, from 0.

The last line printed is the largest absolute difference. Exit codes: 0 within --allow, 1 beyond, 2 cannot compare
(wrong usage, keys that PEFT does not expect or misses, prompts without expected logits).
"""
import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path


class Failure(Exception):
    """Something the user can act on."""


def parse(argv):
    parser = argparse.ArgumentParser(prog="check_adapter_peft", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the base model")
    parser.add_argument("--adapter", type=Path, required=True, help="PEFT folder of the adapter")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON Lines")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--expect", type=Path, help="safetensors file with the logits that galley wrote")
    source.add_argument("--galley", type=Path, help="the galley program, to write them now")
    parser.add_argument("--allow", type=float, default=1e-3, help="largest difference allowed (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show-greedy", type=int, default=0, metavar="N",
                        help="also print N greedy tokens of base and adapter per prompt")
    return parser.parse_args(argv)


def read_prompts(path):
    """List of objects with an id."""
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if not line.strip():
            continue
        prompt = json.loads(line)
        prompt.setdefault("id", str(number))
        if not any(key in prompt for key in ("prompt", "prompt_ids", "messages")):
            raise Failure(f"{path}:{number + 1}: no prompt, prompt_ids or messages")
        prompts.append(prompt)
    if not prompts:
        raise Failure(f"{path} holds no prompts")
    return prompts


def run_galley(options, into):
    command = [str(options.galley), "generate", "--model", str(options.model), "--adapter", str(options.adapter),
               "--greedy", "--max-tokens", "1", "--jsonl", "--logits", str(into)]
    with open(options.prompts, "rb") as prompts:
        done = subprocess.run(command, stdin=prompts, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)} failed (exit {done.returncode}):\n{done.stderr.strip()}")


def read_expected(path, prompts):
    """Prompt id -> f32 vector of the last position."""
    from safetensors.torch import load_file
    if not path.is_file():
        raise Failure(f"no such file: {path}")
    tensors = load_file(str(path))
    expected = {}
    for prompt in prompts:
        name = str(prompt["id"])
        found = tensors.get(name + ".logits", tensors.get(name))
        if found is None:
            raise Failure(f"{path} has no tensor {name}.logits; it has {', '.join(sorted(tensors)[:8])}")
        expected[name] = found.float().reshape(-1, found.shape[-1])[-1]
    return expected


def adapter_keys(folder):
    from safetensors import safe_open
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise Failure(f"{folder} is no PEFT folder: it has no adapter_model.safetensors")
    with safe_open(str(path), "pt") as tensors:
        return set(tensors.keys())


def without_adapter_name(key):
    key = key.replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector")
    return key.replace(".default.weight", ".weight")


def load_with_adapter(options):
    """The PEFT model in f32. Raises Failure when file and model do not hold the same adapter tensors."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar
    in_file = adapter_keys(options.adapter)
    torch.set_num_threads(options.threads)
    disable_progress_bar()
    base = AutoModelForCausalLM.from_pretrained(str(options.model), dtype=torch.float32, attn_implementation="eager")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            model = PeftModel.from_pretrained(base, str(options.adapter))
        except (RuntimeError, ValueError, KeyError, OSError) as why:
            raise Failure(f"PEFT cannot load {options.adapter}: {why}")
    complaints = [str(one.message) for one in said if "key" in str(one.message).lower()]
    if complaints:
        raise Failure("PEFT complains about keys: " + " ".join(complaints))
    # PEFT drops unexpected keys without a word, so both directions are compared here as well.
    in_model = {without_adapter_name(name) for name, value in model.named_parameters() if ".lora_" in name}
    missing, unexpected = sorted(in_model - in_file), sorted(in_file - in_model)
    if missing:
        raise Failure(f"{len(missing)} adapter tensors are missing in the file: {', '.join(missing[:4])}")
    if unexpected:
        raise Failure(f"{len(unexpected)} tensors of the file have no place in the model: {', '.join(unexpected[:4])}")
    return model.eval()


def ids_of(prompt, tokenizer):
    if "prompt_ids" in prompt:
        return prompt["prompt_ids"]
    if "prompt" in prompt:
        return tokenizer(prompt["prompt"])["input_ids"]
    text = tokenizer.apply_chat_template(prompt["messages"], tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def greedy(model, ids, tokenizer, count):
    import torch
    end = model.generation_config.eos_token_id
    ends = set(end if isinstance(end, list) else [end])
    ids, start = list(ids), len(ids)
    while len(ids) - start < count:
        token = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        if token in ends:
            break
        ids.append(token)
    return tokenizer.decode(ids[start:], skip_special_tokens=True)


def compare(options):
    """The largest absolute difference over all prompts."""
    import torch
    from transformers import AutoTokenizer
    prompts = read_prompts(options.prompts)
    with tempfile.TemporaryDirectory() as folder:
        expect = options.expect
        if options.galley:
            expect = Path(folder) / "logits.safetensors"
            run_galley(options, expect)
        expected = read_expected(expect, prompts)
    model = load_with_adapter(options)
    tokenizer = AutoTokenizer.from_pretrained(str(options.model))
    largest = 0.0
    for prompt in prompts:
        ids, name = ids_of(prompt, tokenizer), str(prompt["id"])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1].float()
            with model.disable_adapter():
                base = model(input_ids=torch.tensor([ids])).logits[0, -1].float()
        if logits.shape != expected[name].shape:
            raise Failure(f"{name}: {expected[name].numel()} expected logits, the model has {logits.numel()}")
        difference = float((logits - expected[name]).abs().max())
        if difference != difference:
            raise Failure(f"{name}: not a number among the logits")
        largest = max(largest, difference)
        print(f"{name}: {len(ids)} tokens, largest difference {difference:.3g} "
              f"(the adapter itself moves logits by up to {float((logits - base).abs().max()):.3g}), "
              f"best token {'the same' if logits.argmax() == expected[name].argmax() else 'differs'}")
        if options.show_greedy:
            with torch.no_grad():
                with model.disable_adapter():
                    print(f"  base:    {greedy(model, ids, tokenizer, options.show_greedy)!r}")
                print(f"  adapter: {greedy(model, ids, tokenizer, options.show_greedy)!r}")
    return largest


def main(argv):
    options = parse(argv)
    try:
        largest = compare(options)
    except Failure as why:
        print(f"check_adapter_peft: {why}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as why:
        print(f"check_adapter_peft: {why}", file=sys.stderr)
        return 2
    if largest > options.allow:
        print(f"check_adapter_peft: more than the {options.allow:g} allowed", file=sys.stderr)
    print(f"largest absolute difference: {largest:.6g}")
    return 0 if largest <= options.allow else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
