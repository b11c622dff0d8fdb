//! Reports: for a person ([`text`]), for a program ([`json`]).

pub mod json;
pub mod text;
