//! Values of tunables as text.

use base::{Error, Result};
use dsl::props::{nicenum, parse_size};

use super::{Tunable, Unit};
use crate::engine::Engine;

impl Tunable {
    /// The range in words.
    pub fn range_text(&self) -> String {
        let (low, high) = self.range();
        match self.unit {
            Unit::Choice(words) => words.join(" or "),
            _ if self.automatic => {
                format!("0 (automatic), or {} to {}", self.show(low), self.show(high))
            }
            _ => format!("{} to {}", self.show(low), self.show(high)),
        }
    }

    /// A number in words.
    pub fn show(&self, value: u64) -> String {
        let word = match self.unit {
            Unit::Choice(words) => usize::try_from(value).ok().and_then(|i| words.get(i)),
            _ => None,
        };
        match (word, self.unit) {
            (Some(word), _) => (*word).to_owned(),
            (None, Unit::Bytes) => nicenum(value),
            (None, Unit::Seconds) => format!("{value} s"),
            (None, Unit::Percent) => format!("{value} %"),
            (None, _) => value.to_string(),
        }
    }

    fn refuse(&self, text: &str) -> Error {
        let shown: String = text.chars().take(80).collect();
        Error::invalid(format!(
            "'{shown}' is no value of {}: it takes {}",
            self.name,
            self.range_text()
        ))
    }

    /// Parses a value within the range.
    ///
    /// # Errors
    /// `Invalid`, with the range.
    pub fn parse(&self, text: &str) -> Result<u64> {
        let text = text.trim();
        let number = match self.unit {
            Unit::Bytes => parse_size(text).ok(),
            Unit::Choice(words) => {
                let synonym = match text {
                    "yes" | "true" | "enabled" => "on",
                    "no" | "false" | "disabled" => "off",
                    other => other,
                };
                let word = words.iter().position(|w| *w == synonym);
                word.map(|i| i as u64).or_else(|| text.parse().ok())
            }
            _ => text.parse().ok(),
        };
        let (low, high) = self.range();
        let good = |n: &u64| (low..=high).contains(n) || (*n == 0 && self.automatic);
        number.filter(good).ok_or_else(|| self.refuse(text))
    }

    /// Sets it to a value in text form, at once.
    ///
    /// # Errors
    /// `Invalid`, with the possible values; nothing is changed then.
    pub fn set(&self, engine: &Engine, text: &str) -> Result<()> {
        (self.set)(engine, self.parse(text)?)
    }
}
