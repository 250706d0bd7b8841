#!/usr/bin/env python3
"""What rounding the left operand of products with bf16 weights costs, measured without galley.

The reference models run in PyTorch with bf16 weights, once exactly and once with these operands
rounded to bf16: the inputs of every linear of the base model (forward), the gradients of its
outputs (backward), and both sides of every product of attention. Sums stay wide. That is what the
kernels "avx512-bf16" do; the allowances of tests/engine/nn come from the figures printed here.
Needs torch, transformers and peft.

  scripts/rounded_products.py toys REFERENCE/toys/NAME ...       float64
  scripts/rounded_products.py smollm2 MODEL REFERENCE/smollm2    float32
"""
import json
import sys
import types

import torch
from peft import PeftModel
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.utils import logging


def rounded(x):
    return x.float().bfloat16().to(x.dtype)


class RoundedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return rounded(x) @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        return rounded(gradient) @ weight, None


class RoundedBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(rounded(a), rounded(b))
        return rounded(a) @ rounded(b)

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        gradient = rounded(gradient)
        return gradient @ b.transpose(-1, -2), a.transpose(-1, -2) @ gradient


def rounded_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = RoundedBoth.apply(query, key.transpose(-1, -2)) * scaling
    hidden = torch.full(scores.shape[-2:], float("-inf"), dtype=scores.dtype).triu(1)
    weights = torch.softmax(scores + hidden, dim=-1)
    return RoundedBoth.apply(weights, value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("rounded", rounded_attention)


def rounded_forward(linear, x):
    y = RoundedProduct.apply(x, linear.weight)
    return y if linear.bias is None else y + linear.bias


def load(folder, dtype, adapter=None, rounds=False):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="rounded" if rounds else "eager")
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
                module.weight.copy_(module.weight.bfloat16().to(dtype))
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter, is_trainable=True).to(dtype)
    for name, module in model.named_modules():
        if rounds and isinstance(module, torch.nn.Linear) and "lora_" not in name:
            module.forward = types.MethodType(rounded_forward, module)
    return model


def trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def run(model, batches, order, rate, optimizer):
    """Losses before each step and after the last of the first batch; gradients of step 1."""
    parameters = trained(model)
    adam = torch.optim.AdamW(parameters.values(), lr=rate, **optimizer)
    losses, first = [], None
    for index in [*order, order[0]]:
        adam.zero_grad()
        rows = batches[index]
        targets = sum(sum(label >= 0 for label in labels[1:]) for _, labels in rows)
        total = 0.0
        for ids, labels in rows:
            logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
            wanted = torch.tensor(labels[1:])
            keep = wanted >= 0
            loss = torch.nn.functional.cross_entropy(logits[keep], wanted[keep], reduction="sum")
            (loss / targets).backward()
            total += float(loss.detach()) / targets
        losses.append(total)
        if first is None:
            first = {name: p.grad.double().clone() for name, p in parameters.items()}
        if len(losses) <= len(order):
            adam.step()
    return losses, first


def norm(tensors):
    return sum(float(t.double().norm()) ** 2 for t in tensors) ** 0.5


def compare_runs(name, start, runs):
    (losses, exact), (other_losses, other) = runs["result"]
    gaps = {key: other[key] - exact[key] for key in exact}
    worst = max(float(gaps[k].norm() / exact[k].norm()) for k in exact)
    entry = max(float(gaps[k].abs().max() / exact[k].abs().max()) for k in exact)
    lengths = max(abs(float(other[k].norm() / exact[k].norm()) - 1) for k in exact)
    whole = norm(gaps.values()) / norm(exact.values())
    curve = [abs(a - b) for a, b in zip(losses, other_losses)]
    relative = max(abs(a - b) / a for a, b in zip(losses, other_losses))
    one, two = runs["final"]
    moved = norm(one[k] - start[k] for k in one)
    gap = norm(two[k] - one[k] for k in one) / moved
    print(f"{name}: gradients: all {whole:.4f}, worst tensor {worst:.4f}, entry {entry:.4f}, norm "
          f"{lengths:.4f}; losses: first {curve[0]:.5f}, worst {max(curve):.5f} (relative "
          f"{relative:.6f}), last {curve[-1]:.5f}; final adapters {gap:.4f}", flush=True)


