//! The attributes of an object: changed in place, or with a new layout.
//!
//! # Theory
//! A [`Patch`] changes attributes of fixed size in place. It is applied to the bonus of
//! each txg from the transaction's on, so it commutes with others ([`AttrOp::Max`],
//! [`AttrOp::Or`]). An [`AttrList`] has all attributes in order; storing it divides them
//! between bonus and spill block as OpenZFS does (chapter 06 §4.4). The layouts that this
//! needs are registered first, in a transaction of their own.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use base::{Error, ObjectId, Result};
use dmu::{Object, Objset, Tx, Zap, zaps};
use ondisk::acl::{encode_aces, parse_aces};
use ondisk::sa::{Sa, SaBuffer, SaTables, SwapClass, ZplAttr, encode_buffer, place};
use ondisk::zap::ZapValue;
use ondisk::znode::Time;
use ondisk::{Endian, ObjType};

use crate::attrs::{Attrs, legacy};
use crate::fs::FileSystem;

/// Bytes of a dnode besides its bonus: the header and one pointer.
const DNODE_REST: usize = 192;
/// Bytes that a registration makes dirty: blocks of a table, and of a dnode.
const REGISTER: u64 = 128 << 10;
/// Attributes that every file has in its bonus (chapter 06 §4.5); changed in place.
const IN_PLACE: [ZplAttr; 12] = [
    ZplAttr::Mode,
    ZplAttr::Size,
    ZplAttr::Gen,
    ZplAttr::Uid,
    ZplAttr::Gid,
    ZplAttr::Parent,
    ZplAttr::Flags,
    ZplAttr::Atime,
    ZplAttr::Mtime,
    ZplAttr::Ctime,
    ZplAttr::Crtime,
    ZplAttr::Links,
];

/// The current state of an object that is a file.
pub(crate) struct FileNode {
    pub(crate) id: ObjectId,
    pub(crate) object: Object,
    pub(crate) attrs: Attrs,
    /// A structure from before version 5 instead of system attributes.
    pub(crate) legacy: bool,
}

/// A change of one attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AttrOp {
    Set(u64),
    Max(u64),
    Add(i64),
    Or(u64),
    AndNot(u64),
    Time(Time),
}

impl AttrOp {
    fn apply(self, bytes: &mut [u8], endian: Endian) -> Option<()> {
        let (first, rest) = bytes.split_first_chunk_mut::<8>()?;
        let swap = |word: u64| if endian == Endian::Little { word } else { word.swap_bytes() };
        let old = swap(u64::from_le_bytes(*first));
        let new = match self {
            AttrOp::Set(word) => word,
            AttrOp::Max(word) => old.max(word),
            AttrOp::Add(delta) => old.saturating_add_signed(delta),
            AttrOp::Or(bits) => old | bits,
            AttrOp::AndNot(bits) => old & !bits,
            AttrOp::Time(time) => {
                let second = rest.first_chunk_mut::<8>()?;
                *second = swap(time.nanoseconds).to_le_bytes();
                time.seconds as u64
            }
        };
        *first = swap(new).to_le_bytes();
        Some(())
    }
}

/// Changes of attributes in place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patch(Vec<(ZplAttr, AttrOp)>);

impl Patch {
    pub(crate) fn new() -> Patch {
        Patch::default()
    }

    pub(crate) fn and(mut self, attr: ZplAttr, what: AttrOp) -> Patch {
        self.0.push((attr, what));
        self
    }

    pub(crate) fn push(&mut self, attr: ZplAttr, what: AttrOp) {
        self.0.push((attr, what));
    }

    /// Time of modification and of change, with the flags that follow (§5.2).
    pub(crate) fn modified(self, now: Time) -> Patch {
        let flags = ondisk::znode::ZFS_ARCHIVE | ondisk::znode::ZFS_AV_MODIFIED;
        self.and(ZplAttr::Mtime, AttrOp::Time(now))
            .and(ZplAttr::Ctime, AttrOp::Time(now))
            .and(ZplAttr::Flags, AttrOp::Or(flags))
    }

    /// Time of change, with the flag that follows.
    pub(crate) fn changed(self, now: Time) -> Patch {
        self.and(ZplAttr::Ctime, AttrOp::Time(now))
            .and(ZplAttr::Flags, AttrOp::Or(ondisk::znode::ZFS_ARCHIVE))
    }

    pub(crate) fn mentions(&self, attr: ZplAttr) -> bool {
        self.0.iter().any(|(a, _)| *a == attr)
    }

    fn to_znode(&self, bonus: &mut [u8]) -> Result<()> {
        for (attr, what) in &self.0 {
            let at = legacy_offset(*attr).and_then(|at| bonus.get_mut(at..));
            at.and_then(|bytes| what.apply(bytes, Endian::Little)).ok_or_else(|| odd(*attr))?;
        }
        Ok(())
    }

