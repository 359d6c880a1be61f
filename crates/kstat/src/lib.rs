//! Kernel statistics without a kernel: counters, and one registry that shows them.
//!
//! # Theory
//! A [`Counter`] is a row of cells, each on cache lines of its own; a thread adds
//! to the cell that it drew when it first counted something, a reader sums them.
//! A [`Registry`] holds *sources* under the paths that they have below
//! `/proc/spl/kstat/zfs`; a source makes a [`Kstat`], a picture of one file, only
//! when somebody reads it, so that statistics nobody looks at cost their counters
//! and nothing else. One picture is written as Linux's text ([`text`]), as
//! Solaris's `kstat` prints it ([`solaris`]), as Prometheus's text
//! ([`prometheus`]) or as JSON ([`json`]).
//!
//! # Invariants
//! * A counter never loses an addition; a sum read while others add is between
//!   the sums before and after.
//! * The registry holds its sources' owners weakly: a source goes with its owner.
//! * Parsing a foreign kstat file never panics and takes memory in proportion to
//!   the file.
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
    /// Type 7, or type 0 where it is short.
    Str(String),
}

impl Value {
    /// The number of its type in the second column (chapter 09 §6.1).
    pub fn type_number(&self) -> u8 {
        match self {
            Value::I32(_) => 1,
            Value::U32(_) => 2,
            Value::I64(_) => 3,
            Value::U64(_) => 4,
            Value::Str(_) => 7,
        }
    }

    /// The value as an unsigned number; negative ones are 0, words `None`.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_i128().map(|n| u64::try_from(n.max(0)).unwrap_or(u64::MAX))
    }

    /// The value as a number of either sign.
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

/// What a kstat holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Named values, in order.
    Named(Vec<(Name, Value)>),
    /// A text behind the line of numbers that named kstats have as well.
    Raw(String),
    /// A text and nothing else.
    Text(String),
}

/// One kstat at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kstat {
    /// Solaris's class; `misc`, or `dataset`.
    pub class: Name,
    /// What it holds.
    pub body: Body,
    /// Its number in the registry.
    pub kid: u32,
    /// When it was made, nanoseconds since the registry began.
    pub crtime: u64,
    /// When it was read, nanoseconds since the registry began.
    pub snaptime: u64,
}

impl Kstat {
    /// A picture with this body; the registry fills in number and times.
    pub fn new(class: impl Into<Name>, body: Body) -> Kstat {
        Kstat { class: class.into(), body, kid: 0, crtime: 0, snaptime: 0 }
    }

    /// Named values of class `misc`.
    pub fn named(entries: Vec<(Name, Value)>) -> Kstat {
        Kstat::new("misc", Body::Named(entries))
    }

    /// Unsigned numbers of class `misc`.
    pub fn numbers(entries: impl IntoIterator<Item = (&'static str, u64)>) -> Kstat {
        let named = entries.into_iter().map(|(n, v)| (Cow::Borrowed(n), Value::U64(v)));
        Kstat::named(named.collect())
    }

    /// The named values; none for texts.
    pub fn entries(&self) -> &[(Name, Value)] {
        match &self.body {
            Body::Named(entries) => entries,
            Body::Raw(_) | Body::Text(_) => &[],
        }
    }

    /// A named value.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.entries().iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// A named number; absent ones and words are `None`.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name).and_then(Value::as_u64)
    }
}
