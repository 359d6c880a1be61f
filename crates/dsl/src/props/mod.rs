//! The native properties of datasets and pools, as tables: number, name, column header,
//! kind, settability, dataset types, default, stored index words (chapter 09 §2). Also the
//! conversion of a raw value to the text that `zfs get` prints.
//!
//! # Theory
//! Values are passed raw: sizes in bytes, index properties as their stored number, dates in
//! seconds, ratios in hundredths. Only [`format`](format::format) handles words, units and
//! the exceptions of `-p`. Code that prints calls it, code that stores does not.
//!
//! # Invariants
//! * The dataset table is sorted by number, which is the order of `zfs get all`.
//! * In a list of index words the first word of a number is the one printed.

mod format;
mod nicenum;
mod pool_table;
mod table;

pub use format::{format, format_local_date};
pub use nicenum::{nicebytes, nicenum, nicetime, parse_size};

/// The kind of a column's values, which decides its alignment and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropKind {
    /// Right-aligned.
    Number,
    /// Left-aligned.
    String,
    /// A number on disk, printed as a word; left-aligned.
    Index,
}

/// How a raw value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Verbatim.
    Text,
    /// The pool's state, a word in a number's column.
    Health,
    /// By the property's index words.
    Words,
    /// Base 1024 without `B`.
    Number,
    /// Base 1024 with `B` below 1024.
    Bytes,
    /// As [`Unit::Bytes`], and 0 is `-`.
    BytesOrDash,
    /// Bytes; 0 is `none`, or `0` with `-p`.
    Quota,
    /// A count; 0 is `none`, or `0` with `-p`.
    CountQuota,
    /// A count; 2^64-1 is `none`, with `-p` too.
    Limit,
    /// 2^64-1 is `auto`, 0 is `none`, else a number.
    AutoQuota,
    /// Never abbreviated.
    Plain,
    /// Hundredths with an `x`.
    Ratio,
    /// A percentage.
    Percent,
    /// A percentage; 2^64-1 is `-`.
    PercentOrUnknown,
    /// Seconds since 1970, shown to the minute.
    Date,
    /// Seconds since 1970, shown to the second.
    DateSeconds,
}

/// Whether and when a property can be set, and whether descendants inherit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attr {
    /// Settable; inherited.
    Inherit,
    /// Settable; not inherited.
    Settable,
    /// Not settable.
    ReadOnly,
    /// Only at creation; children copy it when they are created.
    Once,
    /// Only at creation or by change-key; not inherited.
    OnceLocal,
}

/// A set of dataset types, or pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    /// File systems.
    pub const F: Types = Types(1);
    /// Volumes.
    pub const V: Types = Types(2);
    /// Snapshots.
    pub const S: Types = Types(4);
    /// Bookmarks.
    pub const B: Types = Types(8);
    /// Pools.
    pub const POOL: Types = Types(16);
    /// File systems and volumes.
    pub(crate) const FV: Types = Types(3);
    /// File systems and snapshots.
    pub(crate) const FS: Types = Types(5);
    /// Volumes and snapshots.
    pub(crate) const VS: Types = Types(6);
    /// All but bookmarks.
    pub(crate) const FVS: Types = Types(7);
    /// All kinds of datasets.
    pub(crate) const FVSB: Types = Types(15);
    /// Nothing.
    pub const NONE: Types = Types(0);

    /// Whether the two sets intersect.
    pub fn intersects(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    /// The union of both sets.
    #[must_use]
    pub fn with(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }
}

/// The words of an index property with their stored numbers.
pub type Words = &'static [(&'static str, u64)];

/// One native property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prop {
    /// Internal number, which orders `zfs get all`.
    pub number: u32,
    /// Name.
    pub name: &'static str,
    /// Column header of `-o`; its lower-case form is accepted as a name there.
    pub header: &'static str,
    /// Whether and when it can be set.
    pub attr: Attr,
    /// The types of datasets that have it.
    pub types: Types,
    /// How its value is written.
    pub unit: Unit,
    /// Words of an index property, else empty.
    pub words: Words,
    /// Default as a user would write it; empty if there is none.
    pub default: &'static str,
    /// Legal values, as messages name them.
    pub values: &'static str,
    /// Listed by `all`; hidden ones are reachable by name only.
    pub visible: bool,
}

