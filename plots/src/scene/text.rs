//! Text without fonts: cleaning, width estimates, wrapping.
//!
//! No font is opened anywhere, so widths are estimates on the wide side; the viewer's sans-serif face decides.

/// `text` on one line without characters that XML forbids.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' | '\n' | '\r' => ' ',
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') || is_direction_mark(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Marks that would turn the text around them.
fn is_direction_mark(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` cut to `limit` characters, an ellipsis included.
pub(crate) fn clipped(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(limit.saturating_sub(1)).collect();
    out.push('\u{2026}');
    out
}

/// Estimated width in pixels at a font size of `size` pixels.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * size
}

/// Share of the font size that a character takes, from wide common sans-serif faces.
fn advance(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | '\'' | '.' | ',' | ':' | ';' | '|' | '!' | ' ' => 0.33,
        'f' | 't' | 'r' | 'I' | '(' | ')' | '[' | ']' | '-' => 0.40,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.95,
        '\u{2026}' => 0.95,
        'A'..='Z' => 0.70,
        '=' | '+' | '\u{2212}' | '<' | '>' => 0.80,
        c if u32::from(c) >= 0x1100
            && u32::from(c) < 0x2_0000
            && !(0x2000..0x2e80).contains(&u32::from(c)) =>
        {
            1.05
        }
        c if u32::from(c) >= 0x2_0000 || u32::from(c) >= 0x1_f000 => 1.2,
        _ => 0.62,
    }
}

/// Lines of at most `room` pixels, broken at spaces; a word that is too long is clipped.
pub(crate) fn wrapped(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let word = fitted(word, size, room);
        let longer = if line.is_empty() { word.clone() } else { format!("{line} {word}") };
        if width(&longer, size) > room && !line.is_empty() {
            lines.push(std::mem::replace(&mut line, word));
        } else {
            line = longer;
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// `text` clipped until it fits into `room` pixels.
pub(crate) fn fitted(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let ellipsis = width("\u{2026}", size);
    let mut used = 0.0;
    let mut out: String = text
        .chars()
        .take_while(|c| {
            used += advance(*c) * size;
            used + ellipsis <= room
        })
        .collect();
    out.push('\u{2026}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_line_breaks_are_replaced() {
        assert_eq!(clean("a\u{0}b\nc\u{202e}d"), "a\u{fffd}b c\u{fffd}d");
    }

    #[test]
    fn wrapped_lines_fit_and_keep_all_words() {
        let text = "the quick brown fox jumps over the lazy dog";
        let lines = wrapped(text, 10.0, 100.0);
        assert!(lines.len() > 1);
        assert!(lines.iter().all(|line| width(line, 10.0) <= 100.0));
        assert_eq!(lines.join(" "), text);
    }

    #[test]
    fn a_word_longer_than_the_line_is_clipped() {
        let lines = wrapped(&"x".repeat(500), 10.0, 60.0);
        assert_eq!(lines.len(), 1);
        assert!(width(&lines[0], 10.0) <= 60.0 && lines[0].ends_with('\u{2026}'));
    }
}
