//! The pool properties (chapter 09 §2.4). Those numbered 40 and above are newer
//! than OpenZFS 2.3 and not listed by `all`.

use super::Attr::{Once, ReadOnly, Settable};
use super::Unit::*;
use super::table::{ONOFF, p};
use super::{Prop, Types, Words};

const FAILMODE: Words = &[("wait", 0), ("continue", 1), ("panic", 2)];

/// Sorted by number.
#[rustfmt::skip]
pub(super) const TABLE: &[Prop] = &[
    p(0, "name", "NAME", ReadOnly, Types::POOL, Text, &[], "", "", false),
    p(1, "size", "SIZE", ReadOnly, Types::POOL, Number, &[], "", "<size>", true),
    p(2, "capacity", "CAP", ReadOnly, Types::POOL, Percent, &[], "", "<percent>", true),
    p(3, "altroot", "ALTROOT", Settable, Types::POOL, Text, &[], "", "<path>", true),
    p(4, "health", "HEALTH", ReadOnly, Types::POOL, Health, &[], "", "<state>", true),
    p(5, "guid", "GUID", ReadOnly, Types::POOL, Plain, &[], "", "<guid>", true),
    p(6, "version", "VERSION", Settable, Types::POOL, Plain, &[], "5000", "<version>", true),
    p(7, "bootfs", "BOOTFS", Settable, Types::POOL, Text, &[], "", "<filesystem>", true),
    p(8, "delegation", "DELEGATION", Settable, Types::POOL, Words, ONOFF, "on", "on | off", true),
    p(9, "autoreplace", "REPLACE", Settable, Types::POOL, Words, ONOFF, "off", "on | off", true),
    p(10, "cachefile", "CACHEFILE", Settable, Types::POOL, Text, &[], "", "<file> | none", true),
    p(11, "failmode", "FAILMODE", Settable, Types::POOL, Words, FAILMODE, "wait", "wait | continue | panic", true),
    p(12, "listsnapshots", "LISTSNAPS", Settable, Types::POOL, Words, ONOFF, "off", "on | off", true),
    p(13, "autoexpand", "EXPAND", Settable, Types::POOL, Words, ONOFF, "off", "on | off", true),
    p(14, "dedupditto", "DEDUPDITTO", Settable, Types::POOL, Number, &[], "", "", false),
    p(15, "dedupratio", "DEDUP", ReadOnly, Types::POOL, Ratio, &[], "", "<1.00x or higher if deduped>", true),
    p(16, "free", "FREE", ReadOnly, Types::POOL, Number, &[], "", "<size>", true),
    p(17, "allocated", "ALLOC", ReadOnly, Types::POOL, Number, &[], "", "<size>", true),
    p(18, "readonly", "RDONLY", Settable, Types::POOL, Words, ONOFF, "off", "on | off", true),
    p(19, "ashift", "ASHIFT", Settable, Types::POOL, Plain, &[], "0", "<ashift, 9-16, or 0=default>", true),
    p(20, "comment", "COMMENT", Settable, Types::POOL, Text, &[], "", "<comment-string>", true),
    p(21, "expandsize", "EXPANDSZ", ReadOnly, Types::POOL, BytesOrDash, &[], "", "<size>", true),
    p(22, "freeing", "FREEING", ReadOnly, Types::POOL, Number, &[], "", "<size>", true),
    p(23, "fragmentation", "FRAG", ReadOnly, Types::POOL, PercentOrUnknown, &[], "", "<percent>", true),
    p(24, "leaked", "LEAKED", ReadOnly, Types::POOL, Number, &[], "", "<size>", true),
    p(25, "maxblocksize", "MAXBLOCKSIZE", ReadOnly, Types::POOL, Plain, &[], "", "", false),
    p(26, "tname", "TNAME", Once, Types::POOL, Text, &[], "", "", false),
    p(27, "maxdnodesize", "MAXDNODESIZE", ReadOnly, Types::POOL, Plain, &[], "", "", false),
    p(28, "multihost", "MULTIHOST", Settable, Types::POOL, Words, ONOFF, "off", "on | off", true),
    p(29, "checkpoint", "CKPOINT", ReadOnly, Types::POOL, BytesOrDash, &[], "", "<size>", true),
    p(30, "load_guid", "LOAD_GUID", ReadOnly, Types::POOL, Plain, &[], "", "<load_guid>", true),
    p(31, "autotrim", "AUTOTRIM", Settable, Types::POOL, Words, ONOFF, "off", "on | off", true),
    p(32, "compatibility", "COMPATIBILITY", Settable, Types::POOL, Text, &[], "off", "<file[,file...]> | off | legacy", true),
    p(33, "bcloneused", "BCLONE_USED", ReadOnly, Types::POOL, Number, &[], "", "<size>", true),
    p(34, "bclonesaved", "BCLONE_SAVED", ReadOnly, Types::POOL, Number, &[], "", "<size>", true),
    p(35, "bcloneratio", "BCLONE_RATIO", ReadOnly, Types::POOL, Ratio, &[], "", "<1.00x or higher if cloned>", true),
    p(36, "dedup_table_size", "DDTSIZE", ReadOnly, Types::POOL, Number, &[], "", "<size>", true),
    p(37, "dedup_table_quota", "DDTQUOTA", Settable, Types::POOL, AutoQuota, &[], "auto", "<size>", true),
    p(38, "dedupcached", "DEDUPCACHED", ReadOnly, Types::POOL, Number, &[], "", "", false),
    p(39, "last_scrubbed_txg", "LAST_SCRUBBED_TXG", ReadOnly, Types::POOL, Plain, &[], "", "<txg>", true),
    p(40, "dedupused", "DEDUP_USED", ReadOnly, Types::POOL, Number, &[], "", "<size>", false),
    p(41, "dedupsaved", "DEDUP_SAVED", ReadOnly, Types::POOL, Number, &[], "", "<size>", false),
    p(42, "available", "AVAIL", ReadOnly, Types::POOL, Number, &[], "", "<size>", false),
    p(43, "usable", "USABLE", ReadOnly, Types::POOL, Number, &[], "", "<size>", false),
    p(44, "used", "USED", ReadOnly, Types::POOL, Number, &[], "", "<size>", false),
];