impl Prop {
    /// The kind of this property's column.
    pub fn kind(&self) -> PropKind {
        match self.unit {
            Unit::Text => PropKind::String,
            Unit::Words => PropKind::Index,
            _ => PropKind::Number,
        }
    }

    /// Whether the column's width ignores the values (human-readable numbers).
    pub fn has_fixed_width(&self) -> bool {
        self.kind() == PropKind::Number
            && !matches!(self.unit, Unit::Plain | Unit::Date | Unit::DateSeconds)
    }

    /// The word for a stored number of an index property.
    pub fn word(&self, value: u64) -> Option<&'static str> {
        self.words.iter().find(|(_, v)| *v == value).map(|(w, _)| *w)
    }

    /// The stored number for a word of an index property, synonyms included.
    pub fn index(&self, word: &str) -> Option<u64> {
        self.words.iter().find(|(w, _)| *w == word).map(|(_, v)| *v)
    }

    /// The default as a raw value; `None` for a property without one.
    pub fn default_value(&self) -> PropData {
        match self.unit {
            _ if self.default.is_empty() => PropData::None,
            Unit::Text | Unit::Health => PropData::Str(self.default.to_owned()),
            Unit::Words => match self.index(self.default) {
                Some(v) => PropData::Num(v),
                None => PropData::None,
            },
            Unit::Limit | Unit::AutoQuota => PropData::Num(u64::MAX),
            _ => PropData::Num(self.default.parse().unwrap_or(0)),
        }
    }

    /// Smallest width of the property's column (chapter 09 §1.5).
    pub fn min_width(&self) -> usize {
        let floor = match self.unit {
            Unit::Health => 8,
            Unit::Words => self.words.iter().map(|(w, _)| w.len()).max().unwrap_or(0),
            Unit::Text => 0,
            _ => 5,
        };
        floor.max(self.header.len())
    }
}

/// A raw property value.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum PropData {
    /// No value; printed as `-`.
    #[default]
    None,
    /// Bytes, counts, seconds, hundredths or a stored index.
    Num(u64),
    /// Text.
    Str(String),
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Source {
    /// Not a settable value; printed as `-`.
    #[default]
    None,
    /// Never set.
    Default,
    /// Set here.
    Local,
    /// Overridden by the mount.
    Temporary,
    /// Set on this ancestor.
    Inherited(String),
    /// Received with a stream.
    Received,
}

/// A value with its source.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PropValue {
    /// The value in effect.
    pub value: PropData,
    /// The source.
    pub source: Source,
    /// The value received in a stream, whether in effect or not.
    pub received: Option<PropData>,
}

/// The native dataset properties by number.
pub fn dataset_props() -> &'static [Prop] {
    table::TABLE
}

/// The pool properties by number.
pub fn pool_props() -> &'static [Prop] {
    pool_table::TABLE
}

fn named(table: &'static [Prop], name: &str) -> Option<&'static Prop> {
    table.iter().find(|p| p.name == name)
}

fn column(table: &'static [Prop], name: &str) -> Option<&'static Prop> {
    let by_header = || table.iter().find(|p| p.header.eq_ignore_ascii_case(name));
    named(table, name).or_else(by_header).filter(|_| !name.bytes().any(|b| b.is_ascii_uppercase()))
}

/// The native dataset property of this name.
pub fn dataset_prop(name: &str) -> Option<&'static Prop> {
    named(table::TABLE, name)
}

/// As [`dataset_prop`], column headers in lower case accepted (`avail`, `refer`).
pub fn dataset_column(name: &str) -> Option<&'static Prop> {
    column(table::TABLE, name)
}

/// The pool property of this name.
pub fn pool_prop(name: &str) -> Option<&'static Prop> {
    named(pool_table::TABLE, name)
}

/// As [`pool_prop`], column headers in lower case accepted (`cap`, `frag`).
pub fn pool_column(name: &str) -> Option<&'static Prop> {
    column(pool_table::TABLE, name)
}

