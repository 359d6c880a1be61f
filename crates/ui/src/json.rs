//! JSON in the form of `zpool -j` and `zfs -j` (chapter 09 §1.6): one line, no blanks, keys in
//! the order in which they were added.

use std::fmt;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    /// A string.
    Str(String),
    /// A number without a fraction.
    Int(i128),
    /// An array.
    Array(Vec<Json>),
    /// An object.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// A string.
    pub fn str(text: impl Into<String>) -> Json {
        Json::Str(text.into())
    }

    /// An object of these members.
    pub fn object<K: Into<String>>(members: impl IntoIterator<Item = (K, Json)>) -> Json {
        Json::Object(members.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// The whole output of a command: `output_version`, then these members.
    pub fn output<K: Into<String>>(
        command: &str,
        members: impl IntoIterator<Item = (K, Json)>,
    ) -> Json {
        let version = Json::object([
            ("command", Json::str(command)),
            ("vers_major", Json::Int(0)),
            ("vers_minor", Json::Int(1)),
        ]);
        let mut all = vec![("output_version".to_owned(), version)];
        all.extend(members.into_iter().map(|(key, value)| (key.into(), value)));
        Json::Object(all)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Str(text) => quote(f, text),
            Json::Int(n) => write!(f, "{n}"),
            Json::Array(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    f.write_str(if i > 0 { "," } else { "" })?;
                    item.fmt(f)?;
                }
                f.write_str("]")
            }
            Json::Object(members) => {
                f.write_str("{")?;
                for (i, (key, value)) in members.iter().enumerate() {
                    f.write_str(if i > 0 { "," } else { "" })?;
                    quote(f, key)?;
                    f.write_str(":")?;
                    value.fmt(f)?;
                }
                f.write_str("}")
            }
        }
    }
}

/// Control characters, and characters of the basic multilingual plane that are not ASCII, are
/// escaped; others stay.
fn quote(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\u{8}' => f.write_str("\\b")?,
            '\u{c}' => f.write_str("\\f")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            ' '..='~' => write!(f, "{c}")?,
            c if u32::from(c) <= 0xffff => write!(f, "\\u{:04x}", u32::from(c))?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_of_one_line() {
        let list = Json::Array(vec![Json::Int(-1), Json::str("é\t\"\\\u{1}𝄞")]);
        assert_eq!(
            Json::output("zpool x", [("a", list)]).to_string(),
            "{\"output_version\":{\"command\":\"zpool x\",\"vers_major\":0,\"vers_minor\":1},\
             \"a\":[-1,\"\\u00e9\\t\\\"\\\\\\u0001𝄞\"]}"
        );
    }
}
