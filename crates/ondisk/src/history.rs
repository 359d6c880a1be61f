//! Pool history.
