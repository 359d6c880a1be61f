//! Device removal: mapping, births, state.
