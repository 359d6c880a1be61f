//! The capabilities of a terminal, and bars drawn in it.

use std::io::IsTerminal;

/// Columns of an output that is no terminal, or whose width is unknown.
pub const WIDTH: usize = 80;

/// The capabilities of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalStyle {
    /// Columns.
    pub width: usize,
    /// It shows colours.
    pub color: bool,
    /// It shows blocks and braille.
    pub unicode: bool,
}

impl TerminalStyle {
    /// Plain characters in [`WIDTH`] columns.
    pub const PLAIN: TerminalStyle = TerminalStyle { width: WIDTH, color: false, unicode: false };

    /// The capabilities of standard output. Colours need a terminal that is not `dumb`, and no
    /// `NO_COLOR` in the environment.
    pub fn of_stdout() -> TerminalStyle {
        let stdout = std::io::stdout();
        if !stdout.is_terminal() {
            return TerminalStyle::PLAIN;
        }
        let width = rustix::termios::tcgetwinsize(&stdout).map_or(0, |w| usize::from(w.ws_col));
        let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
        let locale = locale.unwrap_or_default().to_ascii_lowercase();
        TerminalStyle {
            width: if width == 0 { WIDTH } else { width },
            color: set("NO_COLOR").is_none() && !is_dumb(),
            unicode: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }
}

/// Whether standard output is a terminal that obeys control sequences.
pub fn can_redraw() -> bool {
    std::io::stdout().is_terminal() && !is_dumb()
}

fn is_dumb() -> bool {
    set("TERM").is_none_or(|term| term == "dumb")
}

fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// A bar that many columns long.
pub fn bar(length: f64, unicode: bool) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of columns; a negative one is none"
    )]
    let whole = |n: f64| n.round() as usize;
    if !unicode {
        return "#".repeat(whole(length));
    }
    let eighths = whole(length * 8.0);
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}
