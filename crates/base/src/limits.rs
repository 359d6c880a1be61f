//! Limits on everything that a disk, a socket or a caller could make large.
//! `docs/limits.md` lists them for administrators.

/// Largest logical or physical block: 16 MiB (chapter 02 §2.1).
pub const BLOCK_SIZE_MAX: u64 = 16 << 20;
/// Largest single buffer: a block plus raidz or sector rounding.
pub const BUF_SIZE_MAX: usize = 64 << 20;
/// Smallest leaf device that can hold a pool: 64 MiB (chapter 01 §1).
pub const LEAF_SIZE_MIN: u64 = 64 << 20;
/// Nesting of a packed nvlist (chapter 01 §9.3).
pub const NVLIST_DEPTH_MAX: usize = 20;
/// Pairs in one packed nvlist, nested ones included.
pub const NVLIST_PAIRS_MAX: usize = 1 << 20;
/// Bytes of one packed nvlist accepted from a device or a MOS object.
pub const NVLIST_SIZE_MAX: usize = 64 << 20;
/// Levels of indirection in one object's tree (chapter 03).
pub const DNODE_LEVELS_MAX: u8 = 12;
/// Gang headers nested below one leader.
pub const GANG_DEPTH_MAX: usize = 8;
/// Depth of the vdev tree in a configuration.
pub const VDEV_DEPTH_MAX: usize = 8;
/// Vdevs in one pool, interior ones included.
pub const VDEV_COUNT_MAX: usize = 65_536;
/// Indirect-vdev hops one address may take.
pub const INDIRECT_HOPS_MAX: usize = 64;
/// Depth of the dataset tree.
pub const DATASET_DEPTH_MAX: usize = 50;
/// Bytes in a full dataset or snapshot name, the terminating NUL excluded.
pub const DATASET_NAME_MAX: usize = 255;
/// Bytes in one file name.
pub const FILE_NAME_MAX: usize = 255;
/// Directory components followed in one path.
pub const PATH_DEPTH_MAX: usize = 2_048;
/// Bytes of extended attributes returned for one name.
pub const XATTR_SIZE_MAX: usize = 64 << 20;
