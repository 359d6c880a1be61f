//! Objects: dnodes, object sets, indirect trees, ZAP, traversal.
