//! Kstats, tunables and the cache's curve on the wire.

use cenote::kstat::{Kstat, KstatBody, Value};
use serde::{Deserialize, Serialize};

/// Kstats in one request.
pub const BATCH_MAX: usize = 1024;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StatValue {
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    Str(String),
}

/// The content of a kstat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StatBody {
    Named(Vec<(String, StatValue)>),
    Raw(String),
    Text(String),
}

/// A kstat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Where it is registered.
    pub path: String,
    /// Its class, as in Solaris.
    pub class: String,
    /// Its content.
    pub body: StatBody,
    /// Its id.
    pub kid: u32,
    /// Time of its creation, nanoseconds.
    pub crtime: u64,
    /// Time of its reading, nanoseconds.
    pub snaptime: u64,
}

impl From<Value> for StatValue {
    fn from(v: Value) -> StatValue {
        match v {
            Value::I32(n) => StatValue::I32(n),
            Value::U32(n) => StatValue::U32(n),
            Value::I64(n) => StatValue::I64(n),
            Value::U64(n) => StatValue::U64(n),
            Value::Str(s) => StatValue::Str(s),
        }
    }
}

impl From<StatValue> for Value {
    fn from(v: StatValue) -> Value {
        match v {
            StatValue::I32(n) => Value::I32(n),
            StatValue::U32(n) => Value::U32(n),
            StatValue::I64(n) => Value::I64(n),
            StatValue::U64(n) => Value::U64(n),
            StatValue::Str(s) => Value::Str(s),
        }
    }
}

impl Stat {
    /// A kstat, for the wire.
    pub fn new(path: String, k: Kstat) -> Stat {
        let body = match k.body {
            KstatBody::Named(rows) => {
                StatBody::Named(rows.into_iter().map(|(n, v)| (n.into_owned(), v.into())).collect())
            }
            KstatBody::Raw(text) => StatBody::Raw(text),
            KstatBody::Text(text) => StatBody::Text(text),
        };
        let class = k.class.into_owned();
        Stat { path, class, body, kid: k.kid, crtime: k.crtime, snaptime: k.snaptime }
    }

    /// Path and kstat.
    pub fn into_kstat(self) -> (String, Kstat) {
        let body = match self.body {
            StatBody::Named(rows) => {
                KstatBody::Named(rows.into_iter().map(|(n, v)| (n.into(), v.into())).collect())
            }
            StatBody::Raw(text) => KstatBody::Raw(text),
            StatBody::Text(text) => KstatBody::Text(text),
        };
        let (kid, crtime, snaptime) = (self.kid, self.crtime, self.snaptime);
        (self.path, Kstat { class: self.class.into(), body, kid, crtime, snaptime })
    }
}

/// A tunable, described.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunableInfo {
    /// Its name in OpenZFS on Linux.
    pub name: String,
    /// Its names in OpenZFS on FreeBSD.
    pub freebsd: Vec<String>,
    /// What it does.
    pub what: String,
    /// Its value; 0 where it depends on the machine.
    pub value: u64,
    /// The value as text.
    pub shown: String,
    /// The value 0 stands for one that depends on the machine.
    pub automatic: bool,
    /// The value in effect.
    pub in_effect: u64,
    /// The value in effect, as text.
    pub in_effect_shown: String,
    /// The default, as text.
    pub default: String,
    /// The range, as text.
    pub range: String,
}

impl TunableInfo {
    /// A tunable of an engine.
    pub fn new(t: &cenote::tune::Tunable, engine: &cenote::Engine) -> TunableInfo {
        let (value, in_effect) = (t.get(engine), t.in_effect(engine));
        let words = |n: u64| {
            if n == 0 && t.automatic { "0 (automatic)".to_owned() } else { t.show(n) }
        };
        TunableInfo {
            name: t.name.to_owned(),
            freebsd: cenote::tune::freebsd_names(t.name),
            what: t.what.to_owned(),
            value,
            shown: words(value),
            automatic: t.automatic,
            in_effect,
            in_effect_shown: t.show(in_effect),
            default: words(t.default_value()),
            range: t.range_text(),
        }
    }
}

/// The hit ratios expected at another size of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// The size, relative to the present target size.
    pub multiple: f64,
    /// For data, 0 to 1.
    pub data: Option<f64>,
    /// For metadata, 0 to 1.
    pub metadata: Option<f64>,
}

impl From<cenote::WhatIfPoint> for WhatIf {
    fn from(p: cenote::WhatIfPoint) -> WhatIf {
        WhatIf { multiple: p.multiple, data: p.data, metadata: p.metadata }
    }
}
