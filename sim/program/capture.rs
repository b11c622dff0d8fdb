//! How a program captures and replays CUDA graphs: from which pools they take memory, and when.

use super::{Builder, Graphs, Instr, StreamId};

impl Builder {
    /// Adds the pool that graphs take their memory from: one for all streams.
    pub fn add_graph_pool(&mut self) {
        self.program.graph_pool = Some(StreamId(self.program.streams.len() as u8));
        self.program.streams.push("CUDA graphs");
    }

    /// Adds a pool for each stream that there is, and the stream on which a first run warms up, which is returned.
    pub fn add_graph_pools(&mut self) -> StreamId {
        let streams = self.program.streams.len();
        self.program.streams.push("CUDA graphs' first run");
        self.program.graph_pool = Some(StreamId(streams as u8 + 1));
        self.program.streams.extend((0..streams).map(|_| "CUDA graphs"));
        StreamId(streams as u8)
    }

    /// How many instructions the first step has so far.
    pub fn in_first(&self) -> usize {
        self.program.first.len()
    }

    /// What becomes of what is written now.
    pub fn graphs_now(&self) -> Graphs {
        self.graphs
    }

    /// Says what becomes of what is written from here on. Returns what did before.
    pub fn graphs(&mut self, graphs: Graphs) -> Graphs {
        let before = std::mem::replace(&mut self.graphs, graphs);
        if before.runs() != graphs.runs() {
            self.push(Instr::Graph { begins: graphs.runs() });
        }
        before
    }

    /// Moves what the step's graphs take and give back before the first step: that happened once, when they were captured.
    pub fn take_graphs_memory_once(&mut self) {
        let moved = self.take_graphs_memory();
        self.program.setup.extend(moved);
    }

    /// Does the same to a place in the first step, where the cache is emptied before.
    pub fn take_graphs_memory_in_first(&mut self, at: usize) {
        let moved = self.take_graphs_memory();
        self.program.first.splice(at..at, std::iter::once(Instr::EmptyCache).chain(moved));
    }

    fn take_graphs_memory(&mut self) -> Vec<Instr> {
        let mut moved = vec![];
        let (mut inside, mut step) = (false, Vec::with_capacity(self.program.step.len()));
        // Where each instruction comes to lie.
        let mut places = Vec::with_capacity(self.program.step.len() + 1);
        for instr in std::mem::take(&mut self.program.step) {
            places.push(step.len());
            if let Instr::Graph { begins } = instr {
                inside = begins;
            }
            match instr {
                Instr::Alloc { .. } | Instr::Free { .. } | Instr::Rename { .. } | Instr::Recategorize { .. }
                    if inside =>
                {
                    moved.push(instr);
                }
                _ => step.push(instr),
            }
        }
        places.push(step.len());
        self.program.step = step;
        self.program.first_at = self.program.first_at.map(|at| places[at]);
        self.program.rounds.iter_mut().for_each(|round| *round = places[*round as usize] as u32);
        moved
    }
}