    fn to_sa(&self, bonus: &mut [u8], tables: &SaTables) -> Result<()> {
        let mut places = [const { None }; ZplAttr::ALL.len()];
        for item in SaBuffer::parse(bonus, tables)?.iter() {
            if let Some(attr) = item.attr {
                let range = item.offset..item.offset + item.bytes.len();
                places[attr as usize].get_or_insert((range, item.endian));
            }
        }
        for (attr, what) in &self.0 {
            let (range, endian) = places[*attr as usize].clone().ok_or_else(|| odd(*attr))?;
            let bytes = bonus.get_mut(range).ok_or_else(|| odd(*attr))?;
            what.apply(bytes, endian).ok_or_else(|| odd(*attr))?;
        }
        Ok(())
    }
}

fn odd(attr: ZplAttr) -> Error {
    Error::corrupt(format!("the attribute {} is not where it must be", attr.name()))
}

/// Offset of an attribute in a znode of before version 5 (§6).
fn legacy_offset(attr: ZplAttr) -> Option<usize> {
    Some(match attr {
        ZplAttr::Atime => 0,
        ZplAttr::Mtime => 16,
        ZplAttr::Ctime => 32,
        ZplAttr::Crtime => 48,
        ZplAttr::Gen => 64,
        ZplAttr::Mode => 72,
        ZplAttr::Size => 80,
        ZplAttr::Parent => 88,
        ZplAttr::Links => 96,
        ZplAttr::Xattr => 104,
        ZplAttr::Rdev => 112,
        ZplAttr::Flags => 120,
        ZplAttr::Uid => 128,
        ZplAttr::Gid => 136,
        _ => return None,
    })
}

pub(crate) fn words(list: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 * list.len());
    list.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    bytes
}

/// The value of an attribute, little endian; most are a number or a time.
#[derive(Clone, Debug)]
pub(crate) enum AttrValue {
    Word([u8; 8]),
    Time([u8; 16]),
    Bytes(Vec<u8>),
}

impl AttrValue {
    pub(crate) fn word(word: u64) -> AttrValue {
        AttrValue::Word(word.to_le_bytes())
    }

    pub(crate) fn time(time: Time) -> AttrValue {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&time.seconds.to_le_bytes());
        bytes[8..].copy_from_slice(&time.nanoseconds.to_le_bytes());
        AttrValue::Time(bytes)
    }
}

impl From<Vec<u8>> for AttrValue {
    fn from(bytes: Vec<u8>) -> AttrValue {
        AttrValue::Bytes(bytes)
    }
}

impl Deref for AttrValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            AttrValue::Word(bytes) => bytes,
            AttrValue::Time(bytes) => bytes,
            AttrValue::Bytes(bytes) => bytes,
        }
    }
}

impl DerefMut for AttrValue {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            AttrValue::Word(bytes) => bytes,
            AttrValue::Time(bytes) => bytes,
            AttrValue::Bytes(bytes) => bytes,
        }
    }
}

/// All attributes of an object, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttrList(Vec<(u16, AttrValue)>);

/// How a list is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttrPlan {
    in_bonus: usize,
    bonus_len: usize,
}

impl AttrPlan {
    /// Whether all of the list is in the bonus.
    pub(crate) fn is_whole(&self, list: &AttrList) -> bool {
        self.in_bonus >= list.0.len()
    }
}

impl AttrList {
    pub(crate) fn with_capacity(attrs: usize) -> AttrList {
        AttrList(Vec::with_capacity(attrs))
    }

    fn find(&mut self, number: u16) -> Option<&mut AttrValue> {
        self.0.iter_mut().find(|(n, _)| *n == number).map(|(_, v)| v)
    }

    pub(crate) fn get(&self, number: u16) -> Option<&[u8]> {
        self.0.iter().find(|(n, _)| *n == number).map(|(_, v)| &**v)
    }

    /// Sets a value: in place, or at the end (§4.5).
    pub(crate) fn set(&mut self, number: u16, value: impl Into<AttrValue>) {
        match self.find(number) {
            Some(old) => *old = value.into(),
            None => self.0.push((number, value.into())),
        }
    }

    /// Inserts a value behind that of another attribute: only PROJID is inserted between
    /// others.
    pub(crate) fn insert_after(
        &mut self,
        other: u16,
        number: u16,
        value: impl Into<AttrValue>,
    ) -> Result<()> {
        let at = self.0.iter().position(|(n, _)| *n == other);
        let at = at.ok_or_else(|| Error::corrupt("an attribute is missing"))?;
        self.0.insert(at + 1, (number, value.into()));
        Ok(())
    }

