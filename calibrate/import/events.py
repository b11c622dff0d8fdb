#!/usr/bin/env python3
"""What PyTorch's traces say of an event's latency: the counts and means of events.csv.

    events.py TRACE.json.gz ...    one line for all of them: same_stream,same_stream_us,hops,hop_us

A gap lies between a kernel or copy and the last one of any stream to end before it. Counted are gaps below 20 us of what the
host had launched at least 5 us before: within a stream where the host had not called cudaStreamWaitEvent since its last
launch, and between streams where it had.
"""
import bisect
import collections
import gzip
import json
import statistics
import sys

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
HOST = ("cuda_runtime", "runtime", "cuda_driver")


def gaps(path):
    """Gaps [us] within a stream, and across an event."""
    with gzip.open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    category = lambda event: event.get("cat", "").lower()
    ran = {e["args"]["correlation"]: e for e in events if category(e) in DEVICE and e["args"].get("correlation")}
    ends = sorted((e["ts"] + e["dur"], e["args"].get("stream"), which) for which, e in ran.items())
    times = [end for end, _, _ in ends]
    threads = collections.defaultdict(list)
    for event in events:
        if category(event) in HOST:
            threads[event["tid"]].append(event)
    same, hops = [], []
    for calls in threads.values():
        waited = False
        for call in sorted(calls, key=lambda event: event["ts"]):
            if call["name"].startswith("cudaStreamWaitEvent"):
                waited = True
                continue
            kernel = ran.get(call["args"].get("correlation"))
            if kernel is None:
                continue
            at = bisect.bisect_right(times, kernel["ts"]) - 1
            if at >= 0 and ends[at][2] != call["args"]["correlation"]:
                end, stream, _ = ends[at]
                alike = stream == kernel["args"].get("stream")
                if call["ts"] + call["dur"] + 5 < end and kernel["ts"] - end < 20:
                    if alike and not waited:
                        same.append(kernel["ts"] - end)
                    elif waited and not alike:
                        hops.append(kernel["ts"] - end)
            waited = False
    return same, hops


def main():
    same, hops = [], []
    for path in sys.argv[1:]:
        within, across = gaps(path)
        same += within
        hops += across
    print(f"{len(same)},{statistics.mean(same):.2f},{len(hops)},{statistics.mean(hops):.2f}")


if __name__ == "__main__":
    main()
