//! `zpool upgrade` (chapter 09 §4; forms as OpenZFS 2.3.2 prints them).

use std::ffi::OsString;

use base::Result;
use cenote::create::{feature_set, is_upgraded, may_enable};
use cenote::features::{FEATURES, Feature};
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{Change, PropertyEntry, PropertyValue, Reply, Request};
use ui::Exit;

use super::{Pools, command, misuse, no_such_pool, options, unexpected_reply};

const FIRST: &str = "This system supports ZFS pool feature flags.\n\n";
/// The version of pools with feature flags.
const CURRENT: u64 = 5000;

/// The change of each old version.
const VERSIONS: [&str; 28] = [
    "Initial ZFS version",
    "Ditto blocks (replicated metadata)",
    "Hot spares and double parity RAID-Z",
    "zpool history",
    "Compression using the gzip algorithm",
    "bootfs pool property",
    "Separate intent log devices",
    "Delegated administration",
    "refquota and refreservation properties",
    "Cache devices",
    "Improved scrub performance",
    "Snapshot properties",
    "snapused property",
    "passthrough-x aclinherit",
    "user/group space accounting",
    "stmf property support",
    "Triple-parity RAID-Z",
    "Snapshot user holds",
    "Log device removal",
    "Compression using zle (zero-length encoding)",
    "Deduplication",
    "Received properties",
    "Slim ZIL",
    "System attributes",
    "Improved scrub stats",
    "Improved snapshot deletion performance",
    "Improved snapshot creation performance",
    "Multiple vdev replacements",
];

/// The features that a pool may have enabled, and the old versions.
fn supported() -> String {
    let mut out = format!(
        "{FIRST}The following features are supported:\n\nFEAT DESCRIPTION\n{}\n",
        "-".repeat(61)
    );
    for feature in FEATURES.iter().filter(|f| may_enable(f)) {
        let note = if feature.is_read_only_compatible() { " (read-only compatible)" } else { "" };
        out.push_str(&format!("{:<37}{note}\n     {}\n", feature.name(), feature.description));
    }
    out.push_str(&format!(
        "\nThe following legacy versions are also supported:\n\nVER  DESCRIPTION\n---  {}\n",
        "-".repeat(56)
    ));
    for (version, text) in (1..).zip(VERSIONS) {
        out.push_str(&format!(" {version:<3} {text}\n"));
    }
    out.push_str(
        "\nFor more information on a particular version, including supported releases,\nsee the \
         ZFS Administration Guide.\n\n",
    );
    out
}

/// A pool, as far as upgrades are concerned.
#[derive(Debug, Default, PartialEq, Eq)]
struct PoolVersion {
    name: String,
    /// An old version.
    version: Option<u64>,
    /// Features that an upgrade would enable.
    lacking: Vec<&'static str>,
}

/// The report on pools of old versions and on features that are not enabled.
fn report(pools: &[PoolVersion]) -> String {
    let mut out = FIRST.to_owned();
    let old: Vec<(u64, &str)> =
        pools.iter().filter_map(|p| Some((p.version?, p.name.as_str()))).collect();
    if old.is_empty() {
        out.push_str("All pools are formatted using feature flags.\n\n");
    } else {
        out.push_str(
            "The following pools are formatted with legacy version numbers and can\nbe upgraded to \
             use feature flags.  After being upgraded, these pools\nwill no longer be accessible by \
             software that does not support feature\nflags.\n\nNote that setting a pool's \
             'compatibility' feature to 'legacy' will\ninhibit upgrades.\n\nVER  POOL\n---  \
             ------------\n",
        );
        old.iter().for_each(|(version, name)| out.push_str(&format!("{version:2}   {name}\n")));
        out.push('\n');
    }
    if pools.iter().all(|p| p.lacking.is_empty()) {
        let all = "Every feature flags pool has all supported and requested features enabled.\n";
        return out + all;
    }
    out.push_str(
        "\nSome supported features are not enabled on the following pools. Once a\nfeature is \
         enabled the pool may become incompatible with software\nthat does not support the \
         feature. See zpool-features(7) for details.\n\nNote that the pool 'compatibility' \
         feature can be used to inhibit\nfeature upgrades.\n\nPOOL  FEATURE\n---------------\n",
    );
    for pool in pools.iter().filter(|p| !p.lacking.is_empty()) {
        out.push_str(&format!("{}\n", pool.name));
        pool.lacking.iter().for_each(|f| out.push_str(&format!("      {f}\n")));
    }
    out + "\n"
}

/// The property `compatibility`.
fn compatibility(props: &[(String, PropertyEntry)]) -> &str {
    let value = props.iter().find(|(name, _)| name == "compatibility").map(|(_, v)| &v.value);
    match value {
        Some(PropertyValue::Str(text)) => text,
        _ => "off",
    }
}

