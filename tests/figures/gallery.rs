//! The page of all figures.

use kvlab_plots::{Page, render_gallery};

#[test]
fn a_gallery_says_what_is_missing() {
    let Page { text, pictures } = render_gallery(&[], "gallery", "kvlab plot").unwrap();
    assert!(pictures.is_empty());
    assert!(text.contains("not in these tables; it needs"));
}
