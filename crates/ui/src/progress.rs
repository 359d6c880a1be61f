//! A progress line on a terminal: the share done, the rate, the time left.

use std::io::Write;
use std::time::Duration;

use base::rt::{self, Instant};
use cenote::props::nicebytes;

/// A progress line. It is silent unless standard error is a terminal, and for the first second,
/// so that short work shows nothing.
pub struct Progress {
    label: String,
    total: Option<u64>,
    start: Instant,
    drawn: Option<Instant>,
    terminal: bool,
}

impl Progress {
    /// A line for work of `total` bytes, if known.
    pub fn new(label: impl Into<String>, total: Option<u64>) -> Progress {
        let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        Progress { label: label.into(), total, start: rt::now(), drawn: None, terminal }
    }

    /// The work goes on with something else.
    pub fn rename(&mut self, label: &str) {
        if self.label != label {
            label.clone_into(&mut self.label);
        }
    }

    /// `done` bytes are done; redraws five times a second.
    pub fn at(&mut self, done: u64) {
        let recent = |t: Instant| t.elapsed() < Duration::from_millis(200);
        if !self.terminal
            || self.start.elapsed() < Duration::from_secs(1)
            || self.drawn.is_some_and(recent)
        {
            return;
        }
        self.drawn = Some(rt::now());
        let line = line(&self.label, done, self.total, self.start.elapsed());
        let _ = write!(std::io::stderr().lock(), "\r\x1b[K{line}");
    }

    /// `done` of `total` steps are done; shows the present one.
    pub fn step(&mut self, what: &str, done: u64, total: u64) {
        if self.terminal && self.start.elapsed() >= Duration::from_secs(1) {
            self.drawn = Some(rt::now());
            let count = match total {
                0 => String::new(),
                _ => format!("  {}  {done} of {total}", bar(done, total)),
            };
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K{what}{count}");
        }
    }

    /// Removes the line.
    pub fn finish(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Characters of a full bar.
const BAR: u64 = 24;

fn share(done: u64, total: u64, of: u64) -> u64 {
    let part = u128::from(done.min(total)) * u128::from(of);
    part.checked_div(total.into()).and_then(|n| u64::try_from(n).ok()).unwrap_or(of)
}

/// `[####----]`: how much of `total` is done.
pub fn bar(done: u64, total: u64) -> String {
    let full = usize::try_from(share(done, total, BAR)).unwrap_or(0);
    let all = usize::try_from(BAR).unwrap_or(0);
    format!("[{}{}]", "#".repeat(full), "-".repeat(all.saturating_sub(full)))
}

fn line(label: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = u128::from(done) * 1000 / u128::from(millis);
    let rate = u64::try_from(rate).unwrap_or(u64::MAX);
    let short: String =
        label.chars().rev().take(32).collect::<Vec<_>>().into_iter().rev().collect();
    let mut text = format!("{short}  {}", nicebytes(done));
    if let Some(total) = total.filter(|t| *t > 0) {
        let left = total.saturating_sub(done).checked_div(rate).unwrap_or(0);
        text = format!(
            "{short}  {} {:3}%  {} of {}  {}",
            bar(done, total),
            share(done, total, 100),
            nicebytes(done),
            nicebytes(total),
            super::time::duration(left)
        );
    }
    format!("{text}  {}/s", nicebytes(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_share_rate_and_rest() {
        let l = line("a/b", 50 << 20, Some(100 << 20), Duration::from_secs(5));
        assert_eq!(l, "a/b  [############------------]  50%  50M of 100M  00:00:05  10M/s");
        assert_eq!(bar(1, 4), "[######------------------]");
        assert_eq!(bar(0, 0), "[########################]");
        assert_eq!(line("x", 0, None, Duration::ZERO), "x  0B  0B/s");
        assert!(line("x", u64::MAX, Some(1), Duration::ZERO).contains("100%"));
    }
}
