//! Pools: discovery, import, the MOS, space maps, history.
