//! Command lines of `cenote bench NAME`: options with sizes (`1.5G`), times (`0.5s`, `2.5`),
//! numbers and flags.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::Stop;

/// One option.
pub struct Opt {
    /// With its dashes.
    pub name: &'static str,
    /// The words that follow it; empty for a flag.
    pub value: &'static str,
    /// A description of one line.
    pub help: &'static str,
}

/// A shorter way to write a table of options.
pub(super) const fn opt(name: &'static str, value: &'static str, help: &'static str) -> Opt {
    Opt { name, value, help }
}

/// A parsed command line.
#[derive(Debug, Default)]
pub(super) struct Args {
    options: Vec<(&'static str, Vec<String>)>,
    /// Words that are not options.
    pub(super) rest: Vec<String>,
}

/// Longest time, seconds.
const TIME_MAX: f64 = 86_400.0;

impl Args {
    /// Parses the words; of an option given twice the last one counts.
    pub(super) fn parse(known: &[&'static [Opt]], words: &[String]) -> Result<Args, Stop> {
        let mut args = Args::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if !word.starts_with("--") || word == "--" {
                if word.starts_with('-') && word.len() > 1 {
                    return Err(Stop::usage(format!("unknown option '{word}'")));
                }
                args.rest.push(word.clone());
                continue;
            }
            let (name, joined) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.as_str(), None),
            };
            let found = known.iter().copied().flatten().find(|o| o.name == name);
            let found = found.ok_or_else(|| Stop::usage(format!("unknown option '{name}'")))?;
            let wanted = found.value.split_whitespace().count();
            let mut values: Vec<String> = joined.map(str::to_owned).into_iter().collect();
            while values.len() < wanted {
                let next = words.next();
                values.push(next.cloned().ok_or_else(|| {
                    Stop::usage(format!("option '{name}' needs {}", found.value))
                })?);
            }
            if values.len() > wanted {
                return Err(Stop::usage(format!("option '{name}' takes no value")));
            }
            args.options.retain(|o| o.0 != found.name);
            args.options.push((found.name, values));
        }
        Ok(args)
    }

    /// Fails if there are words besides options.
    pub(super) fn no_rest(&self) -> Result<(), Stop> {
        match self.rest.first() {
            Some(word) => Err(Stop::usage(format!("unexpected word '{word}'"))),
            None => Ok(()),
        }
    }

    /// The words of an option.
    pub(super) fn values(&self, name: &str) -> Option<&[String]> {
        self.options.iter().find(|o| o.0 == name).map(|o| o.1.as_slice())
    }

    /// An option's only word.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.values(name)?.first().map(String::as_str)
    }

    /// Whether a flag was given.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.values(name).is_some()
    }

    /// A number of bytes, or `otherwise`.
    pub(super) fn size(
        &self,
        name: &str,
        otherwise: u64,
        range: RangeInclusive<u64>,
    ) -> Result<u64, Stop> {
        let Some(text) = self.text(name) else { return Ok(otherwise) };
        let bad = |e: &str| Stop::usage(format!("{name}: {e}"));
        let size = cenote::props::parse_size(text).map_err(|e| bad(&e))?;
        if range.contains(&size) {
            return Ok(size);
        }
        let nice = cenote::props::nicebytes;
        Err(bad(&format!("must lie between {} and {}", nice(*range.start()), nice(*range.end()))))
    }

    /// A count, or `otherwise`; suffixes as for sizes.
    pub(super) fn count(
        &self,
        name: &str,
        otherwise: u64,
        range: RangeInclusive<u64>,
    ) -> Result<u64, Stop> {
        let Some(text) = self.text(name) else { return Ok(otherwise) };
        let number = cenote::props::parse_size(text);
        let number = number.map_err(|e| Stop::usage(format!("{name}: {e}")))?;
        if range.contains(&number) {
            return Ok(number);
        }
        let (least, most) = (range.start(), range.end());
        Err(Stop::usage(format!("{name}: must lie between {least} and {most}")))
    }

    /// A time, or `otherwise`.
    pub(super) fn time(&self, name: &str, otherwise: Duration) -> Result<Duration, Stop> {
        match self.text(name) {
            Some(text) => parse_time(text).map_err(|e| Stop::usage(format!("{name}: {e}"))),
            None => Ok(otherwise),
        }
    }

    /// A plain number, or `otherwise`.
    pub(super) fn real(
        &self,
        name: &str,
        otherwise: f64,
        range: RangeInclusive<f64>,
    ) -> Result<f64, Stop> {
        let Some(text) = self.text(name) else { return Ok(otherwise) };
        let number = text.parse().ok().filter(|n: &f64| range.contains(n));
        number.ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            Stop::usage(format!("{name}: must be a number between {least} and {most}"))
        })
    }
}

