#!/usr/bin/env python3
"""Makes a large PyTorch profiler trace of a small one, by repetition: python3 tests/traces/large.py SMALL.json[.gz] LARGE.json BYTES

Each repetition is later by the length of the trace, has its own correlation ids, external ids, sequence numbers and step numbers, so
that the large file is as hard to join as a real one. LARGE may end in .gz. The result is not kept in the repository.
"""

import gzip
import json
import re
import sys

STEP = re.compile(r"ProfilerStep#(\d+)$")


def opened(path, mode):
    return gzip.open(path, mode, compresslevel=1) if path.endswith(".gz") else open(path, mode)


def main(small, large, size):
    with open(small, "rb") as file:
        raw = file.read()
    trace = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    events = trace.pop("traceEvents")
    timed = [event for event in events if event.get("ph") == "X" and isinstance(event.get("pid"), int)]
    first = min(event["ts"] for event in timed)
    length = max(event["ts"] + event.get("dur", 0) for event in timed) - first + 1000
    ids = 1 + max(event.get("args", {}).get(key, 0) for event in timed for key in ("correlation", "External id"))
    sequences = 1 + max(event.get("args", {}).get("Sequence number", 0) for event in timed)
    steps = 1 + sum(1 for event in timed if STEP.match(event["name"]) and event["cat"] != "gpu_user_annotation")
    written = turn = 0
    with opened(large, "wt") as out:
        out.write(json.dumps(trace)[:-1] + ', "traceEvents": [\n')
        while written < size:
            pieces = []
            for event in events:
                event = dict(event)
                if "ts" in event and isinstance(event["ts"], (int, float)):
                    event["ts"] = round(event["ts"] + turn * length, 3)
                if event.get("cat") in ("ac2g", "async_cpu_to_gpu", "fwdbwd") and isinstance(event.get("id"), int):
                    event["id"] += turn * ids
                args = event.get("args")
                if args:
                    event["args"] = args = dict(args)
                    for key, by in (("correlation", ids), ("External id", ids), ("Sequence number", sequences)):
                        if isinstance(args.get(key), int) and args[key] >= 0:
                            args[key] += turn * by
                found = STEP.match(event.get("name", ""))
                if found:
                    event["name"] = f"ProfilerStep#{int(found.group(1)) + turn * steps}"
                pieces.append(json.dumps(event))
            text = ("" if turn == 0 else ",\n") + ",\n".join(pieces)
            out.write(text)
            written += len(text)
            turn += 1
        out.write("\n]}\n")
    print(f"{large}: {written} bytes, {turn} times {len(events)} events")


if len(sys.argv) != 4:
    sys.exit(__doc__)
main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
