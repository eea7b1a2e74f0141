//! Figures and the report, drawn from result tables and from nothing else.
//!
//! ```text
//!  Results ──► Figure::draw ──► Drawing (scene + table behind it) ──► SVG, CSV, note      (render)
//!     ├──────► render_report ──► one HTML file with all figures and tables                (report)
//!     └──────► render_markdown, render_gallery ──► Markdown with pictures beside it
//! ```
//!
//! No simulation runs here, no font and no network is needed, and equal tables give equal bytes.

#![warn(missing_docs)]

mod error;
mod figure;
mod figures;
mod gallery;
mod number;
mod overlay;
mod page;
mod png;
mod registry;
mod render;
mod report;
mod scene;
mod select;
mod sidecar;
mod theme;

pub use error::PlotsError;
pub use figure::{Drawing, Figure, Need, Outcome, Place, Section, evidence, missing};
pub use gallery::render_gallery;
pub use overlay::overlaid;
pub use page::Page;
pub use registry::{FIGURES, figure};
pub use render::{Pictures, Rendered, Status, draw, render_all, render_one};
pub use report::{render_markdown, render_report};
