//! Raw values to text (chapter 09 §1.3, §1.4, §2.2).

use super::nicenum::{nicebytes, nicenum, niceratio};
use super::{Prop, PropData, Unit};

/// The text that `zfs get` or `zpool get` prints for a value, with or without `-p`.
///
/// Dates need the caller's local time zone. Without it they are printed as seconds even
/// without `-p`; see [`format_local_date`].
pub fn format(prop: &Prop, value: &PropData, parsable: bool) -> String {
    let n = match value {
        PropData::None => return "-".to_owned(),
        PropData::Str(s) if s.is_empty() => return "-".to_owned(),
        PropData::Str(s) => return s.clone(),
        PropData::Num(n) => *n,
    };
    let human = |text: fn(u64) -> String| if parsable { n.to_string() } else { text(n) };
    match prop.unit {
        Unit::Words => prop.word(n).map_or_else(|| n.to_string(), str::to_owned),
        Unit::Quota | Unit::CountQuota if n == 0 && !parsable => "none".to_owned(),
        Unit::Limit if n == u64::MAX => "none".to_owned(),
        Unit::AutoQuota if n == u64::MAX => "auto".to_owned(),
        Unit::AutoQuota if n == 0 => "none".to_owned(),
        Unit::BytesOrDash if n == 0 => "-".to_owned(),
        Unit::PercentOrUnknown if n == u64::MAX => "-".to_owned(),
        Unit::Bytes | Unit::BytesOrDash | Unit::Quota => human(nicebytes),
        Unit::Number | Unit::Limit | Unit::AutoQuota | Unit::CountQuota => human(nicenum),
        Unit::Ratio => niceratio(n, parsable),
        Unit::Percent | Unit::PercentOrUnknown if parsable => n.to_string(),
        Unit::Percent | Unit::PercentOrUnknown => format!("{n}%"),
        Unit::Plain | Unit::Date | Unit::DateSeconds | Unit::Text | Unit::Health => n.to_string(),
    }
}

/// As [`format()`], dates written by `strftime(format, seconds)` unless parsable.
pub fn format_local_date(
    prop: &Prop,
    value: &PropData,
    parsable: bool,
    strftime: impl Fn(&str, u64) -> String,
) -> String {
    match (prop.unit, value) {
        (Unit::Date, PropData::Num(n)) if !parsable => strftime("%a %b %e %k:%M %Y", *n),
        (Unit::DateSeconds, PropData::Num(n)) if !parsable => strftime("%a %b %e %k:%M:%S %Y", *n),
        _ => format(prop, value, parsable),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{dataset_prop, pool_prop};
    use super::*;

    fn ds(name: &str, v: u64, parsable: bool) -> String {
        format(dataset_prop(name).unwrap(), &PropData::Num(v), parsable)
    }
    fn pool(name: &str, v: u64, parsable: bool) -> String {
        format(pool_prop(name).unwrap(), &PropData::Num(v), parsable)
    }

    /// Lines of the golden outputs of `zfs get` and `zpool get`.
    #[test]
    fn golden_values() {
        assert_eq!(ds("used", 0, false), "0B");
        assert_eq!(ds("used", 14_700_032, true), "14700032");
        assert_eq!(ds("quota", 0, true), "0");
        assert_eq!(ds("quota", 0, false), "none");
        assert_eq!(ds("filesystem_limit", u64::MAX, true), "none");
        assert_eq!(ds("filesystem_count", u64::MAX, true), "none");
        assert_eq!(ds("compressratio", 298, true), "2.98");
        assert_eq!(ds("compressratio", 298, false), "2.98x");
        assert_eq!(ds("recordsize", 131_072, false), "128K");
        assert_eq!(ds("guid", 10_331_557_020_422_823_854, false), "10331557020422823854");
        assert_eq!(ds("defer_destroy", 0, true), "off");
        assert_eq!(ds("mounted", 1, true), "yes");
        assert_eq!(ds("pbkdf2iters", 350_000, false), "350000");
        assert_eq!(ds("compression", 9_999_999, false), "9999999");
        assert_eq!(pool("capacity", 6, false), "6%");
        assert_eq!(pool("size", 251_658_240, false), "240M");
        assert_eq!(pool("expandsize", 0, false), "-");
        assert_eq!(pool("freeing", 0, false), "0");
        assert_eq!(pool("fragmentation", u64::MAX, true), "-");
        assert_eq!(pool("dedup_table_quota", u64::MAX, true), "auto");
        assert_eq!(format(pool_prop("version").unwrap(), &PropData::None, false), "-");
        assert_eq!(
            format(pool_prop("health").unwrap(), &PropData::Str("ONLINE".into()), false),
            "ONLINE"
        );
    }

    #[test]
    fn dates_use_the_callers_clock() {
        let p = dataset_prop("creation").unwrap();
        let f = |fmt: &str, n: u64| format!("{fmt}|{n}");
        let v = PropData::Num(1_700_000_000);
        assert_eq!(format_local_date(p, &v, false, f), "%a %b %e %k:%M %Y|1700000000");
        assert_eq!(format_local_date(p, &v, true, f), "1700000000");
    }
}
