//! Formats of numbers in `arcstat` and `arc_summary` (chapter 09 §7).

const SUFFIX: [&str; 6] = ["", "K", "M", "G", "T", "P"];

/// `arcstat`'s format: right-justified in `width`, divided by `scale` while larger, with a
/// suffix and at most one decimal. `exact`: the interval is one second, so whole numbers have
/// no decimal.
pub(crate) fn pretty(n: f64, width: usize, scale: f64, exact: bool) -> String {
    let (n, suffix) = scaled(n, scale);
    let width = width - usize::from(!suffix.is_empty()).min(width);
    let digits = format!("{n:.0}").len();
    let decimals = usize::from(!((exact && n.fract() == 0.0) || width < digits + 2));
    format!("{n:>width$.decimals$}{suffix}")
}

/// The format of `arcstat.pl` of 2007: integers, rounded down.
pub(crate) fn classic(n: f64, width: usize, scale: f64) -> String {
    let (n, suffix) = scaled(n, scale);
    let width = width - usize::from(!suffix.is_empty()).min(width);
    format!("{:>width$.0}{suffix}", n.trunc())
}

fn scaled(mut n: f64, scale: f64) -> (f64, &'static str) {
    // A ratio with the denominator zero.
    if !n.is_finite() {
        n = 0.0;
    }
    let mut index = 0;
    while n.abs() > scale && index + 1 < SUFFIX.len() {
        n /= scale;
        index += 1;
    }
    (n, SUFFIX[index])
}

/// `arc_summary`'s format of bytes: `1.2 GiB`, `12 Bytes`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["Bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (n, index) = divided(n, 1024.0);
    if index == 0 { format!("{n:.0} Bytes") } else { format!("{n:.1} {}", UNITS[index]) }
}

/// `arc_summary`'s format of counts: `1.2k`.
pub(crate) fn count(n: u64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let (n, index) = divided(n, 1000.0);
    if index == 0 { format!("{n:.0}") } else { format!("{n:.1}{}", UNITS[index]) }
}

fn divided(n: u64, base: f64) -> (f64, usize) {
    let mut n = n as f64;
    let mut index = 0;
    while n >= base && index < 6 {
        n /= base;
        index += 1;
    }
    (n, index)
}

/// A share: `12.3 %`, `< 0.1 %`; `n/a` if the whole is zero.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "n/a".to_owned();
    }
    share(part as f64 / whole as f64)
}

/// As [`percent`], of a ratio.
pub(crate) fn share(ratio: f64) -> String {
    let percent = ratio * 100.0;
    if percent > 0.0 && percent < 0.1 { "< 0.1 %".to_owned() } else { format!("{percent:.1} %") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Chapter 09 §7.1.
    #[test]
    fn the_chapters_vectors() {
        for (n, width, scale, text) in [
            (999.0, 4, 1000.0, " 999"),
            (1000.0, 4, 1000.0, "1000"),
            (1001.0, 4, 1000.0, "1.0K"),
            (12_345.0, 4, 1000.0, " 12K"),
            (123_456.0, 4, 1000.0, "123K"),
            (17_179_869_184.0, 5, 1024.0, "  16G"),
            (1536.0, 5, 1024.0, " 1.5K"),
            (1024.0, 5, 1024.0, " 1024"),
            (99.5, 5, 100.0, " 99.5"),
        ] {
            assert_eq!(pretty(n, width, scale, true), text, "{n}");
        }
        // Over two seconds, a whole rate has a decimal if there is room.
        assert_eq!(pretty(12.0, 4, 1000.0, false), "12.0");
        assert_eq!(pretty(0.0, 4, 1000.0, true), "   0");
        assert_eq!(pretty(-2048.0, 5, 1024.0, true), "  -2K");
        assert_eq!(pretty(f64::NAN, 3, 100.0, true), "  0");
    }

    /// Chapter 09 §7.1, the output of 2007.
    #[test]
    fn integers_of_2007() {
        assert_eq!(classic(985_900_000.0, 4, 1000.0), "985M");
        assert_eq!(classic(1_900_000.0, 4, 1000.0), "  1M");
        assert_eq!(classic(10.9, 5, 100.0), "   10");
        assert_eq!(classic(11.5 * 1_073_741_824.0, 5, 1024.0), "  11G");
    }

    #[test]
    fn summaries() {
        assert_eq!((bytes(12).as_str(), bytes(1 << 30).as_str()), ("12 Bytes", "1.0 GiB"));
        assert_eq!((count(999).as_str(), count(1200).as_str()), ("999", "1.2k"));
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(percent(123, 1000), "12.3 %");
        assert_eq!((percent(1, 100_000).as_str(), percent(0, 5).as_str()), ("< 0.1 %", "0.0 %"));
        assert_eq!(percent(0, 0), "n/a");
    }

    proptest! {
        #[test]
        fn any_number_is_written(n: f64, width in 0usize..12, exact: bool) {
            let text = pretty(n, width, 1000.0, exact);
            prop_assert!(text.len() >= width);
            prop_assert!(!text.contains("NaN") && !text.contains("inf"));
        }
    }
}
