//! placeholder
use kvlab_sim::results::Results;
/// x
pub fn render_report(_results: &Results) -> String {
    String::new()
}
