"""Blocks in a pipeline as MaxText runs them (layers/pipeline.py, `NNXPipeline`): one loop whose every iteration computes all
stages, each on a micro-batch of its own, or on what stands in its place while the pipeline fills and drains.

`pipeline(c, mesh, stage, policy, once)` gives the function from hidden states and weights to hidden states. Weights are
[stages, …], or [repeats, stages, …] where a stage has blocks from several places of the model; `once` asks for them whole.
"""
import functools
import jax, jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec as P

def pipeline(c, mesh, stage, policy, once):
    stages, micro, repeats = c["stage"], c["micro_batches"], c["repeats"]
    delay = 2 if c.get("delay") else 1
    per_stage = micro // stages
    circular = repeats > 1 and micro > stages * delay
    in_spec, io_spec = P("stage", "data", None, None), P("stage", None, "data", None, None)
    con = lambda x, s: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, s))
    free = P.UNCONSTRAINED
    staged = lambda x, dim: con(x, P(*[("stage" if at == dim else free) for at in range(x.ndim)]))
    on_stages = functools.partial(jax.shard_map, mesh=mesh, in_specs=in_spec, out_specs=in_spec, check_vma=True)
    ring = [(i, (i + 1) % stages) for i in range(stages)]

    @on_stages
    def rotate(x):
        return jax.lax.ppermute(x, "stage", ring)

    @on_stages
    def shift_right(x):
        x = jax.lax.ppermute(x, "stage", ring)
        return jnp.where(jax.lax.axis_index("stage") == 0, jnp.zeros_like(x), x)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(io_spec, in_spec, in_spec, P()), out_specs=io_spec)
    def take_up(state, part, output, at):
        back = jax.lax.ppermute(part, "stage", [(i, (i - 1) % stages) for i in range(stages)])
        part = jnp.where(jax.lax.axis_index("stage") == stages - 1, output, back)
        return jax.lax.dynamic_update_slice_in_dim(state, jnp.expand_dims(part, 1), at, axis=1)

    def weights_now(weights, at):
        """Each stage's weights of the repeat that it is in."""
        if repeats == 1:
            return weights
        done = staged(jnp.maximum(at - delay * jnp.arange(stages), 0), 0)
        of = done // micro
        def one(w):
            take = lambda x, i: jnp.squeeze(jax.lax.dynamic_slice_in_dim(x, i, 1, 0), 0)
            return staged(jax.vmap(take, in_axes=(1, 0))(staged(w, 1), staged(of, 0)), 0)
        return jax.tree.map(one, weights)

    def iteration(weights, state, _):
        at, io, shift = state["at"], state["io"], con(state["shift"], in_spec)
        fresh = io[:, at % per_stage]
        again = state["circular"][:, at % micro] if circular else shift
        first = con(jnp.where(at < micro, fresh, again), in_spec)
        inputs = con(jnp.where(jax.lax.broadcasted_iota("int32", shift.shape, 0) == 0, first, shift), in_spec)
        inputs = checkpoint_name(inputs, "iteration_input")
        output = jax.vmap(stage, in_axes=(0, 0), spmd_axis_name="stage")(inputs, weights_now(weights, at))
        onwards = rotate if repeats > 1 and not circular else shift_right
        new = dict(at=at + 1, shift=onwards(state["before"] if delay == 2 else output),
                   io=take_up(io, io[:, at % per_stage], output, at % per_stage))
        if delay == 2:
            new["before"] = output
        if circular:
            place = (at - delay * (stages - 1) - 1) % micro
            moved = jnp.expand_dims(rotate(state["mover"]), 1)
            new.update(circular=jax.lax.dynamic_update_slice_in_dim(state["circular"], moved, place, axis=1), mover=output)
        return new, None

    inputs_saved = jax.checkpoint_policies.save_only_these_names("iteration_input", "decoder_layer_input")
    policy = inputs_saved if policy is None else jax.checkpoint_policies.save_from_both_policies(policy, inputs_saved)

    def run(x, weights):
        parts = jnp.reshape(x, (micro, x.shape[0] // micro) + x.shape[1:])
        shift = con(jnp.zeros((stages,) + parts.shape[1:], x.dtype), in_spec)
        state = dict(at=0, shift=shift, io=con(jnp.reshape(parts, (stages, per_stage) + parts.shape[1:]), io_spec))
        if delay == 2:
            state["before"] = shift
        if circular:
            state.update(circular=jnp.zeros((stages,) + parts.shape, x.dtype), mover=shift)
        body = functools.partial(iteration, once(weights) if c.get("once") else weights)
        body = jax.checkpoint(body, policy=policy, prevent_cse=False)
        state, _ = jax.lax.scan(body, state, None, length=micro * repeats + delay * (stages - 1))
        first = (micro * (repeats - 1) + delay * (stages - 1)) % per_stage
        order = (np.arange(per_stage) + first) % per_stage
        return jnp.reshape(state["io"][:, order], x.shape)
    return run
