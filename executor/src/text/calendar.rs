//! The date for templates that ask for it, as `strftime` of Python writes it, in UTC.
//!
//! `SOURCE_DATE_EPOCH`, the seconds since 1970 that tools agree on for reproducible output, stands for the clock where it is set.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    let set = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.trim().parse().ok());
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    set.unwrap_or_else(|| i64::try_from(clock()).unwrap_or(i64::MAX))
}

/// A time as `format` says; a directive that is not known is an error that names it.
pub(super) fn format(seconds: i64, format: &str) -> Result<String, String> {
    let (day, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, date) = civil(day);
    // 1 January 1970 was a Thursday.
    let weekday = DAYS[usize::try_from((day + 4).rem_euclid(7)).unwrap_or(0)];
    let month_name = MONTHS[usize::try_from(month - 1).unwrap_or(0)];
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        text.push_str(&match letters.next() {
            Some('Y') => format!("{year:04}"),
            Some('y') => format!("{:02}", year.rem_euclid(100)),
            Some('m') => format!("{month:02}"),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('d') => format!("{date:02}"),
            Some('e') => format!("{date:2}"),
            Some('j') => format!("{:03}", day - days_before(year) + 1),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{year:04}-{month:02}-{date:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let found: String = std::iter::once('%').chain(other).collect();
                return Err(format!("strftime_now: `{found}`; accepted are %Y %y %m %B %b %d %e %j %A %a %H %I %M %S %p %F %T %Z %z %%"));
            }
        });
    }
    Ok(text)
}

/// Days from 1970 to the beginning of a year, in the Gregorian calendar.
fn days_before(year: i64) -> i64 {
    let past = year - 1;
    365 * (year - 1970) + (past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400)) - 477
}

/// Year, month and date of a day since 1970.
fn civil(day: i64) -> (i64, i64, i64) {
    let mut year = 1970 + day.div_euclid(366);
    while days_before(year + 1) <= day {
        year += 1;
    }
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut rest = day - days_before(year);
    let mut month = 1;
    for length in lengths {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts are those of `datetime.fromtimestamp(t, timezone.utc).strftime(…)` of Python.
    #[test]
    fn dates_are_those_of_python() {
        for (seconds, expected) in [
            (0, "01 Jan 1970 Thursday 001 00:00:00 12 AM"),
            (951_782_400, "29 Feb 2000 Tuesday 060 00:00:00 12 AM"),
            (1_721_995_205, "26 Jul 2024 Friday 208 12:00:05 12 PM"),
            (1_735_689_599, "31 Dec 2024 Tuesday 366 23:59:59 11 PM"),
            (4_102_444_800, "01 Jan 2100 Friday 001 00:00:00 12 AM"),
            (-1, "31 Dec 1969 Wednesday 365 23:59:59 11 PM"),
        ] {
            assert_eq!(format(seconds, "%d %b %Y %A %j %H:%M:%S %I %p").unwrap(), expected);
        }
        assert_eq!(
            format(951_782_400, "%F %y %B %e %a %T%%").unwrap(),
            "2000-02-29 00 February 29 Tue 00:00:00%"
        );
        assert!(format(0, "%").is_err() && format(0, "%Q").unwrap_err().contains("`%Q`"));
    }
}
