//! Where a file says what a step's length hangs on: what an error points at that comes up once the file has been read.

use super::reader::Reader;
use super::written;
use crate::hardware::Place;

/// Places in a scenario's file.
#[derive(Clone, Debug)]
pub struct Places {
    /// How long sequences are.
    pub sequence: Place,
    /// Which model it is.
    pub model: Place,
    /// How long packed documents are; the model, where the file does not say.
    pub documents: Place,
    /// The key that makes a step longest: the number of micro-batches, else that of layers, else the model.
    pub length: Place,
}

impl Places {
    /// Those of a file that is being read; none in a draft.
    pub(super) fn of(reader: &Reader<'_>, scenario: &written::Scenario) -> Option<Places> {
        let (model, batch) = (&scenario.model, &scenario.batch);
        let length = batch.accumulation.as_ref().or(model.get_ref().layers.as_ref());
        reader.source.has_places().then(|| Places {
            sequence: *reader.place(&batch.sequence),
            model: *reader.place(model),
            documents: *batch.documents.as_ref().map_or_else(|| reader.place(model), |at| reader.place(at)),
            length: *length.map_or_else(|| reader.place(model), |at| reader.place(at)),
        })
    }
}