/// What the properties of a pool tell.
fn version_of(name: &str, props: &[(String, PropertyEntry)]) -> PoolVersion {
    let value = |of: &str| props.iter().find(|(name, _)| name == of).map(|(_, entry)| &entry.value);
    let version = match value("version") {
        Some(PropertyValue::Num(n)) => Some(*n),
        _ => None,
    };
    // A set that cannot be read requests nothing.
    let requested = feature_set(compatibility(props)).ok();
    let disabled = PropertyValue::Str("disabled".to_owned());
    let lacks = |f: &&Feature| {
        let is_requested = requested.as_ref().is_some_and(|set| set.has(f.name()));
        let state = value(&format!("feature@{}", f.name()));
        version.is_none() && is_requested && is_upgraded(f) && state == Some(&disabled)
    };
    let lacking = FEATURES.iter().filter(lacks).map(Feature::name).collect();
    PoolVersion { name: name.to_owned(), version, lacking }
}

/// What an upgrade of a pool did, and whether it did anything.
fn outcome(name: &str, wanted: Option<u64>, done: &Upgraded) -> (String, bool) {
    let Upgraded { from, to, features } = done;
    let mut out = String::new();
    if to != from {
        let now = match *to {
            CURRENT => "feature flags".to_owned(),
            version => format!("version {version}"),
        };
        out.push_str(&format!("Successfully upgraded '{name}' from version {from} to {now}.\n"));
    }
    if !features.is_empty() {
        out.push_str(&format!("Enabled the following features on '{name}':\n"));
        features.iter().for_each(|f| out.push_str(&format!("  {f}\n")));
    }
    let changed = !out.is_empty();
    if !changed {
        out = match (wanted, *from) {
            (None, _) => {
                format!("Pool '{name}' already has all supported and requested features enabled.\n")
            }
            (Some(_), CURRENT) => {
                format!("Pool '{name}' is already formatted using feature flags.\n")
            }
            (Some(wanted), from) if from > wanted => {
                format!("Pool '{name}' is already formatted using more current version '{from}'.\n")
            }
            (Some(_), from) => {
                format!("Pool '{name}' is already formatted using version {from}.\n")
            }
        };
    }
    (out, changed)
}

/// Upgrades pools: those that are named, or all.
fn upgrade(names: &[String], wanted: Option<u64>, line: &str) -> Result<Exit> {
    let mut pools = Pools::connect()?;
    let (found, all) = (pools.select(names, no_such_pool)?, names.is_empty());
    let (mut failed, mut any) = (pools.failed, false);
    ui::out(FIRST);
    for name in found {
        let props = pools.props(&name, Some(vec!["compatibility".to_owned()]))?;
        if compatibility(&props) == "legacy" {
            any = true;
            ui::out(&format!(
                "Pool '{name}': upgrade not performed because 'compatibility' property set to \
                 'legacy'.\n"
            ));
            continue;
        }
        match request(&name, wanted, line) {
            Ok(done) => {
                let (text, changed) = outcome(&name, wanted, &done);
                any |= changed;
                match (changed, all) {
                    (true, _) => ui::out(&(text + "\n")),
                    (false, false) => ui::out(&text),
                    (false, true) => {}
                }
            }
            Err(e) => {
                ui::err(e.message());
                (failed, any) = (true, true);
            }
        }
    }
    if all && !any {
        ui::out(&match wanted {
            None => "All pools are already formatted using feature flags.\n\nEvery feature flags \
                     pool already has all supported and requested features enabled.\n"
                .to_owned(),
            Some(version) => {
                format!("All pools are already formatted using version {version} or higher.\n")
            }
        });
    }
    Ok(Exit::failed_if(failed))
}

/// What an upgrade changed.
#[derive(Debug)]
struct Upgraded {
    from: u64,
    to: u64,
    features: Vec<String>,
}

fn request(name: &str, version: Option<u64>, line: &str) -> Result<Upgraded> {
    let mut client = Client::connect(&Runtime::from_env()?)?;
    let change = Change::Upgrade(version);
    let request = Request::Change { pool: name.to_owned(), change, command: line.to_owned() };
    match client.request(&request)? {
        Reply::Upgraded { from, to, features } => Ok(Upgraded { from, to, features }),
        _ => Err(unexpected_reply()),
    }
}