/// Whether `name` can be a user property's: a colon, and only `[a-z0-9:._-]`.
pub fn is_user_prop(name: &str) -> bool {
    name.contains(':')
        && name.len() < 256
        && name.bytes().all(|b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b':' | b'.' | b'_' | b'-')
        })
}

const SPACE_PREFIXES: [&str; 12] = [
    "userused@",
    "groupused@",
    "projectused@",
    "userobjused@",
    "groupobjused@",
    "projectobjused@",
    "userquota@",
    "groupquota@",
    "projectquota@",
    "userobjquota@",
    "groupobjquota@",
    "projectobjquota@",
];

/// Whether `name` is a pseudo property that counts by owner (`userused@1000`).
pub fn is_space_prop(name: &str) -> bool {
    SPACE_PREFIXES.iter().any(|p| name.len() > p.len() && name.starts_with(p))
}

/// Whether `name` stands for bytes written since a snapshot or bookmark.
pub fn is_written_prop(name: &str) -> bool {
    name.len() > 8 && (name.starts_with("written@") || name.starts_with("written#"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_order_and_complete() {
        for (table, len) in [(dataset_props(), 108), (pool_props(), 45)] {
            assert_eq!(table.len(), len);
            for (i, p) in table.iter().enumerate() {
                assert_eq!(p.number as usize, i, "{}", p.name);
                assert_eq!(p.unit == Unit::Words, !p.words.is_empty(), "{}", p.name);
                if p.unit == Unit::Words && !p.default.is_empty() {
                    assert!(p.index(p.default).is_some(), "{} {}", p.name, p.default);
                }
            }
        }
    }

    #[test]
    fn stored_numbers_are_the_chapters() {
        let index = |p: &str, w: &str| dataset_prop(p).unwrap().index(w);
        assert_eq!(index("compression", "zstd-19"), Some(16 + 128 * 19));
        assert_eq!(index("compression", "zstd-fast-1000"), Some(15_760));
        assert_eq!(index("compression", "zstd-fast-10"), Some(14_352));
        assert_eq!(index("compression", "zstd-fast-100"), Some(15_504));
        assert_eq!(index("compression", "gzip-9"), Some(13));
        assert_eq!(index("dedup", "sha512,verify"), Some(267));
        assert_eq!(index("normalization", "formKC"), Some(96));
        assert_eq!(index("acltype", "posixacl"), Some(1));
        let word = |p: &str, v| dataset_prop(p).unwrap().word(v);
        assert_eq!(word("xattr", 2), Some("sa"));
        assert_eq!(word("compression", 10), Some("gzip"));
        assert_eq!(word("compression", 13_200), Some("zstd-fast"));
        assert_eq!(word("volmode", 1), Some("full"));
        assert_eq!(word("acltype", 0), Some("off"));
        assert_eq!(word("aclinherit", 4), Some("restricted"));
        assert_eq!(word("version", 5), Some("5"));
        assert_eq!(word("compression", 4), None);
    }

    #[test]
    fn columns_go_by_name_and_header() {
        assert_eq!(dataset_column("avail").unwrap().name, "available");
        assert_eq!(dataset_column("ratio").unwrap().name, "compressratio");
        assert_eq!(dataset_column("AVAIL"), None);
        assert_eq!(pool_column("frag").unwrap().name, "fragmentation");
        assert_eq!(pool_column("expandsz").unwrap().name, "expandsize");
        assert!(is_user_prop("com.example:tag") && !is_user_prop("Com:x") && !is_user_prop("tag"));
        assert!(is_space_prop("userused@root") && !is_space_prop("userused@"));
        assert!(is_written_prop("written@a") && !is_written_prop("written"));
    }

    #[test]
    fn widths_are_those_of_the_golden_tables() {
        let w = |n: &str| dataset_column(n).unwrap().min_width();
        assert_eq!(w("compress"), 14);
        assert_eq!(w("checksum"), 9);
        assert_eq!(w("used"), 5);
        assert_eq!(w("recsize"), 7);
        assert_eq!(pool_column("health").unwrap().min_width(), 8);
    }
}
