//! Helpers to build property values.

use base::Result;
use dsl::props::{PropData, PropValue, Source};

/// A computed number without a source.
pub(crate) fn number(n: u64) -> Result<Option<PropValue>> {
    Ok(Some(PropValue { value: PropData::Num(n), source: Source::None, received: None }))
}

/// A computed text.
pub(crate) fn text(s: impl Into<String>) -> Result<Option<PropValue>> {
    Ok(Some(PropValue { value: PropData::Str(s.into()), source: Source::None, received: None }))
}

/// A value with its source.
pub(crate) fn with_source(value: PropData, source: Source) -> Result<Option<PropValue>> {
    Ok(Some(PropValue { value, source, received: None }))
}

/// No value, without a source.
pub(crate) fn absent() -> Result<Option<PropValue>> {
    Ok(Some(PropValue::default()))
}

/// The ratio of uncompressed to compressed size, in hundredths.
pub(crate) fn ratio(uncompressed: u64, compressed: u64) -> u64 {
    if compressed == 0 {
        return 100;
    }
    (u128::from(uncompressed) * 100 / u128::from(compressed)) as u64
}
