"""galley's side of compare_peft: a job file, one run of the real program, and what can be seen from outside.

The time is that of the clock on the wall between the lines of metrics.csv, taken here, not what galley says of itself;
so data preparation between steps counts. Peak memory is the kernel's high-water mark (VmHWM) of the worker process,
read all along; the other processes of the run (launch, mpirun, two ranks) are added up beside it.
"""
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

POLL_SECONDS = 0.01
MEMORY_EVERY_SECONDS = 0.05
JOB = "compare"


class Failure(Exception):
    """A side did not do what it should."""


class Missing(Exception):
    """Something that the comparison needs is not here."""


def toml_string(value):
    return json.dumps(str(value))  # TOML's basic strings are JSON's, for what paths and names hold


def job_text(case, seed, steps):
    """The job file of one round."""
    lines = [
        "[run]", 'checkpoint.every = "24h"', "", "[[train]]", f"name = {toml_string(JOB)}",
        f"model = {toml_string(case['model'])}", f"data = {toml_string(case['data'])}",
        f"loss = {toml_string(case['loss'])}", f"precision = {toml_string(case['precision'])}", f"seed = {seed}",
        f"adapter = {{ rank = {case['rank']}, alpha = {case['alpha']}, targets = {json.dumps(case['targets'])} }}",
        f"optimizer = {{ learning_rate = {case['learning_rate']}, clip_norm = {case['clip']} }}",
        'schedule = { name = "constant", warmup = 0 }',
        f"batch = {{ global = {case['batch_rows']}, sequence = {case['sequence']} }}",
        f"length = {{ steps = {steps} }}", f"plan.threads = {case['threads']}"]
    if case.get("micro_batch_tokens"):
        lines.append(f"plan.micro_batch_tokens = {case['micro_batch_tokens']}")
    return "\n".join(lines) + "\n"


def read_metrics(path):
    """Whole lines of a metrics.csv as dictionaries of text."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    lines = text[:text.rfind("\n") + 1].splitlines()
    return [dict(zip(lines[0].split(","), line.split(","))) for line in lines[1:]]


class MemoryWatch:
    """High-water marks of a process and all below it."""

    def __init__(self, pid, proc="/proc"):
        self.pid, self.proc, self.marks, self.workers = pid, Path(proc), {}, set()

    def look(self):
        waiting = [self.pid]
        while waiting:
            pid = waiting.pop()
            try:
                status = (self.proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
                command = (self.proc / str(pid) / "cmdline").read_bytes().split(b"\0")
                children = (self.proc / str(pid) / "task" / str(pid) / "children").read_text().split()
            except OSError:
                continue  # it has ended
            waiting += [int(child) for child in children]
            mark = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)
            # A child that has not become another program yet shows its parent's memory.
            self.marks[pid, command[0]] = max(mark, self.marks.get((pid, command[0]), 0))
            if command[1:2] == [b"worker"]:
                self.workers.add((pid, command[0]))

    def worker_cpu_seconds(self):
        """Of the newest worker so far."""
        ticks = os.sysconf("SC_CLK_TCK")
        for pid, _ in sorted(self.workers, reverse=True):
            try:
                fields = (self.proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            return (int(fields[11]) + int(fields[12])) / ticks  # user and system time of all threads
        return float("nan")

    def worker_bytes(self):
        return max((self.marks[key] for key in self.workers), default=0)

    def others_bytes(self):
        newest = {}
        for (pid, _), mark in self.marks.items():
            newest[pid] = mark
        return sum(mark for pid, mark in newest.items() if pid not in {pid for pid, _ in self.workers})


def tail(path, lines=15):
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def run_round(program, case, folder, seed, untimed, timed):
    """One run: the times of the steps after the first `untimed` ones, and what metrics.csv holds."""
    steps = untimed + timed
    name = f"{case['name'].replace(' ', '-')}-{seed}"
    job_file, log = folder / f"{name}.toml", folder / f"{name}.log"
    job_file.write_text(job_text(case, seed, steps), encoding="utf-8")
    shutil.rmtree(folder / "runs" / name, ignore_errors=True)  # a kept run would only be found finished
    metrics = folder / "runs" / name / "jobs" / JOB / "metrics.csv"
    command = [str(program), "launch", str(job_file), "--progress", "none"]
    seen = {}  # step -> time at which its line was there, and the worker's CPU time
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                   env=os.environ | {"GALLEY_RUNS": str(folder / "runs")})
    watch, next_look, size = MemoryWatch(process.pid), 0.0, -1
    try:
        while process.poll() is None:
            now = time.perf_counter()
            if now >= next_look:
                watch.look()
                next_look = now + MEMORY_EVERY_SECONDS
            found = metrics.stat().st_size if metrics.exists() else -1
            if found != size:
                size = found
                for step in range(1, len(read_metrics(metrics)) + 1):
                    seen.setdefault(step, (time.perf_counter(), watch.worker_cpu_seconds()))
            time.sleep(POLL_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    lines = read_metrics(metrics)
    if process.returncode != 0 or len(lines) != steps or steps not in seen:
        raise Failure(f"{' '.join(command)} ended with {process.returncode} after {len(lines)} of {steps} steps:\n"
                      + tail(log))
    if watch.worker_bytes() == 0:
        raise Failure(f"{' '.join(command)} had no worker process that could be seen")
    return {"losses": [float(line["loss"]) for line in lines], "tokens": [int(line["tokens"]) for line in lines],
            "targets": [int(line["targets"]) for line in lines],
            "seconds": seen[steps][0] - seen[untimed][0], "cpu_seconds": seen[steps][1] - seen[untimed][1],
            "own_seconds": sum(int(line["tokens"]) / float(line["tokens_per_s"]) for line in lines[untimed:]),
            "planned_bytes": int(lines[-1]["allocated_bytes"]), "peak_bytes": watch.worker_bytes(),
            "others_bytes": watch.others_bytes()}
