//! Fused attention, forward and backward, through cuDNN's graph API.

mod backward;
mod forward;
mod shape;

#[cfg(test)]
mod tests;
