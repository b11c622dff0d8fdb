//! Whether a program's arrays and windows are of sizes that some machine might hold: others are refused before anything is counted.

use super::super::error::PjrtError;
use super::{Module, Shape, WindowDimension};

/// The most elements of an array, the longest axis and padding, and the widest step or spacing of a window.
const ELEMENTS_AT_MOST: u64 = 1 << 53;
const LENGTH_AT_MOST: i64 = 1 << 40;
const STEP_AT_MOST: i64 = 1 << 20;
/// The most places that a window and its array spread out may have together: they are looked at one by one.
const PLACES_AT_MOST: i64 = 1 << 26;

/// The program, if its arrays and windows are ones that some machine might hold.
pub(super) fn sound(module: Module) -> Result<Module, PjrtError> {
    for instruction in module.computations.iter().flat_map(|computation| &computation.instructions) {
        let windows = instruction.window.iter().flat_map(|window| &window.dimensions);
        let (shape, windows) = (instruction.shape.as_ref(), windows.map(WindowDimension::is_sound));
        if !(shape.is_none_or(Shape::is_sound) && windows.into_iter().all(|sound| sound)) {
            let why = format!("{}: an array or a window of a size that no machine holds", instruction.name);
            return Err(PjrtError::Nonsense(format!("the compiled program cannot be read: {why}")));
        }
    }
    Ok(module)
}

impl Shape {
    fn is_sound(&self) -> bool {
        let lengths = self.dimensions.iter().all(|length| (0..=LENGTH_AT_MOST).contains(length));
        lengths && self.elements() <= ELEMENTS_AT_MOST && self.tuple.iter().all(Shape::is_sound)
    }
}

impl WindowDimension {
    fn is_sound(&self) -> bool {
        let steps = [self.stride, self.window_dilation, self.base_dilation];
        let paddings = [self.low, self.high];
        steps.iter().all(|step| (0..=STEP_AT_MOST).contains(step))
            && paddings.iter().all(|padding| (-LENGTH_AT_MOST..=LENGTH_AT_MOST).contains(padding))
            && (0..=PLACES_AT_MOST / self.base_dilation.max(1)).contains(&self.size)
    }
}
