"""A file of points: one JSON object a line, on the disk before the next one starts.

A script gives a plan (what to take, the most valuable first) and a function that takes one point. Points of one priority are
taken in an order drawn from the seed, so that a drift of the board is not mistaken for the effect of a shape. What does not fit,
or what a library refuses, is a line `skipped` with the reason. The same command goes on where the last one ended.
"""

import argparse
import datetime
import json
import os
import platform
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

BEGUN = time.monotonic()  # before PyTorch is loaded: the time budget holds that too

try:
    import torch
except ImportError:  # --dry needs none
    torch = None

GUESS_S = {"burst": 0.5, "sustained": 3.2}  # what a point takes, buffers included
DEVICE_GAVE_UP = 6


@dataclass(frozen=True)
class Point:
    """What to measure, at which clocks; a lower priority number is taken first. `guess_s` is what it may take."""

    what: dict
    priority: int = 1
    regime: str = "burst"
    guess_s: float = 0.0

    def key(self):
        return json.dumps([self.what, self.regime], sort_keys=True)

    def seconds(self):
        return self.guess_s or GUESS_S[self.regime]


class Journal:
    """The file while it grows. Beside it stands `FILE.now`, the point in the making: if the process dies of it, it is not tried
    again."""

    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        self.file = path.open("r+b")
        self.file.truncate(len(whole))
        self.file.seek(0, os.SEEK_END)
        self.now = path.with_name(path.name + ".now")
        self.known = set()
        for line in whole.splitlines():
            for kind in ("point", "skipped"):
                if row := json.loads(line).get(kind):
                    self.known.add(json.dumps([row["what"], row["regime"]], sort_keys=True))
        if self.now.exists():
            what, regime = json.loads(self.now.read_text() or "[null, null]")
            if what and json.dumps([what, regime], sort_keys=True) not in self.known:
                self.write("skipped", {"what": what, "regime": regime, "why": "the process died while it was measured"})
            self.now.unlink()

    def write(self, kind, row):
        if "what" in row:
            self.known.add(json.dumps([row["what"], row["regime"]], sort_keys=True))
        self.file.write(json.dumps({kind: row}).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def begin(self, point):
        self.now.write_text(point.key())

    def end(self):
        self.now.unlink(missing_ok=True)


def host_processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def machine(board, tool):
    """The device and what runs on it, with the calibrator's names."""
    device = torch.cuda.get_device_properties(0)
    rate, width = getattr(device, "memory_clock_rate", 0), getattr(device, "memory_bus_width", 0)  # kHz, bits
    try:
        import triton
    except ImportError:
        triton = None
    versions = {
        "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version()), "driver": board.driver(),
        "triton": triton and triton.__version__, "python": platform.python_version(), "host": host_processor(),
    }
    return {
        "chip": device.name, "processors": device.multi_processor_count, "capability": f"{device.major}.{device.minor}",
        "memory": device.total_memory, "memory_bandwidth": 2 * rate * 1000 * width / 8, "power_limit": board.power_limit_w(),
        "clock": board.highest_clock_mhz(), "gpus": 1, "versions": {name: text for name, text in versions.items() if text},
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "tool": tool, "source": "measured",
    }


def reason(error):
    """Why a point could not be taken, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in text.lower() or "ALLOC_FAILED" in text:
        return f"out of memory: {text}"[:400]
    return f"{type(error).__name__}: {text}"[:400]


def device_lives():
    try:
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").add_(1)
        torch.cuda.synchronize()
        return True
    except Exception:
        return False


def options(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    script = Path(sys.argv[0]).stem
    parser.add_argument("--out", type=Path, default=Path("measured") / f"{script}.jsonl", help="the file of points")
    parser.add_argument("--seconds", type=float, default=600.0, help="from the start of the process; no point is begun that may end later")
    parser.add_argument("--seed", type=int, default=1, help="of the order within a priority")
    parser.add_argument("--only", default="", metavar="WORDS", help="points that hold one of these words: deepseek,fp8")
    parser.add_argument("--dry", action="store_true", help="list the points and end; needs no PyTorch")
    parser.add_argument("--tiny", action="store_true", help="small shapes, for a device that computes nothing")
    parser.add_argument("--profile", choices=["cuda", "cpu", "none"], default="cuda", help="of steps: kernels by torch.profiler, or operators alone")
    return parser.parse_args()


def ordered(plan, seed, only):
    words = [word for word in only.split(",") if word]
    plan = [point for point in plan if not words or any(word in point.key() for word in words)]
    random.Random(seed).shuffle(plan)
    return sorted(plan, key=lambda point: point.priority)


def words(point):
    (kind, shape), = point.what.items()
    return f"{kind} {' '.join(f'{name}={value}' for name, value in shape.items())} {point.regime}"


def take_all(todo, settings, journal, board, measure):
    """Takes points until they or the time are at an end; says how many, and why it stopped."""
    end, taken, skipped, late = BEGUN + settings.seconds, 0, 0, 0
    for point in todo:
        if time.monotonic() + point.seconds() > end:
            late += 1  # a shorter one may still fit
            continue
        journal.begin(point)
        begun = time.monotonic()
        try:
            row = measure(point, board, settings)
            journal.write("point", {"what": point.what, "regime": point.regime} | row | {"took_s": round(time.monotonic() - begun, 2)})
            taken += 1
            print(f"{row.get('median', 0):12.2f} us  {words(point)}", flush=True)
        except Exception as error:  # what a library refuses is a result
            why = reason(error)
            del error
            journal.write("skipped", {"what": point.what, "regime": point.regime, "why": why})
            skipped += 1
            print(f"     skipped     {words(point)}: {why[:160]}", flush=True)
            torch.cuda.empty_cache()
            if not device_lives():
                journal.write("end", {"why": "the device gave up", "taken": taken, "skipped": skipped})
                journal.end()
                sys.stdout.flush()
                os._exit(DEVICE_GAVE_UP)
        journal.end()
    return {"why": "time" if late else "done", "taken": taken, "skipped": skipped, "left": late}


def run(description, plan, measure):
    """A script's whole life: `plan(tiny)` gives points, `measure(point, board, settings)` a point's fields."""
    settings = options(description)
    todo = ordered(plan(settings.tiny), settings.seed, settings.only)
    if settings.dry:
        for point in todo:
            print(point.priority, words(point))
        print(f"{len(todo)} points, about {sum(point.seconds() for point in todo):.0f} s", file=sys.stderr)
        return
    if torch is None or not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device: --dry lists the points without one")
    from board import Board

    journal = Journal(settings.out)
    board = Board(getattr(torch.cuda.get_device_properties(0), "uuid", None))
    journal.write("machine", machine(board, f"calibrate/torch/{Path(sys.argv[0]).name}, seed {settings.seed}" + (", tiny" if settings.tiny else "")))
    todo = [point for point in todo if point.key() not in journal.known]

    def stop(number, _):
        journal.end()
        sys.stdout.flush()
        os._exit(128 + number)  # lines are whole: each is written by one call

    # A call that never comes back costs what is left of this script's time, and no more.
    watchdog = threading.Timer(max(0.0, BEGUN + settings.seconds + 8 - time.monotonic()), lambda: os._exit(124))
    watchdog.daemon = True
    watchdog.start()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    result = take_all(todo, settings, journal, board, measure)
    journal.write("end", result)
    print(f"{result['why']}: {result['taken']} points, {result['skipped']} skipped, {result.get('left', 0)} left", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(0)  # nothing is worth waiting for: compilers' workers may take long to end
