"""Writes vocabulary-parallel.json: what each pipeline rank of sail-sg/VocabularyParallelism issues in one iteration.

Run with a checkout: python3 vocabulary_parallel.py CHECKOUT > vocabulary-parallel.json. The fork's two schedules run as they
are; what they call is replaced by names that write down who called them: no GPU, no PyTorch, no Megatron.

Words: F, B a stage's blocks; E, D the forward and the backward of the rank's part of the word embedding; S the rank's part
of the head; L the loss, on the last rank. SUM_E, WAIT_SUM_E an all-reduce of embedded words and its end; CAST_F, CAST_B the
broadcast of the last rank's result and of the first rank's gradient; SUM_S the all-reduces of what S made, with their number.
"""

import contextlib
import json
import sys
import types

SHAPES = [(2, 8), (3, 9), (4, 12), (5, 11), (6, 16), (8, 20)]
PATH = "megatron/core/pipeline_parallel/"


class Anything:
    """A tensor, a module, a function: whatever is asked of it, it is another such thing."""

    def __call__(self, *_, **__):
        return self

    def __getattr__(self, _):
        return self

    def __getitem__(self, _):
        return self

    def __setitem__(self, _, __):
        pass

    def __iter__(self):
        return iter(())

    def __add__(self, _):
        return self

    __radd__ = __sub__ = __rsub__ = __mul__ = __iadd__ = __isub__ = __imul__ = __add__


