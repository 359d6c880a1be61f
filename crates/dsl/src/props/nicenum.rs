//! Human-readable numbers (chapter 09 §1.3): at most five characters. Rounding and the
//! switch between two, one and no decimals are exactly OpenZFS's.

const BINARY: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
const TIME: [&str; 4] = ["ns", "us", "ms", "s"];

fn scaled(n: u64, base: u64, max_index: usize) -> (u64, usize, u64) {
    let (mut q, mut index, mut power) = (n, 0, 1u64);
    while q >= base && index < max_index {
        q /= base;
        index += 1;
        power = power.saturating_mul(base);
    }
    (q, index, power)
}

/// `printf("%.*f")` of `n / power`: exact decimal expansion, ties to even as
/// glibc does on the double's exact value. `power` is a power of two here, so
/// the double is the rounded `n` divided exactly.
fn decimals(n: u64, power: u64, digits: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "the reference computes in doubles")]
    let v = n as f64 / power as f64;
    format!("{v:.digits$}")
}

fn nice(n: u64, unit: &str, units: &[&str; 7]) -> String {
    let (q, index, power) = scaled(n, 1024, 6);
    let suffix = if index == 0 { unit } else { units[index] };
    if index == 0 || n.is_multiple_of(power) {
        return format!("{q}{suffix}");
    }
    for digits in [2, 1] {
        let text = format!("{}{suffix}", decimals(n, power, digits));
        if text.len() <= 5 {
            return text;
        }
    }
    format!("{}{suffix}", decimals(n, power, 0))
}

/// A count or a size, base 1024, without a unit below 1024: `999`, `1.50K`.
pub fn nicenum(n: u64) -> String {
    nice(n, "", &BINARY)
}

/// As [`nicenum`], but bytes below 1024 carry a `B`: `0B`, `96K`.
pub fn nicebytes(n: u64) -> String {
    nice(n, "B", &BINARY)
}

/// A duration in nanoseconds, base 1000, always rounded down; `-` for none.
pub fn nicetime(ns: u64) -> String {
    if ns == 0 {
        return "-".to_owned();
    }
    let (q, index, _) = scaled(ns, 1000, 3);
    format!("{q}{}", TIME[index])
}

/// A ratio in hundredths: `2.98x`, or `2.98` when parsable.
pub(crate) fn niceratio(r: u64, parsable: bool) -> String {
    format!("{}.{:02}{}", r / 100, r % 100, if parsable { "" } else { "x" })
}

/// Parses a size as the commands accept it (chapter 09 §1.3): digits, an optional fraction,
/// an optional suffix `B K M G T P E Z`, optionally followed by `B` or `iB`.
///
/// # Errors
/// OpenZFS's message for the mistake.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let bad = || format!("bad numeric value '{text}'");
    if digits.is_empty()
        || digits.matches('.').count() > 1
        || !digits.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(bad());
    }
    let shift = suffix_shift(suffix).ok_or_else(|| format!("invalid numeric suffix '{suffix}'"))?;
    let too_large = || "numeric value is too large".to_owned();
    if digits.contains('.') {
        let v: f64 = digits.trim_end_matches('.').parse().map_err(|_| bad())?;
        let v = v * 2f64.powi(i32::try_from(shift).unwrap_or(i32::MAX));
        if v >= 18_446_744_073_709_551_616.0 {
            return Err(too_large());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked above; the fraction is cut"
        )]
        return Ok(v as u64);
    }
    let n: u64 = digits.parse().map_err(|_| too_large())?;
    n.checked_mul(1u64.checked_shl(shift).unwrap_or(0))
        .filter(|_| n == 0 || shift < 64)
        .ok_or_else(too_large)
}

fn suffix_shift(suffix: &str) -> Option<u32> {
    let mut chars = suffix.chars();
    let Some(first) = chars.next() else { return Some(0) };
    let index = "BKMGTPEZ".find(first.to_ascii_uppercase())?;
    let rest = chars.as_str().to_ascii_lowercase();
    match (index, rest.as_str()) {
        (_, "") | (1.., "b" | "ib") => u32::try_from(index).ok().map(|i| i * 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Chapter 09 §1.3, computed with the reference library.
    const VECTORS: [(u64, &str, &str, &str); 16] = [
        (0, "0", "0B", "-"),
        (999, "999", "999B", "999ns"),
        (1023, "1023", "1023B", "1us"),
        (1024, "1K", "1K", "1us"),
        (1030, "1.01K", "1.01K", "1us"),
        (1536, "1.50K", "1.50K", "1us"),
        (10_239, "10.0K", "10.0K", "10us"),
        (10_240, "10K", "10K", "10us"),
        (102_399, "100K", "100K", "102us"),
        (1_023_488, "1000K", "1000K", "1ms"),
        (1_048_575, "1024K", "1024K", "1ms"),
        (1_048_576, "1M", "1M", "1ms"),
        (12_345_678, "11.8M", "11.8M", "12ms"),
        ((1 << 30) - 1, "1024M", "1024M", "1s"),
        (123_456_789_012, "115G", "115G", "123s"),
        (1025, "1.00K", "1.00K", "1us"),
    ];

    #[test]
    fn the_chapters_vectors() {
        for (n, num, bytes, time) in VECTORS {
            assert_eq!(nicenum(n), num, "{n}");
            assert_eq!(nicebytes(n), bytes, "{n}");
            assert_eq!(nicetime(n), time, "{n}");
        }
        assert_eq!(nicenum(u64::MAX), "16.0E");
        assert_eq!(niceratio(298, false), "2.98x");
        assert_eq!(niceratio(100, true), "1.00");
        assert_eq!(niceratio(1039, false), "10.39x");
    }

    #[test]
    fn sizes_parse_like_the_commands() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("1.5k"), Ok(1536));
        assert_eq!(parse_size("10MiB"), Ok(10 << 20));
        assert_eq!(parse_size("16Eb"), Err("numeric value is too large".into()));
        assert_eq!(parse_size("0Z"), Ok(0));
        assert_eq!(parse_size("1Z"), Err("numeric value is too large".into()));
        assert_eq!(parse_size("5BB"), Err("invalid numeric suffix 'BB'".into()));
        assert_eq!(parse_size("x"), Err("bad numeric value 'x'".into()));
        assert_eq!(parse_size("3q"), Err("invalid numeric suffix 'q'".into()));
    }

    proptest! {
        #[test]
        fn nice_numbers_are_short_and_near(n in any::<u64>()) {
            let text = nicenum(n);
            prop_assert!(text.len() <= 5, "{text}");
            let back = parse_size(&text);
            if let Ok(back) = back {
                prop_assert!(back.abs_diff(n) <= n / 20 + 1, "{n} {text} {back}");
            } else {
                prop_assert_eq!(text, "16.0E");
            }
        }

        #[test]
        fn exact_multiples_round_trip(q in 1u64..1024, index in 0u32..6) {
            let n = q << (10 * index);
            prop_assert_eq!(parse_size(&nicenum(n)), Ok(n));
        }
    }
}