    pub(crate) fn apply(&mut self, tables: &SaTables, patch: &Patch) -> Result<()> {
        for (attr, what) in &patch.0 {
            let value =
                tables.number(*attr).and_then(|n| self.find(n)).ok_or_else(|| odd(*attr))?;
            what.apply(value, Endian::Little).ok_or_else(|| odd(*attr))?;
        }
        Ok(())
    }

    fn encode(&self, tables: &SaTables, plan: AttrPlan) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
        let part = |attrs: &[(u16, AttrValue)]| {
            let numbers: Vec<u16> = attrs.iter().map(|a| a.0).collect();
            let values: Vec<&[u8]> = attrs.iter().map(|a| &*a.1).collect();
            let layout = tables.find_layout(&numbers);
            let layout = layout.ok_or_else(|| base::bug!("a layout was not registered"))?;
            encode_buffer(tables, layout, &values)
        };
        let (bonus, spill) = self.0.split_at(plan.in_bonus.min(self.0.len()));
        let mut bonus = part(bonus)?;
        bonus.resize(plan.bonus_len.max(bonus.len()), 0);
        if spill.is_empty() {
            return Ok((bonus, None));
        }
        let mut spill = part(spill)?;
        spill.resize(spill.len().next_multiple_of(512), 0);
        Ok((bonus, Some(spill)))
    }
}

/// A value in little-endian order.
fn little(bytes: &[u8], endian: Endian, class: SwapClass) -> Result<Vec<u8>> {
    let mut out = bytes.to_vec();
    if endian == Endian::Little {
        return Ok(out);
    }
    let width = match class {
        SwapClass::Bytes => 1,
        SwapClass::U16 => 2,
        SwapClass::U32 => 4,
        SwapClass::U64 => 8,
        SwapClass::Acl => {
            // The number of entries is another attribute: as many as the bytes have.
            let most = (bytes.len() / 8) as u64;
            let all = (0..=most).rev().find_map(|n| parse_aces(bytes, n, endian).ok());
            return all.map(|a| encode_aces(&a)).ok_or_else(|| Error::corrupt("damaged ACL"));
        }
    };
    out.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    Ok(out)
}

impl FileSystem {
    pub(crate) fn os(&self) -> &Arc<Objset> {
        self.objset()
    }

    /// A file to be changed; the caller holds its lock.
    ///
    /// # Errors
    /// As [`FileSystem::attrs`]; `Corrupt` for attributes in an unknown order.
    pub(crate) fn node(&self, id: ObjectId) -> Result<FileNode> {
        let object = self.object(id, self.io())?;
        let (attrs, in_bonus) = self.attrs_in(&object, self.io())?;
        let legacy = object.dnode().bonus_type != ObjType::SA;
        let absent = |attr: &&ZplAttr| in_bonus & 1 << **attr as u32 == 0;
        if !legacy && let Some(attr) = IN_PLACE.iter().find(absent) {
            return Err(odd(*attr).in_object(id));
        }
        Ok(FileNode { id, object, attrs, legacy })
    }

    /// Changes attributes in place, with the pending time of access if there is one.
    pub(crate) fn patch(&self, tx: &Tx, node: &FileNode, patch: &Patch) -> Result<()> {
        self.patch_id(tx, node.id, node.legacy, patch)
    }

    pub(crate) fn patch_id(
        &self,
        tx: &Tx,
        id: ObjectId,
        legacy: bool,
        patch: &Patch,
    ) -> Result<()> {
        let time = self.rw_part().and_then(|rw| rw.times.take(id));
        let timed = time.filter(|_| !patch.mentions(ZplAttr::Atime));
        let timed = timed.map(|time| patch.clone().and(ZplAttr::Atime, AttrOp::Time(time)));
        let patch = timed.as_ref().unwrap_or(patch);
        self.touch(tx, id);
        let tables = self.tables();
        let mut result = Ok(());
        self.os().edit_bonus(tx, id, &mut |bonus| {
            let done = if legacy { patch.to_znode(bonus) } else { patch.to_sa(bonus, &tables) };
            if let Err(e) = done {
                result = Err(e);
            }
        })?;
        result.map_err(|e| e.in_object(id))
    }

    /// Every attribute of an object.
    ///
    /// # Errors
    /// `Corrupt`, those of reading the spill block.
    pub(crate) fn attr_list(&self, object: &Object) -> Result<AttrList> {
        let tables = self.tables();
        let spill = object.spill(self.io())?.map(|(buf, _)| buf);
        let sa = Sa::parse(&object.dnode().bonus, spill.as_deref(), &tables)?;
        let mut list = AttrList::default();
        for item in sa.iter() {
            let class = tables.attr(item.number).map_or(SwapClass::Bytes, |a| a.class);
            list.0.push((item.number, little(item.bytes, item.endian, class)?.into()));
        }
        Ok(list)
    }

