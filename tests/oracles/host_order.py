"""A step in host order with no GPU: blocks of the allocator and collectives, each on its stream."""
import torch
import torch.cuda.memory as memory
import torch.distributed as dist

KINDS = {"all_gather_single": "allgather", "reduce_scatter_single": "reduce_scatter", "allreduce": "allreduce", "all_to_all_single": "alltoall",
    "allgather": "allgather", "reduce_scatter": "reduce_scatter"}


def at():
    """Blocks that have been taken and let go of so far."""
    stats = torch.cuda.memory_stats()
    return stats["allocation.all.allocated"] + stats["allocation.all.freed"]


def size(held):
    if isinstance(held, torch.Tensor):
        return held.numel() * held.element_size()
    return sum(map(size, held)) if isinstance(held, (list, tuple)) else 0


class Order:
    """`streams`: numbers of streams by their handles; `other` is that of all others."""

    def __init__(self, streams, other):
        self.streams, self.other, self.log = streams, other, []
        self.started = at()
        memory._record_memory_history(enabled="all", context=None, max_entries=10_000_000)

    def lane(self, stream):
        return self.streams.get(stream, self.other)

    def note(self, entry):
        self.log.append((at(), entry))

    def note_here(self, entry):
        """With the stream at hand."""
        self.note(f"{entry}@{self.lane(torch.cuda.current_stream().cuda_stream)}")

    def note_collectives(self):
        """Has those of process groups noted, with all bytes of the larger side."""

        def noted(name, kind):
            call = getattr(dist.ProcessGroup, name, None)

            def wrapper(group, *tensors, **options):
                self.note_here(f"{kind}:{max(map(size, tensors))}")
                return call(group, *tensors, **options)

            if call is not None:
                setattr(dist.ProcessGroup, name, wrapper)

        for name, kind in KINDS.items():
            for ending in ("", "_coalesced"):
                noted(name + ending, kind + ending)

    def events(self, begun, ended=None, log=None):
        """Those from one count of blocks to another: `+BYTES@STREAM`, `-BYTES@STREAM`, and what was noted."""
        live, events, count, log = {}, [], self.started, list(self.log if log is None else log)
        for event in memory._snapshot()["device_traces"][0]:
            if event["action"] == "alloc":
                live[event["addr"]] = event["size"]
                written = f"+{event['size']}@{self.lane(event['stream'])}"
            elif event["action"] == "free_requested":
                written = f"-{live.pop(event['addr'], 0)}@{self.lane(event['stream'])}"
            else:
                continue
            if begun <= count and (ended is None or count < ended):
                while log and log[0][0] <= count:
                    events.append(log.pop(0)[1])
                events.append(written)
            count += 1
        return " ".join(events + [entry for _, entry in log])
