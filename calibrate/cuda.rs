//! `calibrate cuda`: measures the kernels of this machine's CUDA device.

#![allow(dead_code, unused_imports)]

mod attention;
mod cudnn;
mod device;
mod error;
mod library;
mod sweep;
