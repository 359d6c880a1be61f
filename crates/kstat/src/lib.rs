//! Kernel statistics (kstats) in user space: counters, and one registry that shows
//! them.
//!
//! # Theory
//! A [`Counter`] is a row of cells, each on its own cache lines. A thread adds to the
//! cell that it selected at its first count; a reader sums the cells. A [`Registry`]
//! holds *sources* under the paths that they have below `/proc/spl/kstat/zfs`. A source
//! makes a [`Kstat`], a snapshot of one file, only when it is read, so that unread
//! statistics cost only their counters. A snapshot can be written as Linux's text
//! ([`text`]), in the form of Solaris's `kstat` ([`solaris`]), as Prometheus's text
//! ([`prometheus`]) or as JSON ([`json`]).
//!
//! # Invariants
//! * A counter never loses an addition. A sum that is read during additions is between
//!   the sums before and after.
//! * The registry holds weak references to the owners of its sources: a source
//!   disappears with its owner.
//! * Parsing a foreign kstat file never panics and uses memory in proportion to the
//!   file.
//!
//! Lock order: the registry's lock is a leaf; sources are called without it.

mod counter;
pub mod json;
pub mod prometheus;
mod registry;
pub mod solaris;
pub mod text;

use std::borrow::Cow;

pub use counter::{Counter, Histogram, IoCounters};
pub use registry::{Node, Registry};

/// A named value of a kstat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Type 1.
    I32(i32),
    /// Type 2.
    U32(u32),
    /// Type 3.
    I64(i64),
    /// Type 4; almost everything.
    U64(u64),
    /// Type 7, or type 0 if it is short.
    Str(String),
}

impl Value {
    /// The type number in the second column (chapter 09 §6.1).
    pub fn type_number(&self) -> u8 {
        match self {
            Value::I32(_) => 1,
            Value::U32(_) => 2,
            Value::I64(_) => 3,
            Value::U64(_) => 4,
            Value::Str(_) => 7,
        }
    }

    /// The value as an unsigned number; 0 for negative ones, `None` for strings.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_i128().map(|n| u64::try_from(n.max(0)).unwrap_or(u64::MAX))
    }

    /// The value as a signed number.
    pub fn as_i128(&self) -> Option<i128> {
        match self {
            Value::I32(n) => Some((*n).into()),
            Value::U32(n) => Some((*n).into()),
            Value::I64(n) => Some((*n).into()),
            Value::U64(n) => Some((*n).into()),
            Value::Str(_) => None,
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::I32(n) => n.fmt(f),
            Value::U32(n) => n.fmt(f),
            Value::I64(n) => n.fmt(f),
            Value::U64(n) => n.fmt(f),
            Value::Str(s) => s.fmt(f),
        }
    }
}

/// A value's name: fixed for almost all.
pub type Name = Cow<'static, str>;

/// The content of a kstat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KstatBody {
    /// Named values, in order.
    Named(Vec<(Name, Value)>),
    /// A text after the line of numbers that named kstats also have.
    Raw(String),
    /// Only a text.
    Text(String),
}

/// A snapshot of one kstat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kstat {
    /// Solaris's class; `misc`, or `dataset`.
    pub class: Name,
    /// Its content.
    pub body: KstatBody,
    /// Its id in the registry.
    pub kid: u32,
    /// Creation time, nanoseconds since the registry was created.
    pub crtime: u64,
    /// Read time, nanoseconds since the registry was created.
    pub snaptime: u64,
}

impl Kstat {
    /// A snapshot with this body; the registry fills in id and times.
    pub fn new(class: impl Into<Name>, body: KstatBody) -> Kstat {
        Kstat { class: class.into(), body, kid: 0, crtime: 0, snaptime: 0 }
    }

    /// Named values of class `misc`.
    pub fn named(entries: Vec<(Name, Value)>) -> Kstat {
        Kstat::new("misc", KstatBody::Named(entries))
    }

    /// Unsigned numbers of class `misc`.
    pub fn numbers(entries: impl IntoIterator<Item = (&'static str, u64)>) -> Kstat {
        let named = entries.into_iter().map(|(n, v)| (Cow::Borrowed(n), Value::U64(v)));
        Kstat::named(named.collect())
    }

    /// The named values; none for texts.
    pub fn entries(&self) -> &[(Name, Value)] {
        match &self.body {
            KstatBody::Named(entries) => entries,
            KstatBody::Raw(_) | KstatBody::Text(_) => &[],
        }
    }

    /// A named value.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.entries().iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// A named number; `None` if it is absent or a string.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name).and_then(Value::as_u64)
    }
}
