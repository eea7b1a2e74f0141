//! A shorter way to write the backend's elements: neighbours that look the same become one path.
//!
//! The backend writes an element a line, each with all of its attributes. A map of tiles or a dashed line has hundreds of equal ones.

use std::fmt::Write as _;

/// The elements of `body` with runs of rectangles and of lines of equal looks joined. Nothing that is seen changes: order stays, and only
/// unbroken paint is joined.
pub(super) fn compact(body: &str) -> String {
    let mut out = String::with_capacity(body.len());
    let mut run = Run::default();
    for line in body.split_inclusive('\n') {
        match shape(line.trim_end()) {
            Some((looks, path)) if run.looks == looks => run.add(path),
            Some((looks, path)) => {
                run.write(&mut out);
                run = Run { looks: looks.to_owned(), first: line.to_owned(), path: String::new(), count: 0 };
                run.add(path);
            }
            None => {
                run.write(&mut out);
                run = Run::default();
                out.push_str(line);
            }
        }
    }
    run.write(&mut out);
    out
}

/// Elements in a row that look the same.
#[derive(Default)]
struct Run {
    /// Their attributes without those of place and size.
    looks: String,
    /// The first as the backend wrote it.
    first: String,
    path: String,
    count: usize,
}

impl Run {
    fn add(&mut self, path: Path<'_>) {
        path.write(&mut self.path);
        self.count += 1;
    }

    fn write(&self, out: &mut String) {
        match self.count {
            0 => {}
            1 => out.push_str(&self.first),
            _ => {
                writeln!(out, "<path d=\"{}\"{}/>", self.path, self.looks)
                    .expect("writing to a String cannot fail");
            }
        }
    }
}

/// What an element draws, without its looks.
enum Path<'a> {
    Rect {
        x: &'a str,
        y: &'a str,
        width: &'a str,
        height: &'a str,
    },
    /// `x,y x,y `
    Line(&'a str),
}

impl Path<'_> {
    fn write(&self, out: &mut String) {
        match self {
            Self::Rect { x, y, width, height } => write!(out, "M{x},{y}h{width}v{height}h-{width}z"),
            Self::Line(points) => write!(out, "M{}", points.trim_end()),
        }
        .expect("writing to a String cannot fail");
    }
}

/// Looks and path of an element that can be joined with others.
fn shape(line: &str) -> Option<(&str, Path<'_>)> {
    if let Some(rest) = line.strip_prefix("<rect x=\"") {
        let (x, rest) = rest.split_once("\" y=\"")?;
        let (y, rest) = rest.split_once("\" width=\"")?;
        let (width, rest) = rest.split_once("\" height=\"")?;
        let (height, rest) = rest.split_once('"')?;
        let looks = rest.strip_suffix("/>")?;
        // Where paint lets something through, two on top of each other are darker than one.
        return looks.contains("opacity=\"1\"").then_some((looks, Path::Rect { x, y, width, height }));
    }
    let rest = line.strip_prefix("<polyline")?.strip_suffix(" \"/>")?;
    let (looks, points) = rest.split_once(" points=\"")?;
    (looks.starts_with(" fill=\"none\"") && points.contains(',')).then_some((looks, Path::Line(points)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_tiles_become_one_path_and_single_ones_stay() {
        let tile = |x: u32, ink: &str| {
            format!(
                "<rect x=\"{x}\" y=\"2\" width=\"10\" height=\"4\" opacity=\"1\" fill=\"{ink}\" stroke=\"none\"/>\n"
            )
        };
        let found = compact(&[tile(0, "#111111"), tile(10, "#111111"), tile(20, "#222222")].concat());
        let joined =
            "<path d=\"M0,2h10v4h-10zM10,2h10v4h-10z\" opacity=\"1\" fill=\"#111111\" stroke=\"none\"/>\n";
        assert_eq!(found, format!("{joined}{}", tile(20, "#222222")));
    }

    #[test]
    fn dashes_become_one_path() {
        let dash = |points: &str| {
            format!(
                "<polyline fill=\"none\" opacity=\"1\" stroke=\"#1F2328\" stroke-width=\"14\" points=\"{points} \"/>\n"
            )
        };
        let found = compact(&[dash("0,1 5,1"), dash("9,1 14,1 15,2")].concat());
        assert_eq!(
            found,
            "<path d=\"M0,1 5,1M9,1 14,1 15,2\" fill=\"none\" opacity=\"1\" stroke=\"#1F2328\" stroke-width=\"14\"/>\n"
        );
    }

    #[test]
    fn what_is_seen_through_or_is_text_stays_as_it_is() {
        let band = "<rect x=\"0\" y=\"2\" width=\"10\" height=\"4\" opacity=\"0.1\" fill=\"#111111\" stroke=\"none\"/>\n";
        let words = "<text x=\"1\">\n<rect x=\"\n</text>\n";
        let body = [band, band, words].concat();
        assert_eq!(compact(&body), body);
    }
}
