//! A small writer of SVG: rectangles, lines and text, in colours for light and dark.

use std::fmt::Write as _;

/// The classes of the drawings: what they set, and the colours for a light and a dark background.
const CLASSES: [(&str, &str, &str, &str); 15] = [
    ("paper", "fill", "#ffffff", "#0d1117"),
    ("ink", "fill", "#1f2328", "#e6edf3"),
    ("soft", "fill", "#59636e", "#9198a1"),
    ("rule", "stroke", "#d1d9e0", "#30363d"),
    ("edge", "stroke", "#59636e", "#9198a1"),
    ("first", "fill", "#54aeff", "#1f6feb"),
    ("second", "fill", "#4ac26b", "#238636"),
    ("third", "fill", "#d4a72c", "#9e6a03"),
    ("fourth", "fill", "#c297ff", "#8957e5"),
    ("fifth", "fill", "#ff9bce", "#bf4b8a"),
    ("waits", "fill", "#d1d9e0", "#3d444d"),
    ("fault", "fill", "#ffd8b5", "#5a3a1a"),
    ("bad", "fill", "#cf222e", "#f85149"),
    ("alarm", "stroke", "#cf222e", "#f85149"),
    ("good", "fill", "#1a7f37", "#3fb950"),
];

/// The classes of holders, one for each.
pub(super) const HOLDERS: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];

/// A picture in the making. Coordinates are pixels from the upper left.
#[derive(Debug)]
pub(super) struct Canvas {
    width: u32,
    title: String,
    style: String,
    body: String,
}

impl Canvas {
    /// Begins a picture; the title is for those who can't see it.
    pub(super) fn new(width: u32, title: &str) -> Self {
        Self {
            width,
            title: title.to_owned(),
            style: String::new(),
            body: String::new(),
        }
    }

    /// Adds rules to the style sheet.
    pub(super) fn style(&mut self, rules: &str) {
        self.style.push_str(rules);
    }

    /// Adds a piece of SVG as it is.
    pub(super) fn raw(&mut self, piece: &str) {
        self.body.push_str(piece);
    }

    pub(super) fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        let (x, y, width) = (short(x), short(y), short(width.max(1.0)));
        let height = short(height);
        let _ = writeln!(
            self.body,
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"/>"#
        );
    }

    /// Draws a rectangle with a text that pointing at it shows.
    pub(super) fn titled(&mut self, class: &str, [x, y, width, height]: [f64; 4], title: &str) {
        let (x, y, width) = (short(x), short(y), short(width.max(1.0)));
        let (height, title) = (short(height), escape(title));
        let _ = writeln!(
            self.body,
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"><title>{title}</title></rect>"#
        );
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(short);
        let _ = writeln!(
            self.body,
            r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#
        );
    }

    /// Draws a horizontal arrow.
    pub(super) fn arrow(&mut self, from: f64, to: f64, y: f64) {
        let head = if to > from { -7.0 } else { 7.0 };
        self.line("edge", (from, y), (to, y));
        let points = [to, y, to + head, y - 4.0, to + head, y + 4.0].map(short);
        let [x1, y1, x2, y2, x3, y3] = points;
        let _ = writeln!(self.body, r#"<path class="soft" d="M{x1} {y1}L{x2} {y2}L{x3} {y3}z"/>"#);
    }

    pub(super) fn dot(&mut self, class: &str, x: f64, y: f64, radius: f64) {
        let [x, y, radius] = [x, y, radius].map(short);
        let _ = writeln!(self.body, r#"<circle class="{class}" cx="{x}" cy="{y}" r="{radius}"/>"#);
    }

    /// Writes a text that begins at `x`, on the line `y`.
    pub(super) fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let ([x, y], text) = ([x, y].map(short), escape(text));
        let _ = writeln!(self.body, r#"<text class="{class}" x="{x}" y="{y}">{text}</text>"#);
    }

    /// Writes a text whose middle is at `x`.
    pub(super) fn centred(&mut self, class: &str, x: f64, y: f64, text: &str) {
        self.text(&format!("{class} mid"), x, y, text);
    }

    /// Ends the picture at that height.
    pub(super) fn finish(self, height: f64) -> String {
        let Self {
            width,
            title,
            style,
            body,
        } = self;
        let (mut light, mut dark) = (String::new(), String::new());
        for (class, property, in_light, in_dark) in CLASSES {
            let _ = write!(light, ".{class}{{{property}:{in_light}}}");
            let _ = write!(dark, ".{class}{{{property}:{in_dark}}}");
        }
        let (title, height) = (escape(&title), short(height));
        // The background belongs to the picture: the page around it may have another theme than the reader's system.
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" font-family=\"system-ui,sans-serif\" font-size=\"12\">\n\
             <title>{title}</title>\n<style>{light}.mid{{text-anchor:middle}}.end{{text-anchor:end}}\
             .head{{font-size:15px;font-weight:600}}.bold{{font-weight:600}}.dash{{stroke-dasharray:4 3}}\n\
             @media(prefers-color-scheme:dark){{{dark}}}\n{style}</style>\n\
             <rect class=\"paper\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n{body}</svg>\n"
        )
    }
}

/// Writes a coordinate with at most one digit after the point.
fn short(number: f64) -> String {
    let text = format!("{number:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_stays_text() {
        let mut canvas = Canvas::new(100, "a < b");
        canvas.text("ink", 1.0, 2.06, "<script>&\"");
        canvas.titled("first", [0.0, 0.0, 0.2, 9.0], "</title>");
        let drawn = canvas.finish(10.0);
        assert!(
            drawn.contains(r#"<text class="ink" x="1" y="2.1">&lt;script&gt;&amp;&quot;</text>"#),
            "{drawn}"
        );
        assert!(
            drawn.contains("<title>a &lt; b</title>") && drawn.contains("<title>&lt;/title&gt;</title>"),
            "{drawn}"
        );
        // Even a short hold stays visible.
        assert!(drawn.contains(r#"width="1""#), "{drawn}");
    }
}
