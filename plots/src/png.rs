//! PNG pictures, made of the SVG ones with a font that ships with the program.
//!
//! No font of the machine is looked for, so a picture is the same everywhere. Characters that the font lacks are left out.

use resvg::{tiny_skia, usvg};
use std::sync::Arc;

const REGULAR: &[u8] = include_bytes!("../fonts/NotoSans-Regular.ttf");
const BOLD: &[u8] = include_bytes!("../fonts/NotoSans-Bold.ttf");
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
    let tree = usvg::Tree::from_str(svg, &options).map_err(|error| error.to_string())?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or("the picture has no size")?;
    let mut picture =
        tiny_skia::Pixmap::new(size.width(), size.height()).ok_or("the picture is too large")?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut picture.as_mut());
    picture.encode_png().map_err(|error| error.to_string())
}
