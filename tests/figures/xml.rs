//! A check that text is well-formed XML of the plain kind that figures use: no DTD, no CDATA.

/// What is wrong with `text`, if anything.
pub(crate) fn fault(text: &str) -> Option<String> {
    let mut open: Vec<String> = Vec::new();
    let mut roots = 0;
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        if let Some(fault) = text_fault(&rest[..start], !open.is_empty()) {
            return Some(fault);
        }
        let Some(end) = rest[start..].find('>') else { return Some("a tag is not closed".to_owned()) };
        let tag = &rest[start + 1..start + end];
        rest = &rest[start + end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop().as_deref() != Some(name) {
                return Some(format!("</{name}> closes nothing"));
            }
            continue;
        }
        let (body, closed) = tag.strip_suffix('/').map_or((tag, false), |body| (body, true));
        let name: String = body.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        if name.is_empty() {
            return Some(format!("<{tag}> has no name"));
        }
        if let Some(fault) = attribute_fault(&body[name.len()..]) {
            return Some(format!("<{tag}>: {fault}"));
        }
        roots += usize::from(open.is_empty());
        if !closed {
            open.push(name);
        }
    }
    if !open.is_empty() {
        return Some(format!("{open:?} stay open"));
    }
    (roots != 1).then(|| format!("{roots} roots")).or_else(|| text_fault(rest, false))
}

fn attribute_fault(mut rest: &str) -> Option<String> {
    let mut names = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return None;
        }
        let (name, after) = rest.split_once("=\"").or_else(|| rest.split_once("='"))?;
        let quote = if rest[name.len()..].starts_with("=\"") { '"' } else { '\'' };
        let Some((value, after)) = after.split_once(quote) else {
            return Some(format!("{name} is not closed"));
        };
        if names.contains(&name) || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-:".contains(c)) {
            return Some(format!("attribute {name:?}"));
        }
        if value.contains('<') || entity_fault(value) {
            return Some(format!("value {value:?}"));
        }
        names.push(name);
        rest = after;
    }
}

fn text_fault(text: &str, inside: bool) -> Option<String> {
    if !inside && !text.trim().is_empty() {
        return Some(format!("text {text:?} outside of the root"));
    }
    let control = text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t' | '\r'));
    (control || text.contains('>') || entity_fault(text)).then(|| format!("text {text:?}"))
}

fn entity_fault(text: &str) -> bool {
    text.split('&').skip(1).any(|part| {
        let name = part.split_once(';').map_or("", |(name, _)| name);
        !matches!(name, "amp" | "lt" | "gt" | "quot" | "apos")
    })
}

#[test]
fn the_check_accepts_good_and_refuses_bad_xml() {
    assert_eq!(fault("<svg a=\"1\"><text>x &amp; y</text><g/></svg>"), None);
    for bad in [
        "<svg>",
        "<svg></g>",
        "<svg>&nbsp;</svg>",
        "<svg a=\"<\"/>",
        "<svg>\u{0}</svg>",
        "<svg/><svg/>",
        "x<svg/>",
        "<svg a=\"1\" a=\"2\"/>",
        "<svg>a > b</svg>",
    ] {
        assert!(fault(bad).is_some(), "{bad}");
    }
}
