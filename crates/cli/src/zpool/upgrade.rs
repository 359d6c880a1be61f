//! `zpool upgrade` (chapter 09 §4; forms as OpenZFS 2.3.2 prints them).

use std::ffi::OsString;

use base::{Error, Result};
use cenote::create::may_enable;
use cenote::features::FEATURES;
use proto::{PropertyEntry, PropertyValue};
use ui::Exit;

use super::{Pools, misuse, options};

const FIRST: &str = "This system supports ZFS pool feature flags.\n\n";

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

/// The report on pools with features that are not enabled.
fn lacking(pools: &[(String, Vec<String>)]) -> String {
    let mut out = format!("{FIRST}All pools are formatted using feature flags.\n\n");
    if pools.iter().all(|p| p.1.is_empty()) {
        let all = "Every feature flags pool has all supported and requested features enabled.\n";
        return out + all;
    }
    out.push_str(
        "\nSome supported features are not enabled on the following pools. Once a\nfeature is \
         enabled the pool may become incompatible with software\nthat does not support the \
         feature. See zpool-features(7) for details.\n\nNote that the pool 'compatibility' \
         feature can be used to inhibit\nfeature upgrades.\n\nPOOL  FEATURE\n---------------\n",
    );
    for (pool, features) in pools.iter().filter(|p| !p.1.is_empty()) {
        out.push_str(&format!("{pool}\n"));
        features.iter().for_each(|f| out.push_str(&format!("      {f}\n")));
    }
    out + "\n"
}

/// Features of a pool that are not enabled.
fn disabled(props: &[(String, PropertyEntry)]) -> Vec<String> {
    let is_disabled = |v: &PropertyEntry| v.value == PropertyValue::Str("disabled".to_owned());
    let of = |(name, value): &(String, PropertyEntry)| {
        name.strip_prefix("feature@").filter(|_| is_disabled(value)).map(str::to_owned)
    };
    props.iter().filter_map(of).collect()
}

/// `zpool upgrade`, `zpool upgrade -v`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("upgrade", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    if parsed.has('v') {
        if parsed.opts.len() > 1 || !words.is_empty() {
            let text = "-v option is incompatible with other arguments";
            return Ok(misuse("upgrade", Some(text)));
        }
        ui::out(&supported());
        return Ok(Exit::OK);
    }
    if !words.is_empty() {
        return Err(Error::unsupported(format!(
            "cannot upgrade '{}': {}; enable them one by one with 'zpool set \
             feature@NAME=enabled POOL'",
            words.join(" "),
            ui::not_yet("enabling all features at once")
        )));
    }
    let mut pools = Pools::connect()?;
    let mut found = Vec::new();
    for name in pools.select(&[], super::no_such_pool)? {
        let props = pools.props(&name, None)?;
        found.push((name, disabled(&props)));
    }
    ui::out(&lacking(&found));
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
    fn what_is_lacking() {
        let all = lacking(&[("tank".to_owned(), Vec::new())]);
        assert!(all.ends_with("requested features enabled.\n"));
        let some = lacking(&[("tank".to_owned(), vec!["blake3".to_owned()])]);
        assert!(some.ends_with("\nPOOL  FEATURE\n---------------\ntank\n      blake3\n\n"));
        let value = |v: &str| PropertyEntry::fact(PropertyValue::Str(v.to_owned()));
        let props = [
            ("feature@blake3".to_owned(), value("disabled")),
            ("feature@lz4_compress".to_owned(), value("active")),
            ("comment".to_owned(), value("disabled")),
        ];
        assert_eq!(disabled(&props), ["blake3"]);
    }
}
