//! Dates in local time (chapter 09 §1.4).

use std::ffi::CString;

/// `strftime` of `seconds` since 1970 in the local time zone; the number itself
/// if it is no date.
pub fn strftime(format: &str, seconds: u64) -> String {
    let plain = seconds.to_string();
    let (Ok(format), Ok(t)) = (CString::new(format), libc::time_t::try_from(seconds)) else {
        return plain;
    };
    let mut out = [0u8; 128];
    // SAFETY: all-zero bytes are a valid `tm` (integers and a null zone name).
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals; `localtime_r` is thread-safe.
    if unsafe { libc::localtime_r(&raw const t, &raw mut tm) }.is_null() {
        return plain;
    }
    // SAFETY: `out` is writable for its length, the format is NUL-terminated and
    // `tm` was filled in above.
    let n = unsafe {
        libc::strftime(out.as_mut_ptr().cast(), out.len(), format.as_ptr(), &raw const tm)
    };
    String::from_utf8_lossy(out.get(..n).unwrap_or_default()).into_owned()
}

/// `ctime` without its line feed: `Tue Nov 14 22:13:20 2023`.
pub fn ctime(seconds: u64) -> String {
    strftime("%a %b %e %H:%M:%S %Y", seconds)
}

/// A duration as scan lines show it: `00:12:34`, from a day on `2 days 03:04:05`.
pub fn duration(seconds: u64) -> String {
    let (d, h, m, s) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    if d > 0 { format!("{d} days {h:02}:{m:02}:{s:02}") } else { format!("{h:02}:{m:02}:{s:02}") }
}

/// The stamp that `-T u` and `-T d` put before each report.
pub fn stamp(kind: &str) -> String {
    let now = base::rt::wall_clock().as_secs();
    if kind == "u" { now.to_string() } else { strftime("%a %b %e %H:%M:%S %Z %Y", now) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chapter 09 §1.4, in a zone of whole hours (the tests' machines are in UTC;
    /// elsewhere the day and the minutes still agree).
    #[test]
    fn dates_have_the_chapters_form() {
        if strftime("%Z", 0) != "UTC" {
            println!("local zone is not UTC: only the shape is checked");
            assert_eq!(ctime(1_700_000_000).len(), 24);
            return;
        }
        assert_eq!(strftime("%a %b %e %k:%M %Y", 1_700_000_000), "Tue Nov 14 22:13 2023");
        assert_eq!(strftime("%a %b %e %k:%M %Y", 1_704_099_900), "Mon Jan  1  9:05 2024");
        assert_eq!(strftime("%F.%T", 1_700_000_000), "2023-11-14.22:13:20");
        assert_eq!(ctime(1_700_000_000), "Tue Nov 14 22:13:20 2023");
        assert_eq!(strftime("%a", u64::MAX), u64::MAX.to_string());
    }

    #[test]
    fn durations() {
        assert_eq!(duration(754), "00:12:34");
        assert_eq!(duration(2 * 86_400 + 3 * 3600 + 4 * 60 + 5), "2 days 03:04:05");
    }
}
