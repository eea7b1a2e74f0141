//! Numbers as people read them. The exact values are in the tables; nothing is computed from these texts.

/// `value` with `digits` significant digits, without an exponent where that stays short.
pub(crate) fn significant(value: f64, digits: usize) -> String {
    let digits = digits.max(1);
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{value:.*e}", digits - 1);
    let exponent: i32 = scientific.rsplit('e').next().and_then(|text| text.parse().ok()).unwrap_or(0);
    if !(-5..9).contains(&exponent) {
        return minus(&scientific);
    }
    let before_point = usize::try_from(exponent.max(0)).unwrap_or(0) + 1;
    if before_point >= digits {
        return minus(&grouped(&format!("{value:.0}")));
    }
    let leading = usize::try_from(-exponent.min(0)).unwrap_or(0);
    minus(&format!("{value:.*}", digits - before_point + leading))
}

/// A whole number with digits in groups of three.
pub(crate) fn count(value: i64) -> String {
    minus(&grouped(&value.to_string()))
}

/// A number as text: whole numbers grouped, others with up to `digits` significant digits.
pub(crate) fn plain(value: f64, digits: usize) -> String {
    if value.fract() == 0.0 && value.abs() < 1e9 {
        return minus(&grouped(&format!("{value:.0}")));
    }
    let text = significant(value, digits);
    if text.contains('.') && !text.contains('e') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

/// `1 more policy is`, `3 more policies are`.
pub(crate) fn more_policies(left: usize) -> String {
    match left {
        1 => "1 more policy is".to_owned(),
        left => format!("{left} more policies are"),
    }
}

/// A share as a percentage with one decimal.
pub(crate) fn percent(share: f64) -> String {
    let text = format!("{:.1} %", share * 100.0);
    minus(&text)
}

/// A tick label for `value` on an axis whose ticks are `step` apart and reach up to `largest` in size.
pub(crate) fn tick(value: f64, step: f64, largest: f64) -> String {
    let value = if value.abs() < step.abs() * 1e-9 { 0.0 } else { value };
    let size = largest.abs().max(step.abs());
    if size >= 1e6 || (size > 0.0 && step.abs() < 1e-5) {
        return if value == 0.0 { "0".to_owned() } else { minus(&short_exponent(value)) };
    }
    if size >= 1e4 && step.abs() >= 100.0 {
        if value == 0.0 {
            return "0".to_owned();
        }
        let decimals = usize::from(step < 1000.0);
        return minus(&format!("{:.decimals$}k", value / 1000.0));
    }
    let decimals = (0..6).find(|&d| is_whole(step * 10_f64.powi(d))).unwrap_or(6);
    minus(&format!("{value:.*}", usize::try_from(decimals).unwrap_or(0)))
}

fn is_whole(value: f64) -> bool {
    (value - value.round()).abs() < 1e-6 * value.abs().max(1e-3)
}

fn short_exponent(value: f64) -> String {
    let text = format!("{value:.2e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) if mantissa.contains('.') => {
            format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// Groups the digits before the point; numbers below 10,000 stay as they are.
fn grouped(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    if digits.len() < 5 {
        return text.to_owned();
    }
    let mut out = String::from(sign);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A real minus sign; "-0" is 0.
fn minus(text: &str) -> String {
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| "0.% ".contains(c)) => rest.to_owned(),
        Some(rest) => format!("\u{2212}{rest}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn significant_digits_are_kept_and_no_more() {
        assert_eq!(significant(0.912_34, 3), "0.912");
        assert_eq!(significant(0.9, 3), "0.900");
        assert_eq!(significant(0.000_123_4, 3), "0.000123");
        assert_eq!(significant(12.345, 3), "12.3");
        assert_eq!(significant(123_456.0, 3), "123,456");
        assert_eq!(significant(-1.5, 2), "\u{2212}1.5");
        assert_eq!(significant(0.0, 3), "0");
        assert_eq!(significant(9.996, 3), "10.0");
        assert_eq!(significant(1e300, 3), "1.00e300");
    }

    #[test]
    fn plain_numbers_have_no_needless_zeros() {
        assert_eq!(plain(0.05, 3), "0.05");
        assert_eq!(plain(0.9996, 3), "1");
        assert_eq!(plain(128.0, 3), "128");
        assert_eq!(plain(100.4, 3), "100");
        assert_eq!(plain(12_345.0, 3), "12,345");
    }

    #[test]
    fn counts_are_grouped_from_five_digits_on() {
        assert_eq!(count(1234), "1234");
        assert_eq!(count(12_345), "12,345");
        assert_eq!(count(-1_234_567), "\u{2212}1,234,567");
    }

    #[test]
    fn ticks_show_the_decimals_of_their_step() {
        assert_eq!(tick(0.30000000000000004, 0.1, 1.0), "0.3");
        assert_eq!(tick(0.25, 0.05, 1.0), "0.25");
        assert_eq!(tick(5_000.0, 5000.0, 2e4), "5k");
        assert_eq!(tick(0.0, 5000.0, 2e4), "0");
        assert_eq!(tick(2.5e8, 5e7, 3e8), "2.5e8");
        assert_eq!(tick(-1e-17, 0.1, 1.0), "0.0");
    }

    #[test]
    fn a_share_is_a_percentage() {
        assert_eq!(percent(0.2345), "23.4 %");
        assert_eq!(percent(-0.0), "0.0 %");
    }
}
