//! The gallery in `docs` is what the figures make of the tables beside it.

use kvlab_plots::{Page, render_gallery};
use kvlab_sim::results::{Results, read};
use std::path::Path;

#[test]
fn the_gallery_is_what_its_tables_give() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let page = std::fs::read_to_string(docs.join("gallery.md")).unwrap();
    let (_, rest) = page.split_once("Made by `").unwrap();
    let (command, _) = rest.split_once('`').unwrap();
    let folders = command.split(' ').filter(|word| word.starts_with("docs/gallery/"));
    let studies: Vec<Results> = folders.map(|folder| read(&docs.join("..").join(folder)).unwrap()).collect();
    let Page { text, pictures } = render_gallery(&studies, "gallery", command).unwrap();
    assert!(text == page, "docs/gallery.md differs: run its command");
    for (name, bytes) in pictures {
        assert!(
            std::fs::read(docs.join(&name)).unwrap() == bytes,
            "docs/{name} differs: run the gallery's command"
        );
    }
}

#[test]
fn a_gallery_says_what_is_missing() {
    let Page { text, pictures } = render_gallery(&[], "gallery", "kvlab plot").unwrap();
    assert!(pictures.is_empty());
    assert!(text.contains("not in these tables; it needs"));
}