def train_both(name, folder, dtype, adapter, batches, order, rate, optimizer):
    results, finals, start = [], [], None
    for rounds in (False, True):
        model = load(folder, dtype, adapter, rounds)
        start = start or {k: p.detach().clone() for k, p in trained(model).items()}
        results.append(run(model, batches, order, rate, optimizer))
        finals.append({k: p.detach() for k, p in trained(model).items()})
    compare_runs(name, start, {"result": results, "final": finals})


def logits_both(name, folder, dtype, prompts):
    exact, rounding = load(folder, dtype), load(folder, dtype, rounds=True)
    for label, ids in prompts:
        with torch.no_grad():
            one = exact(torch.tensor([ids]), output_hidden_states=True)
            other = rounding(torch.tensor([ids]), output_hidden_states=True)
        gap = (other.logits - one.logits).abs()
        norms = max(float((b.norm(dim=-1) / a.norm(dim=-1) - 1).abs().max())
                    for a, b in zip(one.hidden_states, other.hidden_states))
        nll = [float(torch.nn.functional.cross_entropy(y.logits[0, :-1].double(),
                                                       torch.tensor(ids[1:])))
               for y in (one, other)] if len(ids) > 1 else [0.0, 0.0]
        print(f"{name} {label}: logits {float(gap.max()):.4f}, mean {float(gap.mean()):.5f}; mean "
              f"loss {abs(nll[0] - nll[1]):.4f}; norms {norms:.4f}", flush=True)


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def toy(folder):
    golden = f"{folder}/golden"
    inputs, measured = read(f"{golden}/inputs.json"), read(f"{golden}/measured.json")
    name = folder.rstrip("/").rsplit("/", 1)[-1]
    print(f"{name}: whole model in bf16: {measured['logits_bf16_vs_f64_max_abs_len17']:.4f}, mean "
          f"{measured['logits_bf16_vs_f64_mean_abs_len17']:.5f}")
    logits_both(name, folder, torch.float64, [(k, inputs[k]) for k in ("len1", "len17", "len40")])
    config = read(f"{golden}/lora/config.json")
    given = config["optimizer"]
    micro = read(f"{golden}/lora/batches.json")["micro_batches"]
    rows = [(row["input_ids"], row["labels"]) for rows in micro for row in rows]
    train_both(name, folder, torch.float64, f"{golden}/lora/adapter_init", [rows],
               [0] * config["steps"], given["lr"],
               {"betas": (given.get("beta1", 0.9), given.get("beta2", 0.999)),
                "eps": given.get("eps", 1e-8), "weight_decay": given.get("weight_decay", 0.0)})


def smollm2(model, reference):
    prompts = read(f"{reference}/prompts.json")
    logits_both("prompt", model, torch.float32, [(p["name"], p["ids"]) for p in prompts])
    case = f"{reference}/lora/all7_r16"
    given, stored = read(f"{case}/config.json")["optimizer"], read(f"{case}/batches.json")
    batches = [[(ids[:n], labels[:n]) for micro in batch
                for ids, labels, n in zip(micro["input_ids"], micro["labels"], micro["lengths"])]
               for batch in stored["batches"]]
    train_both("all7_r16", model, torch.float32, f"{case}/adapter_init", batches, stored["order"],
               given["lr"], {"betas": tuple(given["betas"]), "eps": given["eps"],
                             "weight_decay": given["weight_decay"]})


def main(arguments):
    logging.disable_progress_bar()
    if len(arguments) >= 2 and arguments[0] == "toys":
        for folder in arguments[1:]:
            toy(folder)
    elif len(arguments) == 3 and arguments[0] == "smollm2":
        smollm2(arguments[1], arguments[2])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