/// `zpool upgrade ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("upgrade", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let (words, all) = (parsed.words(), parsed.has('a'));
    let wanted = match parsed.last('V') {
        None => None,
        Some(text) => match text.parse::<u64>() {
            Ok(n) if (1..=VERSIONS.len() as u64).contains(&n) || n == CURRENT => Some(n),
            _ => return Ok(misuse("upgrade", Some(&format!("invalid version '{text}'")))),
        },
    };
    if parsed.has('v') {
        if parsed.opts.len() > 1 || !words.is_empty() {
            let text = "-v option is incompatible with other arguments";
            return Ok(misuse("upgrade", Some(text)));
        }
        ui::out(&supported());
        return Ok(Exit::OK);
    }
    if all && !words.is_empty() {
        let text = "-a option should not be used along with a pool name";
        return Ok(misuse("upgrade", Some(text)));
    }
    if all || !words.is_empty() {
        return upgrade(&words, wanted, &command("upgrade", argv));
    }
    if wanted.is_some() {
        return Ok(misuse("upgrade", Some("missing pool name")));
    }
    let mut pools = Pools::connect()?;
    let mut found = Vec::new();
    for name in pools.select(&[], no_such_pool)? {
        let props = pools.props(&name, None)?;
        found.push(version_of(&name, &props));
    }
    ui::out(&report(&found));
    Ok(Exit::failed_if(pools.failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from OpenZFS 2.3.2: the beginning, a feature of each kind, the end.
    #[test]
    fn what_is_supported() {
        let text = supported();
        assert!(text.starts_with(
            "This system supports ZFS pool feature flags.\n\nThe following features are \
             supported:\n\nFEAT DESCRIPTION\n\
             -------------------------------------------------------------\nasync_destroy        \
             \x20                (read-only compatible)\n     Destroy filesystems \
             asynchronously.\n"
        ));
        let lz4 = format!("\nlz4_compress{}\n     LZ4 compression", " ".repeat(25));
        assert!(text.contains(&lz4));
        assert!(text.contains(
            "\nVER  DESCRIPTION\n---  --------------------------------------------------------\n 1   \
             Initial ZFS version\n"
        ));
        assert!(text.ends_with(
            "\n 28  Multiple vdev replacements\n\nFor more information on a particular version, \
             including supported releases,\nsee the ZFS Administration Guide.\n\n"
        ));
    }

    #[test]
    fn reports() {
        let pool = |version, lacking: &[&'static str]| PoolVersion {
            name: "tank".to_owned(),
            version,
            lacking: lacking.to_vec(),
        };
        let all = report(&[pool(None, &[])]);
        assert!(all.ends_with(
            "feature flags.\n\nEvery feature flags pool has all supported and \
                               requested features enabled.\n"
        ));
        let some = report(&[pool(None, &["blake3"])]);
        assert!(some.ends_with("\n\nPOOL  FEATURE\n---------------\ntank\n      blake3\n\n"));
        let old = report(&[pool(Some(28), &[]), pool(Some(5), &[])]);
        assert!(old.contains("\nVER  POOL\n---  ------------\n28   tank\n 5   tank\n\nEvery"));
        let value = |v: &str| PropertyEntry::fact(PropertyValue::Str(v.to_owned()));
        let mut props = vec![
            ("feature@blake3".to_owned(), value("disabled")),
            ("feature@edonr".to_owned(), value("disabled")),
            ("feature@raidz_expansion".to_owned(), value("disabled")),
            ("feature@dynamic_gang_header".to_owned(), value("disabled")),
            ("feature@lz4_compress".to_owned(), value("active")),
            ("comment".to_owned(), value("disabled")),
        ];
        assert_eq!(version_of("tank", &props), pool(None, &["edonr", "blake3", "raidz_expansion"]));
        props.push(("compatibility".to_owned(), value("openzfs-2.0-linux")));
        assert_eq!(version_of("tank", &props), pool(None, &["edonr"]));
        props.push(("version".to_owned(), PropertyEntry::fact(PropertyValue::Num(28))));
        assert_eq!(version_of("tank", &props), pool(Some(28), &[]));
    }

    #[test]
    fn outcomes() {
        let said = |wanted, from, to, features: &[&str]| {
            let features = features.iter().map(|f| (*f).to_owned()).collect();
            outcome("t", wanted, &Upgraded { from, to, features })
        };
        let both = "Successfully upgraded 't' from version 15 to feature flags.\nEnabled the \
                    following features on 't':\n  blake3\n";
        assert_eq!(said(None, 15, CURRENT, &["blake3"]), (both.to_owned(), true));
        let version = "Successfully upgraded 't' from version 15 to version 28.\n";
        assert_eq!(said(Some(28), 15, 28, &[]), (version.to_owned(), true));
        for (wanted, from, text) in [
            (None, CURRENT, "already has all supported and requested features enabled.\n"),
            (Some(28), 28, "is already formatted using version 28.\n"),
            (Some(20), 28, "is already formatted using more current version '28'.\n"),
            (Some(28), CURRENT, "is already formatted using feature flags.\n"),
        ] {
            assert_eq!(said(wanted, from, from, &[]), (format!("Pool 't' {text}"), false));
        }
    }
}
