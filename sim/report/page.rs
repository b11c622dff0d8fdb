//! The frame that all HTML pages share: head, style, tables, tiles. A page loads nothing, and its policy tells the browser so.
//!
//! Colours follow the reader's light or dark scheme. Marks that show a kind of work have a class `k0` to `k8`, whose colour is
//! `var(--c)`. To change how pages look: `page/page.css`.

use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

const STYLE: &str = include_str!("page/page.css");

/// What a browser may load for a page: nothing but what stands in it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// A page without a script.
pub fn page(title: &str, body: &Markup) -> String {
    scripted(title, body, ("", ""))
}

/// A page with more style, and with a script that it can be read without.
pub fn scripted(title: &str, body: &Markup, (style, script): (&str, &str)) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) }
            }
            body {
                main { (body) }
                @if !script.is_empty() { script { (PreEscaped(script)) } }
            }
        }
    };
    crate::files::plain(&page.into_string())
}

/// A table that scrolls by itself where it is too wide. Columns hold numbers, but for those of `words`.
pub fn table<H: AsRef<str>, C: Render>(name: &str, header: &[H], rows: &[Vec<C>], words: &[usize]) -> Markup {
    let class = |column: usize| if words.contains(&column) { "words" } else { "number" };
    html! {
        div.wide role="region" tabindex="0" aria-label=(name) { table {
            thead { tr { @for (at, cell) in header.iter().enumerate() { th scope="col" class=(class(at)) { (cell.as_ref()) } } } }
            tbody { @for row in rows { tr { @for (at, cell) in row.iter().enumerate() { td class=(class(at)) { (cell) } } } } }
        } }
    }
}

/// A figure that stands out, with its name and a remark.
pub struct Tile {
    /// What it is.
    pub name: &'static str,
    /// The figure with its unit.
    pub figure: Markup,
    /// What the figure is to be read with.
    pub remark: String,
}

/// Key figures.
pub fn tiles(tiles: &[Tile]) -> Markup {
    html! {
        dl.tiles {
            @for tile in tiles {
                div { dt { (tile.name) } dd.big { (tile.figure) } @if !tile.remark.is_empty() { dd { small { (tile.remark) } } } }
            }
        }
    }
}

/// Names with what is said of them.
pub fn facts<N: AsRef<str>, F: Render>(facts: &[(N, F)]) -> Markup {
    html! { dl.facts { @for (name, fact) in facts { dt { (name.as_ref()) } dd { (fact) } } } }
}

/// A figure as it is read, with the value that a program reads.
pub fn figure(key: &str, value: impl std::fmt::Display, words: &str) -> Markup {
    html! { data id=(key) value=(value) { (words) } }
}

/// A drawing that scrolls by itself where the page is narrower than it can be read.
pub fn drawing(drawing: &Markup) -> Markup {
    html! { div.scroll { (drawing) } }
}
