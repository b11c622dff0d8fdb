//! The layers of a model as a list of kinds.
//!
//! A model has few kinds of layers and many layers. The list is held as its first kinds and those that repeat from there on, so
//! that it goes on where another count is asked for (`model.layers`): a window in every layer but each sixth, dense layers
//! before those with experts.

use super::{FeedForward, Layer, Mixer};

/// The most layers that a model may have: DeepNet has a thousand (arXiv 2203.00555).
pub const MOST_LAYERS: u64 = 1_024;

/// A kind of layer, by its place in [`Layers::kinds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct KindId(u16);

impl KindId {
    /// Its place in [`Layers::kinds`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The layers of a model.
///
/// Kinds are distinct, and in the order in which they come first in the list. All attention of a model has the same heads, whatever
/// its windows, and so are all layers with experts, all dense ones and all of one other mixer alike: the code that asks a
/// model for its heads, its norms or its experts relies on that.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Layers {
    kinds: Vec<Layer>,
    first: Vec<KindId>,
    cycle: Vec<KindId>,
    count: u64,
}

impl Layers {
    /// `count` layers of one kind.
    pub fn alike(layer: Layer, count: u64) -> Layers {
        Layers::new(count, 0, 1, |_| layer.clone())
    }

    /// `count` layers, of which the one at a place is `of` that place. Behind the `first` ones they repeat after every `period`.
    ///
    /// # Panics
    /// If there are no layers, or kinds differ in more than they may.
    pub fn new(count: u64, first: u64, period: u64, of: impl Fn(u64) -> Layer) -> Layers {
        let first = first.min(MOST_LAYERS);
        let mut kinds = vec![];
        let mut list = |places: std::ops::Range<u64>| places.map(|place| known(&mut kinds, of(place))).collect();
        let (first, cycle) = (list(0..first), list(first..first + period.clamp(1, MOST_LAYERS)));
        let layers = Layers { kinds, first, cycle, count };
        layers.check();
        layers
    }

    fn check(&self) {
        assert!(self.count > 0, "a model has layers");
        let pairs =
            self.kinds.iter().enumerate().flat_map(|(at, one)| self.kinds[..at].iter().map(move |other| (one, other)));
        for (one, other) in pairs {
            assert!(stand_together(one, other), "kinds of layers differ in more than they may: {one:?}, {other:?}");
        }
    }

    /// How many layers there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Has another number of layers.
    ///
    /// # Panics
    /// If there are none.
    pub fn resize(&mut self, count: u64) {
        self.count = count;
        self.check();
    }

    /// The kinds. Where there are few layers, some may have none.
    pub fn kinds(&self) -> &[Layer] {
        &self.kinds
    }

    /// The kinds that layers are of.
    pub fn used(&self) -> &[Layer] {
        let most = self.ids().max().map_or(0, KindId::index);
        &self.kinds[..=most]
    }

    /// The kind of each layer.
    pub fn ids(&self) -> impl Iterator<Item = KindId> {
        self.first.iter().chain(self.cycle.iter().cycle()).copied().take(self.count as usize)
    }

    /// The kind of the layer at a place.
    pub fn id(&self, place: u64) -> KindId {
        let (place, first) = (place as usize, self.first.len());
        match self.first.get(place) {
            Some(&id) => id,
            None => self.cycle[(place - first) % self.cycle.len()],
        }
    }

    /// The layer at a place.
    pub fn at(&self, place: u64) -> &Layer {
        &self.kinds[self.id(place).index()]
    }

    /// All layers.
    pub fn iter(&self) -> impl Iterator<Item = &Layer> {
        self.ids().map(|id| &self.kinds[id.index()])
    }

    /// The last layer.
    pub fn last(&self) -> &Layer {
        self.at(self.count - 1)
    }

    /// Changes every kind of layer. Kinds that have become alike are one from then on.
    ///
    /// # Panics
    /// If kinds then differ in more than they may.
    pub fn edit(&mut self, mut change: impl FnMut(&mut Layer)) {
        let mut kinds = vec![];
        let changed: Vec<KindId> = std::mem::take(&mut self.kinds)
            .into_iter()
            .map(|mut layer| {
                change(&mut layer);
                known(&mut kinds, layer)
            })
            .collect();
        self.first.iter_mut().chain(&mut self.cycle).for_each(|id| *id = changed[id.index()]);
        self.kinds = kinds;
        self.check();
    }
}

/// The kind that a layer is of, which is a new one if none is like it.
fn known(kinds: &mut Vec<Layer>, layer: Layer) -> KindId {
    let at = kinds.iter().position(|kind| *kind == layer).unwrap_or_else(|| {
        kinds.push(layer);
        kinds.len() - 1
    });
    KindId(u16::try_from(at).expect("a model has fewer kinds of layers than layers"))
}

/// Whether two kinds have the same parts where they have parts of one sort, but for their windows.
pub fn stand_together(one: &Layer, other: &Layer) -> bool {
    let same = match (&one.feed_forward, &other.feed_forward) {
        (FeedForward::Dense(one), FeedForward::Dense(other)) => one == other,
        (FeedForward::Experts(one), FeedForward::Experts(other)) => one == other,
        (FeedForward::Dense(dense), FeedForward::Experts(experts))
        | (FeedForward::Experts(experts), FeedForward::Dense(dense)) => dense.gating == experts.gating,
        (FeedForward::None, _) | (_, FeedForward::None) => true,
    };
    let mixers = match (one.mixer, other.mixer) {
        (Mixer::Mamba2(one), Mixer::Mamba2(other)) => one == other,
        (Mixer::GatedDelta(one), Mixer::GatedDelta(other)) => one == other,
        (one, other) if one.attends() && other.attends() => one.with_window(None) == other.with_window(None),
        _ => true,
    };
    same && mixers && one.norms == other.norms
}
