//! Text into HTML: escaping, and small tables.

use crate::number;
use crate::scene::{clean, clipped};
use kvlab_sim::table::{Table, Value};

/// `text` for element content and quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// One line of at most `limit` characters, escaped.
pub(super) fn short(text: &str, limit: usize) -> String {
    escape(&clipped(&clean(text), limit))
}

/// JSON for a `<script>` element: no character in it can end the element.
pub(super) fn script_json(value: &serde_json::Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// The first `most` rows of a table, with a remark when there are more.
pub(super) fn table(table: &Table, most: usize, label: &str, remark: &str) -> String {
    let rows = table.rows().min(most);
    let mut out = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n<table>\n<thead><tr>",
        escape(label)
    );
    for name in table.names() {
        out.push_str(&format!("<th scope=\"col\">{}</th>", escape(name)));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in 0..rows {
        out.push_str("<tr>");
        for name in table.names() {
            out.push_str(&cell(&table.value(name, row)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
    if rows < table.rows() {
        let all = number::count(i64::try_from(table.rows()).unwrap_or(i64::MAX));
        out.push_str(&format!("<p class=\"note\">The first {rows} of {all} rows. {remark}</p>\n"));
    }
    out
}

fn cell(value: &Value) -> String {
    match value {
        Value::Text(text) => format!("<td>{}</td>", short(text, 120)),
        Value::Int(value) => format!("<td class=\"n\">{}</td>", number::count(*value)),
        Value::Real(value) => format!("<td class=\"n\">{}</td>", number::plain(*value, 4)),
        Value::Bool(value) => format!("<td>{value}</td>"),
        Value::Absent => "<td class=\"n\">\u{2013}</td>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_text() {
        assert_eq!(escape("<b a='1'>&\"\u{0}"), "&lt;b a=&#39;1&#39;&gt;&amp;&quot;\u{fffd}");
    }

    #[test]
    fn no_json_string_can_end_its_script_element() {
        let json = script_json(&serde_json::json!(["</script><!--"]));
        assert!(!json.contains('<'));
        let back: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(back[0], "</script><!--");
    }
}