def run(path, function, separate, stages, rank, micro_batches):
    """The words of one rank; `separate`: --disable-backward-fusion, an all-reduce for statistics and one for gradients."""
    words, counts, last = [], {}, rank == stages - 1

    def say(word, number=None, joined=False):
        if number is None:
            number = counts[word] = counts.get(word, -1) + 1
        words.append(("+" if joined else "") + f"{rank}{word}{number}")

    def message(word, joined=False):
        ahead = word in ("SEND_F", "RECV_B")
        if not (last if ahead else rank == 0):
            say(word, joined=joined)
            return True
        return False

    class Request:
        def __init__(self, word, number):
            self.word, self.number = word, number

        def wait(self):
            say(self.word, self.number)

    class VocabInputStore:
        cache = []

        @classmethod
        def forward_store(cls, _, handle):
            cls.cache.append(handle)

        @classmethod
        def forward_get(cls, remove=True):
            if cls.cache[0] is not None:
                cls.cache[0].wait()
            if remove:
                cls.cache.pop(0)
            else:
                cls.cache[0] = None

        @staticmethod
        def backward_store(_):
            pass

        @staticmethod
        def backward_get():
            return Anything()

    state = {"side": False, "chunk": 0, "pass": "", "head": -1}

    def send_or_receive(*kinds):
        def call(*args, **kwargs):
            if kinds[-1] == "RECV_F" and rank == 0:
                VocabInputStore.forward_get(remove=False)
            sent = False
            for kind in kinds:
                sent = message(kind, joined=sent) or sent
            if "SEND_F" in kinds and kwargs.get("wait_on_reqs") is False:
                return [Request("WAIT_SEND_F", counts["SEND_F"])] if sent else []
            return [Anything()]

        return call

    def forward_step(*args, **kwargs):
        word = "L" if state["chunk"] == 3 else {"F": "F", "IF": "E"}.get(state["pass"])
        if word:
            say(word)
        if word == "F" and rank == 0:
            VocabInputStore.forward_get()
        return [Anything()], Anything()

    def backward_step(*args, **kwargs):
        word = {"B": "B", "IB": "D"}.get(state["pass"])
        if word and state["chunk"] != 3:
            say(word)
        return [Anything()]

    class Side:
        def __enter__(self):
            state["side"] = True

        def __exit__(self, *_):
            state["side"] = False

    class Tick(Anything):
        pass

    def all_reduce(tensor, *args, group=None, async_op=False, **kwargs):
        if state["side"]:
            counts["reduced"] = counts.get("reduced", 0) + 1
            if words[-1].startswith(f"{rank}SUM_S"):
                words[-1] += "'"
            else:
                say("SUM_S", state["head"])
            return Anything()
        if isinstance(tensor, Tick):
            return Anything()
        say("SUM_E")
        request = Request("WAIT_SUM_E", counts["SUM_E"])
        if not async_op:
            request.wait()
        return request

    def broadcast(tensor, source, group=None, **kwargs):
        say("CAST_F" if source == "last" else "CAST_B")
        return Anything()

    def range_push(name):
        state["pass"] = name.rstrip("0123456789")
        if state["pass"] == "S":
            state["head"] = int(name[1:])
            say("S", state["head"])

    torch = types.SimpleNamespace(
        distributed=Anything(), cuda=Anything(), tensor=Anything(), empty=Anything(), cat=Anything(), log=Anything(),
        zeros=Anything(), float32=None, int=None, nn=Anything(), Tensor=None,
    )
    torch.distributed = types.SimpleNamespace(ReduceOp=Anything(), all_gather_into_tensor=Anything())
    torch.cuda = types.SimpleNamespace(
        current_stream=Anything(), current_device=Anything(), Stream=Anything(), nvtx=types.SimpleNamespace(range_pop=Anything()),
    )
    torch.Tensor = lambda _: types.SimpleNamespace(cuda=lambda: Tick())
    torch.distributed.all_reduce = all_reduce
    torch.distributed.broadcast = broadcast
    torch.cuda.stream = lambda _: Side()
    torch.cuda.nvtx.range_push = range_push
    parallel_state = types.SimpleNamespace(
        get_lm_head_model_parallel_group=Anything(), get_pipeline_model_parallel_group=Anything(),
        get_tensor_model_parallel_world_size=Anything(), get_tensor_model_parallel_rank=Anything(),
    )
    parallel_state.get_pipeline_model_parallel_world_size = lambda: stages
    parallel_state.get_pipeline_model_parallel_rank = lambda: rank
    parallel_state.is_pipeline_first_stage = lambda: rank == 0
    parallel_state.is_pipeline_last_stage = lambda: last
    parallel_state.get_pipeline_model_parallel_last_rank = lambda: "last"
    parallel_state.get_pipeline_model_parallel_first_rank = lambda: "first"
    parallel_state.set_virtual_vocab_parallel_chunk = lambda chunk: state.update(chunk=chunk)
    config = types.SimpleNamespace(
        overlap_p2p_comm=False, finalize_model_grads_func=None, timers=None, no_sync_func=None, grad_sync_func=None,
        num_microbatches_with_partial_activation_checkpoints=None, variable_seq_lengths=False, sequence_parallel=False,
        pipeline_dtype=None, deallocate_pipeline_outputs=True,
    )
    options = types.SimpleNamespace(
        profile=True, disable_backward_fusion=separate, schedule_timer_start=1000, schedule_timer_end=1000,
    )
    timers = types.SimpleNamespace(iter_counter=0)
    names = {
        "torch": torch, "parallel_state": parallel_state, "forward_step": forward_step, "backward_step": backward_step,
        "get_tensor_shapes": lambda **_: [(1, 1, 1)], "check_first_val_step": Anything(),
        "deallocate_output_tensor": Anything(), "recv_forward": send_or_receive("RECV_F"),
        "send_forward": send_or_receive("SEND_F"), "recv_backward": send_or_receive("RECV_B"),
        "send_backward": send_or_receive("SEND_B"),
        "send_forward_recv_backward": send_or_receive("SEND_F", "RECV_B"),
        "send_backward_recv_forward": send_or_receive("SEND_B", "RECV_F"),
        "bootstrap_and_profile_p2p_communication": Anything(), "ScheduleTimers": timers, "VocabOutputStore": types.SimpleNamespace(forward_get=lambda: [Anything()] * 6, backward_store=Anything()),
        "VocabInputStore": VocabInputStore, "get_model_config": lambda _: config, "get_model_type": Anything(),
        "get_model_xattn": Anything(), "get_args": lambda: options, "Union": Anything(), "List": Anything(),
        "Iterator": Anything(),
    }
    names["contextlib"] = contextlib
    names["clear_embedding_activation_buffer"] = names["finish_embedding_wgrad_compute"] = Anything()
    with open(path) as file:
        text = file.read()
    # The imports' names are given; what remains begins at the first global or function.
    text = text[min(at for at in (text.find("LM_HEAD_RES"), text.find("def ")) if at >= 0):]
    exec(compile(text, path, "exec"), names)
    names[function](
        forward_step_func=None, data_iterator=None, model=[Anything() for _ in range(4)], num_microbatches=micro_batches,
        seq_length=1, micro_batch_size=1, forward_only=False,
    )
    # A send and a receive of one call stand as one; so do the marks of further all-reduces.
    return " ".join(words).replace(" +", "+").replace("'", ""), counts.get("reduced", 0)


def main():
    folder = sys.argv[1].rstrip("/") + "/" + PATH
    vocabulary = (folder + "vocab_parallel_schedule.py", "forward_backward_pipelining_with_vocab_parallel")
    interlaced = (folder + "interlaced_schedule.py", "forward_backward_pipelining_with_interlaced_schedule")
    variants = [("Vocab1", *vocabulary, True), ("Vocab2", *vocabulary, False), ("Interlaced", *interlaced, False)]
    cases = []
    for name, path, function, separate in variants:
        for stages, micro_batches in SHAPES:
            if name == "Interlaced" and stages % 2:
                continue  # it stops with an UnboundLocalError
            made = [run(path, function, separate, stages, rank, micro_batches) for rank in range(stages)]
            cases.append({
                "schedule": name,
                "pp": stages,
                "virtual_stages": 1,
                "microbatches": micro_batches,
                "all_reduces_beside": [reduced for _, reduced in made],
                "with_comms": [words for words, _ in made],
            })
    print(json.dumps({"cases": cases}, indent=1))


if __name__ == "__main__":
    main()
