//! The machine's fabric as a drawing: a row for each level, outermost first, and the links between them.

use maud::{Markup, html};

use crate::hardware::{Drawn, Topology};

/// Boxes of a row at most; more are dots and a count.
const BOXES: u32 = 8;
/// Sizes in units of the drawing: its width, and heights of a level and of a box.
const WIDTH: u32 = 960;
const ROW: u32 = 92;
const BOX: u32 = 34;
/// Width of the column of names.
const NAMES: u32 = 210;

/// The drawing, where the fabric has more levels than those of a node and its cards.
pub(super) fn section(topology: &Topology) -> Option<Markup> {
    (topology.fabric.len() > 2).then(|| drawing(topology))
}

fn drawing(topology: &Topology) -> Markup {
    let levels = topology.drawn();
    let height = levels.len() as u32 * ROW + BOX;
    html! {
        h2 id="fabric" { "The fabric" }
        p.soft {
            (topology.name) ", " (topology.size_in_words()) ". A line is a link or an uplink; beside it stands what it carries one way. Of each "
            "level up to " (BOXES) " are drawn."
        }
        svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label="Levels of the fabric, and the links between them"
            style="width:100%;max-width:960px;font:13px sans-serif" {
            @for (row, level) in (0..).zip(&levels) {
                (of_level(row, level, levels.get(row as usize + 1).map_or(topology.chips(), |below| below.instances)))
            }
            text x="0" y=(height - 10) fill="currentColor" { tspan font-weight="600" { "chips" } " " (topology.chips()) }
            @for x in centres(topology.chips()) {
                rect x=(x - 5) y=(height - 22) width="10" height="14" rx="2" fill="currentColor" opacity="0.55" {}
            }
        }
    }
}

/// One level, and the links that lead up into it.
fn of_level(row: u32, level: &Drawn, below: u32) -> Markup {
    let top = row * ROW;
    let own = centres(level.instances);
    let half = (WIDTH - NAMES) / (2 * own.len().max(1) as u32) - 8;
    html! {
        text x="0" y=(top + 16) font-weight="600" fill="currentColor" { (level.name) }
        text x="0" y=(top + 33) fill="currentColor" {
            @if level.instances > 1 { (level.instances) " × " }
            (level.what)
        }
        @for &x in &own {
            rect x=(x - half) y=(top + 2) width=(2 * half) height=(BOX) rx="5" fill="none" stroke="currentColor" {}
        }
        @for x in centres(below) {
            @let up = nearest(&own, x, half);
            line x1=(x) y1=(top + ROW) x2=(up) y2=(top + BOX + 2) stroke="currentColor" opacity="0.45" {}
        }
        text x=(NAMES + 12) y=(top + BOX + 32) fill="currentColor" stroke="var(--paper,#fff)" stroke-width="7" paint-order="stroke" {
            "↕ " (level.links)
        }
    }
}

/// Where the boxes of a row have their centres.
fn centres(count: u32) -> Vec<u32> {
    let shown = count.clamp(1, BOXES);
    let each = (WIDTH - NAMES) / shown;
    (0..shown).map(|index| NAMES + index * each + each / 2).collect()
}

/// Where a link from below meets the box that is nearest.
fn nearest(own: &[u32], x: u32, half: u32) -> u32 {
    let centre = own.iter().copied().min_by_key(|centre| centre.abs_diff(x)).unwrap_or(x);
    x.clamp(centre.saturating_sub(half), centre + half)
}
