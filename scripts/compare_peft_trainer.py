"""The other side of compare_peft: LoRA with Transformers and PEFT, as a plain PyTorch training loop.

A process that reads one JSON object a line and answers with one. The first is the case, all others are rounds:

  {model, data, loss, sequence, precision, attention, weights, rank, alpha, targets, learning_rate, clip, threads}
      -> {rows: [[tokens, targets], ...], attention, weights, versions, import_bytes}
  {batches: [[row, ...], ...], untimed: N, restart: bool}
      -> {losses, tokens, targets, positions, seconds and cpu_seconds (of the steps after the first N), peak_bytes}

Rows are tokenised by Transformers, padded to the longest of their batch, and prompts are masked with -100, as TRL and
LLaMA-Factory do. "auto" for attention and weights measures the choices with a short batch and keeps the fastest.
Peak memory is the kernel's high-water mark of this process (VmHWM).
"""
import json
import os
import sys
import time
import warnings

IGNORED = -100
TUNING_STEPS = 2
ATTENTIONS = ("sdpa", "eager")


def high_water_bytes():
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def chat_row(tokenizer, row):
    """An instruction with its answer, through the model's chat template: ids, and labels of the answer only."""
    question = row["instruction"] + ("\n" + row["input"] if row.get("input") else "")
    prompt = [{"role": "user", "content": question}]
    whole = prompt + [{"role": "assistant", "content": row["output"]}]
    start = len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False))
    ids = tokenizer.apply_chat_template(whole, return_dict=False)
    return ids, [IGNORED] * start + ids[start:]


def read_rows(case, tokenizer):
    """List of (ids, labels), cut to the sequence."""
    with open(case["data"], encoding="utf-8") as file:
        rows = json.load(file)
    if case["loss"] == "completion":
        pairs = [chat_row(tokenizer, row) for row in rows]
    else:
        pairs = [(ids, ids) for ids in (tokenizer(row["text"])["input_ids"] for row in rows)]
    return [(ids[:case["sequence"]], labels[:case["sequence"]]) for ids, labels in pairs]


class Trainer:
    """A model with its adapter and optimizer. attention: eager or sdpa; weights: f32 or bf16."""

    def __init__(self, case, rows, attention, weights):
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM
        self.torch, self.case, self.rows = torch, case, rows
        self.dtype = torch.bfloat16 if weights == "bf16" else torch.float32
        base = AutoModelForCausalLM.from_pretrained(case["model"], dtype=self.dtype, attn_implementation=attention)
        base.config.use_cache = False
        self.model = get_peft_model(base, LoraConfig(
            r=case["rank"], lora_alpha=case["alpha"], lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
            target_modules=case["targets"]))
        self.model.train()
        self.parameters = [value for value in self.model.parameters() if value.requires_grad]
        self.restart()

    def restart(self):
        """B = 0 again, and an optimizer that has seen nothing."""
        with self.torch.no_grad():
            for name, value in self.model.named_parameters():
                if "lora_B" in name:
                    value.zero_()
        self.optimizer = self.torch.optim.AdamW(self.parameters, lr=self.case["learning_rate"], betas=(0.9, 0.999),
                                                eps=1e-8, weight_decay=0.0, fused=True)

    def collate(self, batch):
        rows = [self.rows[number] for number in batch]
        width = max(len(ids) for ids, _ in rows)
        pad = [width - len(ids) for ids, _ in rows]
        return {
            "input_ids": self.torch.tensor([ids + [0] * n for (ids, _), n in zip(rows, pad)]),
            "attention_mask": self.torch.tensor([[1] * len(ids) + [0] * n for (ids, _), n in zip(rows, pad)]),
            "labels": self.torch.tensor([labels + [IGNORED] * n for (_, labels), n in zip(rows, pad)])}

    def step(self, batch):
        """Loss before the step."""
        torch, inputs = self.torch, self.collate(batch)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.case["precision"] == "bf16"):
            loss = self.model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.case["clip"])
        self.optimizer.step()
        return loss.item()


def best_seconds(case, rows, attention, weights):
    """Of a few steps of a short batch, without the first."""
    trainer, best = Trainer(case, rows, attention, weights), float("inf")
    trainer.step(case["tuning_batch"])
    for _ in range(TUNING_STEPS):
        begin = time.perf_counter()
        trainer.step(case["tuning_batch"])
        best = min(best, time.perf_counter() - begin)
    return best


def tuned(case, rows):
    """The fastest (attention, weights) of those left open: attention first, then weights with that."""
    attention, weights, times = case["attention"], case["weights"], {}

    def fastest(choices):
        if len(choices) > 1:
            for choice in choices:
                if choice not in times:
                    times[choice] = best_seconds(case, rows, *choice)
        return min(choices, key=lambda choice: times.get(choice, 0))

    first = "f32" if weights == "auto" else weights
    attention, _ = fastest([(kind, first) for kind in (ATTENTIONS if attention == "auto" else [attention])])
    both = weights == "auto" and case["precision"] == "bf16"
    attention, weights = fastest([(attention, kind) for kind in (("f32", "bf16") if both else (first,))])
    return attention, weights, {" attention, ".join(key) + " weights": seconds for key, seconds in times.items()}


def run_round(trainer, request):
    if request["restart"]:
        trainer.restart()
    losses = [trainer.step(batch) for batch in request["batches"][:request["untimed"]]]
    begin, cpu_begin = time.perf_counter(), time.process_time()
    losses += [trainer.step(batch) for batch in request["batches"][request["untimed"]:]]
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
    rows = [[trainer.rows[number] for number in batch] for batch in request["batches"]]
    return {"losses": losses, "seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": high_water_bytes(),
            "tokens": [sum(len(ids) for ids, _ in batch) for batch in rows],
            "targets": [sum(label != IGNORED for _, labels in batch for label in labels[1:]) for batch in rows],
            "positions": [len(batch) * max(len(ids) for ids, _ in batch) for batch in rows]}


def main():
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    case = json.loads(sys.stdin.readline())
    import peft
    import torch
    import transformers
    warnings.filterwarnings("ignore")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(case["threads"])
    torch.manual_seed(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(case["model"])
    rows = read_rows(case, tokenizer)
    import_bytes = high_water_bytes()
    attention, weights, times = tuned(case, rows)
    trainer = None if case.get("only_tune") else Trainer(case, rows, attention, weights)
    answer({"rows": [[len(ids), sum(label != IGNORED for label in labels[1:])] for ids, labels in rows],
            "attention": attention, "weights": weights, "times": times, "import_bytes": import_bytes,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                         "peft": peft.__version__}})
    for line in sys.stdin:
        answer(run_round(trainer, json.loads(line)))


if __name__ == "__main__":
    main()
