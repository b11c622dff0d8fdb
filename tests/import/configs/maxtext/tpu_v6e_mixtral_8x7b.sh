#!/bin/bash
export EXECUTABLE="train"
export LIBTPU_INIT_ARGS="--xla_tpu_scoped_vmem_limit_kib=81920 --xla_enable_async_all_gather=true --xla_tpu_overlap_compute_collective_tc=true --xla_tpu_enable_async_collective_fusion_multiple_steps=true --xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true"
python3 -m maxtext.trainers.pre_train.$EXECUTABLE base.yml \
    model_name=mixtral-8x7b \
    steps=15 \
    per_device_batch_size=32 \
    enable_checkpointing=false \
    remat_policy=full \
    ici_fsdp_parallelism=-1 \
    max_target_length=1024 \
    base_output_directory=$OUTPUT_PATH \
    reuse_example_batch=1 \
    dataset_type=synthetic \
    gcs_metrics=true \
    attention='flash' \
    sa_block_q=1024 \
    sa_block_q_dkv=2048 \
    sa_block_q_dq=2048
