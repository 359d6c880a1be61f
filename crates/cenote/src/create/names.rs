//! Names of pools (chapter 09 §1.2; the messages are those of OpenZFS 2.3.2).

/// Longest pool name in bytes: `$ORIGIN` and a snapshot must still fit behind it.
pub(crate) const POOL_NAME_MAX: usize = 239;

/// Words that the vdev grammar begins with.
const RESERVED_PREFIXES: [&str; 4] = ["mirror", "raidz", "draid", "spare"];

/// Whether `name` is valid for a new pool.
///
/// # Errors
/// The error, as the part behind `cannot create 'NAME': `.
pub fn check_pool_name(name: &str) -> Result<(), String> {
    check_name(name, "pool name")
}

/// Whether `name` is valid as a temporary name until the export (`-t`).
///
/// # Errors
/// As [`check_pool_name`].
pub fn check_temporary_name(name: &str) -> Result<(), String> {
    check_name(name, "temporary name")
}

fn check_name(name: &str, what: &str) -> Result<(), String> {
    if name.len() > POOL_NAME_MAX {
        return Err("name is too long".to_owned());
    }
    let legal = |c: &char| c.is_ascii_alphanumeric() || "-_.: ".contains(*c);
    if let Some(c) = name.chars().find(|c| !legal(c)) {
        return Err(format!("invalid character '{c}' in {what}"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err("name must begin with a letter".to_owned());
    }
    if RESERVED_PREFIXES.iter().any(|r| name.starts_with(r)) || name == "log" {
        return Err("name is reserved".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from OpenZFS 2.3.2's `zpool create`.
    #[test]
    fn names() {
        for good in
            ["tank", "logs", "c0", "cache", "special", "ta nk", "replacing", "tank.", "C0", "dedup"]
        {
            assert_eq!(check_pool_name(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("mirror", "name is reserved"),
            ("raidzz", "name is reserved"),
            ("draid1", "name is reserved"),
            ("spares", "name is reserved"),
            ("log", "name is reserved"),
            ("1tank", "name must begin with a letter"),
            ("_tank", "name must begin with a letter"),
            ("", "name must begin with a letter"),
            ("tank%x", "invalid character '%' in pool name"),
            ("tank@x", "invalid character '@' in pool name"),
            ("tänk", "invalid character 'ä' in pool name"),
        ] {
            assert_eq!(check_pool_name(bad), Err(why.to_owned()), "{bad}");
        }
        assert_eq!(check_pool_name(&"x".repeat(239)), Ok(()));
        assert_eq!(check_pool_name(&"x".repeat(240)), Err("name is too long".into()));
        assert_eq!(
            check_temporary_name("x/y"),
            Err("invalid character '/' in temporary name".into())
        );
    }
}