    /// Divides a list for a dnode with this number of slots, and registers the layouts that
    /// it needs. The caller must not have a transaction open.
    ///
    /// # Errors
    /// `TooLarge` beyond 128 KiB, `Limit` without a free layout, those of writing tables.
    pub(crate) fn plan(&self, list: &AttrList, slots: u8) -> Result<AttrPlan> {
        let full = usize::from(slots.max(1)) * 512 - DNODE_REST;
        let tables = self.tables();
        let size = |(number, value): &(u16, AttrValue)| {
            let variable = tables.attr(*number).is_some_and(|a| a.length == 0);
            (value.len(), variable)
        };
        let sizes: Vec<_> = list.0.iter().map(size).collect();
        let placed = place(&sizes, full).map_err(|e| e.with_kind(base::ErrorKind::TooLarge))?;
        let numbers: Vec<u16> = list.0.iter().map(|a| a.0).collect();
        let (bonus, spill) = numbers.split_at(placed.in_bonus.min(numbers.len()));
        self.ensure_layout(bonus)?;
        self.ensure_layout(spill)?;
        Ok(AttrPlan { in_bonus: placed.in_bonus, bonus_len: placed.bonus_len })
    }

    /// Stores a list; it was planned with the same lengths.
    pub(crate) fn store(
        &self,
        tx: &Tx,
        id: ObjectId,
        list: &AttrList,
        plan: AttrPlan,
    ) -> Result<()> {
        let (bonus, spill) = list.encode(&self.tables(), plan)?;
        let rw = self.rw_always()?;
        let _turn = rw.seqlock.write(id);
        self.touch(tx, id);
        let os = self.os();
        match spill {
            Some(spill) => {
                os.set_bonus(tx, id, &bonus)?;
                os.set_spill(tx, id, Some(&spill))
            }
            None => {
                if os.object(id, self.io())?.has_spill(self.io())? {
                    os.set_spill(tx, id, None)?;
                }
                os.set_bonus(tx, id, &bonus)
            }
        }
    }

    /// Bonus and spill block of a new object.
    pub(crate) fn encode(
        &self,
        list: &AttrList,
        plan: AttrPlan,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
        list.encode(&self.tables(), plan)
    }

    /// A table below the SA master node.
    fn table(&self, name: &str) -> Result<ObjectId> {
        let none = || Error::corrupt("there are no tables of system attributes");
        let master = self.props().sa_attrs.ok_or_else(none)?;
        let zap = Zap::open(self.object(master, self.io())?, self.io())?;
        zap.lookup_u64(name)?.map(ObjectId).ok_or_else(none)
    }

    fn ensure_layout(&self, numbers: &[u16]) -> Result<()> {
        if self.tables().find_layout(numbers).is_some() {
            return Ok(());
        }
        let rw = self.rw_always()?;
        let _layouts = rw.layouts.lock();
        let tables = self.tables();
        if tables.find_layout(numbers).is_some() {
            return Ok(());
        }
        let full = || Error::limit("there is no number for one more layout of attributes");
        let mut number = tables.next_layout().ok_or_else(full)?;
        // The table may have gaps: use a number behind them.
        while tables.layout(number).is_some() {
            number += 1;
        }
        let mut more = (*tables).clone();
        more.add_layout(number, numbers).map_err(|e| e.with_kind(base::ErrorKind::Limit))?;
        let value = ZapValue::from_u16s(numbers).ok_or_else(full)?;
        let table = self.table("LAYOUTS")?;
        let tx = self.begin_tx(REGISTER, false)?;
        zaps::add(self.os(), &tx, table, number.to_string().as_bytes(), &value)?;
        self.set_tables(more);
        Ok(())
    }

    /// The number of an attribute; registers it in an object set of an older writer. The
    /// caller must not have a transaction open.
    ///
    /// # Errors
    /// Those of writing the registry.
    pub(crate) fn ensure_attr(&self, attr: ZplAttr) -> Result<u16> {
        if let Some(number) = self.tables().number(attr) {
            return Ok(number);
        }
        let rw = self.rw_always()?;
        let _layouts = rw.layouts.lock();
        let mut tables = (*self.tables()).clone();
        if let Some(number) = tables.number(attr) {
            return Ok(number);
        }
        let added = tables.add_known(attr)?;
        let table = self.table("REGISTRY")?;
        let tx = self.begin_tx(REGISTER, false)?;
        let value = ZapValue::from_u64(added.encode());
        zaps::add(self.os(), &tx, table, &added.name, &value)?;
        self.set_tables(tables);
        Ok(added.number)
    }

    /// An external ACL of an object from before version 5.
    pub(crate) fn external_acl(&self, node: &FileNode) -> Result<Option<ObjectId>> {
        let Some(znode) = legacy(&node.object)? else { return Ok(None) };
        Ok(match znode.acl {
            ondisk::znode::ZnodeAcl::External { object, .. } => Some(ObjectId(object)),
            _ => None,
        })
    }
}
