#!/usr/bin/env python3
"""Make examples/tiny-llama and examples/data from a seed: text, tokenizer, pretraining, instruction sets.

Needs torch, transformers, tokenizers and safetensors. Less than half an hour on one core with the defaults; the folder is
written again at every --save-every steps, so there is always one to look at. The same seed and versions on the same
kind of machine give the same files; another machine may round differently, which changes the weights a little.

  scripts/make_example_model.py                  everything, into examples/
  scripts/make_example_model.py --only data      the instruction sets and prompts alone
"""
import argparse
import json
import math
import random
import time
from pathlib import Path

import example_corpus
import example_data

ROOT = Path(__file__).resolve().parent.parent
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAD, START, END = range(3)

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": START,
    "eos_token_id": END,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 192,
    "initializer_range": 0.02,
    "intermediate_size": 416,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 6,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "pad_token_id": PAD,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 2048,
}

# ChatML. The marks tell a trainer which text is the assistant's own: the answer and the token that ends it.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '<|im_start|>assistant\n' }}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def render(document):
    """A document as the model sees it: every text and every turn ends with the end token."""
    if isinstance(document, str):
        return document + "<|im_end|>\n"
    return "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in document)


def make_tokenizer(texts):
    """Byte-level BPE with single digits, so that every byte has a token and every number is read digit by digit."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"], special_tokens=SPECIALS, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if tokenizer.get_vocab_size() != CONFIG["vocab_size"]:
        raise SystemExit(f"the text gives only {tokenizer.get_vocab_size()} tokens")
    return tokenizer


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_small_files(folder, tokenizer):
    """Everything of the folder but the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    named = {"bos_token": SPECIALS[START], "eos_token": SPECIALS[END], "pad_token": SPECIALS[PAD],
             "unk_token": SPECIALS[PAD]}
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", {
        "_from_model_config": True, "bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD})
    write_json(folder / "special_tokens_map.json", named)
    write_json(folder / "tokenizer_config.json", {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(number): {"content": token, **flags} for number, token in enumerate(SPECIALS)},
        **named,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    })


def write_weights(folder, model):
    """model.safetensors in bf16, written beside and renamed."""
    import torch
    from safetensors.torch import save_file
    tensors = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()
               if name != "lm_head.weight"}
    part = folder / "model.safetensors.part"
    save_file(tensors, str(part), metadata={"format": "pt"})
    part.rename(folder / "model.safetensors")


def pack(token_lists, length, rng):
    """Rows of exactly `length` tokens; each starts with the start of a document."""
    order = list(token_lists)
    rng.shuffle(order)
    rows, row = [], []
    for tokens in order:
        row += tokens
        if len(row) >= length:
            rows.append(row[:length])
            row = []
    return rows


def train(options, tokenizer, texts, held_out):
    import torch
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed + (1 if options.start_from else 0))
    settings = {key: value for key, value in CONFIG.items() if key not in ("architectures", "torch_dtype")}
    model = LlamaForCausalLM(LlamaConfig(**settings))
    if options.start_from:
        model.load_state_dict(load_file(str(options.start_from / "model.safetensors")), strict=False)
        if (options.start_from / "tokenizer.json").read_bytes() != (options.out / "tiny-llama/tokenizer.json").read_bytes():
            raise SystemExit(f"{options.start_from} has another tokenizer")
    print(f"{sum(value.numel() for value in model.parameters()):,} parameters", flush=True)

    length = CONFIG["max_position_embeddings"] // 2
    encoded = [item.ids for item in tokenizer.encode_batch(texts)]
    test = torch.tensor(pack([item.ids for item in tokenizer.encode_batch(held_out)], length, rng)[:32])
    print(f"{len(texts):,} documents, {sum(map(len, texts)):,} characters, {sum(map(len, encoded)):,} tokens", flush=True)

    decayed = [value for value in model.parameters() if value.dim() > 1]
    plain = [value for value in model.parameters() if value.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                                  lr=options.learning_rate, betas=(0.9, 0.95))
    warmup = max(1, options.steps // 50)

    def rate(step):
        if step < warmup:
            return (step + 1) / warmup
        return 0.05 + 0.95 * (1 + math.cos(math.pi * (step - warmup) / (options.steps - warmup))) / 2

    def held_out_loss():
        with torch.no_grad():
            return sum(loss_of(test[at:at + 8]).item() for at in range(0, len(test), 8)) / max(1, len(test) // 8)

    def loss_of(rows):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
            logits = model(input_ids=rows).logits
        return torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), rows[:, 1:].flatten())

    rows, start, losses = [], time.monotonic(), []
    last = min(options.steps, options.stop_after or options.steps)
    for step in range(last):
        while len(rows) < options.batch:
            rows += pack(encoded, length, rng)
        batch, rows = torch.tensor(rows[:options.batch]), rows[options.batch:]
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * rate(step)
        loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 50 == 0 or step + 1 == last:
            done = time.monotonic() - start
            recent = sum(losses[-50:]) / len(losses[-50:])
            print(f"step {step:5d}  loss {recent:.4f}  {(step + 1) * options.batch * length / done:7.0f} tok/s  "
                  f"{done:6.0f} s", flush=True)
        if (step + 1) % options.save_every == 0 or step + 1 == last:
            write_weights(options.out / "tiny-llama", model)
            print(f"step {step:5d}  held-out loss {held_out_loss():.4f}, saved", flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "examples", help="folder to write into (default: examples)")
    parser.add_argument("--only", choices=["data", "model"], help="make only this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--documents", type=int, default=40000, help="texts and chats to write (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--batch", type=int, default=8, help="rows of 256 tokens a step (default: %(default)s)")
    parser.add_argument("--start-from", type=Path, metavar="DIR", help="go on with the weights of this folder")
    parser.add_argument("--stop-after", type=int, metavar="STEP", help="end early; the learning rate still aims at --steps")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="matrix products in bf16 (faster where the CPU has them)")
    parser.add_argument("--save-every", type=int, default=200)
    return parser.parse_args()


def main():
    options = parse()
    if options.only != "model":
        example_data.write(options.out, options.seed)
    if options.only != "data":
        texts = [render(document) for document in example_corpus.corpus(options.seed, options.documents)]
        held_out = [render(document) for document in example_corpus.corpus(options.seed + 1000, 400)]
        tokenizer = make_tokenizer(texts)
        write_small_files(options.out / "tiny-llama", tokenizer)
        train(options, tokenizer, texts, held_out)


if __name__ == "__main__":
    main()
