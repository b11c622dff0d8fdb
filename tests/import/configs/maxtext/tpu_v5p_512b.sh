#!/bin/bash
export EXECUTABLE="train"
export LIBTPU_INIT_ARGS="--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true --xla_tpu_megacore_fusion_allow_ags=false --xla_enable_async_collective_permute=true --xla_tpu_enable_ag_backward_pipelining=true --xla_tpu_enable_data_parallel_all_reduce_opt=true --xla_tpu_data_parallel_opt_different_sized_ops=true --xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_multiple_steps=true --xla_tpu_overlap_compute_collective_tc=true --xla_enable_async_all_gather=true"
python3 -m maxtext.trainers.pre_train.$EXECUTABLE base.yml \
    steps=15 \
    per_device_batch_size=2 \
    enable_checkpointing=false \
    remat_policy=full \
    global_parameter_scale=512 \
    ici_fsdp_parallelism=-1 \
    ici_tensor_parallelism=8 \
    max_target_length=2048 \
    base_output_directory=$OUTPUT_PATH \
    use_iota_embed=true \
    reuse_example_batch=1 \
    dataset_type=synthetic \
    gcs_metrics=true \
    attention='flash' \
    quantization=""
