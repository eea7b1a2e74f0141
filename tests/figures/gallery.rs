//! The gallery in `docs` is what the figures make of the tables beside it.

use kvlab_plots::{Page, render_gallery};
use std::path::Path;
use std::process::Command;

/// The command on the page, run again, finds nothing to change.
#[test]
fn the_gallery_is_what_its_tables_give() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/gallery.md")).unwrap();
    let (_, rest) = page.split_once("Made by `kvlab ").unwrap();
    let (command, _) = rest.split_once('`').unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_kvlab"))
        .current_dir(root)
        .args(command.split(' '))
        .arg("--check")
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_gallery_says_what_is_missing() {
    let Page { text, pictures } = render_gallery(&[], "gallery", "kvlab plot").unwrap();
    assert!(pictures.is_empty());
    assert!(text.contains("not in these tables; it needs"));
}
