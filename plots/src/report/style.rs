//! The page's CSS: fixed rules from `page.css`, colours from the theme.

use crate::theme::{AXIS, BLUE, GRID, INKS, Ink, MUTED, PAPER, SHADES, TEXT, WARNING};
use std::fmt::Write as _;

const RULES: &str = include_str!("page.css");
/// Boxes and table headings.
const RAISED: ([u8; 3], [u8; 3]) = ([0xf6, 0xf8, 0xfa], [0x18, 0x1e, 0x26]);
const VARIABLES: [(&str, Ink); 6] = [
    ("paper", PAPER),
    ("text", TEXT),
    ("muted", MUTED),
    ("rule", GRID),
    ("axis", AXIS),
    ("warning", WARNING),
];

/// All CSS. In the dark, figures keep their bytes: each light ink is redefined by its value.
pub(super) fn css() -> String {
    let mut css = String::from(":root {");
    variables(&mut css, |ink| ink.light, RAISED.0);
    css.push_str("}\n@media (prefers-color-scheme: dark) {\n:root {");
    variables(&mut css, |ink| ink.dark, RAISED.1);
    css.push_str("}\n");
    for ink in INKS.iter().chain(&SHADES) {
        let (light, dark) = (hex(ink.light), hex(ink.dark));
        write!(css, ".picture [fill=\"{light}\"] {{ fill: {dark}; }}\n.picture [stroke=\"{light}\"] {{ stroke: {dark}; }}\n")
            .expect("writing to a String cannot fail");
    }
    css.push_str("}\n");
    css.push_str(RULES);
    css
}

fn variables(css: &mut String, pick: fn(&Ink) -> [u8; 3], raised: [u8; 3]) {
    for (name, ink) in VARIABLES.iter().chain(&[("link", BLUE)]) {
        write!(css, " --{name}: {};", hex(pick(ink))).expect("writing to a String cannot fail");
    }
    write!(css, " --raised: {}; ", hex(raised)).expect("writing to a String cannot fail");
}

/// As the drawing backend writes colours.
fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}
