//! PNG pictures, made of the SVG ones with a font that ships with the program.
//!
//! No font of the machine is looked for, so a picture is the same everywhere. Characters that the font lacks are left out, but for those that
//! would change what is said: a number without its minus sign is another number.

use resvg::{tiny_skia, usvg};
use std::sync::Arc;

const REGULAR: &[u8] = include_bytes!("../fonts/NotoSans-Regular.ttf");
const BOLD: &[u8] = include_bytes!("../fonts/NotoSans-Bold.ttf");
/// Signs that the font lacks, as in the picture's text, and what stands for them.
const STAND_INS: [(char, &str); 4] =
    [('\u{2212}', "\u{2013}"), ('\u{2264}', "&lt;="), ('\u{2265}', "&gt;="), ('\u{2192}', "-&gt;")];
/// Pixels of the picture for each pixel of the SVG.
const SCALE: f32 = 2.0;

/// `svg` as a PNG file.
pub(crate) fn png(svg: &str) -> Result<Vec<u8>, String> {
    let mut fonts = usvg::fontdb::Database::new();
    fonts.load_font_data(REGULAR.to_vec());
    fonts.load_font_data(BOLD.to_vec());
    fonts.set_sans_serif_family("Noto Sans");
    let options = usvg::Options {
        font_family: "Noto Sans".to_owned(),
        fontdb: Arc::new(fonts),
        ..usvg::Options::default()
    };
    let svg = STAND_INS.iter().fold(svg.to_owned(), |text, (sign, other)| text.replace(*sign, other));
    let tree = usvg::Tree::from_str(&svg, &options).map_err(|error| error.to_string())?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or("the picture has no size")?;
    let mut picture =
        tiny_skia::Pixmap::new(size.width(), size.height()).ok_or("the picture is too large")?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut picture.as_mut());
    picture.encode_png().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(words: &str) -> Vec<u8> {
        let text =
            format!("<text x=\"2\" y=\"20\" font-family=\"sans-serif\" font-size=\"16\">{words}</text>");
        png(&format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"90\" height=\"30\">{text}</svg>"))
            .unwrap()
    }

    #[test]
    fn signs_that_change_a_number_are_seen() {
        for sign in STAND_INS.map(|(sign, _)| sign) {
            assert_ne!(picture(&format!("{sign}0.5")), picture("0.5"), "{sign}");
        }
    }
}
