//! The names that received datasets get (chapter 07 §14.1).

use base::limits::DATASET_NAME_MAX;
use base::{Error, ErrorKind, Result};

/// How the sender's names become those of received datasets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveNames {
    /// The dataset that was sent gets the given name; those below it keep theirs.
    #[default]
    Whole,
    /// The sender's names, without their pools, are put below the given one (`-d`).
    WithoutPool,
    /// The last part of the name of what was sent, and what is below it, are put below the given
    /// one (`-e`).
    LastPart,
}

impl ReceiveNames {
    /// The full name of the snapshot that is received as `sent`, its full name on the sender,
    /// below or as `target`. `package` is the name of the package of which it is a part: that of
    /// the topmost dataset.
    ///
    /// # Errors
    /// `Invalid` for a `target` that does not fit; `NameTooLong`; `Corrupt` for a name that is
    /// none.
    pub fn target(self, target: &str, package: Option<&str>, sent: &str) -> Result<String> {
        let odd = || Error::corrupt("invalid stream (the snapshot has no name)");
        let (dataset, snapshot) = sent.split_once('@').ok_or_else(odd)?;
        let top = package.unwrap_or(sent).split('@').next().unwrap_or_default();
        let below = match package {
            Some(_) => dataset.strip_prefix(top).ok_or_else(odd)?,
            None => "",
        };
        if !below.is_empty() && !below.starts_with('/') {
            return Err(odd());
        }
        let (base, given) = match target.split_once('@') {
            Some((base, given)) => (base, Some(given)),
            None => (target, None),
        };
        if given.is_some() && (self != ReceiveNames::Whole || package.is_some()) {
            let text = format!("'{target}' is the name of a snapshot, not of a dataset");
            return Err(Error::invalid(text));
        }
        let added = match self {
            ReceiveNames::Whole => below.to_owned(),
            ReceiveNames::WithoutPool => match dataset.split_once('/') {
                Some((_, rest)) => format!("/{rest}"),
                None => String::new(),
            },
            ReceiveNames::LastPart => {
                format!("/{}{below}", top.rsplit('/').next().unwrap_or_default())
            }
        };
        let full = format!("{base}{added}@{}", given.unwrap_or(snapshot));
        if full.len() > DATASET_NAME_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "dataset name is too long"));
        }
        Ok(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_manual() {
        use ReceiveNames::{LastPart, Whole, WithoutPool};
        let cases = [
            (Whole, "t/x", None, "p/a/b@s", "t/x@s"),
            (Whole, "t/x@other", None, "p/a/b@s", "t/x@other"),
            (WithoutPool, "t/x", None, "p/a/b@s", "t/x/a/b@s"),
            (WithoutPool, "t/x", None, "p@s", "t/x@s"),
            (LastPart, "t/x", None, "p/a/b@s", "t/x/b@s"),
            (Whole, "t/x", Some("p/a@s"), "p/a/b/c@r", "t/x/b/c@r"),
            (WithoutPool, "t/x", Some("p/a@s"), "p/a/b/c@r", "t/x/a/b/c@r"),
            (LastPart, "t/x", Some("p/q/a@s"), "p/q/a/b@r", "t/x/a/b@r"),
            (LastPart, "t/x", Some("p/q/a@s"), "p/q/a@r", "t/x/a@r"),
        ];
        for (names, target, package, sent, wanted) in cases {
            assert_eq!(names.target(target, package, sent).unwrap(), wanted, "{names:?} {sent}");
        }
        assert!(Whole.target("t/x", Some("p/a@s"), "p/ab@r").is_err());
        assert!(WithoutPool.target("t/x@s", None, "p/a@r").is_err());
        assert!(Whole.target("t/x", None, "p/a").is_err());
        assert!(Whole.target(&"t".repeat(255), None, "p/a@s").is_err());
    }
}
