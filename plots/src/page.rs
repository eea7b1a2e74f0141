//! A Markdown page with pictures.

/// A Markdown page and the pictures that it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The page.
    pub text: String,
    /// Names below the page's folder, and contents.
    pub pictures: Vec<(String, Vec<u8>)>,
}