/// A time in the form for people: seconds, or with a unit.
fn parse_time(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = match unit {
        "" | "s" => 1.0,
        "us" => 1e-6,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit of time '{unit}'")),
    };
    let number: f64 = digits.parse().map_err(|_| format!("bad time '{text}'"))?;
    let seconds = number * unit;
    if seconds > 0.0 && seconds <= TIME_MAX {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("must be more than nothing and at most a day".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Opt] =
        &[opt("--size", "SIZE", ""), opt("--pool", "DIR NAME", ""), opt("--mount", "", "")];

    fn parse(line: &str) -> Result<Args, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Args::parse(&[KNOWN], &words).map_err(|stop| stop.text())
    }

    #[test]
    fn options_and_words() {
        let a = parse("x --size 1.5G --pool d n --mount y --size=64k").unwrap();
        assert_eq!(a.rest, ["x", "y"]);
        assert_eq!(a.size("--size", 1, 0..=1 << 40).unwrap(), 64 << 10);
        assert_eq!(a.values("--pool").unwrap(), ["d", "n"]);
        assert!(a.flag("--mount") && !a.flag("--other"));
        assert_eq!(a.count("--none", 7, 0..=9).unwrap(), 7);
        assert_eq!(parse("--size 1.5G").unwrap().size("--size", 0, 0..=1 << 40).unwrap(), 3 << 29);
    }

    #[test]
    fn invalid_options_are_reported() {
        assert_eq!(parse("--what").unwrap_err(), "unknown option '--what'");
        assert_eq!(parse("-x").unwrap_err(), "unknown option '-x'");
        assert_eq!(parse("--size").unwrap_err(), "option '--size' needs SIZE");
        assert_eq!(parse("--pool a").unwrap_err(), "option '--pool' needs DIR NAME");
        assert_eq!(parse("--mount=1").unwrap_err(), "option '--mount' takes no value");
        let a = parse("--size 12q word").unwrap();
        let text = |r: Result<u64, Stop>| r.map_err(|s| s.text()).unwrap_err();
        assert_eq!(text(a.size("--size", 0, 0..=9)), "--size: invalid numeric suffix 'q'");
        let a = parse("--size 12").unwrap();
        assert_eq!(text(a.size("--size", 0, 0..=9)), "--size: must lie between 0B and 9B");
        assert_eq!(text(a.count("--size", 0, 1..=9)), "--size: must lie between 1 and 9");
        assert!(parse("word").unwrap().no_rest().is_err());
    }

    #[test]
    fn times() {
        let ms = |t| parse_time(t).map(|d| d.as_millis());
        assert_eq!(ms("0.5s"), Ok(500));
        assert_eq!(ms("2.5"), Ok(2500));
        assert_eq!(ms("300ms"), Ok(300));
        assert_eq!(ms("1.5m"), Ok(90_000));
        assert_eq!(ms("24h"), Ok(86_400_000));
        for bad in ["", "0", "-1", "25h", "1e3", "1.2.3", "5 s", "nan", "s", "1d"] {
            assert!(ms(bad).is_err(), "{bad}");
        }
    }
}
